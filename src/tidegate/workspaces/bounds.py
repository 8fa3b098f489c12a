"""Limits that apply to all workspaces and are not settings."""

from tidegate.values import Frozen


class WorkspaceBounds(Frozen, frozen=True):
    idle_seconds: float = 60.0
    """Seconds after which an idle sandbox is closed; opening it again takes milliseconds and loses nothing."""
    idle_sandboxes: int = 64
    """Number of idle sandboxes that are kept open. If there are more, the least recently used ones are closed
    earlier."""
    quick_seconds: float = 0.02
    """A disk measurement that takes no longer than this (a few thousand files) is repeated whenever needed."""
    measure_again: float = 30.0
    """After a slower measurement, the next one is delayed by this many times its duration, so that measuring takes only
    a few percent of the time."""
    stop_grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL for a background process."""
    write_seconds: float = 10.0
    """Time limit for a background process to read its input."""
    pace_bytes: int = 8 * 1024 * 1024
    """Number of bytes read per second from one background process, so that endless output costs only a few percent of a
    core."""


DEFAULT_BOUNDS = WorkspaceBounds()
