"""Stored approvals: rules that allow further calls of a tool without asking again.

A rule is stored in the transaction that approves the call for which it was given, and covers only what the approval
request offered. A rule allows a call only if everything in the offer is the same: the person, the agent, the tool and
its definition, the place of the effect and, where the offer names one, the exact action. Each reason for asking about
the call must be among the rule's. A rule of a conversation is deleted when the conversation ends. Whenever a rule is
stored, used, removed or found void, this is recorded in the audit log in the same transaction.
"""

from typing import Any

import msgspec

from tidegate.errors import Conflict
from tidegate.store.interface import Db
from tidegate.store.rows import LISTED, ApprovalRuleRow, RuleOffer, encode
from tidegate.store.tables import audit
from tidegate.store.tables.turns.turns import conversation, refusal

RULES_EACH = 500
"""The maximum number of rules in one conversation, and of one person's rules for all conversations. Nobody keeps an
overview of more."""

_COLUMNS = (
    "approval_rules.id, approval_rules.session, offer, summary, approval, given_by, given, used, uses, principals.role"
)
_ROWS = f"SELECT {_COLUMNS} FROM approval_rules LEFT JOIN principals ON principals.id = given_by"
_offer = msgspec.json.Decoder(RuleOffer).decode


def put(
    db: Db, offer: RuleOffer, *, id: str, session: str | None, summary: str, approval: str, by: str, now: float
) -> None:
    """Stores the rule. If an equal rule exists, this person becomes the one who gave it. `session` is the live
    conversation to which the rule is limited."""
    values = (offer.principal, offer.agent, offer.tool)
    equal = db.execute(
        "UPDATE approval_rules SET approval = ?, given_by = ?, given = ? WHERE principal = ? AND agent = ? AND tool = ?"
        " AND offer = ? AND coalesce(session, '') = ? RETURNING id",
        (approval, by, now, *values, encode(offer), session or ""),
    ).get
    if equal is not None:
        audit.append(
            db, "rule", "stored", now, subject=f"{equal} {approval} {offer.tool}", principal=by, session=session
        )
        return
    if session is None:
        where, owner = "session IS NULL AND principal = ?", offer.principal
    else:
        where, owner = "session = ?", session
    if db.execute(f"SELECT count(*) FROM approval_rules WHERE {where}", (owner,)).get >= RULES_EACH:
        raise Conflict(
            f"There are already {RULES_EACH} stored approvals; remove some, or approve only this call.",
            code="too_many_rules",
        )
    if session is not None:
        live = db.execute("SELECT 1 FROM sessions WHERE id = ? AND ended IS NULL", (session,)).get
        if live is None:
            raise refusal(db, session)
    db.execute(
        "INSERT INTO approval_rules(id, session, principal, agent, tool, fingerprint, digest, offer, summary, approval,"
        " given_by, given) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (id, session, *values, offer.fingerprint, offer.digest, encode(offer), summary, approval, by, now),
    )
    audit.append(db, "rule", "stored", now, subject=f"{id} {approval} {offer.tool}", principal=by, session=session)


def of_tool(db: Db, offer: RuleOffer, digest: bytes, here: str) -> list[ApprovalRuleRow]:
    """Returns the rules that might allow the call with this digest: those for the same person, agent and tool, and for
    this call or every call, the oldest first. `here` is the call's conversation."""
    rows = db.execute(
        f"{_ROWS} WHERE principal = ? AND agent = ? AND tool = ? AND (digest IS NULL OR digest = ?)"
        " AND (approval_rules.session IS NULL OR approval_rules.session = ?) ORDER BY given, approval_rules.id",
        (offer.principal, offer.agent, offer.tool, digest, here),
    )
    return [_row(row) for row in rows]


def allows(rule: ApprovalRuleRow, offer: RuleOffer, digest: bytes) -> bool:
    """True if the rule allows the call with this digest, given what a request for the call would offer."""
    given = rule.offer
    return (
        (given.principal, given.agent, given.tool) == (offer.principal, offer.agent, offer.tool)
        and (given.fingerprint, given.place) == (offer.fingerprint, offer.place)
        and given.digest in (None, digest)
        and not set(offer.grounds).difference(given.grounds)
    )


def use(db: Db, id: str, *, turn: str, step: str, session: str, digest: bytes, now: float) -> bool:
    """Records that a call is allowed by this rule. Returns False if the rule was removed in the meantime."""
    db.lock("turn", turn)
    tool = db.execute("UPDATE approval_rules SET used = ?, uses = uses + 1 WHERE id = ? RETURNING tool", (now, id)).get
    if tool is None:
        return False
    here = conversation(db, session)
    audit.append(db, "rule", "used", now, subject=f"{id} {tool} {turn} {step}", session=here, of=digest)
    return True


def has_void(db: Db, offer: RuleOffer) -> bool:
    """True if a rule of this person, agent and tool was given for another definition of the tool."""
    found = db.execute(
        "SELECT 1 FROM approval_rules WHERE principal = ? AND agent = ? AND tool = ? AND fingerprint <> ? LIMIT 1",
        (offer.principal, offer.agent, offer.tool, offer.fingerprint),
    ).get
    return found is not None


def remove_void(db: Db, offer: RuleOffer, now: float) -> None:
    """Deletes the rules that were given for another definition of the tool, so that none applies again if the tool
    changes back."""
    rows: list[Any] = db.execute(
        "DELETE FROM approval_rules WHERE principal = ? AND agent = ? AND tool = ? AND fingerprint <> ? RETURNING id",
        (offer.principal, offer.agent, offer.tool, offer.fingerprint),
    ).fetchall()
    for (id,) in rows:
        audit.append(db, "rule", "void", now, subject=f"{id} {offer.tool}")


def listing(
    db: Db, *, principal: str | None = None, session: str | None = None, limit: int = LISTED
) -> list[ApprovalRuleRow]:
    """Returns rules, latest first: of everybody or of one person, for all conversations or for only one."""
    where, values = ["1 = 1"], []
    if principal is not None:
        where.append("principal = ?")
        values.append(principal)
    if session is not None:
        where.append("approval_rules.session = ?")
        values.append(session)
    rows = db.execute(
        f"{_ROWS} WHERE {' AND '.join(where)} ORDER BY given DESC, approval_rules.id DESC LIMIT ?", (*values, limit)
    )
    return [_row(row) for row in rows]


def remove(db: Db, id: str, *, principal: str | None, by: str, now: float) -> bool:
    """Removes the rule if it belongs to this principal or was given by them; with `principal=None`, the operator
    removes it. Returns False if there is no such rule."""
    whose, values = ("", ()) if principal is None else (" AND (principal = ?2 OR given_by = ?2)", (principal,))
    found = db.execute(f"DELETE FROM approval_rules WHERE id = ?1{whose} RETURNING tool, session", (id, *values)).get
    if found is None:
        return False
    tool, session = found
    audit.append(db, "rule", "removed", now, subject=f"{id} {tool}", principal=by, session=session)
    return True


def end_session(db: Db, session: str) -> None:
    """Deletes the rules of a conversation that ends."""
    db.lock("session", session)
    db.execute("DELETE FROM approval_rules WHERE session = ?", (session,))


def _row(row: Any) -> ApprovalRuleRow:
    id, session, offer, *rest = row
    return ApprovalRuleRow(id, session, _offer(offer), *rest)
