"""Questions to a person: approvals of one exact action, and what a tool wants to know.

Guarantee: a question is a row before anybody is told of it, and survives unload, restart and kill: a turn that is taken
up again asks again and finds the row, open or answered. It is answered once, by whoever may, from any client; a stop,
an end and its expiry close it. At most `limits.questions` turns wait, of one principal `limits.questions_each`. Where
nobody is at the other end, to ask is to deny, and the model is told why; for a task that an agent has given, that is
the end of the conversation that it was given in, and there it is asked. Nothing is held here but how many wait; the
turns that asked wait by themselves.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tidegate.agent import Turn
from tidegate.config import Config
from tidegate.engine import Taken
from tidegate.errors import Conflict, NotFound, Refused
from tidegate.security import Principal
from tidegate.sessions.channels import DELEGATE, Channels
from tidegate.sessions.views import QuestionView, view_question
from tidegate.store import Answered as Counted
from tidegate.store import ApprovalRow, Asking, Db, Store, approvals, sessions, turns
from tidegate.values import Answered, Asked, new_id

LISTED = 200
"""Questions in one listing, unless more are asked for: nobody reads so many."""


class Questions:
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
        own = None if principal.role == "owner" else principal.id

        def read(db: Db) -> list[QuestionView]:
            return [_view(db, row) for row in approvals.of_session(db, session, principal=own, limit=limit)]

        return await self._store.read(read)

    async def get(self, id: str, principal: Principal) -> QuestionView:
        return view_question(*await self._seen(id, principal))

    async def answer(
        self, id: str, principal: Principal, decision: Literal["approved", "denied", "answered"], text: str = ""
    ) -> QuestionView:
        """Answers it for good and wakes whoever asked. The same answer again changes nothing."""
        row, conversation = await self._seen(id, principal)
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
        return view_question(counted.row, conversation)

    async def _seen(self, id: str, principal: Principal) -> tuple[ApprovalRow, str]:
        """The question, and the conversation that it is asked in."""

        def read(db: Db) -> tuple[ApprovalRow, str] | None:
            row = approvals.seen_by(db, id, principal=principal.id, role=principal.role)
            return None if row is None else (row, turns.conversation(db, row.session))

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

    async def standing(self, session: str) -> list[Asked]:
        """What the session has open, and the tasks that are worked on for it, the oldest first: for who comes when it
        was already told."""
        return await self._store.read(_standing, session, self._clock())

    # -- for the turns --

    async def put(self, taken: Taken, turn: Turn, step: str, asking: Asking) -> ApprovalRow | str:
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
        turn.emit(Answered(id=row.id, state=row.state, answer=row.answer or ""))
        return row

    async def withdraw(self, turn: Turn, step: str) -> None:
        """The call of this step is over: what it has open is closed."""
        for row in await self._store.write(approvals.cancel_call, turn.id, step, self._clock()):
            turn.emit(Answered(id=row.id, state=row.state))

    async def channel(self, taken: Taken) -> str:
        """The channel at which the person of this turn is, also where another agent has given it as a task."""
        return (await self._origin(taken))[0]

    async def _origin(self, taken: Taken) -> tuple[str, bool]:
        """The channel and whether the conversation goes on, of the outermost turn that this one works for."""
        if taken.turn.within is None:
            return taken.turn.channel, taken.session.kind != "ephemeral"
        return await self._store.read(_origin, taken.turn.id)

    async def _nobody(self, taken: Taken) -> str | None:
        """Why nobody could answer a question of this turn; None when somebody can."""
        channel, lasting = await self._origin(taken)
        if not lasting or not self._channels.of(channel).interactive:
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


def _origin(db: Db, turn: str) -> tuple[str, bool]:
    outermost = turns.outermost(db, turn)
    session = sessions.get(db, outermost.session) if outermost is not None else None
    if outermost is None or session is None:  # it is being stopped
        return DELEGATE, False
    return outermost.channel, session.kind != "ephemeral"


def _standing(db: Db, session: str, now: float) -> list[Asked]:
    found: list[Asked] = []
    for row in approvals.open_of(db, session, now):
        asker = None if row.session == session else sessions.get(db, row.session)
        found.append(_told(row, "" if asker is None else asker.agent))
    return found


def _view(db: Db, row: ApprovalRow) -> QuestionView:
    return view_question(row, turns.conversation(db, row.session))


def _told(row: ApprovalRow, agent: str = "") -> Asked:
    return Asked(
        id=row.id,
        turn=row.turn,
        kind=row.kind,
        tool=row.tool,
        summary=row.summary,
        choices=row.choices,
        expires=row.expires,
        agent=agent,
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
    if text.isdecimal() and 1 <= int(text[:9]) <= len(choices):
        return choices[int(text) - 1]
    same = [choice for choice in choices if choice.casefold() == text.casefold()]
    return same[0] if len(same) == 1 else None
