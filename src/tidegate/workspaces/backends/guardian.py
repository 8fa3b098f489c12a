"""A command's guardian: a program that stops everything the command has started.

    python -I -S guardian.py DESCRIPTOR

It exits when none of the command's processes are left, whatever the command did. Processes that leave their group,
session or environment stay below the guardian because it is a subreaper: the kernel makes every orphan its child. It
stops these processes when the command has ended, when the guardian is signalled (SIGTERM is passed on to everything
below it, SIGUSR1 kills everything), and when its owner has died. Before it exits, it reports the command's exit code
and the number of processes left behind. It runs between the gateway and the command and knows no secrets.

It receives its task through the descriptor, preceded by its length, and reports through the same descriptor. When the
other end is closed, its owner has died. On another machine (`guard_remote`), it uses its standard streams instead of
that descriptor, and a keeper represents the gateway: if the keeper has died, the owner counts as dead.

It imports nothing from Tidegate and little else, so it starts in a few milliseconds and can be sent to a machine that
only has Python 3.10.
"""

import contextlib
import ctypes
import itertools
import math
import os
import resource
import select
import signal
import sys
import time

LEFT_SECONDS = 0.3
"""Seconds between SIGTERM and SIGKILL for processes left behind by a command."""

ORPHANED_SECONDS = 1.0
"""Seconds between SIGTERM and SIGKILL for all processes when the owner has died."""

KILLED_SECONDS = 5.0
"""Time limit for killed processes to exit. A process that survives, such as another user's, is out of reach."""

UP, OVER = b"\0up ", b"\0over "
"""The beginnings of the two reports. The first report contains the guardian's identity and the command's pid, the last
one the command's exit code and the number of processes left behind."""

_ROUND_SECONDS = 0.02  # between two rounds of killing
_PR_SET_CHILD_SUBREAPER = 36
_FRAME_BYTES = 4 * 1024 * 1024
_HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)  # its owner stops it, not a terminal
_FILE_BYTES = 4 * 1024 * 1024  # the longest part is the environment, which the kernel limits to this size


# -- task messages -----------------------------------------------------------------------------------------------------


def pack_fields(fields: list[str]) -> bytes:
    data = "\0".join(fields).encode("utf-8", "surrogateescape")
    return b"%d\n%s" % (len(data), data)


def task_message(
    command: list[str],
    environment: dict[str, str],
    limits: tuple[int, int, int],
    folder: str,
    keeper: str = "",
    joins: tuple[str, ...] = (),
) -> bytes:
    """Returns the message that tells a guardian what to start. `limits` are memory in bytes, file size in bytes and
    processor time in seconds, per process. `keeper` is the keeper's identity, if there is one. `joins` are control
    group files to which the command writes 0 before it starts."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    numbers = (*limits, len(joins), len(variables))
    return pack_fields([folder, keeper, *map(str, numbers), *joins, *variables, *command])


def receive_fields(source: int) -> list[str]:
    """Reads packed fields; empty if the sender has died."""
    length = b""
    while not length.endswith(b"\n"):
        byte = os.read(source, 1)
        if not byte:
            return []
        length += byte
    left = int(length)
    if left > _FRAME_BYTES:
        return []
    data = b""
    while len(data) < left:
        piece = os.read(source, left - len(data))
        if not piece:
            return []
        data += piece
    return data.decode("utf-8", "surrogateescape").split("\0")


# -- processes ---------------------------------------------------------------------------------------------------------


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Returns a process's state, parent and start time, or None if the process does not exist."""
    fields = _contents(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    return (fields[0].decode(), int(fields[1]), int(fields[19])) if len(fields) > 19 else None


def _numbers(folder: str) -> list[int]:
    """Returns the numeric names in a folder in /proc, which are processes or descriptors."""
    with os.scandir(folder) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]


def process_identity(pid: int) -> str:
    """Returns an identity that distinguishes the process from later ones with the same pid; empty if the process is not
    alive."""
    found = _stat(pid)
    return f"{pid}:{found[2]}" if found and found[0] not in "ZX" else ""


