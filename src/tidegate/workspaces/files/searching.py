"""Lines that fit a pattern, below a folder.

Guarantee: what is searched, in which order, and what is shown of it is decided here, by descriptor, below the mounts;
the engine, ripgrep or a program of ours, is handed one stream of text and tells numbers of lines. So it can be given
no file that it should not read, and both find the same. It is a child of its own with nothing in its environment, a
bound on its memory and one on its time: no pattern can hold up the gateway. The child and the pipe to it are gone when
`search` returns or raises.
"""

import asyncio
import contextlib
import fcntl
import os
import resource
import select
import stat
import sys
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import structlog
from anyio import CancelScope, from_thread, to_thread

from tidegate.errors import ToolFailed
from tidegate.lifetimes import gather
from tidegate.workspaces.children import ChildProcess, Spawner, find
from tidegate.workspaces.files import matching
from tidegate.workspaces.files.excerpts import Mark, lines_around, mark
from tidegate.workspaces.files.globs import Glob
from tidegate.workspaces.files.mounts import Mount, at, joined, open_file, refer, reopened
from tidegate.workspaces.files.values import Choice, Found, Hit, Query
from tidegate.workspaces.files.walking import Walk

log = structlog.stdlib.get_logger(__name__)

SECONDS = 20.0
"""How long a search may take: longer, and the one who asked does better with a smaller question."""

FILE_BYTES = 32 * 1024 * 1024
TOTAL_BYTES = 1024 * 1024 * 1024
MOST_FILES = 20_000
"""A record of each is kept until the search is over."""

BINARY_WITHIN = 8192
"""A file with a zero byte in so many first ones is binary."""

CHILD_MEMORY = 1024 * 1024 * 1024
"""Address space of what searches; a line of `FILE_BYTES` fits with room to spare."""

CHUNK = 256 * 1024
PIPE_BYTES = 1024 * 1024
_INPUT = 3  # the descriptor by which the child gets the text
_PATIENCE_MS = 100


class _Searched(NamedTuple):
    """A file as it went into the stream: its lines are those from `first`, counted from 1 over all files."""

    first: int
    path: str
    mark: Mark


class _Enough(Exception):
    """The child takes no more."""


async def search(mounts: Sequence[Mount], spawner: Spawner, path: str, query: Query, *, ripgrep: bool) -> Found:
    async with spawner.helpers:
        feed, places = await _searched(mounts, spawner, path, query, ripgrep=ripgrep)
    hits = await to_thread.run_sync(_hits, mounts, feed.searched, places[: query.limit], query.context)
    if len(places) > query.limit:
        # How far the stream had come by then is chance, and not told.
        return Found(hits=hits, files=_index(feed.searched, places[query.limit][0]) + 1, more=True)
    return Found(
        hits=hits,
        files=len(feed.searched),
        stopped=feed.stopped or feed.walk.stopped,
        left_out=tuple(joined(path, name) for name in feed.walk.left_out),
        large=feed.large,
        binary=feed.binary,
    )


async def _searched(
    mounts: Sequence[Mount], spawner: Spawner, path: str, query: Query, *, ripgrep: bool
) -> tuple["_Feed", list[tuple[int, int]]]:
    """What went into the engine that came to its end, and the lines and columns that it told."""
    program = await to_thread.run_sync(find, "rg") if ripgrep else None
    engines = [_python(query)] if program is None else [_rg(program, query), _python(query)]
    for engine in engines:
        places: list[tuple[int, int]] = []
        feed = _Feed(mounts, path, query.choice)
        try:
            async with asyncio.timeout(SECONDS):
                code = await _run(spawner, engine, feed, places)
        except TimeoutError:
            feed.stopped = f"it was stopped after {SECONDS:g} s; use a simpler pattern, a path or a glob"
            return feed, places
        if code in engine.ends or len(places) > query.limit:
            return feed, places
        log.warning("what searches files has failed", program=engine.command[0], code=code)
    raise ToolFailed("The search did not come to its end; use a simpler pattern, a path or a glob.")


# -- the engine --


class _Engine(NamedTuple):
    """`ends` are the exit codes of one that has done its work."""

    command: tuple[str, ...]
    ends: tuple[int, ...]


def _rg(program: str, query: Query) -> _Engine:
    options = ("--no-config", "--text", "--encoding=none", "--no-mmap", "--threads=1", "--color=never", "--no-heading")
    # Of a line only its number and column are wanted; a longer one than one byte is not printed.
    told = ("--no-filename", "--line-number", "--column", "--max-columns=1", "--line-buffered")
    bounds = (f"--max-count={query.limit + 1}", "--regex-size-limit=200M", "--dfa-size-limit=200M")
    place = (f"--regexp={query.pattern.rust}", "--", f"/proc/self/fd/{_INPUT}")
    return _Engine((program, *options, *told, *bounds, *place), (0, 1))


def _python(query: Query) -> _Engine:
    script = (sys.executable, "-I", "-S", "-B", str(Path(matching.__file__)))
    return _Engine((*script, query.pattern.python, str(query.limit + 1), str(_INPUT)), (0,))


