"""The root command: runs the chosen command, and turns errors into messages and exit codes."""

import errno
import importlib
import os
import sys
from typing import Any

import click

from tidegate import __version__
from tidegate.cli.options import json_option
from tidegate.cli.output import guard_terminal, print_json, strip_controls
from tidegate.errors import TidegateError

COMMANDS = {
    "up": "Start the gateway in this terminal.",
    "stop": "Stop the running gateway gracefully.",
    "status": "Show the state of the running gateway.",
    "chat": "Talk to one of the running gateway's agents.",
    "sessions": "List, show, reload, end, delete or export conversations.",
    "usage": "Show tokens and cost of model calls, and the budgets.",
    "memory": "List or edit notes about users and about agents' work.",
    "approvals": "List or answer agents' approval requests and questions.",
    "audit": "Show the audit log.",
    "keys": "Add, list or revoke keys for the HTTP API.",
    "browsers": "List the browsers signed in to the chat page, or sign them out.",
    "mcp": "Add, list, test, restart, remove or import MCP servers.",
    "models": "List the configured models and their properties.",
    "skills": "List the agents' skills, and folders that were left out.",
    "projects": "List or accept prompt files in shared project folders.",
    "config": "Check or show the configuration.",
    "doctor": "Check the installation for problems.",
    "version": "Show the version.",
}

_COMMAND_OPTIONS = ("--home", "--json")
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@click.command("version")
@json_option
def version(as_json: bool) -> None:
    """Show the version."""
    print_json({"version": __version__}) if as_json else print(f"tidegate {__version__}")


class _Commands(click.Group):
    """Imports a command's module only when the command runs; `--help` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        if name == "version":
            return version
        command = importlib.import_module(f"tidegate.cli.commands.{name}").command
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
        if early in _COMMAND_OPTIONS:
            raise click.UsageError(f"{early} must come after the command: tidegate COMMAND {early} …", ctx)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """Tidegate, an agent gateway with stable memory."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits."""
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
        return _fail(error.format_message())
    except TidegateError as error:
        return _fail(error.message)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        _discard_output()  # the reader closed the pipe
        return 1
    except OSError as error:
        if error.filename is None and error.errno in _DISK_ERRORS:
            _discard_output()
            return _fail(f"The output cannot be written ({error.strerror}): free some disk space.")
        if isinstance(error, PermissionError | NotADirectoryError) and error.filename is not None:
            return _fail(f"{error.filename} cannot be used ({error.strerror}): correct it, or choose another.")
        raise


def _discard_output() -> None:
    """Keeps the interpreter from flushing standard output again on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(text: str) -> int:
    print(f"tidegate: {strip_controls(text)}", file=sys.stderr)
    return 1
