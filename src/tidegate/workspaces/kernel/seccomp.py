"""The system call filter for every process in a sandbox, in addition to dropped capabilities.

A process started within `confined`, and everything that it starts, cannot gain privileges by running a program and has
its own session keyring. To such a process, the calls of `_CLOSED` and socket families other than `_FAMILIES` seem to be
missing from the kernel. It cannot set a file's set-user-ID bit, with which others could run the file as the commands'
user. Calls with another architecture's numbers (i386, x32) are refused altogether, so 32-bit programs do not run.

The filter is a table in this module, since there are few calls and no library is needed. Child processes inherit the
filter of the thread that starts them, so no intermediate program is needed, and it applies to `bwrap` as well as to
commands that enter later.
"""

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class _Architecture(NamedTuple):
    """A processor architecture. `audit` is the kernel's identifier for it. The other fields are its system call
    numbers."""

    audit: int
    socket: int
    socketpair: int
    keyctl: int
    closed: tuple[int, ...]
    modes: tuple["_ModeCall", ...]


class _ModeCall(NamedTuple):
    """A call that sets a file's permissions. `mode` and `flags` are the positions of these arguments. A call with flags
    sets permissions only if it creates the file."""

    number: int
    mode: int
    flags: int | None = None


_EVERYWHERE = (425, 426, 427, 437)  # io_uring_* and openat2 have the same numbers on every architecture
_CLOSED = ("add_key", "request_key", "keyctl", "perf_event_open", "bpf", "userfaultfd", "io_uring_*", "openat2")
"""Calls that ordinary programs do not need and that expose much of the kernel. Keys belong to the user, not to a
sandbox, so one sandbox could leave them for another. The filter cannot read the permissions passed to `openat2`;
without this call, programs use `openat`."""

_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000_003E, 41, 53, 250, (248, 249, 250, 298, 321, 323, *_EVERYWHERE), (
        # chmod, fchmod, fchmodat, fchmodat2, mknod, mknodat, creat, open, openat
        _ModeCall(90, 1), _ModeCall(91, 1), _ModeCall(268, 2), _ModeCall(452, 2), _ModeCall(133, 1), _ModeCall(259, 2),
        _ModeCall(85, 1), _ModeCall(2, 2, flags=1), _ModeCall(257, 3, flags=2),
    )),
    "aarch64": _Architecture(0xC000_00B7, 198, 199, 219, (217, 218, 219, 241, 280, 282, *_EVERYWHERE), (
        _ModeCall(53, 2), _ModeCall(52, 1), _ModeCall(452, 2), _ModeCall(33, 2), _ModeCall(56, 3, flags=2),
    )),
}  # fmt: skip
_FAMILIES = (
    1,
    2,
    10,
    16,
)  # unix, inet, inet6, netlink; all others, such as vsock, are not confined to a network namespace

_X32 = 0x4000_0000  # on x86_64, the calls of the x32 interface start here; other architectures have no calls this high
_NUMBER, _AUDIT, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; of the argument, the lower half
_ARGUMENT_BYTES = 8
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions (linux/bpf_common.h)
_SET_USER_ID = 0o4000
_CREATING = 0o100 | 0o20000000  # O_CREAT, and the bit of O_TMPFILE that no other flag has
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_KEYCTL_JOIN_SESSION_KEYRING = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def problem() -> str:
    """Returns the reason why this machine has no filter, in one sentence, or an empty string if it has one."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        return f"There is no system call filter for {machine}; sandboxes run without it."
    if not Path("/proc/sys/kernel/seccomp").exists():
        return "This kernel has no system call filter (CONFIG_SECCOMP_FILTER)."
    return ""


def confined(start: Callable[[], int]) -> int:
    """Calls `start` in a new thread and returns its result. The filter, keyring and privileges belong to that thread
    and are inherited by the processes that it starts. Raises OSError if they cannot be set."""
    result: list[int] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            _confine()
            result.append(start())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="start of a sandbox")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def _confine() -> None:
    architecture = _ARCHITECTURES.get(os.uname().machine)
    if architecture is not None:
        # This fails if the user has too many keys, or if an outer filter forbids it. In either case, our own filter
        # blocks keys anyway.
        _LIBC.syscall(architecture.keyctl, _KEYCTL_JOIN_SESSION_KEYRING, None)
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")
    if architecture is not None:
        table = _table(architecture)
        program = _Program(len(table) // 8, table)
        if _LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the system call filter cannot be set")


def _table(architecture: _Architecture) -> bytes:
    """Builds the filter. Blocked system calls fail with ENOSYS, as on a kernel that lacks them, so that programs fall
    back to others."""
    refuse = _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    parts = [
        _instruction(_LOAD, _AUDIT),
        _instruction(_EQUAL, architecture.audit, then=1),
        refuse,
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, otherwise=1),
        refuse,
    ]
    for number in architecture.closed:
        parts += [_instruction(_EQUAL, number, otherwise=1), refuse]
    allow = _instruction(_RETURN, _ALLOW)
    for call in architecture.modes:
        check = [_load_argument(call.mode), _instruction(_ANY_BIT, _SET_USER_ID, otherwise=1)]
        check += [_instruction(_RETURN, _ERRNO | errno.EPERM), allow]
        if call.flags is not None:
            check = [_load_argument(call.flags), _instruction(_ANY_BIT, _CREATING, then=1), allow, *check]
        parts += [_instruction(_EQUAL, call.number, otherwise=len(check)), *check]
    parts += [_instruction(_EQUAL, architecture.socket, then=2), _instruction(_EQUAL, architecture.socketpair, then=1)]
    parts += [allow, _instruction(_LOAD, _FIRST_ARGUMENT)]
    for family in _FAMILIES:
        parts += [_instruction(_EQUAL, family, otherwise=1), allow]
    return b"".join([*parts, _instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT)])


def _load_argument(position: int) -> bytes:
    """Loads the lower half of an argument; all architectures in the table are little-endian."""
    return _instruction(_LOAD, _FIRST_ARGUMENT + _ARGUMENT_BYTES * position)


def _instruction(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Returns one instruction. `then` and `otherwise` are the numbers of instructions that a comparison skips."""
    return struct.pack("=HBBI", code, then, otherwise, value)
