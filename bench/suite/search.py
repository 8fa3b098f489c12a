"""Search in a very large store of messages, compared with a bare query of the same index.

The bare query returns only the row ids of the newest messages with the words, of any user. The gateway's searches
return the messages, of one conversation or of all conversations of one user: through the store, through the agent's
tool, and as the user's list of conversations. Words are rare, middling and common, alone and in pairs. All queries
alternate and use the same readers of the same store, and only ratios are reported. The figure is the 95th percentile
of all queries.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bench.library import OWNERS, Builder, Library
from bench.readings import quantile
from bench.report import Figure
from bench.suite import Bench
from tidegate.config import load
from tidegate.lifetimes import Ledger, Scope
from tidegate.recall import RecallService
from tidegate.spool import Spool
from tidegate.store import Db, Store, search, session_search
from tidegate.tools import ToolContext

GOAL = 2.0
LIMIT = 20
SNAPSHOT_SECONDS = 60.0
SPOOL_BYTES = 1 << 30
MS = 1000.0
BARE = "SELECT rowid FROM messages_text WHERE messages_text MATCH ? ORDER BY rowid DESC LIMIT ?"
TITLES = {
    "person": "search in a user's messages",
    "session": "search in one conversation's messages",
    "recall": "search in a user's messages by `context_search`, with excerpts",
    "recall_session": "search in one conversation's messages by `context_search`",
    "sessions": "search for a user's conversations",
}
SAME = ("person", "session")
"""Searches with the same result as the bare query: messages. The others do more: excerpts, long results, titles."""
SETTINGS = """
[models.main]
api = "demo"
[agents.main]
model = "main"
recall = "person"
"""

Way = Callable[[str, str, str], Awaitable[Any]]
"""Called with the query, the user and the conversation."""


def run(bench: Bench) -> list[Figure]:
    if bench.subject != "gateway":
        return []
    count = bench.scale.search_messages
    bench.say(f"search: {count:,} messages")
    began = time.perf_counter()
    took, taken = asyncio.run(measure(bench))
    bench.say(f"search: built in {took:.0f} s, measured in {time.perf_counter() - began - took:.0f} s")
    bare = [spent for of_kind in taken["bare"].values() for spent in of_kind]
    found: list[Figure] = []
    for way, title in TITLES.items():
        ours = [spent for of_kind in taken[way].values() for spent in of_kind]
        ratio = quantile(ours, 0.95) / quantile(bare, 0.95)
        found.append(
            Figure(
                name=f"search_{way}",
                title=f"{title}, {count:,} stored: p95 against a bare query",
                unit="×",
                value=ratio,
                goal=f"≤ {GOAL:g} ×" if way in SAME else "",
                met=ratio <= GOAL if way in SAME else None,
                note=f"p50 {quantile(ours, 0.5) / quantile(bare, 0.5):.2f} ×; p95 by words: "
                + ", ".join(f"{kind} {ratio_of(taken, way, kind):.2f} ×" for kind in taken[way]),
                detail={"build_seconds": took, "ours": taken[way], "bare": taken["bare"]},
            )
        )
    return found


def ratio_of(taken: Mapping[str, Mapping[str, Sequence[float]]], way: str, kind: str) -> float:
    return quantile(taken[way][kind], 0.95) / quantile(taken["bare"][kind], 0.95)


async def measure(bench: Bench) -> tuple[float, dict[str, dict[str, list[float]]]]:
    """Seconds to build the store, and milliseconds of each query by way of searching and by kind of words."""
    scale = bench.scale
    began = time.perf_counter()
    home = bench.place("search")
    (home / "tidegate.toml").write_text(SETTINGS)
    async with (
        Scope("process", account=Ledger().account("process")) as scope,
        Store.open(home / "library.db", snapshot_seconds=SNAPSHOT_SECONDS) as store,
    ):
        library = await Builder(scale.search_messages, bench.say).build(store)
        took = time.perf_counter() - began
        config = await asyncio.to_thread(load, home)
        limits = config.limits
        spool = Spool(
            home / "spool",
            store,
            excerpt_bytes=limits.tool_output_bytes,
            excerpt_lines=limits.tool_output_lines,
            quota=SPOOL_BYTES,
        )
        ways = {**ways_of(store), **recall_of(RecallService(config, store, spool, scope), spool)}
        taken: dict[str, dict[str, list[float]]] = {name: {} for name in ways}
        for kind, queries in queries_of(library, scale.search_queries).items():
            for number, (query, owner, session) in enumerate(queries):
                order = list(ways)
                for name in order[number % len(order) :] + order[: number % len(order)]:
                    asked = time.perf_counter()
                    await ways[name](query, owner, session)
                    if number:
                        taken[name].setdefault(kind, []).append((time.perf_counter() - asked) * MS)
    return took, taken


def queries_of(library: Library, count: int) -> dict[str, list[tuple[str, str, str]]]:
    """`count` queries of each kind, each with a user and one of their conversations, after one more query that only
    warms up the store's pages."""
    chance = random.Random(1)
    words = library.words
    made: dict[str, list[tuple[str, str, str]]] = {}
    for kind in ("rare", "middling", "common", "two middling", "common and middling", "two common"):
        found = made[kind] = []
        for number in range(count + 1):
            rare, middling, other = (chance.choice(words[of]) for of in ("rare", "middling", "middling"))
            common, another = chance.sample(words["common"], 2)
            query = {
                "rare": rare,
                "middling": middling,
                "common": common,
                "two middling": f"{middling} {other}",
                "common and middling": f"{common} {middling}",
                "two common": f"{common} {another}",
            }[kind]
            owner = OWNERS[number % len(OWNERS)]
            found.append((query, owner, chance.choice(library.sessions[owner])))
    return made


def ways_of(store: Store) -> dict[str, Way]:
    async def bare(query: str, owner: str, session: str) -> Any:
        return await store.read(bare_query, query)

    async def person(query: str, owner: str, session: str) -> Any:
        return await store.read(
            search.search_messages, query, shown, principal=owner, session=None, own=session, limit=LIMIT
        )

    async def one(query: str, owner: str, session: str) -> Any:
        return await store.read(
            search.search_messages, query, shown, principal=owner, session=session, own=session, limit=LIMIT
        )

    async def sessions(query: str, owner: str, session: str) -> Any:
        return await session_search.search(store, query, principal=owner, limit=LIMIT)

    return {"bare": bare, "person": person, "session": one, "sessions": sessions}


def recall_of(service: RecallService, spool: Spool) -> dict[str, Way]:
    """Searches through the agent's tool."""

    def context(owner: str, session: str) -> ToolContext:
        nowhere: Any = None  # a search uses no workspace
        return ToolContext(
            session=session,
            principal=owner,
            channel="http",
            agent="main",
            turn="",
            workspace=nowhere,
            spool=spool.of(session, None),
        )

    async def recall(query: str, owner: str, session: str) -> Any:
        ctx = context(owner, session)
        return await service.search(ctx, query, regex=False, everywhere=True, after="", limit=LIMIT)

    async def recall_session(query: str, owner: str, session: str) -> Any:
        ctx = context(owner, session)
        return await service.search(ctx, query, regex=False, everywhere=False, after="", limit=LIMIT)

    return {"recall": recall, "recall_session": recall_session}


def bare_query(db: Db, query: str) -> list[Any]:
    match = " ".join(f'"{word}"' for word in query.split())
    return db.execute(BARE, (match, LIMIT)).fetchall()


def shown(mention: search.Mention) -> str:
    return mention.message.text
