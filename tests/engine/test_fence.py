"""The fence of a turn: an attempt that was frozen while another one took its turn can no longer write."""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, core
from tests.store.rows import new_session, new_turn
from tidegate.agent import Effect
from tidegate.engine import TakenTurn
from tidegate.engine.journal import Journal
from tidegate.engine.live_turn import LiveTurn
from tidegate.engine.turn_end import Attempt, billing_of, settle, turn_end
from tidegate.errors import Superseded
from tidegate.spool import Spool
from tidegate.store import (
    Db,
    NewApproval,
    Store,
    SummaryRow,
    approvals,
    intents,
    messages,
    sessions,
    spooled,
    summaries,
    turns,
)
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.values import Call, Message, TurnEnded

pytestmark = pytest.mark.anyio


class RunningAttempt(NamedTuple):
    store: Store
    spool: Spool
    taken: TakenTurn
    live: LiveTurn
    journal: Journal
    text: str


def take(db: Db) -> TakenTurn:
    turn, session = turns.take(db, "t_1", 1.0), sessions.get(db, "s_1")
    assert session is not None
    return TakenTurn(turn=turn, session=session, settings=())


async def begin(store: Store, spool: Spool, text: str) -> RunningAttempt:
    taken, live = await store.write(take), LiveTurn("t_1", "s_1")
    live.steered = True
    journal = Journal(
        live,
        store,
        billing_of(taken.turn, taken.session),
        fence=taken.turn.fence,
        incoming=(),
        recorded=(),
        open_intents={},
        parking=lambda: False,
        waiting_for_person=contextlib.nullcontext,
        clock=time.time,
    )
    return RunningAttempt(store, spool, taken, live, journal, text)


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[tuple[Store, Spool]]:
    async with Store.open(tmp_path / "tidegate.db") as store:
        spool = Spool(tmp_path / "spool", store, excerpt_bytes=100, excerpt_lines=10, quota=10_000)
        await store.write(new_session, "s_1")
        await store.write(new_turn, "s_1", "t_1", "hello")
        yield store, spool


def answer(text: str) -> Callable[[], Awaitable[Message]]:
    async def make() -> Message:
        return Message(role="assistant", text=text, finish="stop")

    return make


async def commit_row(attempt: RunningAttempt) -> None:
    await attempt.journal.step("model-0", answer(attempt.text))


async def commit_intent(attempt: RunningAttempt) -> None:
    async def allowed() -> None:
        return None

    async def run() -> Message:
        raise Interrupted

    effect = Effect(
        tool=attempt.text,
        read_only=False,
        repeatable=False,
        digest=b"1",
        hosts=[],
        interrupted=lambda read_only: Message(role="tool"),
        refused=allowed,
    )
    with contextlib.suppress(Interrupted):
        await attempt.journal.step("tool-0-0", run, effect=effect)


class Interrupted(Exception):
    """The tool has begun and leaves no result."""


async def drain(attempt: RunningAttempt) -> None:
    await attempt.journal.drain("steer")


async def commit_end(attempt: RunningAttempt) -> None:
    await attempt.journal.step("model-0", answer(attempt.text), ends=lambda message: True)
    outcome = Attempt(taken=attempt.taken, journal=attempt.journal)
    end = turn_end(attempt.live, outcome, attempt.taken, (attempt.live.usage, attempt.journal.steps))
    await attempt.store.write(settle, end, 9.0)


async def ask(attempt: RunningAttempt) -> None:
    question = NewApproval(kind="approval", tool="x", digest=b"1", summary=attempt.text)
    await attempt.journal.write(
        approvals.ask, id="ap_1", session="s_1", turn="t_1", step="tool-0-0", request=question, now=2.0, expires=None
    )


async def summarise(attempt: RunningAttempt) -> None:
    row = SummaryRow(0, 0, 1, 1, None, "applied", "cut", "m", 0.0, attempt.text)
    await attempt.journal.write(summaries.add, "s_1", row, 2.0)


async def spool_result(attempt: RunningAttempt) -> None:
    place = attempt.spool.of("s_1", "t_1", attempt.taken.turn.fence)
    await place.text(attempt.text, "long text " * 50)


def contents(db: Db) -> list[str]:
    """The writes of all attempts, by the text of the attempt."""
    asked = approvals.of_step(db, "t_1", "tool-0-0")
    return [
        *(row.message.text for row in messages.journal(db, "t_1") if not (row.step or "").startswith("in-")),
        *(intent.tool for intent in intents.open_of(db, "t_1").values()),
        *(() if asked is None else (asked.summary,)),
        *(row.text for row in summaries.shown(db, "s_1")),
        *(row.name for row in spooled.latest_texts(db, "s_1")),
    ]


@pytest.mark.parametrize("write", [commit_row, commit_intent, commit_end, ask, summarise, spool_result])
async def test_a_frozen_attempt_cannot_write_after_its_turn_was_taken_again(
    parts: tuple[Store, Spool], write: Callable[[RunningAttempt], Awaitable[None]]
) -> None:
    """P05, S14: its late write changes nothing, and the same write of the second attempt succeeds."""
    store, _ = parts
    frozen = await begin(*parts, "first")
    second = await begin(*parts, "second")
    with pytest.raises(Superseded):
        await write(frozen)
    assert await store.read(contents) == []
    await write(second)
    assert await store.read(contents) == ["second"]
    with pytest.raises(Superseded):
        await write(frozen)
    assert await store.read(contents) == ["second"]


