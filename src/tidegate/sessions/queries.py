"""Reads for callers: sessions, outcomes, pages of a transcript, exports.

Guarantee: each takes whose rows may be seen (`own`, None for the owner's view) and never gives more; every result is
bounded by a limit, a transcript's in bytes too; an export streams page by page and holds one page.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from tidegate import engine
from tidegate.sessions.views import view
from tidegate.store import Db, MessageRow, SessionRow, Store, UsageTotal, messages, search, sessions, turns, usage
from tidegate.values import Frozen, Media, Outcome

if TYPE_CHECKING:
    from tidegate.security import Principal
    from tidegate.sessions.service import Sessions

__all__ = ["export", "listing", "media", "newest", "outcome", "page", "session", "view", "without_bytes"]

STREAM_ROWS = 200
STREAM_BYTES = 256 * 1024
"""Of a transcript that is streamed, held at once: hundreds may be streamed at the same time, to slow readers."""

LISTING_MOST = 500
"""Rows of one listing, whatever is asked for."""


def session(db: Db, id: str, own: str | None) -> SessionRow | None:
    return sessions.get(db, id) if own is None else sessions.owned(db, id, own)


def outcome(db: Db, turn: str, own: str | None) -> Outcome | None:
    return turns.outcome(db, turn) if own is None else turns.outcome_for(db, turn, own)


def listing(
    db: Db, own: str | None, ended: bool | None, limit: int, before: tuple[float, str] | None
) -> list[SessionRow]:
    return sessions.listing(db, principal=own, ended=ended, limit=min(limit, LISTING_MOST), before=before)


def usage_in(
    db: Db, own: str | None, by: usage.By, since: float, until: float, limit: int
) -> tuple[list[UsageTotal], UsageTotal]:
    rows = usage.totals(db, by=by, since=since, until=until, principal=own, limit=limit)
    return rows, usage.total(db, since=since, until=until, principal=own)


async def mentioning(store: Store, query: str, own: str | None, ended: bool | None, limit: int) -> list[SessionRow]:
    """Sessions with these words in their title or name, then those in which they were said."""
    found = await search.search(store, query, principal=own, ended=ended, limit=min(limit, LISTING_MOST))
    return await store.read(sessions.listed, found)


class TranscriptPage(Frozen, frozen=True):
    """Rows of a transcript, in order. `more` says that there are others, in the direction of reading."""

    rows: tuple[MessageRow, ...]
    more: bool


def page(db: Db, session: str, after: int, limit: int, most_bytes: int = messages.PAGE_BYTES) -> TranscriptPage:
    rows = messages.page(db, session, after=after, limit=min(limit, LISTING_MOST), most_bytes=most_bytes)
    return TranscriptPage(rows=tuple(rows), more=bool(rows) and messages.has_rows(db, session, after=rows[-1].seq or 0))


def newest(db: Db, session: str, before: int | None, limit: int) -> TranscriptPage:
    rows = messages.newest(db, session, before=before, limit=min(limit, LISTING_MOST))
    return TranscriptPage(rows=tuple(rows), more=bool(rows) and messages.has_rows(db, session, before=rows[0].seq))


def without_bytes(page: TranscriptPage) -> TranscriptPage:
    rows = tuple(msgspec.structs.replace(row, message=engine.without_bytes(row.message)) for row in page.rows)
    return TranscriptPage(rows=rows, more=page.more)


def media(db: Db, session: str, place: int, number: int) -> Media | None:
    rows = messages.page(db, session, after=place - 1, limit=1, undone=True)
    found = rows[0].message.media if rows and rows[0].seq == place else ()
    return found[number] if 0 <= number < len(found) else None


async def export(service: "Sessions", session: str, principal: "Principal") -> AsyncIterator[bytes]:
    """JSON lines: the session, then its rows in order, the undone ones marked."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode(await service.session(session, principal)) + b"\n"
    after = 0
    while rows := await service.store.read(_export_page, session, after):
        for row in rows:
            yield encoder.encode(row) + b"\n"
        after = rows[-1].seq or 0


def _export_page(db: Db, session: str, after: int) -> list[MessageRow]:
    return messages.page(db, session, after=after, limit=STREAM_ROWS, most_bytes=STREAM_BYTES, undone=True)
