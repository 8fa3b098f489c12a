"""One gateway per home folder, and one at a time that takes over.

Guarantee: while a `HomeLock` is held, nobody else holds the lock of that name, and whoever asks is told who does. There
are two: `lock`, held by the gateway that has the home folder, and `takeover`, held by one that replaces it, from before
it asks the old one to stop until it is ready. Each is a kernel lock on an open file, so it dies with its holder,
`kill -9` included; the file's text only says who holds it and is never taken as proof. The files are never removed, so
that two gateways cannot hold two files of the same name. Asking for the holder takes nothing and disturbs nobody.
"""

import contextlib
import fcntl
import os
import struct
import time
from pathlib import Path

import msgspec

from tidegate.errors import Misconfigured
from tidegate.gateway.hint import hint
from tidegate.values import Frozen

LOCK_NAME = "lock"
TAKEOVER_NAME = "takeover"
_TEXT_BYTES = 1024  # what a holder writes about itself is far smaller
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


class Holder(Frozen, frozen=True):
    """Who holds a home folder. `began` is the kernel's start mark of the process, by which a recycled pid is told
    apart; `address` is empty until the gateway listens; `used` stays once the folder has had a database with an owner,
    also when nobody holds it (pid 0)."""

    pid: int
    began: int = 0
    since: float = 0.0
    address: str = ""
    used: bool = False

    def is_same(self, other: "Holder") -> bool:
        """Whether both are the same process."""
        return (self.pid, self.began) == (other.pid, other.began)

    def __str__(self) -> str:
        return f"pid {self.pid}, {self.address}" if self.address else f"pid {self.pid}"


class HomeHeld(Misconfigured):
    """Another gateway holds the home folder."""

    def __init__(self, home: Path, holder: Holder) -> None:
        super().__init__(
            f"The home folder {home} is held by a running gateway ({holder}): stop it with "
            f"{hint(home, 'stop')}, or take over from it with {hint(home, 'up --replace')}."
        )
        self.holder = holder


class BeingTakenOver(Misconfigured):
    """Another gateway is replacing the one that holds the home folder."""

    def __init__(self, home: Path, holder: Holder) -> None:
        super().__init__(
            f"Another gateway ({holder}) is taking over this home folder, {home}: wait until it is ready, or end it "
            f"with `kill {holder.pid}` first."
        )
        self.holder = holder


def process_mark(pid: int) -> int:
    """When the kernel started this process, in ticks since boot; 0 if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def holder_of(home: Path, name: str = LOCK_NAME) -> Holder | None:
    """Who holds this home folder now, or None. The lock is looked at, not taken."""
    try:
        descriptor = os.open(home / name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question))[0]
        if kind == fcntl.F_UNLCK:
            return None
        return _described(os.pread(descriptor, _TEXT_BYTES, 0))
    finally:
        os.close(descriptor)


def was_used(home: Path) -> bool:
    """Whether a gateway has had a database with an owner in this folder, as far as its `lock` file knows."""
    try:
        descriptor = os.open(home / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return _described(os.pread(descriptor, _TEXT_BYTES, 0)).used
    finally:
        os.close(descriptor)


def _described(text: bytes) -> Holder:
    try:
        return msgspec.json.decode(text, type=Holder)
    except msgspec.DecodeError:
        return Holder(pid=0)  # it took the lock a moment ago and has not yet said who it is


class HomeLock:
    """A lock of one home folder; `take` and `release` are its whole life."""

    def __init__(self, home: Path, name: str = LOCK_NAME) -> None:
        self._home = home
        self._name = name
        self._descriptor: int | None = None
        self._holder = Holder(pid=os.getpid())

    def take(self) -> None:
        """Take the lock at once or raise `HomeHeld`."""
        descriptor = os.open(self._home / self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except BlockingIOError:
            holder = _described(os.pread(descriptor, _TEXT_BYTES, 0))
            os.close(descriptor)
            raise HomeHeld(self._home, holder) from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        used = _described(os.pread(descriptor, _TEXT_BYTES, 0)).used
        self._holder = Holder(pid=os.getpid(), began=process_mark(os.getpid()), since=time.time(), used=used)
        self._tell()

    def mark_used(self) -> None:
        """The folder has a database with an owner from now on: see `was_used`."""
        self._holder = msgspec.structs.replace(self._holder, used=True)
        self._tell()

    def complaint(self) -> str | None:
        """What is wrong when `lock` is no longer the file that is locked: a second gateway could start then."""
        path = self._home / LOCK_NAME
        with contextlib.suppress(OSError):
            if self._descriptor is not None and os.path.samestat(path.stat(), os.fstat(self._descriptor)):
                return None
        return f"{path} was removed or replaced, so that a second gateway could start here: restart this one."

    def tell_address(self, address: str) -> None:
        """Say where this gateway listens, for whoever is refused and for the command line."""
        self._holder = msgspec.structs.replace(self._holder, address=address)
        self._tell()

    def _tell(self) -> None:
        assert self._descriptor is not None, "the lock is taken first"
        # One write of one size: a reader never sees half of the old text and half of the new.
        os.pwrite(self._descriptor, msgspec.json.encode(self._holder).ljust(_TEXT_BYTES), 0)

    def release(self) -> None:
        """Give the lock up; idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._holder = Holder(pid=0, used=self._holder.used)
            try:
                os.pwrite(descriptor, msgspec.json.encode(self._holder).ljust(_TEXT_BYTES), 0)
            finally:
                os.close(descriptor)
