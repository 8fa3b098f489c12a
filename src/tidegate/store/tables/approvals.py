"""Approvals and questions: requests that a turn sends to a person, each about one exact action.

A step makes its request once, even if the step is repeated after a crash. A request is answered at most once, by the
first person who may answer it, and only while it is open and has not expired. Requests survive restarts. `digest`
identifies the exact action, so an answer to one request can never count for another. Principals who can neither answer
a request nor own its session cannot detect that it exists. Requesting and closing an approval is recorded in the audit
log, in the same transaction. An approval can be given for more than the call itself; the rule that allows further calls
is then stored in the same transaction too, and other open requests that the rule covers are approved with it.
"""

import contextlib
import hashlib
from typing import Any

import msgspec

from tidegate.errors import Conflict, Refused
from tidegate.store.interface import Db
from tidegate.store.rows import (
    LISTED,
    ApprovalAnswer,
    ApprovalRow,
    ApprovalState,
    Decision,
    NewApproval,
    RuleOffer,
    encode,
)
from tidegate.store.tables import approval_rules, audit
from tidegate.store.tables.turns.turns import conversation, refusal
from tidegate.values import ApprovalScope

SUMMARY_CHARACTERS = 65_536
"""Maximum length of an action's description. It is shown in full, since nobody should approve what they have not seen,
and nobody reads more than this. Longer descriptions are refused."""
OWNER = "role:owner"
"""The value of `may_answer` for requests that only the gateway's owner may answer."""
ANSWER_CHARACTERS = 16_000
"""Maximum length of an answer to a question: a few pages."""
CHOICES = 20
CHOICE_CHARACTERS = 200
"""Limits on a question's choices, which must fit on buttons."""
EXPIRED_AT_ONCE = 500
"""Maximum number of approvals closed in one write, so that no turn has to wait long for it."""

_COLUMNS = (
    "approvals.id, session, turn, step, approvals.kind, tool, digest, summary, choices, may_answer, state, asked,"
    " expires, answer, answered_by, answered_at, offer, scope"
)
_offer = msgspec.json.Decoder(RuleOffer).decode
_choices = msgspec.json.Decoder(tuple[str, ...]).decode
_CANONICAL = msgspec.json.Encoder(order="sorted")
_NO_JSON = b"\0"
"""A prefix with which no JSON begins. It distinguishes text that is not JSON from a JSON string with the same
content."""


def action_digest(tool: str, arguments: str) -> bytes:
    """Returns the digest of an exact action. The digest is equal for the same tool and arguments, however their JSON is
    formatted. Arguments that are not JSON, or are nested too deeply, are used as they are."""
    name, canonical = encode(tool), _NO_JSON + encode(arguments)
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        canonical = _CANONICAL.encode(msgspec.json.decode(arguments))
    return hashlib.sha256(len(name).to_bytes(4, "big") + name + canonical).digest()


def ask(
    db: Db, *, id: str, session: str, turn: str, step: str, request: NewApproval, now: float, expires: float | None
) -> ApprovalRow:
    """Stores a step's request in a live session. If the step has already made its request, returns the existing one, or
    raises Conflict if that one is about another action."""
    db.lock("session", session)
    existing = of_step(db, turn, step)
    if existing is not None:
        if (existing.session, existing.kind, existing.digest) != (session, request.kind, request.digest):
            raise Conflict(
                f"Step {step} of this turn has already requested approval for another action.", code="approval_differs"
            )
        return existing
    _check(request)
    found = db.execute(
        "INSERT INTO approvals(id, session, turn, step, kind, tool, digest, summary, choices, may_answer, state, asked,"
        " expires, offer) SELECT ?, id, ?, ?, ?, ?, ?, ?, ?, coalesce(?, principal), 'open', ?, ?, ? FROM sessions"
        f" WHERE id = ? AND ended IS NULL RETURNING {_COLUMNS}",
        (
            id,
            turn,
            step,
            request.kind,
            request.tool,
            request.digest,
            request.summary,
            encode(request.choices) if request.choices else None,
            request.may_answer,
            now,
            expires,
            None if request.offer is None else encode(request.offer),
            session,
        ),
    ).get
    if found is None:
        raise refusal(db, session)
    row = _row(found)
    _record(db, row, "asked", now, db.execute("SELECT principal FROM sessions WHERE id = ?", (session,)).get)
    return row


def get(db: Db, id: str) -> ApprovalRow | None:
    """Returns the request with this id, whoever it belongs to. For internal use."""
    return _one(db, "approvals.id = ?", (id,))


