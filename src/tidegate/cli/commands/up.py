"""`tidegate up`: runs the gateway in the foreground."""

from pathlib import Path

import click

from tidegate.cli.options import home_option

_FILE = click.Path(path_type=Path)


@click.command("up")
@home_option
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Listen on this port instead of [server] port; 0 means any free port."
)
@click.option("--replace", is_flag=True, help="Take over from the gateway that is already running on this home folder.")
@click.option("--record", type=_FILE, help="Record model traffic to this new file, without keys.")
@click.option("--replay", type=_FILE, help="Replay answers from a recording; no model is called and no key is needed.")
@click.option("--foreground", is_flag=True, default=True, hidden=True, help="The only mode, and the default.")
def command(
    home: Path, port: int | None, replace: bool, record: Path | None, replay: Path | None, foreground: bool
) -> None:
    """Start the gateway in this terminal.

    It prints `ready` with its address, and a one-time link to the chat page. Ctrl-C or `tidegate stop` stops it
    gracefully; after a second Ctrl-C it no longer waits for running turns, which continue after the next start.
    """
    from tidegate.gateway import run

    run(
        home,
        port=port,
        replace=replace,
        record=None if record is None else record.absolute(),
        replay=None if replay is None else replay.absolute(),
        say=lambda line: print(line, flush=True),
    )
