"""Engines over one store, with a scripted handler in place of an agent: for the contract of engines.

A message `N words` makes a turn of N steps. Each step waits for a permit of its turn, shows its text, and is a row.
"""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio

from tests.core import WAIT
from tests.store.rows import new_session, new_turn
from tidegate.agent import Turn
from tidegate.engine import Engine, TakenTurn, build_engine
from tidegate.lifetimes import Ledger, Presence, Present, Scope
from tidegate.store import Db, Store, messages
from tidegate.values import Message, Outcome, TextDelta

EVER = 1_000
"""More permits than any turn has steps."""


class Permits:
    """The permits of all turns to take a step, shared by the engines of a test, and what the turns have done."""

    def __init__(self) -> None:
        self.left: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(0))
        self.made: list[tuple[str, str]] = []
        self.read: defaultdict[str, list[str]] = defaultdict(list)
        self.resumed: list[str] = []
        self.running: Counter[str] = Counter()
        self.most = 0

    def give(self, turn: str, count: int = EVER) -> None:
        for _ in range(count):
            self.left[turn].release()

    async def steps(self, turn: str, count: int) -> None:
        """Waits until the turn has begun this many steps."""
        with anyio.fail_after(WAIT):
            while sum(made == turn for made, _ in self.made) < count:
                await anyio.sleep(0.001)


class Worker:
    """An engine with its handler and its scope, as one process would have them."""

    def __init__(self, scope: Scope, store: Store, permits: Permits, wrap: Callable[[Engine], Engine]) -> None:
        self.scope = scope
        self.store = store
        self.permits = permits
        self.presence = Presence(scope, resident_bytes=1 << 20)
        self.answers: dict[str, str] = {}
        self.engine = wrap(
            build_engine(
                scope, store, self.presence, self, turns=4, turn_seconds=WAIT, clock=time.time, reread_seconds=0.02
            )
        )

    async def __call__(self, turn: Turn, taken: TakenTurn) -> None:
        permits = self.permits
        permits.running[turn.session] += 1
        permits.most = max(permits.most, permits.running[turn.session])
        permits.resumed += [turn.id] if turn.is_resumed else []
        steps = int(turn.incoming[0].text.split()[0])
        try:
            for number in range(steps):
                permits.read[turn.id] += [message.text for message in await turn.drain("steer")]

                async def make(number: int = number) -> Message:
                    permits.made.append((turn.id, f"model-{number}"))
                    turn.emit(TextDelta(text=f"{number}"))
                    await permits.left[turn.id].acquire()
                    return Message(role="assistant", text=f"step {number}", finish="stop")

                await turn.step(f"model-{number}", make, ends=lambda _, number=number: number == steps - 1)
        finally:
            permits.running[turn.session] -= 1

    def turn_ended(self, record: Present, outcome: Outcome, version: int) -> None:
        self.answers[outcome.turn] = outcome.state

    async def accept(self, turn: str, text: str = "1 step", session: str = "s_1") -> None:
        await self.store.write(new_turn, session, turn, text)
        self.engine.submit(session, turn)

    async def result(self, turn: str) -> Outcome:
        with anyio.fail_after(WAIT):
            return await self.engine.result(turn)


@contextlib.asynccontextmanager
async def worker(
    store: Store, permits: Permits, wrap: Callable[[Engine], Engine] = lambda engine: engine
) -> AsyncIterator[Worker]:
    async with Scope("process", account=Ledger().account("process")) as scope:
        yield Worker(scope, store, permits, wrap)


async def begin_sessions(store: Store, *sessions: str) -> None:
    for session in sessions or ("s_1",):
        await store.write(new_session, session, name=session)


def steer(db: Db, turn: str, text: str, session: str = "s_1") -> None:
    messages.accept(db, session=session, turn=turn, message=Message(role="user", text=text), now=2.0)


class WithoutWakes:
    """An engine whose wakes are all lost."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def wake(self, turn: str) -> None:
        """Lost."""
