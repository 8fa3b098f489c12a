"""Questions to a person: approvals of one exact action, and what a tool wants to know.

Guarantee: a question is a row before anybody is told of it, and survives unload, restart and kill: a turn that is taken
up again asks again and finds the row, open or answered. It is answered once, by whoever may, from any client; a stop,
an end and its expiry close it. A question is answered by the person whose conversation it is, and so is an approval
that their role gives them the right to; every other approval is the owner's. At most `limits.questions` turns wait, of
one principal `limits.questions_each`. Where nobody is at the other end, to ask is to deny, and the model is told why;
for a task that an agent has given, that is the end of the conversation that it was given in, and there it is asked.
Nothing is held here but how many wait; the turns that asked wait by themselves.
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
    NewApproval,
    SessionRow,
    Store,
    TurnRow,
    approvals,
    principals,
    sessions,
    turns,
)
from tidegate.turns.channels import DELEGATE, Channels
from tidegate.values import Frozen, QuestionAnswered, QuestionAsked, new_id

LISTED = 200
"""Questions in one listing, unless more are asked for: nobody reads so many."""


class QuestionView(Frozen, frozen=True, omit_defaults=False):
    """What a turn asks a person: an approval of one exact action, shown in `summary`, or a question. `state` is open,
    approved, denied, answered, expired or cancelled. `conversation` is the session that it is asked in: that of the
    turn itself, or of the one that has given it as a task. `person` is the name of whoever it belongs to."""

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
    """Whether only the owner of the gateway may answer it."""


def view_question(row: ApprovalRow, conversation: str, person: str) -> QuestionView:
    return QuestionView(
        id=row.id,
        session=row.session,
        conversation=conversation,
        person=person,
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
    )


class Approvals:
    def __init__(
        self,
        store: Store,
        config: Config,
        channels: Channels,
        *,
        clock: Callable[[], float],
        signal: Callable[[str], None],
    ) -> None:
        self._store = store
        self._channels = channels
        self._limits = config.limits
        self._within = config.limits.answer_within
        self._clock = clock
        self._signal = signal
        # (principal, turn) → its questions; as many turns as limits.questions
        self._asking: Counter[tuple[str, str]] = Counter()

    @property
    def waiting(self) -> int:
        """How many questions of this process's turns wait for an answer."""
        return self._asking.total()

    # -- for those who answer --

    async def open_for(
        self, principal: Principal, *, session: str | None = None, limit: int = LISTED
    ) -> list[QuestionView]:
        """What waits for this principal's answer, in all his conversations or in one with the tasks given there, the
        oldest first."""

        def read(db: Db) -> list[QuestionView]:
            found = approvals.open_for(
                db, principal=principal.id, role=principal.role, now=self._clock(), limit=limit, session=session
            )
            return [_view(db, row) for row in found]

        return await self._store.read(read)

    async def of_session(self, session: str, principal: Principal, *, limit: int = LISTED) -> list[QuestionView]:
        """All that a conversation of this principal's has asked, the latest first."""
        own = None if principal.may("configure") else principal.id

        def read(db: Db) -> list[QuestionView]:
            return [_view(db, row) for row in approvals.of_session(db, session, principal=own, limit=limit)]

        return await self._store.read(read)

    async def not_for(self, principal: Principal, session: str | None) -> list[QuestionView]:
        """What is open in a conversation of this principal's and waits for somebody else's answer."""

        def read(db: Db) -> list[QuestionView]:
            rows = approvals.open_of(db, session or "", self._clock())
            others = (row for row in rows if not approvals.may_answer(row, principal=principal.id, role=principal.role))
            return [_view(db, row) for row in others]

        return await self._store.read(read)

    async def get(self, id: str, principal: Principal) -> QuestionView:
        row, conversation, person = await self._seen(id, principal)
        return view_question(row, conversation, person)

    async def answer(
        self, id: str, principal: Principal, decision: Literal["approved", "denied", "answered"], text: str = ""
    ) -> QuestionView:
        """Answers it for good and wakes whoever asked. The same answer again changes nothing."""
        row, conversation, person = await self._seen(id, principal)
        if not approvals.may_answer(row, principal=principal.id, role=principal.role):
            principal.require("approve")
            principal.require("approve_outside")
            raise _unknown(id)
        if (row.kind == "question") != (decision == "answered"):
            raise Refused(_UNFIT[row.kind], code="answer_unfit", param="decision")
        text = _answer(row, text.strip())
        counted: Counted = await self._store.write(
            lambda db: approvals.answer(
                db, id, decision=decision, text=text, principal=principal.id, role=principal.role, now=self._clock()
            )
        )
        if counted.row is None:
            raise _unknown(id)
        if counted.how == "closed":
            raise Conflict(f"This is closed already: it was {counted.row.state}.", code="question_closed")
        if counted.how == "expired":
            raise Conflict("This is closed already: its time was over.", code="question_closed")
        self._signal(row.turn)
        return view_question(counted.row, conversation, person)

    async def _seen(self, id: str, principal: Principal) -> tuple[ApprovalRow, str, str]:
        """The question, the conversation that it is asked in, and the name of the person whose conversation it is."""

        def read(db: Db) -> tuple[ApprovalRow, str, str] | None:
            row = approvals.visible_to(db, id, principal=principal.id, role=principal.role)
            return None if row is None else (row, *_whose(db, row))

        found = await self._store.read(read)
        if found is None:
            raise _unknown(id)
        return found

    async def expire(self) -> int:
        """Closes the questions whose time is over, a batch of them, and wakes whoever asked."""
        rows: list[ApprovalRow] = await self._store.write(approvals.expire, self._clock())
        for row in rows:
            self._signal(row.turn)
        return len(rows)

    # -- for those who watch --

    async def standing(self, session: str) -> list[QuestionAsked]:
        """What the session has open, and the tasks that are worked on for it, the oldest first: for who comes when it
        was already told."""
        return await self._store.read(_standing, session, self._clock())

    # -- for the turns --

    async def put(self, taken: TakenTurn, turn: Turn, step: str, asking: NewApproval) -> ApprovalRow | str:
        """Asks, tells whoever follows the turn, and waits until the question is closed: its row then. Or why nobody
        could be asked. A step that has asked before is not asked again whether it may."""

        async def find() -> ApprovalRow | None:
            return await self._store.read(approvals.of_step, turn.id, step)

        async def closed() -> ApprovalRow | None:
            found = await find()
            return found if found is not None and found.state != "open" else None

        if await find() is None and (nobody := await self._nobody(taken)) is not None:
            return nobody
        with self._counted((taken.session.principal, turn.id)):
            now = self._clock()
            row: ApprovalRow = await self._store.write(
                lambda db: approvals.ask(
                    db,
                    id=new_id("ap"),
                    session=turn.session,
                    turn=turn.id,
                    step=step,
                    asking=asking,
                    now=now,
                    expires=now + self._within,
                )
            )
            if row.state == "open":
                turn.emit(_told(row))
            row = await turn.wait(closed)
        turn.emit(QuestionAnswered(id=row.id, state=row.state, answer=row.answer or ""))
        return row

    async def withdraw(self, turn: Turn, step: str) -> None:
        """The call of this step is over: what it has open is closed."""
        for row in await self._store.write(approvals.cancel_call, turn.id, step, self._clock()):
            turn.emit(QuestionAnswered(id=row.id, state=row.state))

    async def approver(self, taken: TakenTurn, *, contained: bool) -> str:
        """`may_answer` of an approval: the person of the turn's session, if their role has the right to it, or else
        the owner."""
        row = await self._store.read(principals.get, taken.session.principal)
        right: Right = "approve" if contained else "approve_outside"
        has_right = row is not None and Principal(id=row.id, name=row.name, role=row.role).may(right)
        return taken.session.principal if has_right else approvals.OWNER

    async def givers(self, taken: TakenTurn) -> tuple[str, ...]:
        """The agents that the turn's task comes from, the nearest first; none of a turn that is no task."""
        return () if taken.turn.within is None else await self._store.read(_givers, taken.turn.id)

    async def channel(self, taken: TakenTurn) -> str:
        """The channel at which the person of this turn is, also where another agent has given it as a task."""
        return (await self._origin(taken))[0]

    async def _origin(self, taken: TakenTurn) -> tuple[str, bool]:
        """The channel of the outermost turn that this one works for, and whether somebody there can be asked."""
        turn, session = taken.turn, taken.session
        if turn.within is not None:
            outermost = await self._store.read(_outermost, turn.id)
            if outermost is None:  # it is being stopped
                return DELEGATE, False
            turn, session = outermost
        attended = turn.call.attended
        if attended is None:
            attended = self._channels.of(turn.channel).interactive
        return turn.channel, attended and session.kind != "ephemeral"

    async def _nobody(self, taken: TakenTurn) -> str | None:
        """Why nobody could answer a question of this turn; None when somebody can."""
        channel, attended = await self._origin(taken)
        if not attended:
            return f"nobody can be asked on the channel {channel}"
        if (taken.session.principal, taken.turn.id) in self._asking:
            return None
        if len(self._asking) >= self._limits.questions:
            return f"{self._limits.questions} turns wait for an answer already (limits.questions)"
        own = sum(principal == taken.session.principal for principal, _ in self._asking)
        if own >= self._limits.questions_each:
            return f"{own} of this person's turns wait for an answer already (limits.questions_each)"
        return None

    @contextmanager
    def _counted(self, asker: tuple[str, str]) -> Iterator[None]:
        self._asking[asker] += 1
        try:
            yield
        finally:
            self._asking[asker] -= 1
            if not self._asking[asker]:
                del self._asking[asker]


