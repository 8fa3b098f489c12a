"""The locks of a home folder: one gateway at a time, and one takeover at a time.

While a `HomeLock` is held, no other process can hold the lock with the same name, and a process that fails to take it
learns who holds it. There are two locks. `lock` is held by the home folder's gateway. `takeover` is held by a gateway
that replaces another one, from before the stop request to the old gateway until the new one is ready. Each is a kernel
lock on an open file, so it disappears with its holder, even after `kill -9`; the file's text only describes the holder
and is never taken as proof. The files are never removed, so two gateways cannot lock two different files with the same
name. `holder_of` only tests the lock and never takes it.
"""

import contextlib
import fcntl
import os
import shlex
import struct
import time
from pathlib import Path

import msgspec

from tidegate.errors import Misconfigured
from tidegate.values import Frozen

LOCK_NAME = "lock"
TAKEOVER_NAME = "takeover"
_DEFAULT_HOME = "~/.tidegate"
_TEXT_BYTES = 1024  # a holder's description is much shorter
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


def command_hint(home: Path, command: str) -> str:
    """Returns `tidegate COMMAND` for this home folder, in backquotes and ready to be copied. The home folder is
    included, quoted for the shell, unless it is the default one."""
    try:
        is_default = home == Path(_DEFAULT_HOME).expanduser().absolute()
    except RuntimeError:  # the user has no home folder
        is_default = False
    return f"`tidegate {command}`" if is_default else f"`tidegate {command} --home {shlex.quote(str(home))}`"


class Holder(Frozen, frozen=True):
    """The process that holds a home folder. `began` is the process's start time as the kernel reports it, to detect a
    recycled pid; `address` is empty until the gateway is listening; `used` stays true once the folder has had a
    database with an owner, even while no process holds the folder (pid 0)."""

    pid: int
    began: int = 0
    since: float = 0.0
    address: str = ""
    used: bool = False

    def is_same(self, other: "Holder") -> bool:
        """True if both describe the same process. Comparing only pids would not be enough, since pids are recycled."""
        return (self.pid, self.began) == (other.pid, other.began)

    def __str__(self) -> str:
        return f"pid {self.pid}, {self.address}" if self.address else f"pid {self.pid}"


class HomeHeld(Misconfigured):
    """Another gateway holds the home folder."""

    def __init__(self, home: Path, holder: Holder) -> None:
        super().__init__(
            f"The home folder {home} is held by a running gateway ({holder}): stop it with "
            f"{command_hint(home, 'stop')}, or take over from it with {command_hint(home, 'up --replace')}."
        )
        self.holder = holder


class BeingTakenOver(Misconfigured):
    """Another gateway is already taking over the home folder."""

    def __init__(self, home: Path, holder: Holder) -> None:
        super().__init__(
            f"Another gateway ({holder}) is taking over this home folder, {home}: wait until it is ready, or stop it "
            f"with `kill {holder.pid}` first."
        )
        self.holder = holder


def process_mark(pid: int) -> int:
    """Returns the time at which the kernel started this process, in ticks since boot, or 0 if there is no such
    process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def holder_of(home: Path, name: str = LOCK_NAME) -> Holder | None:
    """Returns the process that holds this home folder now, or None. The lock is tested, not taken."""
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
    """True if this folder has ever had a database with an owner, according to its `lock` file."""
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
        return Holder(pid=0)  # it has just taken the lock and has not described itself yet


class HomeLock:
    """A lock on a home folder, held from `take` to `release`."""

    def __init__(self, home: Path, name: str = LOCK_NAME) -> None:
        self._home = home
        self._name = name
        self._descriptor: int | None = None
        self._holder = Holder(pid=os.getpid())

    def take(self) -> None:
        """Takes the lock without waiting, or raises `HomeHeld`."""
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
        self._write()

    def mark_used(self) -> None:
        """Records that the folder has had a database with an owner (see `was_used`)."""
        self._holder = msgspec.structs.replace(self._holder, used=True)
        self._write()

    def complaint(self) -> str | None:
        """Returns a message if the `lock` file is no longer the one that is locked, in which case a second gateway
        could start; otherwise None."""
        path = self._home / LOCK_NAME
        with contextlib.suppress(OSError):
            if self._descriptor is not None and os.path.samestat(path.stat(), os.fstat(self._descriptor)):
                return None
        return f"{path} was removed or replaced, so a second gateway could start here: restart this one."

    def write_address(self, address: str) -> None:
        """Records this gateway's address, for the CLI and for processes that cannot take the lock."""
        self._holder = msgspec.structs.replace(self._holder, address=address)
        self._write()

    def _write(self) -> None:
        assert self._descriptor is not None, "the lock is taken first"
        # One write of constant size: a reader never sees a mix of the old text and the new.
        os.pwrite(self._descriptor, msgspec.json.encode(self._holder).ljust(_TEXT_BYTES), 0)

    def release(self) -> None:
        """Releases the lock. Calling this again has no effect."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._holder = Holder(pid=0, used=self._holder.used)
            try:
                os.pwrite(descriptor, msgspec.json.encode(self._holder).ljust(_TEXT_BYTES), 0)
            finally:
                os.close(descriptor)
