"""Leak detection for tests: tasks, timers, threads, child processes, descriptors, temporary files.

Everything that exists after a test and did not exist before it is found and named with its origin. Things made before
the test by a broader fixture do not count. If nothing is left, the check costs one read of /proc. Only if something
seems to be left is garbage collected, with a moment for things to end.
"""

import asyncio
import gc
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

PATIENCE = 1.0
"""Seconds for things that are just ending; spent only by a test that seems to leave something behind."""

IDLE_WORKERS = ("AnyIO worker thread", "pytest_timeout")
"""Threads that belong to a pool and stay on purpose."""

HARMLESS_FDS = ("/dev/urandom", "/dev/random")
HARMLESS_CHILDREN = ("multiprocessing.resource_tracker",)
MACHINERY = ("/asyncio/", "/anyio/", "/lifetimes/scope.py", __file__)
"""Files whose frames do not show who created a thing."""

RUNNER = "TestRunner."
"""Tasks in which anyio's plugin runs tests and fixtures."""

ORIGIN_DEPTH = 3
"""Frames recorded for the origin of a task: enough to show who created it."""


def place(frame: FrameType | None) -> str:
    """The position of a frame, innermost first, without the machinery up to the code that created the thing."""
    found: list[str] = []
    while frame is not None and len(found) < ORIGIN_DEPTH:
        file = frame.f_code.co_filename
        if not any(part in file for part in MACHINERY):
            found.append(f"{file}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(found) or "unknown"


# -- inside the loop ---------------------------------------------------------------------------------------------------


class LoopWatch:
    """Tasks and timers of one event loop. Started and ended inside it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._origins: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        self._tasks = asyncio.all_tasks()
        self._timers = set(map(id, self._pending()))
        self._factory = self._loop.get_task_factory()
        self._loop.set_task_factory(self._make)

    def _make(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        self._origins[task] = place(sys._getframe(1))
        return task

    def _pending(self) -> list[asyncio.TimerHandle]:
        return [timer for timer in getattr(self._loop, "_scheduled", ()) if not timer.cancelled()]

    def _left(self) -> tuple[list[asyncio.Task[Any]], list[asyncio.TimerHandle]]:
        tasks = [task for task in asyncio.all_tasks() - self._tasks if not _coroutine(task).startswith(RUNNER)]
        return tasks, [timer for timer in self._pending() if id(timer) not in self._timers]

    async def end(self, patience: float = PATIENCE) -> list[str]:
        """What is left after a moment for things to end."""
        self._loop.set_task_factory(self._factory)
        tasks, timers = self._left()
        until = self._loop.time() + patience
        while (tasks or timers) and self._loop.time() < until:
            gc.collect()
            await asyncio.sleep(0.01)
            tasks, timers = self._left()
        return [self._name_task(task) for task in tasks] + [_name_timer(timer) for timer in timers]

    def _name_task(self, task: asyncio.Task[Any]) -> str:
        stack = task.get_stack(limit=1)
        now = f"{stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else "not begun"
        return (
            f"task {task.get_name()!r} ({_coroutine(task)}), now at {now}, made at {self._origins.get(task, 'unknown')}"
        )


def _coroutine(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", repr(task.get_coro()))


def _name_timer(timer: asyncio.TimerHandle) -> str:
    callback: Any = getattr(timer, "_callback", None)
    callback = getattr(callback, "func", callback)
    code = getattr(callback, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(callback)
    return f"timer calling {getattr(callback, '__qualname__', callback)!s} of {where}"


# -- the process -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Census:
    """The resources of the process at one moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    fds: dict[int, str]
    files: frozenset[str]


def census(scratch: Path) -> Census:
    return Census(frozenset(threading.enumerate()), frozenset(_children()), _fds(), _names(scratch))


@dataclass
class ProcessWatch:
    """Threads, children, descriptors and files in `scratch`, the folder for temporary files during the run."""

    scratch: Path
    before: Census = field(init=False)

    def __post_init__(self) -> None:
        self.before = census(self.scratch)

    def end(self, patience: float = PATIENCE) -> list[str]:
        """What is left after a moment for things to end. Remaining files are removed."""
        left = self._left(census(self.scratch))
        until = time.monotonic() + patience
        while left and time.monotonic() < until:
            gc.collect()
            time.sleep(0.005)
            left = self._left(census(self.scratch))
        for name in _names(self.scratch) - self.before.files:
            _remove(self.scratch / name)
        return left

    def _left(self, now: Census) -> list[str]:
        before = self.before
        return [
            *(_name_thread(thread) for thread in now.threads - before.threads if not _idle_worker(thread)),
            *(f"child process {named}" for named in map(_name_child, now.children - before.children) if named),
            *(
                f"descriptor {fd} -> {target}"
                for fd, target in now.fds.items()
                if before.fds.get(fd) != target and not target.startswith(HARMLESS_FDS)
            ),
            *(f"temporary file {self.scratch / name}" for name in sorted(now.files - before.files)),
        ]


def _idle_worker(thread: threading.Thread) -> bool:
    """Idle worker threads of a pool may stay; one that still works for the test counts as a leak."""
    if not thread.name.startswith(IDLE_WORKERS):
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is None or frame.f_code.co_filename.endswith(("queue.py", "threading.py"))


def _name_thread(thread: threading.Thread) -> str:
    target: Any = getattr(thread, "_target", None)
    frame = sys._current_frames().get(thread.ident or 0)
    wanted = getattr(target, "__qualname__", type(thread).__qualname__)
    return f"thread {thread.name!r} ({wanted}), now at {place(frame)}"


def _names(folder: Path) -> frozenset[str]:
    return frozenset(entry.name for entry in folder.iterdir())


def _children() -> Iterable[int]:
    for thread in Path("/proc/self/task").iterdir():
        try:
            listed = (thread / "children").read_text()
        except OSError:  # the thread has ended in between
            continue
        yield from map(int, listed.split())


def _name_child(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has ended in the meantime
        return ""
    if any(harmless in command for harmless in HARMLESS_CHILDREN):
        return ""
    return f"{pid} ({command or 'zombie, never waited for'}), state {state}"


def _fds() -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:  # the descriptor of this very listing
            continue
    return found


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- a run's own temporary folder --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scratch:
    """The temporary folder of a run: `watched` for the code under test, `given` for pytest's own files."""

    root: Path
    before: tuple[str | None, str | None]

    @classmethod
    def make(cls) -> "Scratch":
        # Short, because a unix socket below it has to fit into 107 bytes.
        root = Path(tempfile.mkdtemp(prefix="tg-"))
        (root / "w").mkdir()
        scratch = cls(root, (os.environ.get("TMPDIR"), tempfile.tempdir))
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch.watched)
        return scratch

    @property
    def watched(self) -> Path:
        return self.root / "w"

    @property
    def given(self) -> Path:
        return self.root / "p"

    def remove(self) -> None:
        environ, tempfile.tempdir = self.before
        if environ is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = environ
        shutil.rmtree(self.root, ignore_errors=True)
