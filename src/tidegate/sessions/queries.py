"""Read queries for callers: sessions, outcomes, transcript pages and exports.

Each query takes the principal whose rows may be read (`own`; None means all principals) and returns only these rows.
Every result has a limit, and transcripts are also limited in bytes. An export is streamed, with one page in memory at a
time.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from tidegate.errors import NotFound
from tidegate.security import Principal
from tidegate.sessions.views import SessionView
from tidegate.store import (
    AuditKind,
    AuditRow,
    Db,
    MessageRow,
    OpenTurns,
    SessionRow,
    SettingRow,
    Store,
    UsageTotal,
    audit,
    messages,
    open_turns,
    principals,
    session_search,
    sessions,
    settings,
    turns,
    usage,
)
from tidegate.values import Frozen, Media, Outcome

STREAM_ROWS = 200
STREAM_BYTES = 256 * 1024
"""Bytes of a streamed transcript in memory at any time. The number is small because hundreds of transcripts may be
streamed to slow readers concurrently."""

LISTING_MOST = 500
"""Maximum number of rows in one listing, whatever limit is requested."""


def visible_to(principal: Principal | None) -> str | None:
    """Returns the principal whose rows may be read. For the owner and the gateway, this is None, which means all
    principals."""
    return None if principal is None or principal.may("configure") else principal.id


async def visible_session(store: Store, id: str, principal: Principal) -> SessionRow:
    """Returns the session if this principal may see it. Raises NotFound otherwise."""
    found: SessionRow | None = await store.read(session, id, visible_to(principal))
    if found is None:
        raise NotFound(f"There is no session {id}.", code="session_not_found")
    return found


def session(db: Db, id: str, own: str | None) -> SessionRow | None:
    return sessions.get(db, id) if own is None else sessions.owned(db, id, own)


def outcome(db: Db, turn: str, own: str | None) -> Outcome | None:
    return turns.outcome(db, turn) if own is None else turns.outcome_for(db, turn, own)


def listing(
    db: Db, own: str | None, ended: bool | None, limit: int, before: tuple[float, str] | None
) -> list[SessionRow]:
    return sessions.listing(db, principal=own, ended=ended, limit=min(limit, LISTING_MOST), before=before)


def details(db: Db, session: str, now: float) -> tuple[OpenTurns, tuple[SettingRow, ...]]:
    """Returns a session's open turns and settings."""
    return open_turns.of_session(db, session), tuple(settings.get_all(db, session, now))


def usage_in(
    db: Db, own: str | None, by: usage.By, since: float, until: float, limit: int
) -> tuple[list[UsageTotal], UsageTotal]:
    rows = usage.totals(db, by=by, since=since, until=until, principal=own, limit=limit)
    return rows, usage.total(db, since=since, until=until, principal=own)


def audit_events(
    db: Db,
    since: float,
    kind: AuditKind | None,
    principal: str | None,
    session: str | None,
    host: str | None,
    before: tuple[float, int] | None,
    limit: int,
) -> tuple[list[AuditRow], dict[str, str]]:
    """Returns audit events, and all principals' names by id. `principal` is an id or a name."""
    names = {row.id: row.name for row in principals.listing(db)}
    id = principal
    if principal is not None and principal not in names:
        id = next((each for each, name in names.items() if name == principal), None)
        if id is None:
            raise NotFound(f"There is no principal {principal!r}.", code="principal_not_found", param="principal")
    rows = audit.listing(
        db,
        since=since,
        kind=kind,
        principal=id,
        session=session,
        of=None if host is None else audit.host_name(host),
        before=before,
        limit=limit,
    )
    return rows, names


async def mentioning(
    store: Store, query: str, own: str | None, ended: bool | None, limit: int
) -> list[tuple[SessionRow, str]]:
    """Returns sessions with these words in their title or name, followed by sessions with these words in a message,
    each with the part of the message that surrounds the words."""
    found = await session_search.search(store, query, principal=own, ended=ended, limit=min(limit, LISTING_MOST))
    excerpts = {each.id: each.excerpt for each in found}
    return [(row, excerpts[row.id]) for row in await store.read(sessions.listed, list(excerpts))]


class TranscriptPage(Frozen, frozen=True):
    """Transcript rows, in order. `more` is true if there are more rows in the direction of reading."""

    rows: tuple[MessageRow, ...]
    more: bool


def page(db: Db, session: str, after: int, limit: int, most_bytes: int = messages.PAGE_BYTES) -> TranscriptPage:
    rows = messages.page(db, session, after=after, limit=min(limit, LISTING_MOST), most_bytes=most_bytes)
    return TranscriptPage(rows=tuple(rows), more=bool(rows) and messages.has_rows(db, session, after=rows[-1].seq or 0))


def newest(db: Db, session: str, before: int | None, limit: int) -> TranscriptPage:
    rows = messages.newest(db, session, before=before, limit=min(limit, LISTING_MOST))
    return TranscriptPage(rows=tuple(rows), more=bool(rows) and messages.has_rows(db, session, before=rows[0].seq))


def without_bytes(page: TranscriptPage) -> TranscriptPage:
    rows = tuple(msgspec.structs.replace(row, message=row.message.without_bytes()) for row in page.rows)
    return TranscriptPage(rows=rows, more=page.more)


def media(db: Db, session: str, place: int, number: int) -> Media | None:
    rows = messages.page(db, session, after=place - 1, limit=1, undone=True)
    found = rows[0].message.media if rows and rows[0].seq == place else ()
    return found[number] if 0 <= number < len(found) else None


async def export(
    store: Store, view: Callable[[str, Principal], Awaitable[SessionView]], session: str, principal: Principal
) -> AsyncIterator[bytes]:
    """Yields JSON lines: first the session, then its rows in order. Undone rows are marked."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode(await view(session, principal)) + b"\n"
    after = 0
    while rows := await store.read(_export_page, session, after):
        for row in rows:
            yield encoder.encode(row) + b"\n"
        after = rows[-1].seq or 0


def _export_page(db: Db, session: str, after: int) -> list[MessageRow]:
    return messages.page(db, session, after=after, limit=STREAM_ROWS, most_bytes=STREAM_BYTES, undone=True)