def of_step(db: Db, turn: str, step: str) -> ApprovalRow | None:
    """Returns the request made by this step of the turn. For internal use."""
    return _one(db, "turn = ? AND step = ?", (turn, step))


def visible_to(db: Db, id: str, *, principal: str, role: str) -> ApprovalRow | None:
    """Returns the request if this principal may answer it or owns its session."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM approvals JOIN sessions ON sessions.id = session"
        " WHERE approvals.id = ?1 AND (principal = ?2 OR may_answer IN (?2, 'role:' || ?3))",
        (id, principal, role),
    ).get
    return None if row is None else _row(row)


def may_answer(row: ApprovalRow, *, principal: str, role: str) -> bool:
    return row.may_answer in (principal, f"role:{role}")


def of_session(db: Db, session: str, *, principal: str | None, limit: int = LISTED) -> list[ApprovalRow]:
    """Returns the session's requests, latest first; `principal=None` is the operator's view."""
    whose, values = ("", ()) if principal is None else (" AND principal = ?", (principal,))
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM approvals JOIN sessions ON sessions.id = session"
        f" WHERE session = ?{whose} ORDER BY asked DESC, approvals.id DESC LIMIT ?",
        (session, *values, limit),
    )
    return [_row(row) for row in rows]


def open_for(
    db: Db, *, principal: str, role: str, now: float, limit: int = LISTED, session: str | None = None
) -> list[ApprovalRow]:
    """Returns requests that are waiting for this principal's answer and have not expired, oldest first: those from all
    sessions, or those from one session and its delegated tasks."""
    tree, here = ("", "") if session is None else (_tree("?5"), " AND session IN (SELECT ?5 UNION SELECT at FROM tree)")
    rows = db.execute(
        f"{tree} SELECT {_COLUMNS} FROM approvals WHERE state = 'open'"
        f" AND may_answer IN (?1, 'role:' || ?2) AND (expires IS NULL OR expires > ?3){here}"
        " ORDER BY asked, id LIMIT ?4",
        (principal, role, now, limit, *(() if session is None else (session,))),
    )
    return [_row(row) for row in rows]


def open_of(db: Db, session: str, now: float, limit: int = LISTED) -> list[ApprovalRow]:
    """Returns the open requests from the session and its delegated tasks that have not expired, oldest first. For
    internal use."""
    rows = db.execute(
        f"{_tree('?1')} SELECT {_COLUMNS} FROM approvals WHERE state = 'open' AND session IN"
        " (SELECT ?1 UNION SELECT at FROM tree) AND (expires IS NULL OR expires > ?2) ORDER BY asked, id LIMIT ?3",
        (session, now, limit),
    )
    return [_row(row) for row in rows]


def answer(
    db: Db,
    id: str,
    *,
    decision: Decision,
    text: str = "",
    principal: str,
    role: str,
    now: float,
    scope: ApprovalScope = "call",
    rule: str = "",
) -> ApprovalAnswer:
    """Answers the request if it is open, has not expired, and this principal may answer it. An approval is approved or
    denied; a question is answered. The tool that asks determines whether the answer must be one of the choices. With a
    `scope` larger than the call, what the request offers is stored as a rule with the id `rule`."""
    db.lock("approval", id)
    if len(text) > ANSWER_CHARACTERS:
        raise Refused(f"The answer is longer than {ANSWER_CHARACTERS} characters; shorten it.")
    row = _one(db, "approvals.id = ?1 AND may_answer IN (?2, 'role:' || ?3)", (id, principal, role))
    if row is None:
        return ApprovalAnswer("unknown", None)
    if (row.kind == "question") != (decision == "answered"):
        raise Refused(
            "An approval request is approved or denied, and a question is answered; send the matching decision."
        )
    if row.state != "open":
        same = (row.state, row.answer, row.answered_by, row.scope) == (decision, text, principal, scope)
        return ApprovalAnswer("repeated" if same else "expired" if row.state == "expired" else "closed", row)
    if row.expires is not None and row.expires <= now:
        return ApprovalAnswer("expired", row)
    counted = db.execute(
        "UPDATE approvals SET state = ?, answer = ?, answered_by = ?, answered_at = ?, scope = ? WHERE id = ?"
        f" RETURNING {_COLUMNS}",
        (decision, text, principal, now, scope, id),
    ).get
    _record(db, row, decision, now, principal)
    if scope == "call":
        return ApprovalAnswer("counted", _row(counted))
    if row.offer is None or decision != "approved":
        raise Refused("Only this one call can be approved.", code="scope_unavailable", param="scope")
    here = conversation(db, row.session) if scope == "conversation" else None
    approval_rules.put(
        db,
        row.offer,
        id=rule,
        session=here,
        summary=row.summary if row.offer.digest else "",
        approval=id,
        by=principal,
        now=now,
    )
    covered = _approve_covered(db, row.offer, here, principal=principal, role=role, scope=scope, now=now)
    return ApprovalAnswer("counted", _row(counted), covered)


def _approve_covered(
    db: Db, offer: RuleOffer, here: str | None, *, principal: str, role: str, scope: ApprovalScope, now: float
) -> tuple[ApprovalRow, ...]:
    """Approves the other open requests with the same offer, in the conversation `here` or everywhere."""
    found = db.execute(
        f"SELECT {_COLUMNS} FROM approvals WHERE state = 'open' AND may_answer IN (?1, 'role:' || ?2)"
        " AND (expires IS NULL OR expires > ?3) AND tool = ?4 AND offer = ?5 ORDER BY asked, id",
        (principal, role, now, offer.tool, encode(offer)),
    ).fetchall()
    rows = [row for row in map(_row, found) if here is None or conversation(db, row.session) == here]
    for row in rows:
        db.execute(
            "UPDATE approvals SET state = 'approved', answer = '', answered_by = ?, answered_at = ?, scope = ?"
            " WHERE id = ? AND state = 'open'",
            (principal, now, scope, row.id),
        )
        _record(db, row, "approved", now, principal)
    return tuple(rows)


def cancel_turn(db: Db, turn: str, now: float) -> list[ApprovalRow]:
    """Closes the turn's open requests, whose answers are no longer needed. Returns the closed ones."""
    db.lock("turn", turn)
    return _close(db, "turn = ?3", "cancelled", now, turn)


