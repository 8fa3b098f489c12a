"""Retrieval: the share of evidence messages that `context_search` finds for questions in other words.

The conversations are generated in two styles (`bench/dialogues.py`), and the topics of those that count were not used
for tuning. Each message begins with the name of its sender or, in further rows of the details, does not. The same
questions are asked by four rules: every word must occur (newest first), any content word with BM25 over an ordinary
FTS5 table with stems, the same with entries that also contain the messages before and after, and the gateway's ranked
search through the agent's tool. The disk figures compare the
sizes of the index and of the whole store with the text of the messages.

For the generated style, two further rules use vectors of the scripted model: the nearest vectors alone, and the ranked
search that is fused with them. Its embedding knows which words name the same topic, but no other relations. So these
figures show what the fusion does with such a ranking; they say nothing about the vectors of a real model.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any

import apsw

from bench.dialogues import Dialogue, Question, dialogues, synonyms, written
from bench.report import Figure
from bench.scripted.behaviour import Behaviour
from bench.scripted_model import ScriptedModel
from bench.suite import Bench
from bench.suite.search import SETTINGS, SPOOL_BYTES
from tidegate.config import load
from tidegate.http_client import HttpClient
from tidegate.lifetimes import Ledger, Scope
from tidegate.models import Models
from tidegate.recall import RecallService
from tidegate.recall.vectors import MessageVectors
from tidegate.security import Secret
from tidegate.spool import Spool
from tidegate.store import Db, QueryVector, Store, ranking, search_index, sessions, vectors
from tidegate.store.analysis import STOP_WORDS
from tidegate.store.rows import pack
from tidegate.tools import ToolContext
from tidegate.turns import Budgets
from tidegate.values import Message, Prefix

GOAL = 1.1
INDEX_GOAL = 0.4
DISK_GOAL = 1.5
DEPTHS = (5, 10, 25)
OWNER = "p_reader"
TABLE = "CREATE VIRTUAL TABLE {} USING fts5(text, tokenize='porter unicode61')"
PLACE = re.compile(r"^message (\d+) ", re.MULTILINE)
RULES = ("every word", "any word, BM25", "with neighbours", "ranked search")
VECTOR_RULES = ("vectors alone", "ranked search with vectors")
EMBEDDINGS = """
[models.near]
api = "openai-embeddings"
base_url = "{url}"
model = "scripted"
dimensions = 256
[context]
embeddings = "near"
"""
STYLES = {"generated": dialogues, "written": written}

Found = dict[str, dict[str, dict[int, float]]]
"""Shares of the evidence by rule, kind of question, and depth."""


def run(bench: Bench) -> list[Figure]:
    if bench.subject != "gateway":
        return []
    figures: list[Figure] = []
    sizes: dict[str, int] = {}
    fused = 0.0
    for style, make in STYLES.items():
        made = make(bench.scale.recall_dialogues, "report")
        count = sum(len(dialogue.questions) for dialogue in made)
        bench.say(f"recall: {sum(len(each.lines) for each in made):,} {style} messages, {count} questions")
        has_vectors = style == "generated"
        found, measured = asyncio.run(measure(bench, made, named=True, has_vectors=has_vectors))
        sizes = sizes or measured
        if has_vectors:
            fused = found["ranked search with vectors"]["all"][10] / found["ranked search"]["all"][10]
        unnamed, _ = asyncio.run(measure(bench, made, named=False))
        figures.append(_figure(style, count, found, unnamed))
    index, disk = sizes["index"] / sizes["text"], sizes["disk"] / sizes["text"]
    return [
        *figures,
        Figure(
            name="recall_index",
            title="search index against the text of the messages",
            unit="×",
            value=index,
            goal=f"≤ {INDEX_GOAL:g} ×",
            met=index <= INDEX_GOAL,
            note=f"{sizes['index'] / sizes['messages']:.0f} bytes a message of {sizes['text'] / sizes['messages']:.0f}",
        ),
        Figure(
            name="recall_vectors",
            title="evidence in the first 10 results with scripted vectors, against without",
            unit="×",
            value=fused,
            goal="≥ 1 ×",
            met=fused >= 1,
            note="the vectors are not those of a real model; this shows only that the two rankings are fused",
        ),
        Figure(
            name="recall_vectors_disk",
            title="vectors of 256 numbers on disk",
            unit="B",
            value=sizes["vectors"] / sizes["messages"],
            goal="",
            met=None,
            note="bytes a message",
        ),
        Figure(
            name="recall_disk",
            title="the whole store against the text of its (short) messages",
            unit="×",
            value=disk,
            goal="",
            met=None,
            note=f"{sizes['disk'] / sizes['messages']:.0f} bytes a message",
        ),
    ]


def _figure(style: str, count: int, found: Found, unnamed: Found) -> Figure:
    ratio = found["ranked search"]["all"][10] / found["with neighbours"]["all"][10]

    def table(rules: Found) -> str:
        return "; ".join(
            f"{rule} " + " / ".join(f"{100 * shares['all'][depth]:.1f} %" for depth in DEPTHS)
            for rule, shares in rules.items()
        )

    return Figure(
        name="recall_10" if style == "generated" else f"recall_10_{style}",
        title=f"evidence in the first 10 results of {count} held-out questions ({style}), against BM25 with neighbours",
        unit="×",
        value=ratio,
        goal=f"≥ {GOAL:g} ×",
        met=ratio >= GOAL,
        note=f"in the first 5 / 10 / 25: {table(found)}. Without names of senders: {table(unnamed)}",
        detail={rule: {kind: list(depths.values()) for kind, depths in kinds.items()} for rule, kinds in found.items()},
    )


async def measure(
    bench: Bench, made: Sequence[Dialogue], *, named: bool, has_vectors: bool = False
) -> tuple[Found, dict[str, int]]:
    home = bench.place("recall")
    plain = apsw.Connection(":memory:")
    async with (
        ScriptedModel(behaviour=Behaviour(synonyms=synonyms())) as model,
        Scope("process", account=Ledger().account("process")) as scope,
        Store.open(home / "recall.db") as store,
        HttpClient() as client,
    ):
        (home / "tidegate.toml").write_text(SETTINGS + EMBEDDINGS.format(url=model.base_url))
        config = await asyncio.to_thread(load, home)
        models = await scope.enter(Models(config.models, client, Secret, 1 << 20))
        guard = Budgets(config, store, time.time).spend_guard
        limit, ledger = config.context.vector_bytes, scope.account.ledger
        near = MessageVectors("near", models, store, guard, time.time, vector_bytes=limit, ledger=ledger)
        spool = Spool(home / "spool", store, excerpt_bytes=1 << 20, excerpt_lines=10_000, quota=SPOOL_BYTES)
        services = {
            "ranked search": RecallService(config, store, spool, scope),
            "ranked search with vectors": RecallService(config, store, spool, scope, None, near),
        }
        for number, dialogue in enumerate(made):
            texts = [f"{line.who}: {line.text}" if named else line.text for line in dialogue.lines]
            await store.write(_add, f"s_{number}", dialogue, texts)
            for reach in (0, 1):
                plain.execute(TABLE.format(f"plain_{number}_{reach}"))
                plain.executemany(
                    f"INSERT INTO plain_{number}_{reach}(rowid, text) VALUES(?, ?)",
                    [(place, _around(texts, place, reach)) for place in range(len(texts))],
                )
        sizes = await store.read(_sizes)
        if has_vectors:
            sizes["vectors"] = await _make_vectors(store, near) - sizes["disk"]
        found: Found = {}
        for rule in (*RULES, *(VECTOR_RULES if has_vectors else ())):
            hits: dict[str, dict[int, int]] = {}
            evidence: dict[str, int] = {}
            for number, dialogue in enumerate(made):
                for question in dialogue.questions:
                    if rule == "vectors alone":
                        query = await near.query(question.text, f"s_{number}", "")
                        places = await store.read(_nearest, query, f"s_{number}")
                    else:
                        places = await _ask(rule, services, spool, plain, number, question)
                    for kind in {question.kind, "all"}:
                        evidence[kind] = evidence.get(kind, 0) + len(question.evidence)
                        counted = hits.setdefault(kind, dict.fromkeys(DEPTHS, 0))
                        for depth in DEPTHS:
                            counted[depth] += len(question.evidence.intersection(places[:depth]))
            found[rule] = {
                kind: {depth: count / max(1, evidence[kind]) for depth, count in counted.items()}
                for kind, counted in hits.items()
            }
        text = sum(len(line.text.encode()) for dialogue in made for line in dialogue.lines)
        text += sum(len(f"{line.who}: ") for dialogue in made for line in dialogue.lines) if named else 0
    return found, {"text": text, "messages": sum(len(each.lines) for each in made), **sizes}


async def _make_vectors(store: Store, near: MessageVectors) -> int:
    """Makes the vectors of all messages. Returns the size of the store with them."""
    await store.write(vectors.set_model, near.identity)
    while (await near.status()).waiting:
        await near.fill()
    return (await store.read(_sizes))["disk"]


async def _ask(
    rule: str, services: dict[str, RecallService], spool: Spool, plain: apsw.Connection, number: int, question: Question
) -> list[int]:
    """The numbers of the lines that a rule finds for the question, the best first."""
    if (service := services.get(rule)) is not None:
        nowhere: Any = None  # a search uses no workspace
        session = f"s_{number}"
        ctx = ToolContext(
            session=session,
            principal=OWNER,
            channel="http",
            agent="main",
            turn="",
            workspace=nowhere,
            spool=spool.of(session, None),
        )
        shown = await service.search(
            ctx, question.text, exact=False, regex=False, everywhere=False, after="", limit=DEPTHS[-1]
        )
        return [int(place) - 1 for place in PLACE.findall(shown)]
    words = list(dict.fromkeys(re.findall(r"\w+", question.text.lower())))
    table = f"plain_{number}_{int(rule == 'with neighbours')}"
    joined = " AND " if rule == "every word" else " OR "
    match = joined.join(f'"{word}"' for word in words if rule == "every word" or word not in STOP_WORDS)
    order = "rowid DESC" if rule == "every word" else "rank"
    rows = plain.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY {order} LIMIT 25", (match,))
    return [row[0] for row in rows]


def _nearest(db: Db, query: QueryVector, session: str) -> list[int]:
    found = ranking.nearest(db, query, OWNER, session, session, None)
    return [place - 1 for _, _, place, *_ in found]


def _around(texts: Sequence[str], place: int, reach: int) -> str:
    return "\n".join(texts[max(0, place - reach) : place + reach + 1])


def _add(db: Db, id: str, dialogue: Dialogue, texts: Sequence[str]) -> None:
    sessions.create(
        db,
        id=id,
        principal=OWNER,
        channel="http",
        name=None,
        kind="named",
        agent="main",
        extra="",
        parent=None,
        now=dialogue.lines[0].at,
        prefix=Prefix(prompt="You listen."),
        encoder=0,
    )
    rows: list[tuple[Any, ...]] = []
    for place, line in enumerate(dialogue.lines):
        role = "user" if line.who == dialogue.people[0] else "assistant"
        message = Message(role="user" if role == "user" else "assistant", text=texts[place])
        rows.append((id, place + 1, role, *pack(message), line.at))
    db.executemany("INSERT INTO messages(session, seq, role, body, packed, at) VALUES(?, ?, ?, ?, ?, ?)", rows)
    while search_index.index(db):
        pass


def _sizes(db: Db) -> dict[str, int]:
    """The bytes of the index, and of all tables."""

    def pages(where: str) -> int:
        return int(db.execute(f"SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE {where}").get)

    return {"index": pages("name LIKE 'message_terms%' OR name LIKE 'index_%'"), "disk": pages("TRUE")}
