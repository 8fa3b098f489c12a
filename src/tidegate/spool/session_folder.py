"""A session's folder in the spool, with the session's quota and rows.

Rows are written only within the session's quota. The rows for a message's uploads (`UploadFolder`) are written in the
transaction that accepts the message. If that transaction is not committed, the uploaded files are removed. If its
outcome is unknown, they are left to the sweep.
"""

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from anyio import CancelScope, to_thread

from tidegate.errors import Busy, DiskFailed, Refused, StoreFailed, StoreFull, TooLarge, ToolFailed
from tidegate.log import Log
from tidegate.spool.entry import QUOTA, FileWriter, InlineAllowance
from tidegate.store import Db, disk_failure, spooled, turns
from tidegate.values import Media, new_id

if TYPE_CHECKING:
    from tidegate.spool.spool import Spool

log = Log(__name__)


class SessionFolder:
    """The destination for one of a session's results."""

    def __init__(
        self,
        spool: "Spool",
        session: str,
        turn: str | None,
        name: str,
        unspooled: InlineAllowance,
        fence: int | None = None,
    ) -> None:
        self._spool = spool
        self.session = session
        self._turn = turn
        self._fence = fence
        self._name = name
        self.unspooled = unspooled

    async def begin(self) -> tuple[str, FileWriter, int]:
        used: int = await self._spool.store.read(spooled.total, self.session)
        id = new_id("sp")
        self._spool.writing.add(id)
        return id, FileWriter(self._spool.file(self.session, id)), self._spool.quota - used

    async def keep(self, id: str, bytes: int, lines: int, media_type: str) -> str:
        try:
            if not await self._spool.store.write(self._add, id, bytes, lines, media_type):
                return QUOTA
        except (StoreFull, DiskFailed) as error:
            return error.message
        self._count(bytes)
        return ""

    def refuse(self, error: OSError | None) -> None:
        self._spool.refused += 1
        if error is not None:
            self._spool.store.problems.record("spool", _failure(error).message)

    def leave(self, id: str) -> None:
        self._spool.writing.discard(id)

    def _count(self, bytes: int) -> None:
        self._spool.kept += 1
        self._spool.kept_bytes += bytes
        self._spool.store.problems.resolve("spool")

    def _add(self, db: Db, id: str, bytes: int, lines: int, media_type: str) -> bool:
        """Adds the row. Returns False if other results have used up the quota in the meantime."""
        if self._turn is not None and self._fence is not None:
            turns.check_fence(db, self._turn, self._fence)
        if spooled.total(db, self.session) + bytes > self._spool.quota:
            return False
        spooled.add(
            db,
            id=id,
            session=self.session,
            turn=self._turn,
            kind="text" if media_type == "text/plain" else "media",
            bytes=bytes,
            lines=lines,
            media_type=media_type,
            name=self._name,
            now=self._spool.clock(),
        )
        return True


class _Upload(NamedTuple):
    id: str
    bytes: int
    media_type: str


class UploadFolder(SessionFolder):
    """The destination for one message's uploads. The owner must call `close`."""

    def __init__(self, spool: "Spool", session: str, *, is_new: bool) -> None:
        super().__init__(spool, session, None, "message", InlineAllowance())
        self.is_new = is_new
        """True if a session with this id will be created together with the message."""
        self._uploads: list[_Upload] = []  # lint: allow a message's parts are bounded by its bytes
        self._refused: OSError | None = None

    async def media(self, name: str, data: bytes, filename: str = "") -> Media:
        """Prepares media for the message. `name` is the media's position in the request, and `filename` is the name
        given by the caller. Raises `Refused` with the reason if the media cannot be accepted."""
        try:
            return await self._spool.media_preparer.media(name, data, self, filename=filename)
        except ToolFailed as error:
            if QUOTA in error.message:
                limit = "limits.spool_bytes"
                raise TooLarge(error.message, limit=limit, value=self._spool.quota, param=name) from error
            if self._refused is not None:
                raise type(_failure(self._refused))(error.message) from error
            raise Refused(error.message, param=name) from error

    async def begin(self) -> tuple[str, FileWriter, int]:
        """Like the base method, but also counts the message's other uploads towards the quota, since they have no rows
        yet."""
        id, sink, space = await super().begin()
        return id, sink, space - sum(upload.bytes for upload in self._uploads)

    async def keep(self, id: str, bytes: int, lines: int, media_type: str) -> str:
        self._uploads.append(_Upload(id, bytes, media_type))
        return ""

    def refuse(self, error: OSError | None) -> None:
        super().refuse(error)
        self._refused = error

    def leave(self, id: str) -> None:
        """Like the base method, but does nothing for uploads that are waiting for their row, so that the sweep still
        ignores them."""
        if all(upload.id != id for upload in self._uploads):
            super().leave(id)

    def commit(self, db: Db, session: str) -> None:
        """Writes the rows. Called in the transaction that accepts the message into this session."""
        if session != self.session:
            raise SessionChanged
        for upload in self._uploads:
            if not self._add(db, upload.id, upload.bytes, 0, upload.media_type):
                limit = "limits.spool_bytes"
                raise TooLarge(
                    f"The media cannot be stored: {QUOTA}.", limit=limit, value=self._spool.quota, param="messages"
                )

    async def close(self, *, committed: bool | None) -> None:
        """Finishes the uploads. `committed` is true if the rows were committed, and None if that is unknown."""
        for upload in self._uploads:
            super().leave(upload.id)
            if committed:
                self._count(upload.bytes)
        if committed is False:
            with CancelScope(shield=True):
                await to_thread.run_sync(self._remove)

    def _remove(self) -> None:
        for upload in self._uploads:
            try:
                self._spool.file(self.session, upload.id).unlink(missing_ok=True)
            except OSError as error:
                log.warning("a spool file could not be removed yet", id=upload.id, error=error.strerror)
        with contextlib.suppress(OSError):  # the folder contains other files
            (self._spool.root / self.session).rmdir()


def _failure(error: OSError) -> StoreFailed:
    return disk_failure(error.errno or 0, error.strerror or str(error), "a file of the spool")


class SessionChanged(Busy):
    """The media were stored for a session other than the message's, because a session with this name began or ended in
    the meantime."""

    def __init__(self) -> None:
        super().__init__(
            "The conversation with this name changed while media were being stored; send the message again."
        )
