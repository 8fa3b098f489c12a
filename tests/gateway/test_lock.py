"""One gateway per home folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tidegate.gateway import HomeHeld, HomeLock, holder_of
from tidegate.gateway.lock import Holder, process_mark
from tidegate.gateway.takeover import take_over

HOLD = """
import sys
from pathlib import Path
from tidegate.gateway import HomeLock
lock = HomeLock(Path(sys.argv[1]))
lock.take()
lock.write_address("http://127.0.0.1:1")
print("held", flush=True)
sys.stdin.read()
"""


HAND_ON = """
import os, signal
from tidegate.gateway.lock import Holder, process_mark

def hand_on(*_):
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    lock._holder = Holder(pid=os.getpid(), began=process_mark(os.getpid()))
    lock._write()

signal.signal(signal.SIGTERM, hand_on)
""" + HOLD.replace("sys.stdin.read()", "while True: signal.pause()")
"""Asked to end, it leaves the lock to another process, which ends when it is asked in turn."""


class Holding:
    """Another process that holds the lock and, unless told otherwise, knows of no control socket."""

    def __init__(self, home: Path, program: str = HOLD) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", program, str(home)], stdin=pipe, stdout=pipe)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"held\n"

    def __enter__(self) -> "Holding":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


def test_a_second_holder_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    """F2: without --replace a second gateway is refused and says who holds the home folder."""
    with Holding(tmp_path) as other:
        with pytest.raises(HomeHeld) as refused:
            HomeLock(tmp_path).take()
        sentence = str(refused.value)
        assert f"pid {other.process.pid}" in sentence
        assert "http://127.0.0.1:1" in sentence
        assert "tidegate stop" in sentence
        assert "\n" not in sentence


def test_testing_for_the_holder_does_not_take_the_lock(tmp_path: Path) -> None:
    """F2: asking for the holder changes nothing."""
    assert holder_of(tmp_path) is None
    lock = HomeLock(tmp_path)
    lock.take()
    try:
        assert holder_of(tmp_path) == holder_of(tmp_path)
        found = holder_of(tmp_path)
        assert found is not None
        assert found.pid == os.getpid()
        with pytest.raises(HomeHeld):
            HomeLock(tmp_path).take()
    finally:
        lock.release()
    assert holder_of(tmp_path) is None


def test_the_lock_dies_with_its_holder_and_the_file_stays(tmp_path: Path) -> None:
    """F2, F4: after kill -9 the folder is free at once, whatever the file says."""
    with Holding(tmp_path) as other:
        os.kill(other.process.pid, signal.SIGKILL)
        other.process.wait(30)
        assert (tmp_path / "lock").read_bytes().strip() != b""
        assert holder_of(tmp_path) is None
        lock = HomeLock(tmp_path)
        lock.take()
        lock.release()
        lock.release()
    assert (tmp_path / "lock").exists()


@pytest.mark.anyio
async def test_a_holder_without_a_control_socket_is_ended_by_a_signal(tmp_path: Path) -> None:
    """F2: taking over ends the old gateway also when its control socket does not answer."""
    said: list[str] = []
    with Holding(tmp_path) as other, anyio.fail_after(30):
        lock = HomeLock(tmp_path)
        await take_over(tmp_path, lock, within=20, say=said.append)
        lock.release()
        assert other.process.wait(30) == -signal.SIGTERM
    assert any(f"pid {other.process.pid}" in line for line in said)


@pytest.mark.anyio
async def test_a_holder_that_ignores_the_request_is_killed_after_its_budget(tmp_path: Path) -> None:
    """F2: a stuck gateway does not keep its successor out."""
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HOLD
    with Holding(tmp_path, stubborn) as other, anyio.fail_after(30):
        lock = HomeLock(tmp_path)
        await take_over(tmp_path, lock, within=0.05, say=lambda line: None)
        lock.release()
        assert other.process.wait(30) == -signal.SIGKILL


@pytest.mark.anyio
async def test_another_process_that_takes_the_lock_meanwhile_is_asked_to_stop_too(tmp_path: Path) -> None:
    """F2: taking over follows the lock to its holder of now, and waits for nobody who is long gone."""
    said: list[str] = []
    with Holding(tmp_path, HAND_ON) as first, anyio.fail_after(30):
        lock = HomeLock(tmp_path)
        await take_over(tmp_path, lock, within=20, say=said.append)
        lock.release()
        assert first.process.wait(30) == 0
    assert [line.partition(" (")[0] for line in said] == ["Taking over from the running gateway"] * 2
    assert f"pid {first.process.pid}" in said[0] and f"pid {first.process.pid}" not in said[1]


def test_a_process_that_only_has_the_same_pid_is_not_signalled(tmp_path: Path) -> None:
    """F2: the holder is known by pid and start mark, so a recycled pid is left alone."""
    from tidegate.gateway.takeover import _signal

    pipe = subprocess.PIPE
    bystander = subprocess.Popen(
        [sys.executable, "-c", "input(); print('alive', flush=True); input()"], stdin=pipe, stdout=pipe
    )
    try:
        mark = process_mark(bystander.pid)
        _signal(Holder(pid=bystander.pid, began=mark + 1), signal.SIGKILL)
        _signal(Holder(pid=bystander.pid), signal.SIGKILL)
        assert bystander.stdin is not None and bystander.stdout is not None
        bystander.stdin.write(b"\n")
        bystander.stdin.flush()
        assert bystander.stdout.readline() == b"alive\n", "a signal would have come before this"
        _signal(Holder(pid=bystander.pid, began=mark), signal.SIGKILL)
        assert bystander.wait(30) == -signal.SIGKILL
    finally:
        bystander.kill()
        bystander.communicate(timeout=30)
