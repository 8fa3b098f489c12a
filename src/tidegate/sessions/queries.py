"""Reads for callers: sessions, outcomes, pages of a transcript, exports.

Guarantee: each takes whose rows may be seen (`own`, None for the owner's view) and never gives more; every result is
bounded by a limit; an export streams page by page and holds one page.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from tidegate.sessions.views import view
from tidegate.store import Db, MessageRow, SessionRow, Store, messages, search, sessions, turns
from tidegate.values import Outcome

if TYPE_CHECKING:
    from tidegate.security import Principal
    from tidegate.sessions.door import Sessions

__all__ = ["export", "listing", "newest", "outcome", "page", "session", "view"]

EXPORT_PAGE = 200
"""Rows of a transcript that an export holds at once."""

HITS_PER_SESSION = 4
"""Messages looked at for each session wanted, since one session may mention a word often."""

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


async def mentioning(store: Store, query: str, own: str | None, ended: bool | None, limit: int) -> list[SessionRow]:
    """Sessions in which these words were said, the latest mention first."""
    found = await search.search(store, query, principal=own, limit=HITS_PER_SESSION * min(limit, LISTING_MOST))
    wanted = list(dict.fromkeys(hit.session for hit in found))

    def rows(db: Db) -> list[SessionRow]:
        each = (sessions.get(db, id) for id in wanted)
        return [row for row in each if row is not None and (ended is None or (row.ended is not None) == ended)]

    matching: list[SessionRow] = await store.read(rows)
    return matching[:limit]


def page(db: Db, session: str, after: int, limit: int) -> list[MessageRow]:
    return messages.page(db, session, after=after, limit=min(limit, LISTING_MOST), undone=False)


def newest(db: Db, session: str, before: int | None, limit: int) -> list[MessageRow]:
    return messages.newest(db, session, before=before, limit=min(limit, LISTING_MOST))


async def export(door: "Sessions", session: str, principal: "Principal") -> AsyncIterator[bytes]:
    """JSON lines: the session, then its rows in order, the undone ones marked."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode(await door.session(session, principal)) + b"\n"
    after = 0
    while True:
        rows = await door.store.read(_export_page, session, after)
        for row in rows:
            yield encoder.encode(row) + b"\n"
        if len(rows) < EXPORT_PAGE:
            return
        after = rows[-1].seq or 0


def _export_page(db: Db, session: str, after: int) -> list[MessageRow]:
    return messages.page(db, session, after=after, limit=EXPORT_PAGE, undone=True)
