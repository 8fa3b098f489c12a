"""The spool: long results and media on disk, one folder per session.

A session's folder is deleted together with its transcript, so nothing that a transcript refers to is ever missing.
Files that belong to no session are removed by a sweep, which runs at startup and on a timer. Files are private to the
gateway (0600, in folders with 0700) and named after generated ids. The spool owns its folder, which is created only
when needed."""

import contextlib
import io
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.spool import folders
from tidegate.spool.entry import InlineAllowance
from tidegate.spool.excerpts import count_lines
from tidegate.spool.jobs.runner import JobRunner
from tidegate.spool.media import LOADED_BYTES, MediaPreparer
from tidegate.spool.output_recorder import OutputRecorder
from tidegate.spool.pages import PageRequest, read_page
from tidegate.spool.search import ResultQuery, search
from tidegate.spool.session_folder import SessionFolder, UploadFolder
from tidegate.store import Db, SpooledRow, Store, processes, sessions, spooled
from tidegate.values import Frozen, Media, media_kind

RESERVE = 512
"""Bytes reserved for additional text next to an excerpt."""

RESERVED_LINES = 4
"""Lines reserved for additional text next to an excerpt."""

YOUNG_SECONDS = 600.0
"""The sweep ignores files younger than this, since their rows may not have been written yet."""

BATCH = 200
"""Number of names looked up in the store at a time."""

_ID = re.compile(r"sp_\w{1,64}")


class SpoolStats(Frozen, frozen=True):
    """Statistics for status and metrics. The counts except `writing` are totals since startup. `swept_at` is the time
    of the last sweep, or 0.0 before the first one."""

    writing: int
    kept: int
    kept_bytes: int
    refused: int
    swept: int
    swept_at: float


class Spool:
    """The gateway's spool. Media are processed in child processes, which run on the CPU cores in `cores`."""

    def __init__(
        self,
        root: Path,
        store: Store,
        *,
        excerpt_bytes: int,
        excerpt_lines: int,
        quota: int,
        clock: Callable[[], float] = time.time,
        cores: frozenset[int] | None = None,
    ) -> None:
        self.root = root
        self.excerpt_bytes = excerpt_bytes
        self.excerpt_lines = excerpt_lines
        self.quota = quota
        self.store = store
        self.clock = clock
        self.workers = JobRunner(cores)
        self.media_preparer = MediaPreparer(self.workers)
        self.writing: set[str] = set()
        """The ids of files that are being written. They have no row yet, but are not orphans."""
        self.kept = self.kept_bytes = self.refused = 0
        self._swept = 0
        self._swept_at = 0.0

    def of(self, session: str, turn: str | None, fence: int | None = None) -> "SessionSpool":
        """Returns the session's spool for one turn. If `fence` is an attempt's fence, results are stored only while
        that attempt holds the turn."""
        return SessionSpool(self, session, turn, fence)

    def upload_folder(self, session: str, *, is_new: bool) -> UploadFolder:
        """Returns the destination for uploads that belong to a message to this session. The session may be created
        together with the message."""
        return UploadFolder(self, session, is_new=is_new)

    def file(self, session: str, id: str) -> Path:
        """Returns a result's path. Both arguments are generated ids, which contain no separators."""
        return self.root / session / id

    def temporary_file(self) -> BinaryIO:
        """Opens an anonymous file for data that must not outlive the process. Blocks, so call it in a thread."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=self.root, buffering=0)

    async def load(self, session: str, id: str) -> bytes:
        """Reads media for a request. Raises OSError if it cannot be read."""
        if not _ID.fullmatch(id):
            raise FileNotFoundError(id)
        return await to_thread.run_sync(_read_all, self.file(session, id), LOADED_BYTES)

    async def share(self, source: str, target: str) -> None:
        """Shares one session's results with another. A shared file exists until both sessions are deleted."""
        await to_thread.run_sync(folders.link, self.root / source, self.root / target)

    async def remove(self, session: str) -> None:
        """Removes the folder of a deleted session."""
        await to_thread.run_sync(folders.remove_folder, self.root / session)

    async def sweep(self) -> int:
        """Removes folders without a session and files without a row. Returns the number of removed folders and files.
        After the first sweep, only folders that have changed are read."""
        begun = self.clock()
        if self.store.problems.is_current("spool"):
            await to_thread.run_sync(self._try_writing)
        since, before = self._swept_at - 2 * YOUNG_SECONDS, begun - YOUNG_SECONDS
        found = await to_thread.run_sync(folders.folders, self.root)
        removed = 0
        for names in _batches(found):
            known = await self.store.read(sessions.existing, names)
            for name in names:
                if name in known:
                    removed += await self._sweep_files(name, before) if found[name] >= since else 0
                elif found[name] < before:
                    removed += await to_thread.run_sync(folders.remove_folder, self.root / name)
        self._swept += removed
        self._swept_at = begun
        return removed

    def _try_writing(self) -> None:
        """Checks whether the disk accepts files again and, if so, marks the problem as resolved; otherwise, it would
        stay open until the next long result."""
        with contextlib.suppress(OSError):
            with self.temporary_file() as file:
                file.write(bytes(io.DEFAULT_BUFFER_SIZE))
            self.store.problems.resolve("spool")

    async def _sweep_files(self, session: str, before: float) -> int:
        """Removes files without a row. First the files are listed, then `writing` is checked, and then the rows are
        read, so that the row of a file that is completed in the meantime is seen."""
        found = await to_thread.run_sync(folders.files, self.root / session, before)
        orphans: list[str] = []
        for names in _batches([name for name, id in found.items() if id not in self.writing]):
            known = await self.store.read(_existing, [found[name] for name in names])
            orphans += [name for name in names if found[name] not in known]
        return await to_thread.run_sync(folders.remove_files, self.root / session, orphans) if orphans else 0

    def stats(self) -> SpoolStats:
        return SpoolStats(
            writing=len(self.writing),
            kept=self.kept,
            kept_bytes=self.kept_bytes,
            refused=self.refused,
            swept=self._swept,
            swept_at=self._swept_at,
        )