def descendants(roots: list[int]) -> dict[int, int]:
    """Returns all living descendants of these processes, with their start times. Zombies are left out, but their living
    children are included."""
    children: dict[int, list[tuple[int, str, int]]] = {}
    for pid in _numbers("/proc"):
        found = _stat(pid)
        if found is not None:
            children.setdefault(found[1], []).append((pid, found[0], found[2]))
    alive: dict[int, int] = {}
    waiting = list(roots)
    while waiting:
        for pid, state, start in children.pop(waiting.pop(), []):
            waiting.append(pid)
            if state not in "ZX":
                alive[pid] = start
    return alive


def send(number: int, processes: dict[int, int]) -> None:
    """Signals exactly these processes, never later ones with the same pids."""
    for pid, start in processes.items():
        with contextlib.suppress(OSError):
            reference = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)
            try:
                found = _stat(pid)
                if found is not None and found[2] == start:
                    signal.pidfd_send_signal(reference, number)
            finally:
                os.close(reference)


def marked_processes(variable: str) -> dict[int, int]:
    """Returns all processes with this variable in their environment, with their start times."""
    found: dict[int, int] = {}
    for pid in _numbers("/proc"):
        state = _stat(pid)
        if state is not None and f"\0{variable}\0".encode() in b"\0" + _contents(f"/proc/{pid}/environ"):
            found[pid] = state[2]
    return found


def sweep(variable: str) -> bool:
    """Kills all processes with this variable, as a fallback if a guardian itself was killed. Returns true if none are
    left."""
    until = time.monotonic() + KILLED_SECONDS
    while time.monotonic() < until:
        found = marked_processes(variable)
        if not found:
            return True
        send(signal.SIGKILL, found)
        time.sleep(_ROUND_SECONDS)
    return False


def load(roots: list[int], most: int) -> tuple[int, int]:
    """Returns the number of these processes' descendants, and their memory in bytes. Shared memory counts in full for
    each process. If the sum exceeds `most`, only each process's share is counted, which takes longer to read."""
    found = descendants(roots)
    used = sum(map(_own_bytes, found))
    return len(found), used if used <= most else sum(map(_shared_bytes, found))


def _own_bytes(pid: int) -> int:
    """Returns a process's memory, without pages mapped from files."""
    lines = [line.split() for line in _contents(f"/proc/{pid}/status").splitlines()]
    return sum(int(words[1]) * 1024 for words in lines if words and words[0] in (b"RssAnon:", b"RssShmem:", b"VmSwap:"))


