"""Questions to a person: approvals for exact actions, and questions asked by tools.

A question is stored before anyone sees it, and survives unloading, restarts and kills. When a resumed turn asks again,
it finds the stored question, open or answered. A question is answered once, from any client, by anyone who is allowed
to. It is closed when its turn is stopped, when its session ends, or when it expires.

Questions go to the person in the conversation. Approvals go to this person, too, if their role permits it, otherwise to
the owner. At most `limits.questions` turns wait for an answer, and at most `limits.questions_each` per principal. If
nobody can be asked, the action is denied and the model receives the reason. A delegated task's questions are asked in
the conversation from which the task was delegated. An approval that is given for more than its call is stored
(`stored_approvals.py`).

This service only counts the waiting questions; the turns themselves do the waiting.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tidegate.agent import Turn
from tidegate.config import Config
from tidegate.engine import TakenTurn
from tidegate.errors import Conflict, NotFound, Refused
from tidegate.security import Principal, Right
from tidegate.store import ApprovalAnswer as Counted
from tidegate.store import (
    ApprovalRow,
    Db,
    Decision,
    NewApproval,
    SessionRow,
    Store,
    TurnRow,
    approvals,
    principals,
    sessions,
    turns,
)
from tidegate.turns.channel_recovery import DELEGATE, Channels
from tidegate.turns.stored_approvals import StoredApprovals, choices
from tidegate.values import ApprovalScope, Frozen, QuestionAnswered, QuestionAsked, ScopeChoice, new_id

LISTED = 200
"""Number of questions in one listing, unless more are requested."""


class QuestionView(Frozen, frozen=True, omit_defaults=False):
    """A request to a person: to approve one exact action, shown in `summary`, or to answer a question. `state` is open,
    approved, denied, answered, expired or cancelled. `conversation` is the session in which the person sees the
    question: the turn's own session or, for a delegated task, the outermost turn's session. `person` is the name of the
    person in that conversation."""

    id: str
    session: str
    conversation: str
    person: str
    turn: str
    kind: Literal["approval", "question"]
    tool: str
    summary: str
    choices: tuple[str, ...]
    state: str
    asked: float
    expires: float | None = None
    answer: str | None = None
    answered_at: float | None = None
    for_owner: bool = False
    """True if only the gateway's owner may answer it."""
    scopes: tuple[ScopeChoice, ...] = ()
    """The scopes from which the approver can choose; empty for a question and for a closed request."""
    scope: ApprovalScope = "call"
    """The scope with which it was approved."""


def _view(db: Db, row: ApprovalRow) -> QuestionView:
    session = sessions.get(db, row.session)
    person = None if session is None else principals.get(db, session.principal)
    return QuestionView(
        id=row.id,
        session=row.session,
        conversation=turns.conversation(db, row.session),
        person="" if person is None else person.name,
        turn=row.turn,
        kind=row.kind,
        tool=row.tool,
        summary=row.summary,
        choices=row.choices,
        state=row.state,
        asked=row.asked,
        expires=row.expires,
        answer=row.answer,
        answered_at=row.answered_at,
        for_owner=row.may_answer == approvals.OWNER,
        scopes=_scopes(db, row),
        scope=row.scope,
    )


