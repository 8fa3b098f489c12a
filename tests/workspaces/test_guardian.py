"""The guardian as a separate program, and its view of processes."""

import ast
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.workspaces.conformance import token
from tests.workspaces.harness import WAIT, alive
from tidegate.workspaces.backends import guardian, remote_program
from tidegate.workspaces.backends import remote_keeper as keeper

LIMITS = (1 << 30, 1 << 20, 100)


class Guarded:
    """A guardian and its command, whose output is discarded."""

    def __init__(self, command: str, *, keeper: str = "", told: bool = True) -> None:
        self.ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={},
        )  # fmt: skip
        theirs.close()
        self.ours.settimeout(WAIT)
        if told:
            self.ours.send(guardian.task_message(["/bin/sh", "-c", command], {"A": "1"}, LIMITS, "/", keeper))
            said = self.ours.recv(100)
            end = said.find(guardian.OVER)  # if it has already ended
            self.started, self.output_of = (said, b"") if end < 0 else (said[:end], said[end:])

    def over(self) -> tuple[int, int]:
        """The command's exit code and the number of processes left, once the guardian has reported them and ended."""
        self.process.wait(WAIT)
        said = self.output_of or self.ours.recv(100)
        assert said.startswith(guardian.OVER)
        code, left = said.removeprefix(guardian.OVER).split()
        return int(code), int(left)

    def close(self) -> None:
        self.ours.close()
        self.process.wait(WAIT)


def soon(there: Callable[[], Any]) -> Any:
    """Wait for a condition."""
    until = time.monotonic() + WAIT
    while not (value := there()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return value


@contextmanager
def started(*command: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT)


@contextmanager
def guarded(command: str, **options: str) -> Iterator[Guarded]:
    made = Guarded(command, **options)
    try:
        yield made
    finally:
        made.close()


# -- the end of a command ----------------------------------------------------------------------------------------------


def test_a_guardian_reports_the_exit_code_and_processes_left_behind() -> None:
    """P12: counted, signalled and killed."""
    with guarded("exit 3") as one:
        assert one.over() == (3, 0)
    with guarded("kill -SEGV $$") as one:
        assert one.over() == (-signal.SIGSEGV, 0)
    mark = token()
    with guarded(f"trap '' TERM; (setsid env -i sleep {mark} &); sleep {mark} & exit 0") as one:
        assert one.over() == (0, 2)
    assert not alive(mark)


def test_signals_to_a_guardian_reach_everything_below_it() -> None:
    mark = token()
    with guarded(f"(setsid sleep {mark} &); (setsid sleep {mark} &); exec sleep {mark}") as one:
        soon(lambda: len(alive(f"sleep\0{mark}")) == 3)
        one.process.send_signal(signal.SIGTERM)
        assert one.over() == (-signal.SIGTERM, 0)
    assert not alive(mark)


def test_processes_have_time_between_sigterm_and_sigkill() -> None:
    mark = token()
    with guarded(f"trap '' TERM; (setsid sleep {mark} &); sleep {mark}; sleep {mark}") as one:
        soon(lambda: len(alive(f"sleep\0{mark}")) == 2)
        one.process.send_signal(signal.SIGTERM)
        one.process.send_signal(signal.SIGHUP)
        one.process.send_signal(signal.SIGINT)
        assert one.process.poll() is None and len(alive(f"sleep\0{mark}")) == 2
        one.process.send_signal(signal.SIGUSR1)
        assert one.over() == (-signal.SIGKILL, 0)
    assert not alive(mark)


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_guardian_ends_everything_when_its_owner_is_gone(trap: str) -> None:
    """P12: whether the owner closes the descriptor or is killed makes no difference."""
    mark = token()
    one = Guarded(f"{trap}(setsid env -i sleep {mark} &); sleep {mark}")
    soon(lambda: len(alive(f"sleep\0{mark}")) == 2)
    one.ours.close()
    assert one.process.wait(WAIT) == 0
    assert not alive(mark)


def test_a_guardian_ends_everything_when_its_keeper_is_gone() -> None:
    mark = token()
    with (
        started("sleep", token()) as kept,
        guarded(f"(setsid sleep {mark} &); sleep {mark}", keeper=guardian.process_identity(kept.pid)) as one,
    ):
        soon(lambda: len(alive(f"sleep\0{mark}")) == 2)
        kept.kill()
        assert one.over()[0] == -signal.SIGTERM
    assert not alive(mark)


def test_a_later_process_with_the_keepers_pid_is_not_the_keeper() -> None:
    with guarded(f"sleep {token()}", keeper=f"{os.getpid()}:1") as one:
        assert one.over()[0] == -signal.SIGTERM


def test_a_guardian_whose_owner_is_gone_before_its_task_starts_nothing() -> None:
    one = Guarded("", told=False)
    one.ours.send(b"400\nhalf of it")
    one.ours.close()
    assert one.process.wait(WAIT) == 0


def test_a_guardian_leaves_no_zombies() -> None:
    """L15: orphans become its children and are reaped."""
    with guarded("for i in 1 2 3 4 5 6 7 8; do (sh -c 'exit 0' & exec true) & done; wait; echo $$; sleep 1000") as one:

        def children() -> list[int]:
            listed = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
            return [int(pid) for pid in listed]

        soon(lambda: len(children()) == 1)
        one.process.send_signal(signal.SIGUSR1)
        assert one.over() == (-signal.SIGKILL, 0)


# -- what it is --------------------------------------------------------------------------------------------------------


def test_a_guardian_uses_little_memory() -> None:
    """Each running process has one: it takes a few megabytes of its own."""
    with guarded("read -r line; sleep 1000") as one:
        own = [
            line for line in Path(f"/proc/{one.process.pid}/smaps_rollup").read_text().splitlines() if "Private" in line
        ]
        assert sum(int(line.split()[1]) for line in own) < 12 * 1024
        one.process.send_signal(signal.SIGUSR1)
        one.over()


def test_a_guardian_and_its_command_share_no_streams() -> None:
    with guarded("exec sleep 1000") as one:
        command = int(one.started.split()[2])
        guard, given = Path(f"/proc/{one.process.pid}/fd"), Path(f"/proc/{command}/fd")
        soon(lambda: {str((guard / str(fd)).readlink()) for fd in range(3)} == {os.devnull})
        soon(lambda: {fd.name for fd in given.iterdir()} == {"0", "1", "2"})
        one.process.send_signal(signal.SIGUSR1)
        assert one.over() == (-signal.SIGKILL, 0)


@pytest.mark.parametrize("module", [guardian, keeper])
def test_programs_sent_elsewhere_need_only_an_old_python(module: object) -> None:
    """Its syntax is that of Python 3.10, and its imports are the standard library or sent with it."""
    text = Path(str(getattr(module, "__file__", ""))).read_text()
    tree = ast.parse(text, feature_version=keeper.OLDEST_PYTHON)
    names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names} <= {guardian.__name__}


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_sent_program_reads_no_byte_beyond_itself(shell: str) -> None:
    task = guardian.task_message(["cat"], {}, LIMITS, "/")
    sent = remote_program.program((guardian.__name__,), "guard_remote") + task + b"the rest\n"
    ran = subprocess.run(
        [shell, "-c", remote_program.BOOTSTRAP], input=sent, capture_output=True, timeout=WAIT, check=False
    )
    assert ran.stdout == b"the rest\n"
    assert ran.stderr.startswith(guardian.UP) and ran.stderr.endswith(guardian.OVER + b"0 0\n")


