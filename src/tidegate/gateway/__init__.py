"""The gateway process: builds every service in order, runs them, closes them in reverse order.

The command line's tools for talking to a running gateway are light and imported here. The gateway itself is imported
only when one is run.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.gateway.control_client import ControlUnanswered, ask
from tidegate.gateway.lock import Holder, HomeHeld, HomeLock, command_hint, holder_of
from tidegate.gateway.preflight import PreflightFailed

if TYPE_CHECKING:
    from tidegate.config import Config
    from tidegate.gateway.preflight.preflight import Ready

__all__ = [
    "ControlUnanswered",
    "Holder",
    "HomeHeld",
    "HomeLock",
    "PreflightFailed",
    "ask",
    "command_hint",
    "examine",
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
    """Run a gateway with this home folder until it is asked to stop. `say` is called with each line meant for the
    user. Model traffic is recorded in the file `record`, or replayed from the file `replay`, if one is given."""
    from tidegate.gateway.process_memory.allocator import tune

    tune()
    from tidegate.gateway.process import run_process

    run_process(home, port=port, replace=replace, record=record, replay=replay, say=say)


def lost_database(home: Path) -> str | None:
    """Instructions if the database of a used home folder is missing or empty; None if it is present."""
    from tidegate.gateway import home as home_folder

    return home_folder.lost_database(home)


def settings(home: Path) -> "Config":
    """The configuration of this home folder; errors name the file's full path."""
    from tidegate.gateway.preflight import preflight

    return preflight.settings(home)


def examine(home: Path) -> "Ready":
    """Run the checks of a start. Returns what a gateway would be built from, or raises `PreflightFailed`."""
    from tidegate.gateway.preflight import preflight

    return preflight.examine(home, os.environ)
