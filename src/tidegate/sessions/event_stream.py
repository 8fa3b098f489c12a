"""A session's events as one stream that readers can leave and resume.

A reader that resumes with the id of the last event it received misses no committed row and gets none twice. An event's
id is the position of its row in the transcript. Events that are not rows (pieces of text, progress) have no id; they
are repeated from the start of the running turn's current answer. Open questions are sent first, so that no reader
misses them, and again at their position in the stream.

The stream keeps a cursor instead of a queue, and loads a bounded number of rows at a time when catching up.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tidegate.engine import Engine, TurnLog
from tidegate.security import Principal
from tidegate.sessions import queries
from tidegate.sessions.components import Components
from tidegate.values import Event, MessageAdded, TextDelta, TextReset


async def watch(
    components: Components, session: str, principal: Principal, after: int
) -> AsyncGenerator[tuple[int | None, Event], None]:
    """Yields event ids and events. Ends when the session has ended and all of its events have been sent."""
    seen = after
    followed: TurnLog | None = None
    store, engine = components.store, components.engine
    with components.presence.keep_present(session) as record:
        log = await _unfollowed(engine, session, followed)
        await queries.visible_session(store, session, principal)
        for question in await components.approvals.open_events(session):
            yield None, question
        while True:
            news = record.expect()
            # Read this before anything is awaited: a short turn may have ended by the time its rows are read, and only
            # its log contains the other events and the outcome.
            try:
                log = log or await _unfollowed(engine, session, followed)
                row = await queries.visible_session(store, session, principal)
                page = await store.read(queries.page, session, seen, queries.STREAM_ROWS, queries.STREAM_BYTES)
                log = log or await _unfollowed(engine, session, followed)
                for found in page.rows:
                    if log is not None and found.turn == log.turn and not log.resumed:
                        break  # the turn's log has this row at its position
                    seen = max(seen, found.seq or 0)
                    yield found.seq, TurnLog.row_event(found.seq or 0, found.message)
                else:
                    if page.more:
                        continue  # the running turn comes after these rows
                if log is not None:
                    followed, log = log, None
                    del page  # the turn may run for a long time
                    # Close it here, so that the turn immediately notices that its reader has left.
                    async with aclosing(followed.read()) as batches:
                        async for batch in batches:
                            for event in _unsent(batch, seen):
                                if not isinstance(event, MessageAdded):
                                    yield None, event
                                elif event.seq > seen:
                                    seen = event.seq
                                    yield event.seq, event
                elif row.ended is not None and not page.rows:
                    return
                elif not page.rows:
                    await news
            finally:
                news.cancel()


async def _unfollowed(engine: Engine, session: str, followed: TurnLog | None) -> TurnLog | None:
    """Returns the running turn's log, unless it has already been followed. The log's first event says which rows it
    contains."""
    log = engine.follow_session(session)
    if log is None or log is followed:
        return None
    await log.begun()
    return log


def _unsent(batch: list[Event], seen: int) -> list[Event]:
    """Returns the events without the text of answers that have already been sent as rows."""
    rows = (place for place, event in enumerate(batch) if isinstance(event, MessageAdded) and event.seq <= seen)
    current = max(rows, default=-1)
    return [
        event for place, event in enumerate(batch) if place > current or not isinstance(event, TextDelta | TextReset)
    ]