class Approvals:
    def __init__(
        self,
        store: Store,
        config: Config,
        channels: Channels,
        *,
        clock: Callable[[], float],
        wake: Callable[[str], None],
    ) -> None:
        self._store = store
        self.stored = StoredApprovals(store, clock=clock)
        self._channels = channels
        self._limits = config.limits
        self._within = config.limits.answer_within
        self._clock = clock
        self._wake = wake
        # (principal, turn) → the number of its questions; at most limits.questions turns
        self._waiting: Counter[tuple[str, str]] = Counter()

    @property
    def waiting(self) -> int:
        """The number of questions from this process's turns that are waiting for an answer."""
        return self._waiting.total()

    # -- for people who answer --

    async def open_for(
        self, principal: Principal, *, session: str | None = None, limit: int = LISTED
    ) -> list[QuestionView]:
        """Returns the questions that are waiting for this principal's answer, oldest first: those from all of the
        principal's conversations, or those from one conversation and its tasks."""

        def read(db: Db) -> list[QuestionView]:
            found = approvals.open_for(
                db, principal=principal.id, role=principal.role, now=self._clock(), limit=limit, session=session
            )
            return [_view(db, row) for row in found]

        return await self._store.read(read)

    async def of_session(self, session: str, principal: Principal, *, limit: int = LISTED) -> list[QuestionView]:
        """Returns all questions in one of this principal's conversations, latest first."""
        own = None if principal.may("configure") else principal.id

        def read(db: Db) -> list[QuestionView]:
            return [_view(db, row) for row in approvals.of_session(db, session, principal=own, limit=limit)]

        return await self._store.read(read)

    async def open_for_others(self, principal: Principal, session: str | None) -> list[QuestionView]:
        """Returns the open questions in one of this principal's conversations that are waiting for someone else's
        answer."""

        def read(db: Db) -> list[QuestionView]:
            rows = approvals.open_of(db, session or "", self._clock())
            others = (row for row in rows if not approvals.may_answer(row, principal=principal.id, role=principal.role))
            return [_view(db, row) for row in others]

        return await self._store.read(read)

    async def get(self, id: str, principal: Principal) -> QuestionView:
        return (await self._visible(id, principal))[1]

    async def answer(
        self,
        id: str,
        principal: Principal,
        decision: Literal["approved", "denied", "answered"],
        text: str = "",
        scope: ApprovalScope = "call",
    ) -> QuestionView:
        """Records the answer permanently and wakes the turn. Giving the same answer again changes nothing. With a
        `scope` larger than the call, the approval is stored in the same transaction."""
        row, _ = await self._visible(id, principal)
        if not approvals.may_answer(row, principal=principal.id, role=principal.role):
            principal.require("approve")
            principal.require("approve_outside")
            raise _unknown(id)
        if (row.kind == "question") != (decision == "answered"):
            raise Refused(_UNFIT[row.kind], code="answer_unfit", param="decision")
        if scope != "call" and decision != "approved":
            raise Refused(f"Only an approval can have the scope {scope!r}.", code="bad_argument", param="scope")
        if scope == "always":
            principal.require("approve_always")
        text = _answer(row, text.strip())
        counted, view = await self._store.write(self._record, id, principal, decision, text, scope)
        if counted.row is None:
            raise _unknown(id)
        if counted.how == "closed":
            raise Conflict(f"This is already closed: it was {counted.row.state}.", code="question_closed")
        if counted.how == "expired":
            raise Conflict("This is already closed: it has expired.", code="question_closed")
        for each in (counted.row, *counted.covered):
            self._wake(each.turn)
        assert view is not None
        return view

    def _record(
        self, db: Db, id: str, principal: Principal, decision: Decision, text: str, scope: ApprovalScope
    ) -> tuple[Counted, QuestionView | None]:
        counted = approvals.answer(
            db, id, decision=decision, text=text, principal=principal.id, role=principal.role, now=self._clock(),
            scope=scope, rule=new_id("ar"),
        )  # fmt: skip
        return counted, None if counted.row is None else _view(db, counted.row)

    async def _visible(self, id: str, principal: Principal) -> tuple[ApprovalRow, QuestionView]:
        def read(db: Db) -> tuple[ApprovalRow, QuestionView] | None:
            row = approvals.visible_to(db, id, principal=principal.id, role=principal.role)
            return None if row is None else (row, _view(db, row))

        found = await self._store.read(read)
        if found is None:
            raise _unknown(id)
        return found

    async def expire(self) -> int:
        """Closes a batch of expired questions and wakes their turns."""
        rows: list[ApprovalRow] = await self._store.write(approvals.expire, self._clock())
        for row in rows:
            self._wake(row.turn)
        return len(rows)

    # -- for event streams --

    async def open_events(self, session: str) -> list[QuestionAsked]:
        """Returns the open questions from the session and its tasks, oldest first, for readers that connect after the
        questions were asked."""
        return await self._store.read(_open_events, session, self._clock())

    # -- for the turns --

    async def ask(self, taken: TakenTurn, turn: Turn, step: str, request: NewApproval) -> ApprovalRow | str:
        """Asks the question, sends it to the turn's readers, and waits until it is closed. Returns the question's row,
        or the reason why nobody can be asked. If the step has already asked the question, the limits are not checked
        again."""

        async def find() -> ApprovalRow | None:
            return await self._store.read(approvals.of_step, turn.id, step)

        async def closed() -> ApprovalRow | None:
            found = await find()
            return found if found is not None and found.state != "open" else None

        if await find() is None and (reason := await self._unreachable_reason(taken)) is not None:
            return reason
        with self._counted((taken.session.principal, turn.id)):
            now = self._clock()

            def record(db: Db) -> tuple[ApprovalRow, QuestionAsked]:
                row = approvals.ask(
                    db,
                    id=new_id("ap"),
                    session=turn.session,
                    turn=turn.id,
                    step=step,
                    request=request,
                    now=now,
                    expires=now + self._within,
                )
                return row, _asked_event(db, row)

            row, event = await turn.write(record)
            if row.state == "open":
                turn.emit(event)
            row = await turn.wait(closed)
        turn.emit(QuestionAnswered(id=row.id, state=row.state, answer=row.answer or ""))
        return row

    async def withdraw(self, turn: Turn, step: str) -> None:
        """Closes the open questions of a call that has ended."""
        for row in await turn.write(approvals.cancel_call, turn.id, step, self._clock()):
            turn.emit(QuestionAnswered(id=row.id, state=row.state))

    async def approver(self, taken: TakenTurn, *, contained: bool) -> str:
        """Returns the value of `may_answer` for an approval: the principal of the turn's session if their role may give
        this approval, otherwise the owner."""
        row = await self._store.read(principals.get, taken.session.principal)
        right: Right = "approve" if contained else "approve_outside"
        has_right = row is not None and Principal(id=row.id, name=row.name, role=row.role).may(right)
        return taken.session.principal if has_right else approvals.OWNER

    async def delegating_agents(self, taken: TakenTurn) -> tuple[str, ...]:
        """Returns the agents that delegated the turn's task, nearest first; empty if the turn is not a task."""
        return () if taken.turn.within is None else await self._store.read(_delegating_agents, taken.turn.id)

    async def channel(self, taken: TakenTurn) -> str:
        """Returns the channel of the person for whom this turn is running, even if another agent delegated the turn as
        a task."""
        return (await self._origin(taken))[0]

    async def _origin(self, taken: TakenTurn) -> tuple[str, bool]:
        """Returns the channel of the outermost parent turn, and True if a person on that channel can be asked."""
        turn, session = taken.turn, taken.session
        if turn.within is not None:
            outermost = await self._store.read(_outermost, turn.id)
            if outermost is None:  # the outermost turn is being stopped
                return DELEGATE, False
            turn, session = outermost
        attended = turn.call.attended
        if attended is None:
            attended = self._channels.of(turn.channel).interactive
        return turn.channel, attended and session.kind != "ephemeral"

    async def _unreachable_reason(self, taken: TakenTurn) -> str | None:
        """Returns the reason why nobody can answer this turn's questions, or None if someone can."""
        channel, attended = await self._origin(taken)
        if not attended:
            return f"nobody can be asked on the channel {channel}"
        if (taken.session.principal, taken.turn.id) in self._waiting:
            return None
        if len(self._waiting) >= self._limits.questions:
            return f"{self._limits.questions} turns are already waiting for an answer (limits.questions)"
        own = sum(principal == taken.session.principal for principal, _ in self._waiting)
        if own >= self._limits.questions_each:
            return f"{own} of this person's turns are already waiting for an answer (limits.questions_each)"
        return None

    @contextmanager
    def _counted(self, asker: tuple[str, str]) -> Iterator[None]:
        self._waiting[asker] += 1
        try:
            yield
        finally:
            self._waiting[asker] -= 1
            if not self._waiting[asker]:
                del self._waiting[asker]