async def test_a_frozen_attempt_leaves_steered_messages_to_the_next_one(parts: tuple[Store, Spool]) -> None:
    """S14: each message is read by one attempt."""
    store, _ = parts
    frozen = await begin(*parts, "first")
    steered = Message(role="user", text="and this")
    await store.write(messages.accept, session="s_1", turn="t_1", message=steered, now=2.0)
    second = await begin(*parts, "second")
    with pytest.raises(Superseded):
        await drain(frozen)
    assert [message.text for message in await second.journal.drain("steer")] == ["and this"]


async def test_a_frozen_attempt_cannot_park_the_turn_of_the_next_one(parts: tuple[Store, Spool]) -> None:
    """P05: the second attempt still counts towards limits.resumes."""
    store, _ = parts
    frozen, second = await begin(*parts, "first"), await begin(*parts, "second")
    assert not await store.write(turns.park, "t_1", frozen.taken.turn.fence)
    assert await store.write(turns.park, "t_1", second.taken.turn.fence)


@pytest.mark.parametrize("text", ["[hold gate] [say done] hello", "[tool push {}] [hold gate step=0] [say done]"])
async def test_a_superseded_attempt_ends_silently_and_the_next_one_answers(
    home: Path, model: ScriptedModel, text: str
) -> None:
    """B7, P05: followers' logs are closed without an end, so that they follow again; the turn is still running."""
    runs: list[str] = []

    @tool(effect="execute")
    async def push(ctx: ToolContext) -> str:
        """Counts its runs."""
        runs.append(ctx.turn)
        return "pushed"

    tools = {"toolsets": {"push": Toolset((push,))}, "tools": '"push"'}
    async with core(home, model=model, **tools) as gateway:  # type: ignore[arg-type]
        accepted = await gateway.accept(text)
        with anyio.fail_after(WAIT):
            await model.held("gate")
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        await gateway.store.write(turns.take, accepted.turn, 1.0)
        before = await gateway.store.read(messages.journal, accepted.turn)
        model.release("gate")
        with anyio.fail_after(WAIT):
            await log.ended()
        assert not any(isinstance(event, TurnEnded) for event in log.events)
        assert await gateway.store.read(messages.journal, accepted.turn) == before
        row = await gateway.store.read(turns.get, accepted.turn)
        assert row is not None and row.state == "running"
        stats = gateway.components.engine.stats()
        assert (stats.running, stats.answered, stats.failed, stats.stopped) == (0, 0, 0, 0)
        assert not runs
    async with core(home, model=model, **tools) as gateway:  # type: ignore[arg-type]
        outcome = await gateway.answered(accepted.turn)
        assert (outcome.state, outcome.text) == ("answered", "done")
        rows = (await gateway.service.transcript(accepted.session, ANNA)).rows
        assert [each.message.text for each in rows if each.message.finish == "stop"] == ["done"]


async def test_a_tool_of_a_superseded_attempt_keeps_no_result(home: Path, model: ScriptedModel) -> None:
    """P05: it was running when another attempt took the turn."""
    begun, goes_on = anyio.Event(), anyio.Event()

    @tool(effect="read", long_results=True)
    async def read_page(ctx: ToolContext) -> str:
        """Returns more than the model gets to see."""
        begun.set()
        await goes_on.wait()
        return "a line\n" * 20_000

    tools = {"toolsets": {"read_page": Toolset((read_page,))}, "tools": '"read_page"'}
    async with core(home, model=model, **tools) as gateway:  # type: ignore[arg-type]
        accepted = await gateway.accept("[tool read_page {}] [say done]")
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        with anyio.fail_after(WAIT):
            await begun.wait()
            await gateway.store.write(turns.take, accepted.turn, 1.0)
            goes_on.set()
            await log.ended()
        assert await gateway.store.read(spooled.latest_texts, accepted.session) == []


async def test_a_frozen_attempt_asks_nobody(home: Path, model: ScriptedModel) -> None:
    """S29: a question of an attempt that no longer holds its turn is not stored."""
    async with core(home, model=model) as gateway:
        store, spool = gateway.store, Spool(home / "s", gateway.store, excerpt_bytes=9, excerpt_lines=9, quota=9)
        await store.write(new_session, "s_1")
        await store.write(new_turn, "s_1", "t_1", "hello")
        frozen = await begin(store, spool, "first")
        await begin(store, spool, "second")
        attended = msgspec.structs.replace(frozen.taken.turn, call=Call(attended=True))
        taken = msgspec.structs.replace(frozen.taken, turn=attended)
        question = NewApproval(kind="approval", tool="x", digest=b"1", summary="first")
        with anyio.fail_after(WAIT), pytest.raises(Superseded):
            await gateway.service.questions.ask(taken, frozen.journal, "tool-0-0", question)
        assert await store.read(approvals.of_step, "t_1", "tool-0-0") is None
