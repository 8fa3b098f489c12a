"""A store with conversations and the recall service over it, whose messages get vectors from a scripted model."""

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.scripted_model import ScriptedModel
from tests.models.support import Slept
from tests.recall.recall_store import RecallStore
from tidegate.config import read
from tidegate.http_client import HttpClient
from tidegate.lifetimes import Ledger, Scope
from tidegate.models import Models, RetryPolicy
from tidegate.recall.recall import RecallService
from tidegate.recall.vectors import MessageVectors
from tidegate.security import Secret
from tidegate.spool import Spool
from tidegate.store import Db, Store, search_index, vectors
from tidegate.turns import Budgets

SETTINGS = """
[models.main]
api = "demo"
[models.near]
api = "openai-embeddings"
base_url = "{url}"
model = "text-embedding-3-small"
retries = 1
{model}
[agents.main]
tools = ["context"]
[agents.wide]
tools = ["context"]
recall = "person"
[context]
embeddings = "near"
{context}
"""


class Clock:
    """Real time, which a test may put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class VectorStore(RecallStore):
    """A store with messages, the recall service, and the vectors."""

    vectors: MessageVectors
    clock: Clock

    async def index(self) -> None:
        while await self.store.write(search_index.index):
            pass

    async def fill(self) -> None:
        """Index the new messages, and make the vectors that are due."""
        await self.index()
        await self.vectors.fill()

    async def rows(self) -> list[tuple[int, int, bytes]]:
        return await self.store.read(rows)

    async def question(self, query: str, session: str = "s_1", **options: object) -> str:
        return await self.search(query, context=self.context(session), exact=False, **options)


def rows(db: Db) -> list[tuple[int, int, bytes]]:
    """All stored vectors: number, model, vector."""
    return db.execute("SELECT entry, model, vector FROM message_vectors ORDER BY entry").fetchall()


def usage_rows(db: Db) -> list[tuple[str | None, str, int, int, str | None]]:
    return db.execute("SELECT session, model, input, cost, turn FROM usage ORDER BY id").fetchall()


@contextlib.asynccontextmanager
async def open_vector_store(
    home: Path,
    server: ScriptedModel,
    *,
    model: str = "",
    context: str = "",
    extra: str = "",
    query_seconds: float = 3.0,
) -> AsyncIterator[VectorStore]:
    """With the empty conversation s_1 of Anna's, unless it is there already."""
    config = read(SETTINGS.format(url=server.base_url, model=model, context=context) + extra, home)
    clock, client = Clock(), HttpClient()
    policy = RetryPolicy(sleep=Slept(), chance=lambda: 0.0, clock=clock)
    async with (
        Scope("process", account=Ledger().account("process")) as scope,
        Store.open(home / "tidegate.db") as store,
        client,
        Models(config.models, client, lambda _: Secret("k"), 1 << 20, retry_policy=policy) as models,
    ):
        spool = Spool(home / "spool", store, excerpt_bytes=16 * 1024, excerpt_lines=400, quota=50_000_000)
        budgets = Budgets(config, store, clock)
        await budgets.load()
        made_vectors = MessageVectors(
            "near",
            models,
            store,
            budgets.spend_guard,
            clock,
            vector_bytes=config.context.vector_bytes,
            ledger=scope.account.ledger,
            query_seconds=query_seconds,
        )
        await store.write(vectors.set_model, made_vectors.identity)
        recall = RecallService(config, store, spool, scope.child("sessions"), None, made_vectors)
        made = VectorStore(store, spool, recall, scope, None)
        made.vectors, made.clock = made_vectors, clock
        if await store.read(lambda db: db.execute("SELECT count(*) FROM sessions").get) == 0:
            await made.begin("s_1")
        yield made


def shown(answer: str) -> list[str]:
    """The quoted lines."""
    return [line.removeprefix("| ") for line in answer.split("\n") if line.startswith("| ")]


__all__ = ["Clock", "VectorStore", "open_vector_store", "rows", "shown", "usage_rows"]
