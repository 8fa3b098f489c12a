"""A store with conversations of several people, and the recall service over it, for tests."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from tests.store.rows import OWNER, new_session
from tidegate.config import read
from tidegate.lifetimes import Ledger, Scope
from tidegate.plugins.host import Plugin
from tidegate.plugins.loading import PluginUse
from tidegate.recall.recall import RecallService
from tidegate.spool import Spool
from tidegate.store import Db, Store, SummaryRow, messages, summaries
from tidegate.tools import Recall, ToolContext, ToolServices
from tidegate.values import Message

ANNA, BERT = OWNER, "p_bert"

SETTINGS = """
[models.main]
api = "demo"
[agents.main]
tools = ["context"]
[agents.wide]
tools = ["context"]
recall = "person"
"""


class RecallStore:
    """A store with messages, and the recall service."""

    def __init__(self, store: Store, spool: Spool, recall: RecallService, scope: Scope, plugin: Plugin | None) -> None:
        self.store = store
        self.spool = spool
        self.recall = recall
        self.scope = scope
        self.plugin = plugin

    def context(
        self, session: str = "s_1", *, agent: str = "main", principal: str = ANNA, turn: str = "t_now"
    ) -> ToolContext:
        return ToolContext(
            session=session,
            principal=principal,
            channel="http",
            agent=agent,
            turn=turn,
            workspace=cast(Any, None),
            spool=self.spool.of(session, turn),
            services=ToolServices({Recall: self.recall}),
        )

    async def begin(self, session: str, principal: str = ANNA, **fields: Any) -> None:
        await self.store.write(new_session, session, principal=principal, **fields)

    async def say(self, session: str, *said: Message | str, turn: str | None = None) -> None:
        """Add rows to the transcript; a string is a message of the user, and the next one of the assistant."""
        await self.store.write(add, session, said, turn)

    async def search(self, query: str, *, context: ToolContext | None = None, **options: Any) -> str:
        given = {"exact": self.plugin is None, "regex": False, "everywhere": False, "after": "", "limit": 20, **options}
        return await self.recall.search(context or self.context(), query, **given)

    async def expand(self, *, context: ToolContext | None = None, **options: Any) -> str:
        given = {"summary": None, "first": None, "last": None, "offset": 0, "session": "", **options}
        return await self.recall.expand(context or self.context(), **given)

    async def describe(self, summary: int | None = None, *, context: ToolContext | None = None, after: int = 0) -> str:
        return await self.recall.describe(context or self.context(), summary, after=after)

    async def spooled(self, session: str, text: str) -> str:
        """Spool a long result and return its id."""
        shown = await self.spool.of(session, None).text("terminal", text, max_bytes=200)
        return shown.partition("the full text is ")[2].partition(";")[0]


def add(db: Db, session: str, said: tuple[Message | str, ...], turn: str | None) -> None:
    for number, each in enumerate(said):
        message = each if isinstance(each, Message) else Message(role="assistant" if number % 2 else "user", text=each)
        messages.append(
            db,
            session=session,
            turn=turn,
            step=None if turn is None else f"step-{number}",
            message=message,
            now=1_000_000.0 + number,
        )


def summarise(db: Db, session: str, first: int, last: int, *, level: int = 0, text: str = "They talked.") -> int:
    row = SummaryRow(0, level, first, last, None, "prepared", "model", "main", 0.0, text)
    number = summaries.add(db, session, row, 2_000_000.0)
    summaries.apply(db, session, [number])
    return number


@contextlib.asynccontextmanager
async def open_recall_store(
    home: Path, extra: str = "", *, excerpt_bytes: int = 16 * 1024, excerpt_lines: int = 400, entered: bool = False
) -> AsyncIterator[RecallStore]:
    """With one empty conversation of Anna's, s_1."""
    config = read(SETTINGS + extra, home)
    index = PluginUse(kind="index", name=config.context.index, agents=("main",)) if config.context.index else None
    async with (
        Scope("process", account=Ledger().account("process")) as scope,
        Store.open(home / "tidegate.db") as store,
    ):
        spool = Spool(home / "spool", store, excerpt_bytes=excerpt_bytes, excerpt_lines=excerpt_lines, quota=50_000_000)
        plugin = None if index is None else Plugin(index, config, scope.child("plug-ins"), {})
        recall = RecallService(config, store, spool, scope.child("sessions"), plugin)
        if plugin is not None and entered:
            await plugin.open()
        made = RecallStore(store, spool, recall, scope, plugin)
        await made.begin("s_1")
        yield made