class SessionSpool:
    """A session's spool for one turn. The object owns no resources. It counts the media that had to be stored inside
    messages."""

    def __init__(self, spool: Spool, session: str, turn: str | None, fence: int | None = None) -> None:
        self._spool = spool
        self._fence = fence
        self.session = session
        self.turn = turn
        self._unspooled = InlineAllowance()

    # -- writing --

    def record(self, name: str, *, max_bytes: int | None = None, reserve: int = RESERVE) -> OutputRecorder:
        """Returns a recorder for streamed output. `name` is the output's origin. `max_bytes` replaces the default size
        limit for the excerpt, of which `reserve` bytes are left for additional text."""
        limit = max_bytes or self._spool.excerpt_bytes
        lines = self._spool.excerpt_lines
        return OutputRecorder(
            self._place(name),
            max_bytes=max(limit - reserve, limit // 2),
            max_lines=max(lines - RESERVED_LINES, lines // 2),
        )

    async def text(self, name: str, text: str, *, max_bytes: int | None = None) -> str:
        """Returns the text if it fits the limits. Otherwise, stores it in the spool and returns an excerpt."""
        limit = max_bytes or self._spool.excerpt_bytes
        data = text.encode("utf-8", "replace")
        if len(data) <= limit and count_lines(data) <= self._spool.excerpt_lines:
            return data.decode()
        async with OutputRecorder(self._place(name), max_bytes=limit, max_lines=self._spool.excerpt_lines) as recorder:
            await recorder.write(data)
            return await recorder.finish()

    async def media(self, name: str, source: bytes | int) -> Media:
        """Prepares an image, audio (WAV, MP3) or a document (PDF) for a model. The type is detected from the first
        bytes. Only images are converted. `source` is the content, or a file descriptor that the caller still owns.
        The last part of `name` is stored as a document's name. Raises `ToolFailed` with the reason if the media cannot
        be used."""
        return await self._spool.media_preparer.media(name, source, self._place(name), filename=Path(name).name)

    def _place(self, name: str) -> SessionFolder:
        return SessionFolder(self._spool, self.session, self.turn, name, self._unspooled, self._fence)

    # -- reading --

    async def row(self, id: str) -> SpooledRow:
        """Returns the row of one of this session's spooled results."""
        found: SpooledRow | None = await self._spool.store.read(spooled.get, id, self.session)
        if found is None:
            raise ToolFailed(f"There is no result {id[:60]!r} in this conversation.")
        return found

    async def page(self, id: str, *, offset: int = 0, lines: int = 200, byte: int | None = None) -> str:
        """Returns a page of a result that starts after `offset` lines, or at `byte`. The last line of the page says how
        to continue."""
        row = await self._text(id)
        wanted = PageRequest(offset=offset, lines=min(lines, self._lines), byte=byte, max_bytes=self._bytes)
        path = self._spool.file(self.session, row.id)
        try:
            return await to_thread.run_sync(read_page, path, row.lines, wanted)
        except FileNotFoundError:
            raise _gone_error(row) from None

    async def search(
        self, id: str, pattern: str, *, limit: int = 50, regex: bool = False, offset: int = 0, byte: int = 0
    ) -> str:
        """Returns the matches of `pattern`, each with its line and byte. The last line says how to continue."""
        row = await self._text(id)
        query = ResultQuery(
            pattern=pattern,
            regex=regex,
            offset=offset,
            byte=byte,
            limit=limit,
            max_bytes=self._bytes,
            max_lines=self._lines,
        )
        try:
            return await search(self._spool.workers, self._spool.file(self.session, row.id), query)
        except FileNotFoundError:
            raise _gone_error(row) from None

    async def _text(self, id: str) -> SpooledRow:
        row = await self.row(id)
        if row.kind != "text":
            raise ToolFailed(
                f"{row.id} is a {media_kind(row.media_type)} ({row.media_type}) and was returned together with its "
                f"result."
            )
        return row

    @property
    def _bytes(self) -> int:
        """The maximum size of a page, which leaves space for the line about its position."""
        return max(self._spool.excerpt_bytes - RESERVE, self._spool.excerpt_bytes // 2)

    @property
    def _lines(self) -> int:
        return max(self._spool.excerpt_lines - RESERVED_LINES, 1)


def _existing(db: Db, ids: Sequence[str]) -> set[str]:
    return spooled.existing(db, ids) | processes.existing(db, ids)


def _batches(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _read_all(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{path.name} is longer than {most} bytes")
    return data


def _gone_error(row: SpooledRow) -> ToolFailed:
    return ToolFailed(f"The file of {row.id} no longer exists; repeat the call that produced it.")