_UNFIT = {
    "approval": "This request must be approved or denied: use /approve or /deny, `approved` or `denied`.",
    "question": "This is a question: answer it with /answer or `answered`, or stop the turn.",
}


def _outermost(db: Db, turn: str) -> tuple[TurnRow, SessionRow] | None:
    found = turns.outermost(db, turn)
    session = sessions.get(db, found.session) if found is not None else None
    return None if found is None or session is None else (found, session)


def _delegating_agents(db: Db, turn: str) -> tuple[str, ...]:
    """Returns the names of the delegating agents. If a delegating turn no longer exists, its agent's name is empty and
    matches no agent."""
    rows = [sessions.get(db, row.session) if row is not None else None for row in turns.outer_turns(db, turn)]
    return tuple("" if row is None else row.agent for row in rows)


def _open_events(db: Db, session: str, now: float) -> list[QuestionAsked]:
    found: list[QuestionAsked] = []
    for row in approvals.open_of(db, session, now):
        asker = None if row.session == session else sessions.get(db, row.session)
        found.append(_asked_event(db, row, "" if asker is None else asker.agent))
    return found


def _scopes(db: Db, row: ApprovalRow) -> tuple[ScopeChoice, ...]:
    """Returns the scopes from which the approver can choose."""
    if row.kind != "approval" or row.state != "open":
        return ()
    person = None if row.offer is None else principals.get(db, row.offer.principal)
    approver = Principal(id="", name="", role="owner")
    if row.may_answer != approvals.OWNER:
        found = principals.get(db, row.may_answer)
        approver = Principal(id=row.may_answer, name="", role="guest" if found is None else found.role)
    return choices(row.offer, "" if person is None else person.name, approver)


