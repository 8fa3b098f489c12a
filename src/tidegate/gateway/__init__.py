"""The gateway process: builds every service in order, runs them, and closes them in reverse order.

The functions with which the CLI talks to a running gateway are lightweight and imported here. The gateway
itself is imported only when it is run.
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
    """Runs a gateway with this home folder until it receives a stop request. `say` is called with each line meant for
    the user. If given, `record` is the file in which model traffic is recorded, and
    `replay` the file from which it is replayed."""
    from tidegate.gateway.process_memory.allocator import tune

    tune()
    from tidegate.gateway.process import run_process

    run_process(home, port=port, replace=replace, record=record, replay=replay, say=say)


def lost_database(home: Path) -> str | None:
    """Returns instructions for the user if the database of a used home folder is missing or empty, else None."""
    from tidegate.gateway import home as home_folder

    return home_folder.lost_database(home)


def settings(home: Path) -> "Config":
    """Reads the configuration in this home folder. Error messages include the file's full path."""
    from tidegate.gateway.preflight import preflight

    return preflight.settings(home)


def examine(home: Path) -> "Ready":
    """Runs the checks that precede a start. Returns everything from which a gateway is built, or raises
    `PreflightFailed`."""
    from tidegate.gateway.preflight import preflight

    return preflight.examine(home, os.environ)