def _shared_bytes(pid: int) -> int:
    for line in _contents(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _contents(path: str) -> bytes:
    """Returns a kernel file's content; empty if the process has exited."""
    data = b""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            while len(data) < _FILE_BYTES:
                piece = os.read(fd, _FILE_BYTES - len(data))
                if not piece:
                    break
                data += piece
        finally:
            os.close(fd)
    except OSError:
        return b""
    return data


# -- the guardian ------------------------------------------------------------------------------------------------------


class Guardian:
    """The guardian's main loop. `owner` is a descriptor that hangs up when the owner dies; reports are written to
    `report`."""

    def __init__(self, report: int, owner: int, keeper: str) -> None:
        self._report = report
        self._owner = owner
        self._keeper = keeper
        self._signals: set[int] = set()
        self._main = 0
        self._code: int | None = None
        self._left = 0
        self._asked = False
        self._abandoned = False
        self._left_alone = False
        self._until = math.inf
        """The time at which all descendants are killed."""
        self._poll = select.poll()
        self._woken = -1

    def start(
        self, command: list[str], environment: dict[str, str], limits: list[int], folder: str, joins: list[str]
    ) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        self._listen()
        # A signal for the command that arrives before the command is running must neither be lost nor handled by us.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        self._main = os.fork()
        if self._main == 0:
            _become(command, environment, limits, folder, joins)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _write(self._report, UP + b"%s %d\n" % (process_identity(os.getpid()).encode(), self._main))
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(nothing, fd)
        os.close(nothing)

    def _listen(self) -> None:
        self._woken, waking = os.pipe()
        for fd in (self._woken, waking):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for number in _HANDLED:
            signal.signal(number, lambda received, _frame: self._signals.add(received))
        self._poll.register(self._woken, select.POLLIN)
        self._poll.register(self._owner, 0)  # only its hang-up
        if self._keeper:
            pid = int(self._keeper.partition(":")[0])
            with contextlib.suppress(ProcessLookupError):
                self._poll.register(os.pidfd_open(pid), select.POLLIN)
            self._abandoned = process_identity(pid) != self._keeper

    def run(self) -> None:
        """Runs until no descendants are left, except those that cannot be killed."""
        while self._reap() and self._decide():
            self._wait()
        code = -signal.SIGKILL if self._code is None else self._code
        _write(self._report, OVER + b"%d %d\n" % (code, self._left))

    def _reap(self) -> bool:
        """Reaps children that have exited; returns true if any children are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._main:
                self._code = os.waitstatus_to_exitcode(status)

    def _decide(self) -> bool:
        """Acts on signals and deadlines; returns false if there is nothing more to do."""
        now = time.monotonic()
        received, self._signals = self._signals, set()
        if signal.SIGUSR1 in received:
            self._asked, self._until = True, min(self._until, now)
        elif signal.SIGTERM in received:
            self._terminate()
        if self._code is not None and not self._asked:
            self._left = self._terminate()
            self._until = now + LEFT_SECONDS
        if self._abandoned and not self._left_alone:
            self._left_alone = True
            self._terminate()
            self._until = min(self._until, now + ORPHANED_SECONDS)
        if now < self._until:
            return True
        send(signal.SIGKILL, descendants([os.getpid()]))
        return now < self._until + KILLED_SECONDS

    def _terminate(self) -> int:
        """Sends SIGTERM to all descendants; returns how many there are."""
        self._asked = True
        found = descendants([os.getpid()])
        send(signal.SIGTERM, found)
        send(signal.SIGCONT, found)  # a stopped process would not receive SIGTERM
        return len(found)

    def _wait(self) -> None:
        """Waits for a signal, the exit of a child or the owner, or the next deadline."""
        left = self._until - time.monotonic()
        if left <= 0:
            left = _ROUND_SECONDS
        for fd, _event in self._poll.poll(None if left == math.inf else left * 1000):
            if fd == self._woken:
                os.read(fd, 4096)
            else:
                self._poll.unregister(fd)
                self._abandoned = True


def _become(command: list[str], environment: dict[str, str], limits: list[int], folder: str, joins: list[str]) -> None:
    """Becomes the command, in its own session and control groups. Never returns."""
    try:
        os.setsid()
        for path in joins:
            group = os.open(path, os.O_WRONLY)
            os.write(group, b"0")
            os.close(group)
        kinds = (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_CORE)
        for kind, wanted in zip(kinds, (*limits, 0), strict=True):
            most = resource.getrlimit(kind)[1]
            value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
            resource.setrlimit(kind, (value, value))
        if folder:
            os.chdir(folder)
        signal.set_wakeup_fd(-1)
        for number in (*_HANDLED, *_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for fd in _numbers("/proc/self/fd"):
            if fd > 2:
                with contextlib.suppress(OSError):  # the descriptor used to read the folder
                    os.set_inheritable(fd, False)  # including descriptors inherited by the gateway
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(command[0], command, environment)
    except OSError as error:
        _write(2, f"{command[0]} cannot be started ({error.strerror}).\n".encode())
    finally:
        os._exit(127)


def _write(fd: int, text: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody is listening
        os.write(fd, text)


def guard(source: int, report: int, owner: int) -> None:
    fields = receive_fields(source)
    if not fields:
        return
    folder, keeper = fields[:2]
    *limits, groups, variables = map(int, fields[2:7])
    rest = iter(fields[7:])
    joins = list(itertools.islice(rest, groups))
    environment = dict(field.split("=", 1) for field in itertools.islice(rest, variables))
    for fd in (report, owner):
        os.set_inheritable(fd, False)
    guardian = Guardian(report, owner, keeper)
    guardian.start(list(rest), environment, limits, folder, joins)
    guardian.run()


def guard_remote() -> None:
    """Runs as a guardian on the three standard streams. The guardian's reports are the beginning and the end of the
    state channel."""
    report = os.dup(2)
    guard(0, report, report)


if __name__ == "__main__":
    guard(*3 * [int(sys.argv[1])])