def test_a_partially_received_program_does_nothing() -> None:
    sent = remote_program.program((guardian.__name__,), "guard_remote")[:-50]
    ran = subprocess.run(
        ["sh", "-c", remote_program.BOOTSTRAP], input=sent, capture_output=True, timeout=WAIT, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, b"", b"")


# -- processes ---------------------------------------------------------------------------------------------------------


def test_descendants_are_found_below_zombies() -> None:
    mark = token()
    with started("sh", "-c", f"sleep {mark} & exec sleep {mark}"):
        both = soon(lambda: len(seen := alive(f"sleep\0{mark}")) == 2 and seen)  # not before the shell has become it
        found = guardian.descendants([os.getpid()])
        assert set(found) == set(both)
        assert guardian.load([os.getpid()], 1 << 40)[0] == 2
        guardian.send(signal.SIGKILL, found)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    soon(lambda: not alive(mark))


def test_a_signal_reaches_the_inspected_process_or_none() -> None:
    """Numbers are reused: a process is also identified by its start time."""
    with started("sleep", token()) as process:
        start = int(guardian.process_identity(process.pid).partition(":")[2])
        guardian.send(signal.SIGKILL, {process.pid: start + 1})
        assert process.poll() is None
        guardian.send(signal.SIGKILL, {process.pid: start})
        assert process.wait(WAIT) == -signal.SIGKILL
    assert guardian.process_identity(process.pid) == ""


def test_a_sweep_ends_only_processes_with_the_variable() -> None:
    mark = token()
    with started("sleep", mark, env={"M": mark}) as one, started("sleep", mark) as other:
        soon(lambda: one.pid in guardian.marked_processes(f"M={mark}"))
        assert guardian.sweep(f"M={mark}") and guardian.sweep(f"M={mark}")
        assert one.wait(WAIT) == -signal.SIGKILL and other.poll() is None
