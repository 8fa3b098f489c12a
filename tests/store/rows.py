"""Short ways to put sessions and turns into a store under test."""

import random
from pathlib import Path
from typing import Any

from tidegate.store import (
    ApprovalRow,
    Db,
    NewApproval,
    RuleOffer,
    SessionKind,
    SessionRow,
    Store,
    TurnRow,
    approvals,
    messages,
    session_search,
    sessions,
    turns,
)
from tidegate.values import Call, Message, Prefix, Usage

OWNER = "p_owner"
PREFIX = Prefix(prompt="You are kind.")
ANSWER = Message(role="assistant", text="Good day.", finish="stop", usage=Usage(input=7, cached=3, output=2), model="m")


def user_message(text: str) -> Message:
    return Message(role="user", text=text)


def new_session(
    db: Db,
    id: str,
    *,
    name: str | None = None,
    kind: SessionKind = "named",
    principal: str = OWNER,
    prefix: Prefix = PREFIX,
    extra: str = "",
    now: float = 1.0,
) -> SessionRow:
    return sessions.create(
        db,
        id=id,
        principal=principal,
        channel="http",
        name=name,
        kind=kind,
        agent="main",
        extra=extra,
        parent=None,
        prefix=prefix,
        encoder=1,
        now=now,
    )


def new_turn(db: Db, session: str, id: str, *texts: str, now: float = 1.0) -> TurnRow:
    row = turns.insert(db, id=id, session=session, channel="http", call=Call(), on_disconnect="continue", now=now)
    for text in texts:
        messages.accept(db, session=session, turn=id, message=user_message(text), now=now)
    return row


def answered(db: Db, session: str, turn: str, answer: Message = ANSWER, now: float = 2.0) -> None:
    """Takes the turn, commits one answer, settles it."""
    turns.take(db, turn, now)
    messages.append(db, session=session, turn=turn, step="model-0", message=answer, now=now)
    turns.settle(db, turn, state="answered", finish="stop", usage=answer.usage or Usage(), steps=1, now=now)


OFFER = RuleOffer(
    principal=OWNER, agent="main", tool="shell", origin="built-in", fingerprint=b"f", place="workspace",
    grounds=(("main", "approvals = strict"),),
)  # fmt: skip


def ask(
    db: Db,
    session: str,
    id: str,
    *,
    turn: str = "t_1",
    expires: float | None = None,
    offer: RuleOffer | None = None,
) -> ApprovalRow:
    """An approval that waits for the session's owner."""
    digest = approvals.action_digest("shell", "{}")
    request = NewApproval(kind="approval", tool="shell", digest=digest, summary="rm x", offer=offer)
    return approvals.ask(
        db, id=id, session=session, turn=turn, step=f"tool-{id}", request=request, now=1.0, expires=expires
    )


def complete_turn(db: Db, session: str, turn: str, text: str, answer: Message = ANSWER, now: float = 1.0) -> None:
    new_turn(db, session, turn, text, now=now)
    answered(db, session, turn, answer, now=now)


def count(db: Db, table: str, where: str = "1") -> int:
    return int(db.execute(f"SELECT count(*) FROM {table} WHERE {where}").get)


def put_meta(db: Db, key: str, value: int) -> None:
    """The smallest write there is."""
    db.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", (key, value))


def get_meta(db: Db, key: str) -> int | None:
    value: int | None = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).get
    return value


def spin(db: Db) -> None:
    """A read that holds a snapshot and never ends by itself."""
    get_meta(db, "indexed")
    db.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n").fetchall()


def aside(folder: Path, what: str = "damaged-") -> list[Path]:
    return sorted(path for path in folder.iterdir() if what in path.name)


def bulk(db: Db, session: str, turn: str, number: int, size: int) -> None:
    """A message of about `size` bytes that does not pack well."""
    text = random.Random(number).randbytes(size // 2).hex()
    messages.append(db, session=session, turn=turn, step=f"bulk-{number}", message=user_message(text), now=1.0)


async def sessions_with(store: Store, query: str, **options: Any) -> list[str]:
    """The ids of the sessions that a search finds."""
    return [each.id for each in await session_search.search(store, query, **options)]
