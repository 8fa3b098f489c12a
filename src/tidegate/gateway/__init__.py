"""The gateway: builds the house in order, runs it, closes it in reverse.

What the command line needs to speak to a running gateway is light and imported here; the house itself is imported when
one is run.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.gateway.control_client import ControlUnanswered, ask
from tidegate.gateway.hint import hint
from tidegate.gateway.lock import Holder, HomeHeld, HomeLock, holder_of
from tidegate.gateway.unready import Unready

if TYPE_CHECKING:
    from tidegate.config import Config
    from tidegate.gateway.preflight.preflight import Ready

__all__ = [
    "ControlUnanswered",
    "Holder",
    "HomeHeld",
    "HomeLock",
    "Unready",
    "ask",
    "examine",
    "hint",
    "holder_of",
    "lost_database",
    "run",
    "settings",
]


def run(
    home: Path,
    *,
    port: int | None = None,
    replace: bool = False,
    record: Path | None = None,
    replay: Path | None = None,
    say: Callable[[str], None],
) -> None:
    """Run a gateway on this home folder until it is told to stop; `say` is given what a person should read. `record`
    and `replay` are files for the model traffic."""
    from tidegate.gateway.memory.allocator import tune

    tune()
    from tidegate.gateway.process import run_process

    run_process(home, port=port, replace=replace, record=record, replay=replay, say=say)


def lost_database(home: Path) -> str | None:
    """What to do when the database of a used home folder is missing or empty; None when it is there."""
    from tidegate.gateway import home as home_folder

    return home_folder.lost_database(home)


def settings(home: Path) -> "Config":
    """The configuration of this home folder; errors name the file's full path."""
    from tidegate.gateway.preflight import preflight

    return preflight.settings(home)


def examine(home: Path) -> "Ready":
    """What a gateway started here and now would be built from. Raises `Unready` if it would refuse to start."""
    from tidegate.gateway.preflight import preflight

    return preflight.examine(home, os.environ)