_UNFIT = {
    "approval": "This is to be approved or denied: /approve or /deny, `approved` or `denied`.",
    "question": "This is a question: answer it with /answer or `answered`, or stop the turn.",
}


def _outermost(db: Db, turn: str) -> tuple[TurnRow, SessionRow] | None:
    found = turns.outermost(db, turn)
    session = sessions.get(db, found.session) if found is not None else None
    return None if found is None or session is None else (found, session)


def _givers(db: Db, turn: str) -> tuple[str, ...]:
    """Their names; of one whose turn is gone already, an empty one, which is no agent's."""
    rows = [sessions.get(db, row.session) if row is not None else None for row in turns.outer_turns(db, turn)]
    return tuple("" if row is None else row.agent for row in rows)


def _standing(db: Db, session: str, now: float) -> list[QuestionAsked]:
    found: list[QuestionAsked] = []
    for row in approvals.open_of(db, session, now):
        asker = None if row.session == session else sessions.get(db, row.session)
        found.append(_told(row, "" if asker is None else asker.agent))
    return found


def _view(db: Db, row: ApprovalRow) -> QuestionView:
    return view_question(row, *_whose(db, row))


def _whose(db: Db, row: ApprovalRow) -> tuple[str, str]:
    """The conversation of a question, and the name of its person."""
    session = sessions.get(db, row.session)
    person = None if session is None else principals.get(db, session.principal)
    return turns.conversation(db, row.session), "" if person is None else person.name


def _told(row: ApprovalRow, agent: str = "") -> QuestionAsked:
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
    )


def _unknown(id: str) -> NotFound:
    return NotFound(f"There is no question {id[:60]!r} that you may answer.", code="question_not_found")


def _answer(row: ApprovalRow, text: str) -> str:
    """The answer as one of the choices, by its text or its number, where there are any. Of one that is closed already
    that is told, whatever the answer."""
    if row.kind == "approval" or row.state != "open":
        return _choice(row.choices, text) or text
    if not text:
        raise Refused("Say what the answer is.", code="missing_argument", param="text")
    if not row.choices:
        return text
    chosen = _choice(row.choices, text)
    if chosen is None:
        known = "; ".join(f"{number}. {choice}" for number, choice in enumerate(row.choices, start=1))
        raise Refused(f"The answer is one of these, or its number: {known}.", code="bad_argument", param="text")
    return chosen


def _choice(choices: tuple[str, ...], text: str) -> str | None:
    if text in choices:
        return text
    if text.isdecimal() and len(text) < 10 and 1 <= int(text) <= len(choices):
        return choices[int(text) - 1]
    same = [choice for choice in choices if choice.casefold() == text.casefold()]
    return same[0] if len(same) == 1 else None