def _asked_event(db: Db, row: ApprovalRow, agent: str = "") -> QuestionAsked:
    return QuestionAsked(
        id=row.id,
        turn=row.turn,
        kind=row.kind,
        tool=row.tool,
        summary=row.summary,
        choices=row.choices,
        expires=row.expires,
        agent=agent,
        for_owner=row.may_answer == approvals.OWNER,
        scopes=_scopes(db, row),
    )


def _unknown(id: str) -> NotFound:
    return NotFound(f"There is no question {id[:60]!r} that you may answer.", code="question_not_found")


def _answer(row: ApprovalRow, text: str) -> str:
    """Returns the answer or, if the question has choices, the choice that the answer specifies by text or number.
    Answers to closed questions are not checked here, since the caller gets an error saying that the question is
    closed."""
    if row.kind == "approval" or row.state != "open":
        return _choice(row.choices, text) or text
    if not text:
        raise Refused("The answer is empty.", code="missing_argument", param="text")
    if not row.choices:
        return text
    chosen = _choice(row.choices, text)
    if chosen is None:
        known = "; ".join(f"{number}. {choice}" for number, choice in enumerate(row.choices, start=1))
        raise Refused(f"Answer with one of these choices or its number: {known}.", code="bad_argument", param="text")
    return chosen


def _choice(choices: tuple[str, ...], text: str) -> str | None:
    if text in choices:
        return text
    if text.isdecimal() and len(text) < 10 and 1 <= int(text) <= len(choices):
        return choices[int(text) - 1]
    same = [choice for choice in choices if choice.casefold() == text.casefold()]
    return same[0] if len(same) == 1 else None
