"""What is told of the commands and processes of a workspace.

Guarantee: everything here is immutable.
"""

from typing import NamedTuple

from tidegate.values import Frozen


class CommandEnd(Frozen, frozen=True):
    """How a command ended. `code` is None when it was ended for its time; negative for a signal. `left_behind` counts
    the background processes that were ended with it; `note` says what its caller should know besides."""

    code: int | None
    timed_out: bool = False
    left_behind: int = 0
    note: str = ""


class ProcessView(Frozen, frozen=True):
    """A background process. `new` is false when one of that name was running already; `bytes` is all that it has put
    out so far, also what is no longer kept."""

    name: str
    command: str
    state: str
    exit_code: int | None = None
    started: float = 0.0
    ended: float | None = None
    restart: bool = False
    notify: bool = False
    bytes: int = 0
    new: bool = True

    @property
    def live(self) -> bool:
        return self.ended is None


class OutputPage(NamedTuple):
    """A piece of a process's output. `next` is where the following one starts; `dropped` bytes before it are gone."""

    text: str
    next: int
    dropped: int = 0


class WaitResult(NamedTuple):
    """`matched` is the line in which the pattern was found; None when the time was over or the process is."""

    process: ProcessView
    matched: str | None
