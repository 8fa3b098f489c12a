"""Approvals and questions: what a turn asks a person, about one exact action.

Guarantee: a step of a turn asks once, however often it is asked again after a crash; what it asked is answered at most
once, by whoever comes first of those who may, and only while it is open and in time; it survives restarts. `digest` is
of the exact action, so that an answer to one can never pass for another. Who may neither answer it nor owns its session
cannot tell that it exists. Each approval asked for or closed is recorded in the audit log in the same transaction.
"""

import contextlib
import hashlib
from typing import Any

import msgspec

from tidegate.errors import Conflict, Refused
from tidegate.store.rows import LISTED, ApprovalAnswer, ApprovalRow, ApprovalState, Db, Decision, NewApproval, encode
from tidegate.store.tables import audit
from tidegate.store.tables.turns import conversation, refusal

SUMMARY_CHARACTERS = 65_536
"""What a person is shown of an action, which is all of it: nobody approves what they have not seen, and nobody reads
more. What is longer is refused."""
OWNER = "role:owner"
"""`may_answer` of what only the gateway's owner answers."""
ANSWER_CHARACTERS = 16_000
"""Of an answer to a question: some pages."""
CHOICES = 20
CHOICE_CHARACTERS = 200
"""Of a question's choices: what fits on buttons."""
EXPIRED_AT_ONCE = 500
"""Approvals that one write closes, so that no turn waits long behind it."""

_COLUMNS = (
    "approvals.id, session, turn, step, approvals.kind, tool, digest, summary, choices, may_answer, state, asked,"
    " expires, answer, answered_by, answered_at"
)
_TREE = (
    "WITH RECURSIVE tree(turn, at) AS (SELECT id, session FROM turns WHERE session = ?1 AND state IN ('queued',"
    " 'running') UNION ALL SELECT turns.id, turns.session FROM turns JOIN tree ON turns.within = tree.turn)"
)
"""The open turns of a session, and those that work on tasks of theirs, with their sessions."""
_choices = msgspec.json.Decoder(tuple[str, ...]).decode
_CANONICAL = msgspec.json.Encoder(order="sorted")
_NO_JSON = b"\0"
"""No JSON begins so: text that is none differs from the JSON string of the same text."""


def action_digest(tool: str, arguments: str) -> bytes:
    """Of the exact action: equal for the same tool and the same arguments, however their JSON is laid out. Arguments
    that are no JSON, or nested too deeply to be read, are taken as they are."""
    name, canonical = encode(tool), _NO_JSON + encode(arguments)
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        canonical = _CANONICAL.encode(msgspec.json.decode(arguments))
    return hashlib.sha256(len(name).to_bytes(4, "big") + name + canonical).digest()


def ask(
    db: Db, *, id: str, session: str, turn: str, step: str, asking: NewApproval, now: float, expires: float | None
) -> ApprovalRow:
    """The question of this step of a live session; the one that stands, if the step has asked before. Conflict when it
    asked about another action."""
    standing = of_step(db, turn, step)
    if standing is not None:
        if (standing.session, standing.kind, standing.digest) != (session, asking.kind, asking.digest):
            raise Conflict(f"Step {step} of this turn has asked about another action.", code="approval_differs")
        return standing
    _check(asking)
    found = db.execute(
        "INSERT INTO approvals(id, session, turn, step, kind, tool, digest, summary, choices, may_answer, state, asked,"
        " expires) SELECT ?, id, ?, ?, ?, ?, ?, ?, ?, coalesce(?, principal), 'open', ?, ? FROM sessions"
        f" WHERE id = ? AND ended IS NULL RETURNING {_COLUMNS}",
        (
            id,
            turn,
            step,
            asking.kind,
            asking.tool,
            asking.digest,
            asking.summary,
            encode(asking.choices) if asking.choices else None,
            asking.may_answer,
            now,
            expires,
            session,
        ),
    ).get
    if found is None:
        raise refusal(db, session)
    row = _row(found)
    _record(db, row, "asked", now, db.execute("SELECT principal FROM sessions WHERE id = ?", (session,)).get)
    return row


def get(db: Db, id: str) -> ApprovalRow | None:
    """The approval, whoever's it is: for the gateway's own work."""
    return _one(db, "approvals.id = ?", (id,))


def of_step(db: Db, turn: str, step: str) -> ApprovalRow | None:
    """What this step of the turn asked: for the gateway's own work."""
    return _one(db, "turn = ? AND step = ?", (turn, step))


def seen_by(db: Db, id: str, *, principal: str, role: str) -> ApprovalRow | None:
    """The approval, if this principal may answer it or owns its session."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM approvals JOIN sessions ON sessions.id = session"
        " WHERE approvals.id = ?1 AND (principal = ?2 OR may_answer IN (?2, 'role:' || ?3))",
        (id, principal, role),
    ).get
    return None if row is None else _row(row)


def may_answer(row: ApprovalRow, *, principal: str, role: str) -> bool:
    return row.may_answer in (principal, f"role:{role}")


def of_session(db: Db, session: str, *, principal: str | None, limit: int = LISTED) -> list[ApprovalRow]:
    """What the session has asked, the latest first; `principal=None` is the operator's view."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM approvals JOIN sessions ON sessions.id = session"
        " WHERE session = ?1 AND (?2 IS NULL OR principal = ?2) ORDER BY asked DESC, approvals.id DESC LIMIT ?3",
        (session, principal, limit),
    )
    return [_row(row) for row in rows]


