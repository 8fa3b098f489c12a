"""The journal of one turn over SQLite: the embedded engine's `Turn`.

Guarantee: a step that has a row is never made again; a step's row is committed before the next step starts; the intent
of a step with an effect is committed before it runs, and an intent without a row is never run again unless it is
repeatable. The row that ends the turn is kept back and committed together with the end (`tail`).
"""

from collections.abc import Awaitable, Callable, Sequence

from tidegate.agent import Effect
from tidegate.engine.live import Live
from tidegate.store import Db, MessageRow, Store, intents, messages, usage
from tidegate.values import Event, Frozen, Message, MessageAdded, Usage

EVENT_CHARACTERS = 400
"""What an event carries of a tool's result; the result itself is in the transcript."""


class Billing(Frozen, frozen=True):
    """Whom a step's tokens are written down to."""

    principal: str
    agent: str
    channel: str


class Parked(Exception):
    """The gateway is stopping: the turn rests at this step boundary and goes on in the next process."""


def slim(message: Message) -> Message:
    """The message as user interfaces are told of it: a tool's result without its payload. Idempotent."""
    if message.role != "tool" or len(message.text) <= EVENT_CHARACTERS:
        return message
    return Message(
        role="tool",
        text=message.text[:EVENT_CHARACTERS],
        call_id=message.call_id,
        name=message.name,
        failed=message.failed,
    )


def commit_row(
    db: Db,
    turn: str,
    session: str,
    step: str,
    message: Message,
    billing: Billing,
    now: float,
    *,
    settling: bool = False,
) -> MessageRow:
    """One journal row, with its usage, in the writer's transaction."""
    row = messages.append(db, session=session, turn=turn, step=step, message=message, now=now, settling=settling)
    if message.usage is not None:
        usage.add(
            db,
            session=session,
            principal=billing.principal,
            agent=billing.agent,
            channel=billing.channel,
            model=message.model,
            turn=turn,
            now=now,
            tokens=message.usage,
        )
    return row


class Journal:
    def __init__(
        self,
        live: Live,
        store: Store,
        billing: Billing,
        *,
        incoming: tuple[Message, ...],
        recorded: Sequence[MessageRow],
        lost: frozenset[str],
        parking: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self.id = live.turn
        self.session = live.session
        self.incoming = incoming
        self.tail: tuple[str, Message] | None = None
        self.usage = Usage()
        self.steps = 0
        self._live = live
        self._store = store
        self._billing = billing
        self._recorded = {row.step: row.message for row in recorded if row.step}
        self._lost = lost
        self._parking = parking
        self._clock = clock
        self._drains = 0

    async def step(
        self,
        name: str,
        make: Callable[[], Awaitable[Message]],
        *,
        effect: Effect | None = None,
        ends: Callable[[Message], bool] | None = None,
    ) -> Message:
        recorded = self._recorded.get(name)
        if recorded is not None:
            self._count(recorded)
            return recorded
        if self._parking():
            raise Parked
        if effect is not None and name in self._lost and not effect.repeatable:
            message = effect.lost
        else:
            if effect is not None and name not in self._lost:
                await self._store.write(intents.begin, self.id, name, effect.tool, self._clock())
            message = await make()
        self._count(message)
        if ends is not None and ends(message):
            self.tail = (name, message)
        else:
            await self._commit(name, message, settles_intent=effect is not None)
        return message

    async def drain(self, kind: str) -> tuple[Message, ...]:
        """`kind` is `steer`: what was said into this turn. Drains are numbered, so that a replay gives each drain what
        it gave the first time."""
        prefix = f"{kind}-{self._drains}-"
        self._drains += 1
        recorded = tuple(message for step, message in self._recorded.items() if step.startswith(prefix))
        if recorded:
            return recorded
        if not self._live.steered or self._has_recorded_after():
            return ()
        self._live.steered = False
        rows = await self._store.write(messages.steered, self.id, prefix, self._clock())
        for row in rows:
            self.emit(MessageAdded(seq=row.seq or 0, message=row.message))
        return tuple(row.message for row in rows)

    async def wait(self, kind: str) -> None:
        await self._live.arrival()

    def emit(self, event: Event) -> None:
        self._live.log.append(event)

    def _count(self, message: Message) -> None:
        if message.role == "assistant":
            self.steps += 1
            if message.usage is not None:
                self.usage = self.usage + message.usage

    def _has_recorded_after(self) -> bool:
        """Whether this drain stands before a step that is already recorded: then it gave nothing, and must again."""
        return f"model-{self._drains - 1}" in self._recorded

    async def _commit(self, name: str, message: Message, *, settles_intent: bool) -> None:
        now = self._clock()

        def write(db: Db) -> MessageRow:
            if settles_intent:
                intents.clear(db, self.id, name)
            return commit_row(db, self.id, self.session, name, message, self._billing, now)

        row = await self._store.write(write)
        self.emit(MessageAdded(seq=row.seq or 0, message=slim(message)))
