"""Where something goes that is kept: a session's folder, its quota, and the row that says that it is there.

Guarantee: a row is written only within the session's quota. What comes with a message (`UploadFolder`) gets its rows in the
transaction that takes the message in, or is gone: then its files are removed, or left to the sweep where nobody can
know whether that transaction was committed.
"""

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from anyio import CancelScope, to_thread

from tidegate.errors import Busy, DiskFailed, Refused, StoreFailed, StoreFull, TooLarge, ToolFailed
from tidegate.log import Log
from tidegate.spool.entry import QUOTA, FileWriter, InlineAllowance
from tidegate.store import Db, disk_failure, spooled
from tidegate.values import Media, new_id

if TYPE_CHECKING:
    from tidegate.spool.spool import Spool

log = Log(__name__)


class SessionFolder:
    """Where one result of a session goes."""

    def __init__(self, spool: "Spool", session: str, turn: str | None, name: str, unspooled: InlineAllowance) -> None:
        self._spool = spool
        self.session = session
        self._turn = turn
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
        """False if others have used up the quota meanwhile."""
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


class _Arrived(NamedTuple):
    id: str
    bytes: int
    media_type: str


class UploadFolder(SessionFolder):
    """What comes with one message. Its owner ends it with `close`."""

    def __init__(self, spool: "Spool", session: str, *, is_new: bool) -> None:
        super().__init__(spool, session, None, "message", InlineAllowance())
        self.is_new = is_new
        """Whether the session is to be made with the message, under this id."""
        self._arrived: list[_Arrived] = []  # house: allow a message's parts are bounded by its bytes
        self._refused: OSError | None = None

    async def media(self, name: str, data: bytes, filename: str = "") -> Media:
        """As it goes with the message; `name` is where it stands in the request, `filename` the caller's name for it.
        Refused says why it cannot be taken."""
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
        """What came with the same message counts towards the quota, although it has no row yet."""
        id, sink, room = await super().begin()
        return id, sink, room - sum(arrived.bytes for arrived in self._arrived)

    async def keep(self, id: str, bytes: int, lines: int, media_type: str) -> str:
        self._arrived.append(_Arrived(id, bytes, media_type))
        return ""

    def refuse(self, error: OSError | None) -> None:
        super().refuse(error)
        self._refused = error

    def leave(self, id: str) -> None:
        """What waits for its row is left alone by the sweep a while longer."""
        if all(arrived.id != id for arrived in self._arrived):
            super().leave(id)

    def commit(self, db: Db, session: str) -> None:
        """Writes the rows, in the transaction that takes the message into this session."""
        if session != self.session:
            raise SessionChanged
        for arrived in self._arrived:
            if not self._add(db, arrived.id, arrived.bytes, 0, arrived.media_type):
                limit = "limits.spool_bytes"
                raise TooLarge(f"This is too much: {QUOTA}.", limit=limit, value=self._spool.quota, param="messages")

    async def close(self, *, taken: bool | None) -> None:
        """`taken` says whether the rows were committed; None that nobody knows."""
        for arrived in self._arrived:
            super().leave(arrived.id)
            if taken:
                self._count(arrived.bytes)
        if taken is False:
            with CancelScope(shield=True):
                await to_thread.run_sync(self._remove)

    def _remove(self) -> None:
        for arrived in self._arrived:
            try:
                self._spool.file(self.session, arrived.id).unlink(missing_ok=True)
            except OSError as error:
                log.warning("a file of the spool is left to the sweep", id=arrived.id, error=error.strerror)
        with contextlib.suppress(OSError):  # others lie there
            (self._spool.root / self.session).rmdir()


def _failure(error: OSError) -> StoreFailed:
    return disk_failure(error.errno or 0, error.strerror or str(error), "a file of the spool")


class SessionChanged(Busy):
    """The message goes to another session than its media was written for: one of that name began or ended meanwhile."""

    def __init__(self) -> None:
        super().__init__("Conversations of this name begin and end faster than media can be taken in; send it again.")
