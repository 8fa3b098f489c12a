"""The root of the command line: finds the command, maps errors to sentences and exit codes."""

import errno
import importlib
import os
import sys
from typing import Any

import click

from tidegate.cli.output import guard_terminal, plain
from tidegate.errors import TidegateError

COMMANDS = {
    "up": "Start the gateway in this terminal.",
    "stop": "Stop the running gateway in an orderly way.",
    "status": "Show what the running gateway does and holds.",
    "chat": "Talk to an agent of the running gateway.",
    "sessions": "List, show, reload, end, delete or export conversations; their settings.",
    "usage": "Show what models have used and cost, and the budgets.",
    "memory": "List or edit what is remembered of people and agents' work.",
    "approvals": "List or answer what agents wait for: approvals and questions.",
    "audit": "Show the audit log: who did what, when, with what outcome.",
    "keys": "Add, list or revoke keys for the HTTP API.",
    "browsers": "List signed-in browsers or sign them out.",
    "models": "List the configured models and what is known of them.",
    "skills": "List the skills of the agents, and what is wrong with those left out.",
    "projects": "List or accept what prompts take from shared project folders.",
    "config": "Check or show the configuration.",
    "doctor": "Look for what could keep the gateway from working.",
    "version": "Show the version.",
}

_OF_COMMANDS = ("--home", "--json")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Commands(click.Group):
    """Imports the module of a command only when that command is asked for; help needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = importlib.import_module(f"tidegate.cli.{name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        early = args[0].partition("=")[0] if args else ""
        if early in _OF_COMMANDS:
            raise click.UsageError(f"{early} stands after the command: tidegate COMMAND {early} …", ctx)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """Tidegate: an agent gateway that stays level."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    guard_terminal()
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        result: Any = root.main(args=arguments, prog_name="tidegate", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.UsageError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _sentence(error.format_message())
    except TidegateError as error:
        return _sentence(error.message)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        _give_up_output()  # who read it has left; nobody is there to be told
        return 1
    except OSError as error:
        if error.filename is None and error.errno in _NO_ROOM:
            _give_up_output()
            return _sentence(f"Nothing more can be written ({error.strerror}): make room for it.")
        if isinstance(error, PermissionError | NotADirectoryError) and error.filename is not None:
            return _sentence(f"{error.filename} cannot be used ({error.strerror}): correct it, or choose another.")
        raise


def _give_up_output() -> None:
    """The interpreter must not try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _sentence(text: str) -> int:
    print(f"tidegate: {plain(text)}", file=sys.stderr)
    return 1
