"""Searching the files below a folder for lines that match a pattern.

The engine gets a single stream of text (`search_input`) and reports line numbers. It is either ripgrep or our own
program; both find the same lines. The engine runs as a child with an empty environment and limits on memory and time,
so no pattern can block the gateway. The child and its pipe are gone when `search` returns or raises.
"""

import asyncio
import contextlib
import fcntl
import os
import resource
import select
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from anyio import from_thread, to_thread

from tidegate.errors import ToolFailed
from tidegate.lifetimes import gather
from tidegate.log import Log
from tidegate.workspaces.files import line_matcher
from tidegate.workspaces.files.file_user import User, in_thread
from tidegate.workspaces.files.file_values import SearchQuery, SearchResult
from tidegate.workspaces.files.mounts import Mount
from tidegate.workspaces.files.search_input import DEFAULT_BOUNDS, SearchBounds, SearchInput, search_result
from tidegate.workspaces.processes.children import ChildProcess, Spawner, find_program, kill_and_close

log = Log(__name__)

PIPE_BYTES = 1024 * 1024
_INPUT = 3  # the descriptor from which the child reads
_PATIENCE_MS = 100


class _Enough(Exception):
    """Raised when the child has stopped reading."""


async def search(
    mounts: Sequence[Mount],
    spawner: Spawner,
    path: str,
    query: SearchQuery,
    *,
    ripgrep: bool,
    user: User | None,
    bounds: SearchBounds = DEFAULT_BOUNDS,
) -> SearchResult:
    async with spawner.helpers:
        feed, places = await _searched(mounts, spawner, path, query, bounds, ripgrep=ripgrep, user=user)
    return await in_thread(user, search_result, feed, mounts, places, query)


async def _searched(
    mounts: Sequence[Mount],
    spawner: Spawner,
    path: str,
    query: SearchQuery,
    bounds: SearchBounds,
    *,
    ripgrep: bool,
    user: User | None,
) -> tuple[SearchInput, list[tuple[int, int]]]:
    """Try the engines in turn until one succeeds or the time is up. Returns the engine's input and the lines and
    columns that it reported."""
    program = await to_thread.run_sync(find_program, "rg") if ripgrep else None
    engines = [_python(query)] if program is None else [_rg(program, query), _python(query)]
    for engine in engines:
        places: list[tuple[int, int]] = []
        feed = SearchInput(mounts, path, query.choice, bounds)
        try:
            async with asyncio.timeout(bounds.seconds):
                code = await _run(spawner, engine, feed, places, user, bounds)
        except TimeoutError:
            feed.stopped = f"the search was stopped after {bounds.seconds:g} s; use a simpler pattern, a path or a glob"
            return feed, places
        if code in engine.ends or len(places) > query.limit:
            return feed, places
        log.warning("the program that searches files has failed", program=engine.command[0], code=code)
    raise ToolFailed("The search did not finish; use a simpler pattern, a path or a glob.")


# -- the engine --


class _Engine(NamedTuple):
    """A search program. `ends` are the exit codes that mean success."""

    command: tuple[str, ...]
    ends: tuple[int, ...]


def _rg(program: str, query: SearchQuery) -> _Engine:
    options = ("--no-config", "--text", "--encoding=none", "--no-mmap", "--threads=1", "--color=never", "--no-heading")
    # Only line number and column are needed, so the text of longer lines is not printed.
    form = ("--no-filename", "--line-number", "--column", "--max-columns=1", "--line-buffered")
    bounds = (f"--max-count={query.limit + 1}", "--regex-size-limit=200M", "--dfa-size-limit=200M")
    place = (f"--regexp={query.pattern.rust}", "--", f"/proc/self/fd/{_INPUT}")
    return _Engine((program, *options, *form, *bounds, *place), (0, 1))


def _python(query: SearchQuery) -> _Engine:
    script = (sys.executable, "-I", "-S", "-B", str(Path(line_matcher.__file__)))
    return _Engine((*script, query.pattern.python, str(query.limit + 1), str(_INPUT)), (0,))


async def _run(
    spawner: Spawner,
    engine: _Engine,
    feed: SearchInput,
    places: list[tuple[int, int]],
    user: User | None,
    bounds: SearchBounds,
) -> int:
    """Run one engine over all files; returns its exit code."""
    reading, writing = os.pipe()
    pipe = _Pipe(writing)
    child: ChildProcess | None = None
    try:
        try:
            child = await spawner.spawn(engine.command, {}, passing={reading: _INPUT})
        except OSError as error:
            raise ToolFailed(f"The search cannot be started ({error.strerror}); tell the operator.") from None
        finally:
            os.close(reading)
        _confine(child.pid, bounds)
        child.close_input()
        await gather([_collect(child, places), pipe.fill(feed, user)])
        return await child.wait()
    finally:
        pipe.close()
        if child is not None:
            await kill_and_close(child)


def _confine(pid: int, bounds: SearchBounds) -> None:
    with contextlib.suppress(OSError):  # it has already ended
        resource.prlimit(pid, resource.RLIMIT_AS, (bounds.child_memory, bounds.child_memory))
        resource.prlimit(pid, resource.RLIMIT_CPU, (int(bounds.seconds) + 1, int(bounds.seconds) + 1))


async def _collect(child: ChildProcess, places: list[tuple[int, int]]) -> None:
    """Read the reported lines and columns into `places`. The engine ends after the requested number of matches."""
    rest = b""
    while data := await child.read():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            number, _, behind = line.partition(b":")
            places.append((int(number), int(behind.partition(b":")[0])))


class _Pipe:
    """Our end of the pipe to an engine."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # more than the system allows
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    async def fill(self, feed: SearchInput, user: User | None) -> None:
        try:
            await in_thread(user, self._fill, feed)
        finally:
            self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _fill(self, feed: SearchInput) -> None:
        waiting = select.poll()
        waiting.register(self._fd, select.POLLOUT)
        with closing(feed.text()) as text, contextlib.suppress(_Enough):
            for chunk in text:
                self._write(waiting, memoryview(chunk))

    def _write(self, waiting: "select.poll", rest: memoryview) -> None:
        while rest:
            from_thread.check_cancelled()
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                waiting.poll(_PATIENCE_MS)
            except BrokenPipeError:
                raise _Enough from None
