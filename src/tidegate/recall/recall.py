"""Recall: the service behind the `context_search`, `context_describe` and `context_expand` tools.

The principal and the session are always taken from the call's context. A conversation can look up its own transcript,
and the transcripts of the same person's other conversations if the agent's `recall` setting allows this. Everything
else is reported as not found. Transcripts are never changed. Results are bounded, quote messages (`render`) and say how
to continue.

The service lives as long as the process. It only holds references to the plug-in index and to the vectors, if they are
configured.
"""

from typing import TYPE_CHECKING

from tidegate.config import Config
from tidegate.errors import ToolFailed
from tidegate.lifetimes import Scope
from tidegate.recall import render
from tidegate.recall.render import RenderedPage
from tidegate.recall.search import MessageSearch, SearchRequest, SearchStage
from tidegate.recall.search_index import PluginIndex
from tidegate.spool import Spool
from tidegate.store import Db, MessageRow, Store, SummaryRow, messages, sessions, summaries
from tidegate.tools import ToolContext
from tidegate.values import Frozen

if TYPE_CHECKING:
    from tidegate.plugins.host import Plugin
    from tidegate.recall.vectors import MessageVectors

QUERY_CHARACTERS = 1000
LIMIT = 50
"""Maximum number of hits in one result."""
READ_ROWS = 200
READ_BYTES = 512 * 1024
"""Maximum number of bytes of messages in one read: more than a result contains."""
LISTED = 100
"""Maximum number of summaries in one result."""
COUNTED = 20_000
"""Maximum length of a span of positions whose messages are counted. A longer span is described only by its first and
last position."""
BEGINNING = 200
"""Number of characters of a summary's text shown in a list."""
RESERVE = 512
"""Number of bytes reserved for a result's last line."""
RESERVED_LINES = 8
LEAST_LINES = 4
"""Minimum number of lines of a page, to leave room for one line of a message."""


class TranscriptSpan(Frozen, frozen=True):
    """The range of positions to show from a session. The first message is shown starting at character `offset`."""

    session: str
    first: int
    last: int | None
    offset: int
    summary: int | None