async def _run(spawner: Spawner, engine: _Engine, feed: "_Feed", places: list[tuple[int, int]]) -> int:
    """Runs one engine over all files; its exit code."""
    reading, writing = os.pipe()
    pipe = _Pipe(writing)
    child: ChildProcess | None = None
    try:
        try:
            child = await spawner.spawn(engine.command, {}, passing={reading: _INPUT})
        except OSError as error:
            raise ToolFailed(f"The search cannot be started ({error.strerror}); the operator must look.") from None
        finally:
            os.close(reading)
        _confine(child.pid)
        child.close_input()
        await gather([_collect(child, places), pipe.fill(feed)])
        return await child.wait()
    finally:
        pipe.close()
        if child is not None:
            with CancelScope(shield=True):
                await child.end(0)
            child.close()


def _confine(pid: int) -> None:
    with contextlib.suppress(OSError):  # it has ended already
        resource.prlimit(pid, resource.RLIMIT_AS, (CHILD_MEMORY, CHILD_MEMORY))
        resource.prlimit(pid, resource.RLIMIT_CPU, (int(SECONDS) + 1, int(SECONDS) + 1))


async def _collect(child: ChildProcess, places: list[tuple[int, int]]) -> None:
    """The lines and columns that it tells, into `places`. It ends by itself when it has told as many as it was asked
    for."""
    rest = b""
    while data := await child.read():
        *told, rest = (rest + data).split(b"\n")
        for line in told:
            number, _, behind = line.partition(b":")
            places.append((int(number), int(behind.partition(b":")[0])))


class _Pipe:
    """Our end of the pipe to an engine."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # more than the system allows
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    async def fill(self, feed: "_Feed") -> None:
        try:
            await to_thread.run_sync(self._fill, feed)
        finally:
            self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _fill(self, feed: "_Feed") -> None:
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


# -- what goes in, and what comes out --


class _Feed:
    """The files that are searched, as one text."""

    def __init__(self, mounts: Sequence[Mount], path: str, choice: Choice) -> None:
        self._mounts = mounts
        self._path = path
        self._glob = Glob(choice.glob)
        self._next = 1
        self._bytes = 0
        self.walk = Walk(choice, recursive=True)
        self.searched: list[_Searched] = []
        self.stopped = ""
        self.large = 0
        self.binary = 0

    def text(self) -> Generator[bytes]:
        with at(self._mounts, self._path) as spot:
            if not spot.is_folder:
                fd = open_file(spot)
                try:
                    yield from self._file(fd, self._path)
                finally:
                    os.close(fd)
                return
            with closing(self.walk.steps(spot.fd)) as steps:
                for step in steps:
                    if step.kind != "file" or not self._glob.fits(step.path):
                        continue
                    if len(self.searched) == MOST_FILES or self._bytes > TOTAL_BYTES:
                        self.stopped = f"only {len(self.searched)} files were searched; use a path or a glob"
                        return
                    yield from self._found(step.folder, step.name, joined(self._path, step.path))

    def _found(self, folder: int, name: str, path: str) -> Iterator[bytes]:
        fds: list[int] = []
        try:
            try:
                reference, status = refer(name, folder)
                fds.append(reference)
                if not stat.S_ISREG(status.st_mode):
                    return
                fds.append(reopened(reference))
            except OSError:  # it is gone meanwhile, or not for us to read
                return
            yield from self._file(fds[1], path)
        finally:
            for fd in fds:
                os.close(fd)

    def _file(self, fd: int, path: str) -> Iterator[bytes]:
        """All of a file, with a line break at its end."""
        state = mark(fd)
        if state.size > FILE_BYTES:
            self.large += 1
            return
        left = FILE_BYTES  # it may grow while it is read
        first, last = True, b""
        while left > 0 and (chunk := os.read(fd, min(CHUNK, left))):
            if first:
                if b"\0" in chunk[:BINARY_WITHIN]:
                    self.binary += 1
                    return
                self.searched.append(_Searched(self._next, path, state))
                first = False
            left -= len(chunk)
            self._bytes += len(chunk)
            self._next += chunk.count(b"\n")
            last = chunk
            yield chunk
        if last and not last.endswith(b"\n"):
            self._next += 1
            yield b"\n"


def _hits(
    mounts: Sequence[Mount], searched: Sequence[_Searched], places: Sequence[tuple[int, int]], context: int
) -> tuple[Hit, ...]:
    """What was found, by file, with the lines themselves."""
    found: dict[int, dict[int, int]] = {}
    for number, column in places:
        index = _index(searched, number)
        found.setdefault(index, {})[number - searched[index].first + 1] = column
    hits: list[Hit] = []
    for index, columns in found.items():
        file = searched[index]
        try:
            with at(mounts, file.path) as spot:
                fd = open_file(spot)
                try:
                    lines = lines_around(fd, columns, context) if mark(fd) == file.mark else None
                finally:
                    os.close(fd)
        except ToolFailed:
            lines = None
        hits.append(Hit(file.path, lines or (), changed=lines is None))
    return tuple(hits)


def _index(searched: Sequence[_Searched], number: int) -> int:
    """Which file a line of the stream is in."""
    return bisect_right(searched, number, key=lambda file: file.first) - 1
