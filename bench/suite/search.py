"""Search in a very large store of messages, compared with bare queries.

The bare ranked query asks an ordinary FTS5 table of the same messages (stems, positions, everybody's messages) for the
best row ids by BM25. The bare query of the newest asks the gateway's own index for the newest entries with all words.
The gateway's searches return the messages, of one conversation or of all conversations of one user: through the store,
through the agent's tool, and as the user's list of conversations. Words are rare, middling and common, alone and in
pairs. All queries alternate and use the same readers, and only ratios are reported. The figure is the 95th percentile
of all queries.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw

from bench.library import OWNERS, Builder, Library
from bench.readings import quantile
from bench.report import Figure
from bench.suite import Bench
from tidegate.config import load
from tidegate.lifetimes import Ledger, Scope
from tidegate.recall import RecallService
from tidegate.spool import Spool
from tidegate.store import AllWords, Db, Store, ranking, search, search_index, session_search
from tidegate.store.rows import unpack
from tidegate.tools import ToolContext

GOAL = 2.0
LIMIT = 20
SNAPSHOT_SECONDS = 60.0
SPOOL_BYTES = 1 << 30
MS = 1000.0
SESSIONS_GOAL = 5.0
BARE = "SELECT rowid FROM message_terms WHERE message_terms MATCH ? ORDER BY rowid DESC LIMIT ?"
TABLE = "CREATE VIRTUAL TABLE plain USING fts5(text, content='', tokenize='porter unicode61')"
RANKED = "SELECT rowid FROM plain WHERE plain MATCH ? ORDER BY rank LIMIT ?"
COPIED = 20_000
TITLES = {
    "person": "ranked search in a user's messages",
    "session": "ranked search in one conversation's messages",
    "recall": "ranked search in a user's messages by `context_search`, with excerpts",
    "exact": "search for all words in a user's messages",
    "sessions": "search for a user's conversations, with excerpts",
}
GOALS = {"person": ("ranked", GOAL), "session": ("ranked", GOAL), "recall": ("ranked", GOAL), "exact": ("bare", None)}
"""The bare query that each search is compared with, and the goal."""
GOALS["sessions"] = ("bare", SESSIONS_GOAL)
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
    found: list[Figure] = []
    for way, title in TITLES.items():
        against, goal = GOALS[way]
        bare = [spent for of_kind in taken[against].values() for spent in of_kind]
        ours = [spent for of_kind in taken[way].values() for spent in of_kind]
        ratio = quantile(ours, 0.95) / quantile(bare, 0.95)
        of = "a bare ranked query" if against == "ranked" else "a bare query"
        found.append(
            Figure(
                name=f"search_{way}",
                title=f"{title}, {count:,} stored: p95 against {of}",
                unit="×",
                value=ratio,
                goal=f"≤ {goal:g} ×" if goal else "",
                met=ratio <= goal if goal else None,
                note=f"p50 {quantile(ours, 0.5) / quantile(bare, 0.5):.2f} ×; p95 by words: "
                + ", ".join(
                    f"{kind} {quantile(taken[way][kind], 0.95) / quantile(taken[against][kind], 0.95):.2f} ×"
                    for kind in taken[way]
                ),
                detail={"build_seconds": took, "ours": taken[way], "bare": taken[against]},
            )
        )
    return found


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
        plain = await asyncio.to_thread(plain_table, home / "library.db", home / "plain.db")
        ways = {**ways_of(store, plain), **recall_of(RecallService(config, store, spool, scope), spool)}
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


def plain_table(library: Path, path: Path) -> apsw.Connection:
    """An ordinary index of all messages."""
    source = apsw.Connection(str(library), flags=apsw.SQLITE_OPEN_READONLY)
    made = apsw.Connection(str(path))
    made.execute("PRAGMA journal_mode = OFF")
    made.execute(TABLE)
    after = 0
    while rows := source.execute(
        "SELECT id, body, packed FROM messages WHERE id > ? ORDER BY id LIMIT ?", (after, COPIED)
    ).fetchall():
        with made:
            made.executemany(
                "INSERT INTO plain(rowid, text) VALUES(?, ?)",
                ((id, unpack(body, packed).text) for id, body, packed in rows),
            )
        after = rows[-1][0]
    source.close()
    return made


def ways_of(store: Store, plain: apsw.Connection) -> dict[str, Way]:
    async def bare(query: str, owner: str, session: str) -> Any:
        return await store.read(bare_query, query)

    async def ranked(query: str, owner: str, session: str) -> Any:
        match = " OR ".join(f'"{word}"' for word in query.split())
        return await asyncio.to_thread(lambda: plain.execute(RANKED, (match, LIMIT)).fetchall())

    async def person(query: str, owner: str, session: str) -> Any:
        return await store.read(best, query, owner, None, session)

    async def one(query: str, owner: str, session: str) -> Any:
        return await store.read(best, query, owner, session, session)

    async def exact(query: str, owner: str, session: str) -> Any:
        return await store.read(newest, query, owner, session)

    async def sessions(query: str, owner: str, session: str) -> Any:
        return await session_search.search(store, query, principal=owner, limit=LIMIT)

    return {"bare": bare, "ranked": ranked, "person": person, "session": one, "exact": exact, "sessions": sessions}


def best(db: Db, query: str, owner: str, session: str | None, own: str) -> Any:
    question = ranking.Question(query, search_index.analyzer(db), time.time())
    return ranking.search_ranked(db, question, shown, principal=owner, session=session, own=own, limit=LIMIT)


def newest(db: Db, query: str, owner: str, own: str) -> Any:
    words = AllWords(query, search_index.analyzer(db))
    return search.search_messages(db, words, shown, principal=owner, session=None, own=own, limit=LIMIT)


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
        return await service.search(ctx, query, exact=False, regex=False, everywhere=True, after="", limit=LIMIT)

    return {"recall": recall}


def bare_query(db: Db, query: str) -> list[Any]:
    match = " ".join(f'"{term}"' for term in search_index.analyzer(db).terms(query))
    return db.execute(BARE, (match, LIMIT)).fetchall()


def shown(mention: search.Mention) -> str:
    return mention.message.text