class RecallService:
    def __init__(
        self,
        config: Config,
        store: Store,
        spool: Spool,
        scope: Scope,
        index: "Plugin | None" = None,
        vectors: "MessageVectors | None" = None,
    ) -> None:
        self._config = config
        self._store = store
        self._spool = spool
        self.index = None if index is None else PluginIndex(index, scope, store)
        self.vectors = vectors
        self._search = MessageSearch(store, spool, self.index, vectors)

    # -- search --

    async def search(
        self, ctx: ToolContext, query: str, *, exact: bool, regex: bool, everywhere: bool, after: str, limit: int
    ) -> str:
        query = query.encode("utf-8", "ignore").decode().strip()
        if not query or len(query) > QUERY_CHARACTERS:
            raise ToolFailed(f"context_search: query must have 1 to {QUERY_CHARACTERS} characters")
        if everywhere and not self._may_look_everywhere(ctx):
            raise ToolFailed(_NOT_EVERYWHERE)
        page = self._page()
        request = SearchRequest(
            principal=ctx.principal,
            own=ctx.session,
            turn=ctx.turn,
            everywhere=everywhere,
            query=query,
            kind="regex" if regex else "exact" if exact else "ranked",
            limit=min(limit, LIMIT),
            max_bytes=self._spool.excerpt_bytes,
        )
        return self._shown(page, await self._search.search(request, after))

    def _shown(self, page: RenderedPage, stage: SearchStage) -> str:
        after, shown = stage.after, 0
        if stage.hits:
            page.add(render.NOTICE)
        for hit in stage.hits:
            line = render.QUOTE + render.one_line(hit.excerpt)
            if shown and not page.fits(hit.heading, line):
                after = stage.hits[shown - 1].after
                break
            page.add(hit.heading, line)
            shown += 1
        found = f"{shown} place{'s' * (shown != 1)}" if shown else "nothing found"
        end = f"; there may be more: continue with after={after!r}" if after is not None else "; that is all"
        page.add(f"[{'; '.join((found, *stage.notes))}{end}]")
        return page.text()

    # -- describe --

    async def describe(self, ctx: ToolContext, summary: int | None, *, after: int) -> str:
        if summary is None:
            return await self._store.read(self._tree, ctx.session, after)
        found: str | None = await self._store.read(self._summary, ctx.session, summary, after)
        if found is None:
            raise ToolFailed(f"There is no summary {summary} in this conversation; context_describe lists them.")
        return found

    def _tree(self, db: Db, session: str, after: int) -> str:
        """Describes the model's view of the conversation: summaries, then messages."""
        page = self._page()
        shown = summaries.shown(db, session)
        last = messages.newest(db, session, limit=1)
        if not shown:
            end = f"messages 1 to {last[0].seq} are all shown verbatim" if last else "there are no messages yet"
            return f"There are no summaries in this conversation: {end}."
        self._list(db, page, session, shown, after)
        if last and (last[0].seq or 0) > shown[-1].last:
            page.add(f"Messages {shown[-1].last + 1} to {last[0].seq} are shown verbatim.")
        return page.text()

    def _summary(self, db: Db, session: str, number: int, after: int) -> str | None:
        row = summaries.get(db, session, number)
        if row is None or row.state != "applied":
            return None
        page = self._page()
        page.add(summary_heading(db, session, row))
        if row.parent is not None:
            page.add(f"It is covered by summary {row.parent}.")
        below = summaries.children(db, session, number)
        if not below:
            page.add(f"context_expand with summary={number} returns those messages.")
        self._list(db, page, session, below, after)
        return page.text()

    def _list(self, db: Db, page: RenderedPage, session: str, rows: list[SummaryRow], after: int) -> None:
        following = [row for row in rows if row.first > after]
        for place, row in enumerate(following):
            about, text = summary_heading(db, session, row), render.QUOTE + render.one_line(row.text[:BEGINNING])
            if place and (place == LISTED or not page.fits(about, text)):
                page.add(f"[{len(following) - place} more; continue with after={following[place - 1].last}]")
                return
            page.add(about, text)

    # -- expand --

    async def expand(
        self, ctx: ToolContext, *, summary: int | None, first: int | None, last: int | None, offset: int, session: str
    ) -> str:
        if session and session != ctx.session:
            if not self._may_look_everywhere(ctx):
                raise ToolFailed(_NOT_EVERYWHERE)
            row = await self._store.read(sessions.owned, session, ctx.principal)
            if row is None or row.kind != "named":
                raise ToolFailed(f"There is no conversation {render.plain(session)} of this person.")
        of = session or ctx.session
        if summary is not None:
            covering: SummaryRow | None = await self._store.read(summaries.get, of, summary)
            if covering is None or covering.state != "applied":
                raise ToolFailed(f"There is no summary {summary} there; context_describe lists them.")
            first = max(first or 0, covering.first)
            last = covering.last if last is None else min(last, covering.last)
        if first is None:
            raise ToolFailed("context_expand: either summary or first is required")
        if last is not None and last < first:
            raise ToolFailed("context_expand: last must not be before first")
        wanted = TranscriptSpan(session=of, first=first, last=last, offset=offset, summary=summary)
        return await self._store.read(self._original, wanted, foreign=of != ctx.session)

    def _original(self, db: Db, wanted: TranscriptSpan, *, foreign: bool) -> str:
        """Returns as many of the messages as fit, verbatim."""
        end = wanted.first if wanted.last is None else wanted.last
        page = self._page()
        page.add(render.NOTICE)
        first, offset, shown = wanted.first, wanted.offset, 0
        while first <= end:
            rows = messages.page(db, wanted.session, after=first - 1, limit=READ_ROWS, most_bytes=READ_BYTES)
            rows = [row for row in rows if (row.seq or 0) <= end]
            if not rows:
                break
            for row in rows:
                place = row.seq or 0
                reached = self._show(page, row, offset if place == wanted.first else 0, foreign=foreign)
                if reached is not None:
                    page.add(_go_on(wanted, place, reached))
                    return page.text()
                first, shown = place + 1, shown + 1
        if not shown:
            there = messages.newest(db, wanted.session, limit=1)
            raise ToolFailed(
                f"There is no message {wanted.first}{f' to {end}' if end != wanted.first else ''} that was not undone"
                f"{f'; the last one is {there[0].seq}' if there else ''}."
            )
        page.add("[that is all]")
        return page.text()

    def _show(self, page: RenderedPage, row: MessageRow, offset: int, *, foreign: bool) -> int | None:
        """Shows a message, or as much of it as fits. Returns the offset reached, or None if the message is complete."""
        place, total = row.seq or 0, render.length(row.message)
        heading = render.heading(place, row.message, row.at, row.session if foreign else None)
        part = f" · from character {offset} of {total}" if offset else f" · {total} characters"
        is_first = len(page.lines) == 1
        if not is_first and not page.fits(heading + part, render.QUOTE * 2):
            return offset
        page.add(heading + part)
        if offset >= total:
            return None
        reached = render.show(page, row.message, offset)
        return reached if reached < total else None

    def _page(self) -> RenderedPage:
        """Returns a page that is short enough to be shown in full. Longer results would be written to the spool and
        shown as excerpts."""
        most, lines = self._spool.excerpt_bytes, self._spool.excerpt_lines
        return RenderedPage(max(most - RESERVE, most * 3 // 4), max(lines - RESERVED_LINES, lines // 2, LEAST_LINES))

    def _may_look_everywhere(self, ctx: ToolContext) -> bool:
        agent = self._config.agents.get(ctx.agent)
        return agent is not None and agent.recall == "person"


_NOT_EVERYWHERE = (
    'This agent may search only this conversation; the operator can allow more with recall = "person" in the agent\'s '
    "settings."
)


def _go_on(wanted: TranscriptSpan, place: int, reached: int) -> str:
    arguments = [f"first={place}"]
    if reached:
        arguments.append(f"offset={reached}")
    if wanted.summary is not None:
        arguments.insert(0, f"summary={wanted.summary}")
    if wanted.last is not None and wanted.summary is None:
        arguments.append(f"last={wanted.last}")
    return f"[there is more; continue with {', '.join(arguments)}]"


def summary_heading(db: Db, session: str, row: SummaryRow) -> str:
    """Returns one line that describes a summary and the messages that it covers."""
    first = messages.page(db, session, after=row.first - 1, limit=1)
    last = messages.newest(db, session, before=row.last + 1, limit=1)
    times = f", {render.when(first[0].at)} to {render.when(last[0].at)}" if first and last else ""
    count = ""
    if row.last - row.first < COUNTED:
        number = messages.count_shown(db, session, row.first, row.last)
        count = f" ({number} messages{times})"
    below = [child.number for child in summaries.children(db, session, row.number)]
    of = f", made of summaries {', '.join(map(str, below))}" if below else ""
    who = {"model": "by", "terse": "shortly by"}.get(row.how)
    author = f"written {who} {render.plain(row.model)}" if who else "a list made without a model"
    return f"Summary {row.number}: messages {row.first} to {row.last}{count}{of}; {author}, {render.when(row.at)}"
