"""The limit on open file descriptors, and a reserve for requests that must work even when none are left.

The kernel enforces the reserve: the soft limit is lowered by the size of the reserve, so other code cannot use it up.
`reserve` raises the soft limit for the duration of a block, for requests about the gateway itself; `lift` raises it
permanently, for a graceful shutdown.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RESERVE = 32
"""The number of descriptors in the reserve: enough for the control socket, a few health and status connections, and the
files that must be read to serve them."""
RESERVE_SHARE = 4
"""Limits the reserve if descriptors are scarce: 4 means at most a quarter of them."""


class Descriptors:
    """This process's descriptors. Until `keep` is called, there is no reserve, and the limit with which the process was
    started applies."""

    def __init__(self) -> None:
        self._reserve = 0
        self._users = 0
        self._ordinary = 0
        self._lifted: int | None = None
        """The raised limit while the reserve may be used. If the current limit differs, the operator has changed it."""

    def keep(self, wanted: int) -> None:
        """Requests a limit of this many descriptors, including the reserve."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        if soft != resource.RLIM_INFINITY:
            most = max(soft, most)
        self._reserve = min(RESERVE, most // RESERVE_SHARE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - self._reserve, hard))

    @property
    def limit(self) -> int | None:
        """The number of descriptors that may be open, not counting the reserve; None means no limit."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return None
        return self._ordinary if soft == self._lifted else soft

    @property
    def open(self) -> int:
        """The number of currently open descriptors."""
        with self.reserve():
            return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # without the listing's own descriptor

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Allows using the reserve within this block."""
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
        """Allows using the reserve from now on."""
        self._users += 1
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self._reserve and soft not in (self._lifted, resource.RLIM_INFINITY):
            most = soft + self._reserve
            self._ordinary, self._lifted = soft, most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._lifted, hard))
