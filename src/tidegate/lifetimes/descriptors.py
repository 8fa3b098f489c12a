"""The process's file descriptors: how many it may open, and a reserve for what must work when none is left.

Guarantee: the reserve is kept by the kernel. The soft limit stays that much below the real one, so that nothing else
can use it up. `reserve` lifts the limit for the time of a block, for answers about the gateway itself, and `lift` for
good, for the orderly stop.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RESERVE = 32
"""Enough for the control socket, some connections that ask how the gateway is, and what their answers read."""
RESERVE_SHARE = 4
"""Where there are few descriptors, the reserve is at most this part of them."""


class Descriptors:
    """Without `keep` there is no reserve, and the limit is whatever the process was given."""

    def __init__(self) -> None:
        self._reserve = 0
        self._users = 0
        self._ordinary = 0
        self._lifted: int | None = None
        """The limit while the reserve may be used, and before. If it is another now, the operator has changed it."""

    def keep(self, wanted: int) -> None:
        """Ask for so many descriptors, of which the last are the reserve."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        if soft != resource.RLIM_INFINITY:
            most = max(soft, most)
        self._reserve = min(RESERVE, most // RESERVE_SHARE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - self._reserve, hard))

    @property
    def limit(self) -> int | None:
        """How many may be open, without the reserve; None for any number."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return None
        return self._ordinary if soft == self._lifted else soft

    @property
    def open(self) -> int:
        """How many are open now."""
        with self.reserve():
            return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # without the one that lists them

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Within this block the reserve may be used."""
        self.lift()
        try:
            yield
        finally:
            self._users -= 1
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if not self._users and soft == self._lifted:
                resource.setrlimit(resource.RLIMIT_NOFILE, (self._ordinary, hard))
                self._lifted = None

    def lift(self) -> None:
        """From now on the reserve may be used."""
        self._users += 1
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self._reserve and soft not in (self._lifted, resource.RLIM_INFINITY):
            most = soft + self._reserve
            self._ordinary, self._lifted = soft, most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._lifted, hard))
