"""Views of background processes: listing them, reading their output, and waiting for a pattern in it.

Results are bounded, never split a character, and report how much output is no longer stored. Regular expressions from a
model are matched with `grep` in the session's own sandbox, within the caller's deadline, so an expensive expression
delays nobody else.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.store import ProcessRow, Store, processes
from tidegate.values import Frozen, new_id
from tidegate.workspaces.backends import shell_script
from tidegate.workspaces.processes.background import RunningProcess
from tidegate.workspaces.processes.command_run import end, run_child
from tidegate.workspaces.processes.live_sandbox import LiveSandbox
from tidegate.workspaces.processes.process_log import LogPiece, ProcessLog

SCAN_BYTES = 48 * 1024
"""Number of bytes of output in one search for a pattern."""

SCAN_SECONDS = 0.1
"""Interval between searches for a pattern."""

LISTED_NAMES = 20
"""Number of known process names listed when an unknown name is requested."""

_CONTINUATION = bytes(range(0x80, 0xC0))  # a character's bytes after the first


class ProcessView(Frozen, frozen=True):
    """A background process. `new` is false if a process with that name was already running; `bytes` is the length of
    all output so far, including output that is no longer stored."""

    name: str
    command: str
    state: str
    exit_code: int | None = None
    started: float = 0.0
    ended: float | None = None
    restart: bool = False
    notify: bool = False
    bytes: int = 0
    new: bool = True

    @property
    def live(self) -> bool:
        return self.ended is None


class OutputPage(NamedTuple):
    """A piece of a process's output. `next` is the offset of the following piece. `dropped` is the number of bytes lost
    before this piece."""

    text: str
    next: int
    dropped: int = 0


class ProcessViewer:
    """Views of a session's processes. `live_sandbox` is the session's live sandbox, if there is one."""

    def __init__(
        self, store: Store, session: str, live_sandbox: LiveSandbox | None, log_of: Callable[[ProcessRow], ProcessLog]
    ) -> None:
        self._store = store
        self._session = session
        self._live_sandbox = live_sandbox
        self._log_of = log_of

    async def list(self) -> tuple[ProcessView, ...]:
        """Returns all processes, newest first."""
        rows = await self._store.read(processes.of_session, self._session, principal=None)
        logs = [self._log(row) for row in rows]
        totals = await to_thread.run_sync(lambda: [log.read(0, 0).total for log in logs])
        return tuple(view(row, total) for row, total in zip(rows, totals, strict=True))

    async def view(self, name: str, *, new: bool = True) -> ProcessView:
        row = await self.row(name)
        return view(row, (await self._read(row, 0, 0)).total, new=new)

    async def row(self, name: str) -> ProcessRow:
        found: ProcessRow | None = await self._store.read(processes.by_name, self._session, name)
        if found is None:
            rows = await self._store.read(processes.of_session, self._session, principal=None, limit=LISTED_NAMES)
            known = ", ".join(sorted({row.name for row in rows}))
            hint = f"the processes are: {known}" if known else "there are none"
            raise ToolFailed(f"There is no process named {name[:64]!r}; {hint}.")
        return found

    async def running(self, name: str) -> RunningProcess:
        row = await self.row(name)
        running = self._live(row)
        if running is None:
            raise ToolFailed(f"The process {name!r} is no longer running.")
        return running

    async def output(self, name: str, since: int | None, limit: int) -> OutputPage:
        row = await self.row(name)
        piece = await self._read(row, since, limit)
        data = piece.data
        if since is None and piece.start > 0:
            data = data.lstrip(_CONTINUATION)
        start = piece.start + len(piece.data) - len(data)
        if start + len(data) < piece.total or self._live(row) is not None:
            data = _whole_characters(data)
        dropped = start if since is None else max(0, start - since)
        return OutputPage(data.decode("utf-8", "replace"), start + len(data), dropped)

    async def until(self, name: str, pattern: str | None, since: int, place: LiveSandbox | None) -> str | None:
        """Waits for the first line that matches the pattern; the search runs in the sandbox `place`. Returns None if
        the process ends without a match. Without a pattern, waits until the process ends."""
        row = await self.row(name)
        at = since
        while True:
            running = self._live(row)
            news = None if running is None else running.news
            if pattern is not None and place is not None:
                piece = await self._read(row, at, SCAN_BYTES)
                if piece.data:
                    if (line := await _found(place, pattern, piece.data)) is not None:
                        return line
                    at = _next_line(piece)
                    if piece.start + len(piece.data) < piece.total:
                        continue
            if news is None:
                return None
            await news.wait()
            await asyncio.sleep(SCAN_SECONDS if pattern is not None else 0)

    def _live(self, row: ProcessRow) -> RunningProcess | None:
        running = None if self._live_sandbox is None else self._live_sandbox.running.get(row.name)
        return running if running is not None and running.row.id == row.id else None

    def _log(self, row: ProcessRow) -> ProcessLog:
        running = self._live(row)
        return self._log_of(row) if running is None else running.log

    async def _read(self, row: ProcessRow, since: int | None, limit: int) -> LogPiece:
        return await to_thread.run_sync(self._log(row).read, since, limit)


def view(row: ProcessRow, total: int, *, new: bool = True) -> ProcessView:
    return ProcessView(
        name=row.name,
        command=row.command,
        state=row.state,
        exit_code=row.exit_code,
        started=row.started,
        ended=row.ended,
        restart=row.restart,
        notify=row.notify,
        bytes=total,
        new=new,
    )


async def _found(place: LiveSandbox, pattern: str, data: bytes) -> str | None:
    _, child = await place.spawn(shell_script.first_match(pattern), new_id("m"))
    line = bytearray()

    async def add_output(piece: bytes) -> None:
        if len(line) < SCAN_BYTES:
            line.extend(piece)

    try:
        await child.write(data)
        child.close_input()
    except ToolFailed:
        pass  # it has found a match, or the pattern is invalid, and it no longer reads
    except BaseException:
        await end(child, 0, place.scope)
        raise
    ended = await run_child(child, add_output, scope=place.scope)
    if ended.code not in (0, 1):
        reason = ended.state.decode("utf-8", "replace").strip().removeprefix("grep: ")
        raise ToolFailed(
            f"The pattern is not a valid extended regular expression: {reason or f'exit code {ended.code}'}."
        )
    return line.decode("utf-8", "replace").rstrip("\n") if ended.code == 0 else None


def _next_line(piece: LogPiece) -> int:
    """Returns the offset of the first incomplete line. Very long lines are searched in parts."""
    complete = piece.data.rfind(b"\n") + 1
    if complete == 0 and len(piece.data) >= SCAN_BYTES:
        complete = len(piece.data)
    return piece.start + complete


def _whole_characters(data: bytes) -> bytes:
    """Returns the data without an incomplete character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return data[:-back] if length > back else data
    return data
