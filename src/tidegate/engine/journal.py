"""A turn's journal in the store: the embedded engine's implementation of `Turn`.

Guarantee: a step that has a row is never run again, and its row is committed before the next step starts. The intent of
a step with an effect is committed before the step runs; a step with an intent but no row is never run again unless it
is repeatable. The row that ends the turn (`final_row`) is held back and committed together with the end. A call with an
effect is recorded in the audit log, in the same transactions as its intent and its result. Each transaction first
checks the turn's fence, so an attempt writes nothing once another attempt has taken the turn. The same statement reads
whether the turn has been asked to stop and whether steered messages are waiting. The turn acts on both after the
commit, so it notices them even if nothing wakes it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Concatenate, ParamSpec, TypeVar

import anyio
import msgspec

from tidegate.agent import Effect, Parked
from tidegate.engine.live_turn import LiveTurn
from tidegate.engine.turn_log import TurnLog
from tidegate.errors import StoreFailed
from tidegate.store import (
    AuditKind,
    Db,
    IntentRow,
    MessageRow,
    Store,
    TurnNews,
    audit,
    intents,
    messages,
    turns,
    usage,
)
from tidegate.values import Event, Frozen, Message, ToolCall, Usage

P = ParamSpec("P")
T = TypeVar("T")


REREAD_SECONDS = 30.0
"""Seconds after which a turn that is waiting for a person reads the store again without being woken."""


class Billing(Frozen, frozen=True):
    """The account to which a step's usage is charged. `session` is the conversation's session, for delegated tasks as
    well."""

    session: str
    principal: str
    agent: str
    channel: str
    job: str = ""


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
    """Writes one journal row with its usage, in the writer's transaction."""
    row = messages.append(db, session=session, turn=turn, step=step, message=message, now=now, settling=settling)
    if message.usage is not None:
        bill(db, turn, message.model, message.usage, billing, now)
    return row


