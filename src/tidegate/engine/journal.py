"""The journal of one turn over SQLite: the embedded engine's `Turn`.

Guarantee: a step that has a row is never made again; a step's row is committed before the next step starts; the intent
of a step with an effect is committed before it runs, and an intent without a row is never run again unless it is
repeatable. The row that ends the turn is kept back and committed together with the end (`tail`). A call with an effect
is recorded in the audit log in the transactions of its intent and of its result.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import msgspec

from tidegate.agent import EXCERPT_CHARACTERS, Effect, Parked
from tidegate.engine.live import LiveTurn
from tidegate.errors import StoreFailed
from tidegate.store import AuditKind, Db, IntentRow, MessageRow, Store, audit, intents, messages, turns, usage
from tidegate.values import Event, Frozen, Message, MessageAdded, ToolCall, Usage

T = TypeVar("T")


class Billing(Frozen, frozen=True):
    """Whom a step's tokens are written down to. `session` is that of the conversation, also for the tasks in it."""

    session: str
    principal: str
    agent: str
    channel: str
    job: str = ""


def slim(message: Message) -> Message:
    """The message as user interfaces are told of it: a tool's result without its payload, media by what it is.
    Idempotent."""
    if message.role == "tool" and len(message.text) > EXCERPT_CHARACTERS:
        message = msgspec.structs.replace(message, text=message.text[:EXCERPT_CHARACTERS])
    return without_bytes(message)


def without_bytes(message: Message) -> Message:
    """The message with its media told by what they are: their bytes can be fetched."""
    if not any(media.data for media in message.media):
        return message
    told = tuple(msgspec.structs.replace(media, data=b"") for media in message.media)
    return msgspec.structs.replace(message, media=told)


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
        bill(db, turn, message.model, message.usage, billing, now)
    return row


def bill(db: Db, turn: str, model: str, tokens: Usage, billing: Billing, now: float) -> None:
    """Writes down what one model call cost."""
    usage.add(
        db,
        session=billing.session,
        principal=billing.principal,
        agent=billing.agent,
        channel=billing.channel,
        job=billing.job,
        model=model,
        turn=turn,
        now=now,
        tokens=tokens,
    )


def record_call(
    db: Db,
    turn: str,
    step: str,
    tool: str,
    digest: bytes | None,
    outcome: str,
    billing: Billing,
    now: float,
    hosts: Iterable[str] = (),
) -> None:
    """The rows of the audit log about a call, in the writer's transaction: one if it has an effect, and one for each
    host that it has contacted."""
    events: list[tuple[AuditKind, bytes]] = [("egress", audit.host_name(host)) for host in dict.fromkeys(hosts)]
    if digest is not None:
        events.insert(0, ("tool", digest))
    for kind, of in events:
        audit.append(
            db,
            kind,
            outcome,
            now,
            subject=f"{tool} {turn} {step}",
            principal=billing.principal,
            session=billing.session,
            of=of,
        )