def open_for(
    db: Db, *, principal: str, role: str, now: float, limit: int = LISTED, session: str | None = None
) -> list[ApprovalRow]:
    """What waits for this principal's answer and is in time, in one session with the tasks given there or in all, the
    oldest first."""
    here = "session IN (SELECT ?1 UNION SELECT at FROM tree)" if session is not None else "?1 IS NULL"
    rows = db.execute(
        f"{_TREE if session is not None else ''} SELECT {_COLUMNS} FROM approvals WHERE state = 'open'"
        " AND may_answer IN (?2, 'role:' || ?3) AND (expires IS NULL OR expires > ?4)"
        f" AND {here} ORDER BY asked, id LIMIT ?5",
        (session, principal, role, now, limit),
    )
    return [_row(row) for row in rows]


def open_of(db: Db, session: str, now: float, limit: int = LISTED) -> list[ApprovalRow]:
    """What the session waits for and is in time, and those that work on tasks for it, the oldest first: for the
    gateway's own work."""
    rows = db.execute(
        f"{_TREE} SELECT {_COLUMNS} FROM approvals WHERE state = 'open' AND session IN (SELECT ?1 UNION SELECT at FROM"
        " tree) AND (expires IS NULL OR expires > ?2) ORDER BY asked, id LIMIT ?3",
        (session, now, limit),
    )
    return [_row(row) for row in rows]


def answer(
    db: Db, id: str, *, decision: Decision, text: str = "", principal: str, role: str, now: float
) -> ApprovalAnswer:
    """Answers it, if it is open and in time and this principal may. An approval is approved or denied, a question is
    answered; whether an answer must be one of the choices is the asker's to say."""
    if len(text) > ANSWER_CHARACTERS:
        raise Refused(f"The answer is longer than {ANSWER_CHARACTERS} characters; say it in fewer.")
    row = _one(db, "approvals.id = ?1 AND may_answer IN (?2, 'role:' || ?3)", (id, principal, role))
    if row is None:
        return ApprovalAnswer("unknown", None)
    if (row.kind == "question") != (decision == "answered"):
        raise Refused("An approval is approved or denied, a question is answered; send what fits.")
    if row.state != "open":
        given = (row.state, row.answer, row.answered_by) == (decision, text, principal)
        return ApprovalAnswer("repeated" if given else "expired" if row.state == "expired" else "closed", row)
    if row.expires is not None and row.expires <= now:
        return ApprovalAnswer("expired", row)
    counted = db.execute(
        "UPDATE approvals SET state = ?, answer = ?, answered_by = ?, answered_at = ? WHERE id = ?"
        f" RETURNING {_COLUMNS}",
        (decision, text, principal, now, id),
    ).get
    _record(db, row, decision, now, principal)
    return ApprovalAnswer("counted", _row(counted))


def cancel_turn(db: Db, turn: str, now: float) -> list[ApprovalRow]:
    """Closes what the turn has open, since nobody waits for the answer any more; what was closed."""
    return _close(db, "turn = ?3", "cancelled", now, turn)


def cancel_call(db: Db, turn: str, step: str, now: float) -> list[ApprovalRow]:
    """As `cancel_turn`, for what one call has asked, whose questions are named by its step and more."""
    return _close(
        db, "turn = ?3 AND (step = ?4 OR substr(step, 1, length(?4) + 1) = ?4 || '-')", "cancelled", now, turn, step
    )


def cancel_session(db: Db, session: str, now: float) -> list[ApprovalRow]:
    """As `cancel_turn`, for all of a session."""
    return _close(db, "session = ?3", "cancelled", now, session)


def expire(db: Db, now: float, limit: int = EXPIRED_AT_ONCE) -> list[ApprovalRow]:
    """Closes up to `limit` whose time is over; what was closed, so that their askers can be told. Fewer than `limit`
    when none is left."""
    over = "id IN (SELECT id FROM approvals WHERE state = 'open' AND expires <= ?2 LIMIT ?3)"
    return _close(db, over, "expired", now, limit)


def _close(db: Db, which: str, state: ApprovalState, now: float, *values: str | int) -> list[ApprovalRow]:
    found = db.execute(
        f"UPDATE approvals SET state = ?1, answered_at = ?2 WHERE state = 'open' AND {which} RETURNING {_COLUMNS}",
        (state, now, *values),
    )
    rows = [_row(row) for row in found]
    for row in rows:
        _record(db, row, state, now)
    return rows


def _record(db: Db, row: ApprovalRow, outcome: str, now: float, by: str | None = None) -> None:
    if row.kind == "approval":
        audit.append(
            db,
            "approval",
            outcome,
            now,
            subject=f"{row.id} {row.tool} {row.turn} {row.step}",
            principal=by,
            session=conversation(db, row.session),
            of=row.digest,
        )


def _check(asking: NewApproval) -> None:
    if len(asking.summary) > SUMMARY_CHARACTERS:
        raise Refused(f"What a person is shown is longer than {SUMMARY_CHARACTERS} characters; shorten it.")
    if asking.choices and asking.kind != "question":
        raise Refused("Only a question has choices; an approval is approved or denied.")
    if len(asking.choices) > CHOICES or any(len(choice) > CHOICE_CHARACTERS for choice in asking.choices):
        raise Refused(f"A question has at most {CHOICES} choices of {CHOICE_CHARACTERS} characters; offer fewer.")


def _one(db: Db, condition: str, values: tuple[str, ...]) -> ApprovalRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM approvals WHERE {condition}", values).get
    return None if row is None else _row(row)


def _row(row: Any) -> ApprovalRow:
    id, session, turn, step, kind, tool, digest, summary, choices, may_answer, state, asked, *rest = row
    offered = () if choices is None else _choices(choices)
    return ApprovalRow(id, session, turn, step, kind, tool, digest, summary, offered, may_answer, state, asked, *rest)