def bill(db: Db, turn: str, model: str, tokens: Usage, billing: Billing, now: float) -> None:
    """Records the usage of one model call."""
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
    """Writes the audit rows of a tool call, in the writer's transaction: one row if the call has an effect, and one row
    for each host that the call has contacted."""
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
        fence: int,
        incoming: tuple[Message, ...],
        recorded: Sequence[MessageRow],
        open_intents: Mapping[str, IntentRow],
        parking: Callable[[], bool],
        waiting_for_person: Callable[[], AbstractContextManager[None]],
        clock: Callable[[], float],
        reread_seconds: float = REREAD_SECONDS,
    ) -> None:
        self.id = live.turn
        self.session = live.session
        self.incoming = incoming
        self.final_row: tuple[str, Message] | None = None
        self.concluded: Message | None = None
        """The answer that ends the turn, if it has already been committed."""
        self.steps = 0
        self.cut_calls: tuple[tuple[str, Usage], ...] = ()
        """Model and usage of model calls that were cut off and are not recorded yet: at most the last call and its
        earlier attempts."""
        self.hosts: dict[str, list[str]] = {}
        """The hosts that the tool calls in progress have contacted, by step."""
        self._live = live
        self._store = store
        self._billing = billing
        self._fence = fence
        self._recorded = {row.step: row.message for row in recorded if row.step}
        self.is_resumed = any(not step.startswith(turns.INCOMING) for step in self._recorded)
        """True if an earlier attempt has recorded steps of this turn."""
        self._unreached = {row.step: row.message for row in recorded if row.step and row.message.role == "assistant"}
        self._open_intents = open_intents
        self._parking = parking
        self._waiting_for_person = waiting_for_person
        self._clock = clock
        self._reread_seconds = reread_seconds
        self._drains = 0

    @property
    def usage(self) -> Usage:
        return self._live.root.usage

    def add_usage(self, usage: Usage) -> None:
        """Counts a model call made outside the turn's steps. The caller records it in the store."""
        self._live.add_usage(usage)

    @property
    def is_stopped(self) -> bool:
        """True if the turn was stopped or has exceeded its time limit. Such a turn does not continue in the next
        process."""
        return self._live.stopped_by is not None or self._live.expired

    @property
    def has_answered(self) -> bool:
        return self.final_row is not None or self.concluded is not None

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
            self._unreached.pop(name, None)
            self._count(recorded)
            return recorded
        if self._parking():
            raise Parked
        if self._live.stopped_by is not None or self._live.expired:
            await asyncio.sleep(0)  # if the turn was stopped, its cancellation is raised here, before anything starts
        message = await (make() if effect is None else self._make(name, make, effect))
        self._count(message)
        if ends is not None and ends(message):
            self.final_row = (name, message)
        else:
            await self._commit(name, message, effect)
        return message

    async def _make(self, name: str, make: Callable[[], Awaitable[Message]], effect: Effect) -> Message:
        """Runs a step with an effect, after committing its intent. If an earlier process has started the step,
        permission is not requested again, and the step is run again only if both processes have declared it
        repeatable."""
        intent = self._open_intents.get(name)
        if intent is None:
            if (refusal := await effect.refused()) is not None:
                return refusal
            await self._commit_intent(name, effect)
        elif not effect.repeatable or intent.repeatable is False:
            return effect.interrupted(intent.read_only)
        self.hosts[name] = effect.hosts
        return await make()

    async def _commit_intent(self, name: str, effect: Effect) -> None:
        now = self._clock()

        def write(db: Db) -> None:
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

        await self.write(write)

    def conclude(self, answer: Message, calls: tuple[ToolCall, ...]) -> Message:
        self.concluded = msgspec.structs.replace(answer, calls=calls)
        return answer

    async def drain(self, kind: str) -> tuple[Message, ...]:
        """Returns the waiting messages of this kind. The only kind is `steer`, for messages steered into this turn.
        Drains are numbered, so in a replay each drain returns the same messages as the first time."""
        prefix = f"{kind}-{self._drains}-"
        self._drains += 1
        recorded = tuple(message for step, message in self._recorded.items() if step.startswith(prefix))
        if recorded:
            return recorded
        if not self._live.steered or self._has_recorded_after():
            return ()
        self._live.steered = False
        rows, news = await self._write(messages.place_steered, self.id, prefix, self._clock())
        self._live.learn(news._replace(is_steered=False))  # these are the messages that were just read
        for row in rows:
            self.emit(TurnLog.row_event(row.seq or 0, row.message))
        return tuple(row.message for row in rows)

    async def wait(self, ready: Callable[[], Awaitable[T | None]]) -> T:
        seen = self._live.signals
        found = await ready()
        if found is not None:
            return found
        with self._waiting_for_person():
            while found is None:
                with anyio.move_on_after(self._reread_seconds) as lost:
                    await self._live.wait_for_signal(seen)
                seen = self._live.signals
                found = await (self._reread(ready) if lost.cancelled_caught else ready())
        return found

    async def _reread(self, ready: Callable[[], Awaitable[T | None]]) -> T | None:
        """Checks for news without having been woken. If the store fails, the turn keeps waiting, since there may be no
        news."""
        with contextlib.suppress(StoreFailed):
            self._live.learn(await self._store.read(turns.news, self.id, self._fence))
            return await ready()
        return None

    def cut(self, model: str, usage: Usage) -> None:
        self._live.add_usage(usage)
        self.cut_calls += ((model, usage),)

    def bill_cut_calls(self, db: Db, calls: Iterable[tuple[str, Usage]] | None = None) -> None:
        """Records the calls that were cut off, in the writer's transaction."""
        for model, tokens in self.cut_calls if calls is None else calls:
            bill(db, self.id, model, tokens, self._billing, self._clock())

    async def write(self, fn: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result, news = await self._write(fn, *args, **kwargs)
        self._live.learn(news)
        return result

    async def _write(
        self, fn: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[T, TurnNews]:
        def write(db: Db) -> tuple[T, TurnNews]:
            news = turns.check_fence(db, self.id, self._fence)
            return fn(db, *args, **kwargs), news

        return await self._store.write(write)

    def emit(self, event: Event) -> None:
        self._live.emit(event)

    def count_unreached(self) -> None:
        """Counts the answers from an earlier attempt that this attempt has not reached because it ended first."""
        while self._unreached:
            self._count(self._unreached.popitem()[1])

    def _count(self, message: Message) -> None:
        if message.role == "assistant":
            self.steps += 1
            if message.usage is not None:
                self._live.add_usage(message.usage)

    def _has_recorded_after(self) -> bool:
        """True if this drain comes before a step that is already recorded. If so, it returned nothing the first time
        and must return nothing again."""
        return f"model-{self._drains - 1}" in self._recorded

    async def _commit(self, name: str, message: Message, effect: Effect | None) -> None:
        now = self._clock()
        cut, self.cut_calls = self.cut_calls, ()

        def write(db: Db) -> MessageRow:
            if effect is not None:
                self._record_result(db, name, message, effect, intents.clear(db, self.id, name), now)
            self.bill_cut_calls(db, cut)
            return commit_row(db, self.id, self.session, name, message, self._billing, now)

        try:
            row = await self.write(write)
        except StoreFailed:
            self.cut_calls = cut
            raise
        self.hosts.pop(name, None)
        self.emit(TurnLog.row_event(row.seq or 0, message))

    def _record_result(self, db: Db, name: str, message: Message, effect: Effect, has_begun: bool, now: float) -> None:
        if message.interrupted:
            outcome = "interrupted"
        elif message.failed:
            outcome = "failed" if has_begun else "denied"
        else:
            outcome = "done"
        record_call(db, self.id, name, effect.tool, effect.digest, outcome, self._billing, now, effect.hosts)