def cancel_call(db: Db, turn: str, step: str, now: float) -> list[ApprovalRow]:
    """Cancels one call's requests, like `cancel_turn`. The names of their steps begin with that of the call's own
    step."""
    db.lock("turn", turn)
    return _close(
        db, "turn = ?3 AND (step = ?4 OR substr(step, 1, length(?4) + 1) = ?4 || '-')", "cancelled", now, turn, step
    )


def cancel_session(db: Db, session: str, now: float) -> list[ApprovalRow]:
    """Cancels all of a session's requests, like `cancel_turn`."""
    db.lock("session", session)
    return _close(db, "session = ?3", "cancelled", now, session)


def expire(db: Db, now: float, limit: int = EXPIRED_AT_ONCE) -> list[ApprovalRow]:
    """Closes up to `limit` expired requests. Returns them, so that their turns can be notified. If it returns fewer
    than `limit`, none are left."""
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


def _check(request: NewApproval) -> None:
    if len(request.summary) > SUMMARY_CHARACTERS:
        raise Refused(f"The summary is longer than {SUMMARY_CHARACTERS} characters; shorten it.")
    if request.offer is not None and request.kind != "approval":
        raise Refused("Only approvals can cover further calls.")
    if request.choices and request.kind != "question":
        raise Refused("Only a question has choices; an approval is approved or denied.")
    if len(request.choices) > CHOICES or any(len(choice) > CHOICE_CHARACTERS for choice in request.choices):
        raise Refused(f"A question has at most {CHOICES} choices of {CHOICE_CHARACTERS} characters; offer fewer.")


def _tree(session: str) -> str:
    """Returns a WITH clause that selects a session's open turns and the turns delegated by them, each with its session.
    `session` is the placeholder for the session's id."""
    return (
        f"WITH RECURSIVE tree(turn, at) AS (SELECT id, session FROM turns WHERE session = {session} AND state IN"
        " ('queued', 'running') UNION ALL SELECT turns.id, turns.session FROM turns JOIN tree"
        " ON turns.within = tree.turn)"
    )


def _one(db: Db, condition: str, values: tuple[str, ...]) -> ApprovalRow | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM approvals WHERE {condition}", values).get
    return None if row is None else _row(row)


def _row(row: Any) -> ApprovalRow:
    id, session, turn, step, kind, tool, digest, summary, choices, may_answer, state, asked, expires, *rest = row
    answer, by, at, offer, scope = rest
    return ApprovalRow(
        id, session, turn, step, kind, tool, digest, summary, () if choices is None else _choices(choices), may_answer,
        state, asked, expires, answer, by, at, None if offer is None else _offer(offer), scope,
    )  # fmt: skip