class Journal:
    def __init__(
        self,
        live: LiveTurn,
        store: Store,
        billing: Billing,
        *,
        incoming: tuple[Message, ...],
        recorded: Sequence[MessageRow],
        begun: Mapping[str, IntentRow],
        parking: Callable[[], bool],
        away: Callable[[], AbstractContextManager[None]],
        clock: Callable[[], float],
    ) -> None:
        self.id = live.turn
        self.session = live.session
        self.incoming = incoming
        self.tail: tuple[str, Message] | None = None
        self.concluded: Message | None = None
        """The answer that ends the turn, where it is committed already."""
        self.steps = 0
        self.cut_calls: tuple[tuple[str, Usage], ...] = ()
        """Model and tokens of calls that broke off and are not written down yet: at most the last one and the tries
        before it."""
        self.hosts: dict[str, list[str]] = {}
        """Hosts that the calls under way have contacted, by step."""
        self._live = live
        self._store = store
        self._billing = billing
        self._recorded = {row.step: row.message for row in recorded if row.step}
        self._begun = begun
        self._parking = parking
        self._away = away
        self._clock = clock
        self._drains = 0

    @property
    def usage(self) -> Usage:
        return self._live.root.used

    def pay(self, usage: Usage) -> None:
        """A model was asked beside the turn's own steps: whoever asked writes it down, and the turn has used it."""
        self._live.use(usage)

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it, or its time is over: it does not go on in the next process."""
        return self._live.stopping is not None or self._live.expired

    @property
    def has_answered(self) -> bool:
        return self.tail is not None or self.concluded is not None

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier attempt has left steps of it."""
        return any(not step.startswith(turns.INCOMING) for step in self._recorded)

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
        message = await self._make(name, make, effect)
        self._count(message)
        if ends is not None and ends(message):
            self.tail = (name, message)
        else:
            await self._commit(name, message, effect)
        return message

    async def _make(self, name: str, make: Callable[[], Awaitable[Message]], effect: Effect | None) -> Message:
        """The step itself, its intent before it. A step that an earlier process began is not asked about again; it is
        run again only if both that process and this one call it repeatable."""
        if effect is None:
            return await make()
        intent = self._begun.get(name)
        if intent is None:
            if (refusal := await effect.refused()) is not None:
                return refusal
            await self._begin(name, effect)
        elif not effect.repeatable or intent.repeatable is False:
            return effect.interrupted(intent.read_only)
        self.hosts[name] = effect.hosts
        return await make()

    async def _begin(self, name: str, effect: Effect) -> None:
        now = self._clock()

        def begin(db: Db) -> None:
            intents.begin(
                db,
                self.id,
                name,
                effect.tool,
                now,
                read_only=effect.read_only,
                repeatable=effect.repeatable,
                digest=effect.digest,
            )
            record_call(db, self.id, name, effect.tool, effect.digest, "begun", self._billing, now)

        await self._store.write(begin)

    def conclude(self, answer: Message, calls: tuple[ToolCall, ...]) -> Message:
        self.concluded = msgspec.structs.replace(answer, calls=calls)
        return answer

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
        rows = await self._store.write(messages.place_steered, self.id, prefix, self._clock())
        for row in rows:
            self.emit(MessageAdded(seq=row.seq or 0, message=slim(row.message)))
        return tuple(row.message for row in rows)

    async def wait(self, ready: Callable[[], Awaitable[T | None]]) -> T:
        seen = self._live.signals
        found = await ready()
        if found is not None:
            return found
        with self._away():
            while found is None:
                await self._live.signalled(seen)
                seen = self._live.signals
                found = await ready()
        return found

    def cut(self, model: str, usage: Usage) -> None:
        self._live.use(usage)
        self.cut_calls += ((model, usage),)

    def bill_cut(self, db: Db, calls: Iterable[tuple[str, Usage]] | None = None) -> None:
        """Writes down the calls that broke off, in the writer's transaction."""
        for model, tokens in self.cut_calls if calls is None else calls:
            bill(db, self.id, model, tokens, self._billing, self._clock())

    def emit(self, event: Event) -> None:
        self._live.tell(event)

    def _count(self, message: Message) -> None:
        if message.role == "assistant":
            self.steps += 1
            if message.usage is not None:
                self._live.use(message.usage)

    def _has_recorded_after(self) -> bool:
        """Whether this drain stands before a step that is already recorded: then it gave nothing, and must again."""
        return f"model-{self._drains - 1}" in self._recorded

    async def _commit(self, name: str, message: Message, effect: Effect | None) -> None:
        now = self._clock()
        cut, self.cut_calls = self.cut_calls, ()

        def write(db: Db) -> MessageRow:
            if effect is not None:
                self._record_result(db, name, message, effect, intents.clear(db, self.id, name), now)
            self.bill_cut(db, cut)
            return commit_row(db, self.id, self.session, name, message, self._billing, now)

        try:
            row = await self._store.write(write)
        except StoreFailed:
            self.cut_calls = cut
            raise
        self.hosts.pop(name, None)
        self.emit(MessageAdded(seq=row.seq or 0, message=slim(message)))

    def _record_result(self, db: Db, name: str, message: Message, effect: Effect, begun: bool, now: float) -> None:
        if message.interrupted:
            outcome = "interrupted"
        elif message.failed:
            outcome = "failed" if begun else "denied"
        else:
            outcome = "done"
        record_call(db, self.id, name, effect.tool, effect.digest, outcome, self._billing, now, effect.hosts)
