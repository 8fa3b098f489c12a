"""Bounds that apply to all workspaces and are not settings."""

from tidegate.values import Frozen


class WorkspaceBounds(Frozen, frozen=True):
    idle_seconds: float = 60.0
    """An idle sandbox is closed after this time; opening it again takes milliseconds and loses nothing."""
    idle_sandboxes: int = 64
    """The number of idle sandboxes that are kept open. If there are more, the least recently used are closed
    earlier."""
    quick_seconds: float = 0.02
    """A measurement of the disk that takes no longer than this (a few thousand files) is repeated whenever it is
    needed."""
    measure_again: float = 30.0
    """After a slower measurement, the next one waits this many times its duration, so that measuring takes only a few
    percent of the time."""
    stop_grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL for a background process."""
    write_seconds: float = 10.0
    """Time limit for a background process to read its input."""
    pace_bytes: int = 8 * 1024 * 1024
    """Output read from one background process per second. Endless output then costs a few percent of a core."""


DEFAULT_BOUNDS = WorkspaceBounds()
