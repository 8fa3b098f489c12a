"""Stored approvals: approvals that were given for a conversation or for all conversations of a person.

A stored approval answers only the question for which it was given. A call is allowed if the person, the agent, the
tool, the tool's definition and the place of the effect are the same, and the approval was given for every reason to
ask. A stored approval therefore never allows a call that the policy denies, and a policy that has become stricter asks
again. The person who gave the approval must still have the rights for it. Users can see and remove their own approvals;
the owner can see and remove all of them.
"""

from collections.abc import Callable
from typing import NamedTuple

from tidegate.agent import Turn
from tidegate.errors import NotFound
from tidegate.security import Principal
from tidegate.store import (
    ApprovalRuleRow,
    Db,
    NewApproval,
    RuleOffer,
    Store,
    approval_rules,
    approvals,
    principals,
    turns,
)
from tidegate.tools import DEFAULT_OWNER
from tidegate.values import ApprovalScope, Frozen, ScopeChoice

CONTAINED = "workspace"
"""The place of an effect that stays in the conversation's workspace and its sandbox."""

LISTED = 200
"""The number of rules in one listing, unless more are requested."""


class RuleView(Frozen, frozen=True, omit_defaults=False):
    """A stored approval. `allows` states in one sentence what the approval allows. `person` is the user in whose
    conversations it applies; if it applies to only one of them, `conversation` is that one, otherwise null. `call` is
    the only call allowed, or empty if every call of the tool is allowed. `origin` says where the tool comes from."""

    id: str
    allows: str
    person: str
    conversation: str | None
    agent: str
    tool: str
    origin: str
    call: str
    reasons: tuple[str, ...]
    """The reasons for asking that this approval answers."""
    given_by: str
    given: float
    used: float | None
    uses: int


class StoredApprovals:
    def __init__(self, store: Store, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    async def listing(
        self, principal: Principal, *, person: str | None = None, session: str | None = None, limit: int = LISTED
    ) -> list[RuleView]:
        """Returns the rules that apply in this principal's conversations, latest first; for the owner, those of
        everybody or of the `person` with this name or id."""

        def read(db: Db) -> list[RuleView]:
            whose: str | None = principal.id
            if principal.may("configure"):
                known = None if person is None else principals.by_name(db, person)
                whose = person if known is None else known.id
            elif person not in (None, principal.id, principal.name):
                return []
            rows = approval_rules.listing(db, principal=whose, session=session, limit=limit)
            return [_view(db, row) for row in rows]

        return await self._store.read(read)

    async def remove(self, id: str, principal: Principal) -> None:
        whose = None if principal.may("configure") else principal.id
        now = self._clock()
        removed = await self._store.write(
            lambda db: approval_rules.remove(db, id, principal=whose, by=principal.id, now=now)
        )
        if not removed:
            raise NotFound(f"There is no stored approval {id[:60]!r} that you may remove.", code="rule_not_found")

    async def allow(self, turn: Turn, step: str, request: NewApproval) -> bool:
        """Returns True if a stored approval allows the call of this step. If the step has already asked, its question
        stands. Rules that were given for another definition of the tool are deleted."""
        offer = request.offer
        if offer is None:
            return False
        found = await self._store.read(_find, turn, step, offer, request.digest)
        if found is None:
            return False
        now = self._clock()
        if found.void:
            await turn.write(approval_rules.remove_void, offer, now)
        for rule in found.rules:
            if approval_rules.allows(rule, offer, request.digest) and _may_give(rule):
                return await turn.write(
                    approval_rules.use,
                    rule.id,
                    turn=turn.id,
                    step=step,
                    session=turn.session,
                    digest=request.digest,
                    now=now,
                )
        return False


class _Found(NamedTuple):
    """The rules that might allow a call, and whether the tool has void rules."""

    rules: list[ApprovalRuleRow]
    void: bool


def choices(offer: RuleOffer | None, person: str, approver: Principal) -> tuple[ScopeChoice, ...]:
    """Returns the scopes that the approver can choose for a call, and what each scope allows. `person` is the name of
    the user in the call's conversation."""
    found = [ScopeChoice(scope="call", allows="Only this call.")]
    if offer is not None:
        found.append(ScopeChoice(scope="conversation", allows=allowed(offer, "conversation", person)))
        if approver.may("approve_always"):
            found.append(ScopeChoice(scope="always", allows=allowed(offer, "always", person)))
    return tuple(found)


def allowed(offer: RuleOffer, scope: ApprovalScope, person: str) -> str:
    """Returns what an approval with this scope allows, in one sentence."""
    tool = offer.tool if offer.origin == DEFAULT_OWNER else f"{offer.tool} (of {offer.origin})"
    calls = f"call {tool} with any arguments" if offer.digest is None else f"repeat exactly this call of {tool}"
    where = "in this conversation" if scope == "conversation" else f"in every conversation of {person}"
    reasons = [repr(reason) for reason in _reasons(offer)]
    only = f"the only reason to ask is {reasons[0]}"
    if len(reasons) > 1:
        only = f"the only reasons to ask are {' and '.join(reasons)}"
    return f"The agent {offer.agent} may {calls} {where} without asking, as long as {only}."


def _reasons(offer: RuleOffer) -> tuple[str, ...]:
    """Returns the reasons for asking. A reason names its agent if it is not the agent that calls the tool."""
    return tuple(because if agent == offer.agent else f"{agent}: {because}" for agent, because in offer.grounds)


def _find(db: Db, turn: Turn, step: str, offer: RuleOffer, digest: bytes) -> _Found | None:
    """Returns None if the step has already asked."""
    if approvals.of_step(db, turn.id, step) is not None:
        return None
    here = turns.conversation(db, turn.session)
    return _Found(approval_rules.of_tool(db, offer, digest, here), approval_rules.has_void(db, offer))


def _may_give(rule: ApprovalRuleRow) -> bool:
    """True if the person who gave the rule still has the rights for it."""
    if rule.giver_role is None:
        return False
    giver = Principal(id=rule.given_by, name="", role=rule.giver_role)
    contained = rule.offer.place == CONTAINED
    may = giver.may("approve" if contained else "approve_outside")
    return may and (rule.session is not None or giver.may("approve_always"))


def _view(db: Db, row: ApprovalRuleRow) -> RuleView:
    offer = row.offer
    scope: ApprovalScope = "always" if row.session is None else "conversation"
    person = _name(db, offer.principal)
    return RuleView(
        id=row.id, allows=allowed(offer, scope, person), person=person, conversation=row.session, agent=offer.agent,
        tool=offer.tool, origin=offer.origin, call=row.summary,
        reasons=_reasons(offer), given_by=_name(db, row.given_by), given=row.given, used=row.used, uses=row.uses,
    )  # fmt: skip


def _name(db: Db, principal: str) -> str:
    row = principals.get(db, principal)
    return principal if row is None else row.name
