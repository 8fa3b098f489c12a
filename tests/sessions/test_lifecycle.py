"""End and unload of sessions: an end happens once, from the store, and an unload loses nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tests.store.rows import ask
from tidegate.errors import Conflict, NotFound
from tidegate.sessions.lifecycle import Write
from tidegate.store import Db, SessionRow, approvals, intents, messages, sessions, settings, usage
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = pytest.mark.anyio


class Diary:
    """An end hook that records the transcript it saw in the store."""

    def __init__(self) -> None:
        self.prepared: list[str] = []
        self.block: asyncio.Event | None = None
        self.broken = False

    async def __call__(self, session: SessionRow) -> Write:
        self.prepared.append(session.id)
        if self.broken:
            raise RuntimeError("the pen is dry")
        if self.block is not None:
            await self.block.wait()

        def write(db: Db) -> None:
            said = messages.history(db, session.id)
            db.execute("CREATE TABLE IF NOT EXISTS diary(session TEXT, said INTEGER)")
            db.execute("INSERT INTO diary VALUES(?, ?)", (session.id, len(said)))

        return write


async def entries(gateway: Core) -> list[tuple[str, int]]:
    def read(db: Db) -> list[tuple[str, int]]:
        if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'diary'").get is None:
            return []
        return list(db.execute("SELECT session, said FROM diary"))

    found: list[tuple[str, int]] = await gateway.store.read(read)
    return found


async def until_no_hook_is_pending(gateway: Core) -> None:
    """Wait for the end hooks that a start runs in the background."""
    with anyio.fail_after(WAIT):
        while await gateway.store.read(sessions.pending_hooks):
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("resident", [True, False])
async def test_an_end_happens_once_with_or_without_a_resident(home: Path, model: ScriptedModel, resident: bool) -> None:
    """B3, B6, S01, S02: the hook runs once with the complete transcript, however often the end is requested."""
    diary = Diary()
    async with core(home, model=model, hooks={"diary": diary}) as gateway:
        outcome = await gateway.say("one")
        if not resident:
            gateway.components.presence.unload(outcome.session, reason="test")
        ended = [await gateway.service.end(outcome.session, ANNA, "new") for _ in range(3)]
        assert ended == [True, False, False]
        assert await entries(gateway) == [(outcome.session, 2)]
        view = await gateway.service.session(outcome.session, ANNA)
        assert view.end_reason == "new"
        assert gateway.components.presence.get(outcome.session) is None


async def test_a_crash_in_the_middle_of_ending_leaves_the_hook_to_the_next_start(
    home: Path, model: ScriptedModel
) -> None:
    """B6: prepared twice, in effect once."""
    diary = Diary()
    diary.block = asyncio.Event()
    async with core(home, model=model, hooks={"diary": diary}, drain=None) as gateway:
        outcome = await gateway.say("one")
        ending = asyncio.create_task(gateway.service.end(outcome.session, ANNA, "new"))
        with anyio.fail_after(WAIT):
            while not diary.prepared:
                await anyio.lowlevel.checkpoint()
        ending.cancel()
        await asyncio.wait([ending])
        assert await entries(gateway) == []
    diary.block = None
    async with core(home, model=model, hooks={"diary": diary}) as gateway:
        await until_no_hook_is_pending(gateway)
        assert await entries(gateway) == [(outcome.session, 2)]


async def test_a_hook_that_an_end_and_the_timer_prepare_side_by_side_takes_effect_once(
    home: Path, model: ScriptedModel
) -> None:
    """B6, S01: whichever commits first; the other has no effect."""
    diary = Diary()
    diary.block = asyncio.Event()
    async with core(home, model=model, hooks={"diary": diary}) as gateway:
        outcome = await gateway.say("one")
        end = asyncio.ensure_future(gateway.service.end(outcome.session, ANNA, "new"))
        with anyio.fail_after(WAIT):
            while len(diary.prepared) < 1:
                await anyio.lowlevel.checkpoint()
            timers = [asyncio.ensure_future(gateway.components.endings.finish()) for _ in range(3)]
            while len(diary.prepared) < 4:
                await anyio.lowlevel.checkpoint()
            diary.block.set()
            assert await end
            done = sum(await asyncio.gather(*timers))
        assert done <= 1, "a hook that took effect is counted once"
        assert await entries(gateway) == [(outcome.session, 2)]
        assert await gateway.components.endings.finish() == 0
        assert await entries(gateway) == [(outcome.session, 2)]


async def test_an_end_stops_the_running_turn_and_refuses_waiting_ones(home: Path, model: ScriptedModel) -> None:
    """B3, V01, V05, V19: the running turn is stopped, and waiters of other turns learn that the session ended."""
    async with core(home, model=model) as gateway:
        running = await gateway.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = await gateway.accept("later")
        async with anyio.create_task_group() as group:
            told: list[str] = []

            async def wait() -> None:
                told.append((await gateway.answered(waiting.turn)).state)

            group.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            assert await gateway.service.end(running.session, ANNA, "new")
        assert told == ["refused"]
        refused = await gateway.service.outcome(waiting.turn, ANNA)
        assert refused.error is not None and refused.error.code == "session_ended"
        assert (await gateway.service.outcome(running.turn, ANNA)).state == "stopped"


async def test_settings_and_approvals_die_with_the_session_and_the_transcript_stays(
    home: Path, model: ScriptedModel
) -> None:
    """B3, B5, V03, V04, V06, V08: only the transcript is left."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        await gateway.service.operations.set_setting(outcome.session, ANNA, "model", "other", source="command")
        await gateway.store.write(ask, outcome.session, "ap_1")
        await gateway.service.end(outcome.session, ANNA, "new")
        assert await gateway.store.read(settings.get_all, outcome.session, 0.0) == []
        assert await gateway.store.read(settings.list_all, 0.0) == []
        asked = await gateway.store.read(approvals.get, "ap_1")
        assert asked is not None and asked.state == "cancelled"
        rows = (await gateway.service.transcript(outcome.session, ANNA)).rows
        assert [row.message.role for row in rows] == ["user", "assistant"]
        with pytest.raises(Conflict):
            await gateway.service.operations.set_setting(outcome.session, ANNA, "model", "other", source="command")
        with pytest.raises(Conflict):
            await gateway.accept("again", name=None, session=outcome.session)


async def test_settings_survive_unload_and_restart_and_go_with_the_end(home: Path, model: ScriptedModel) -> None:
    """B1, B5, S05, S06, V03, V04: the chosen model and a pending approval survive both."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        await gateway.service.operations.set_setting(outcome.session, ANNA, "model", "other", source="command")
        await gateway.store.write(ask, outcome.session, "ap_1")
        gateway.components.presence.unload(outcome.session, reason="test")
        await gateway.say("two")
        assert gateway.requests()[-1]["model"] == "scripted-too"
    async with core(home, model=model) as gateway:
        await gateway.say("three")
        assert gateway.requests()[-1]["model"] == "scripted-too"
        asked = await gateway.store.read(approvals.get, "ap_1")
        assert asked is not None and asked.state == "open"
        view = await gateway.service.session(outcome.session, ANNA)
        assert view.settings["model"].source == "command" and view.model == "other"


async def test_a_chosen_model_that_is_no_longer_configured_gives_way(home: Path, model: ScriptedModel) -> None:
    """S06, S07: the agent's own model answers, and the choice comes back with the configuration."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        await gateway.service.operations.set_setting(outcome.session, ANNA, "model", "other", source="command")
    (home / "tidegate.toml").unlink()
    from tests.core import settings as toml_of

    without = toml_of(model).replace("[models.other]", "[models.third]")
    async with core(home, model=model, toml=without) as gateway:
        await gateway.say("two")
        assert gateway.requests()[-1]["model"] == "scripted"


async def test_the_name_of_an_ended_session_starts_a_new_one(home: Path, model: ScriptedModel) -> None:
    """H07, S02: never the old one again."""
    async with core(home, model=model) as gateway:
        old = await gateway.say("one")
        await gateway.service.end(old.session, ANNA, "new")
        new = await gateway.say("two")
        assert new.session != old.session
        assert len(gateway.requests()[-1]["messages"]) == 2


async def test_resuming_an_ended_session_begins_a_new_one_with_its_transcript(home: Path, model: ScriptedModel) -> None:
    """V16, S02: and resuming a live one is only a switch."""
    async with core(home, model=model) as gateway:
        old = await gateway.say("[tool clock {}] one")
        assert await gateway.service.operations.resume(old.session, ANNA) == (old.session, False)
        await gateway.service.end(old.session, ANNA, "new")
        fresh, is_new = await gateway.service.operations.resume(old.session, ANNA)
        assert is_new and fresh != old.session
        await gateway.say("two", name=None, session=fresh)
        said = [message["role"] for message in gateway.requests()[-1]["messages"]]
        assert said == ["system", "user", "assistant", "tool", "assistant", "user"]
        assert len((await gateway.service.transcript(old.session, ANNA)).rows) == 4


async def test_delete_leaves_numbers_only(home: Path, model: ScriptedModel) -> None:
    """V06, V15, X07: rows, search and receipts are gone; usage stays without names."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("a memorable word: heliotrope")
        assert await gateway.service.sessions(ANNA, query="heliotrope")
        await gateway.service.delete(outcome.session, ANNA)
        with pytest.raises(NotFound):
            await gateway.service.session(outcome.session, ANNA)
        assert await gateway.service.sessions(ANNA, query="heliotrope", ended=None) == []
        totals = await gateway.store.read(lambda db: usage.totals(db, by="principal"))
        assert [(total.key, total.calls) for total in totals] == [("", 1)]


async def test_a_delete_waits_for_the_hooks_of_the_end(home: Path, model: ScriptedModel) -> None:
    """B6, V06: the rows stay until the hooks have read them, across a restart too, and are then deleted
    automatically."""
    diary = Diary()
    diary.broken = True
    async with core(home, model=model, hooks={"diary": diary, "quick": Diary()}) as gateway:
        outcome = await gateway.say("one")
        await gateway.service.delete(outcome.session, ANNA)
        view = await gateway.service.session(outcome.session, ANNA)
        assert view.ended is not None and view.end_reason == "delete"
        await gateway.components.endings.finish()
        assert await gateway.components.endings.purge(None) == 0
        assert len((await gateway.service.transcript(outcome.session, ANNA)).rows) == 2
    diary.broken = False
    async with core(home, model=model, hooks={"diary": diary}) as gateway:
        await until_no_hook_is_pending(gateway)
        assert (outcome.session, 2) in await entries(gateway)
        with pytest.raises(NotFound):
            await gateway.service.session(outcome.session, ANNA)
        assert await gateway.store.read(sessions.pending_hooks) == []


async def test_a_session_that_has_ended_already_is_deleted_when_its_hooks_are_done(
    home: Path, model: ScriptedModel
) -> None:
    """B6, V06: whatever the reason of its end."""
    diary = Diary()
    diary.broken = True
    async with core(home, model=model, hooks={"diary": diary}) as gateway:
        outcome = await gateway.say("one")
        await gateway.service.end(outcome.session, ANNA, "new")
        await gateway.service.delete(outcome.session, ANNA)
        assert (await gateway.service.session(outcome.session, ANNA)).end_reason == "delete"
        diary.broken = False
        assert await gateway.components.endings.finish() == 1
        assert await entries(gateway) == [(outcome.session, 2)]
        with pytest.raises(NotFound):
            await gateway.service.session(outcome.session, ANNA)


async def test_a_crash_in_the_middle_of_a_delete_leaves_it_to_the_next_start(home: Path, model: ScriptedModel) -> None:
    """B6, V06: the pending deletion is written with the end."""
    diary = Diary()
    diary.block = asyncio.Event()
    async with core(home, model=model, hooks={"diary": diary}, drain=None) as gateway:
        outcome = await gateway.say("one")
        deleting = asyncio.create_task(gateway.service.delete(outcome.session, ANNA))
        with anyio.fail_after(WAIT):
            while not diary.prepared:
                await anyio.lowlevel.checkpoint()
        deleting.cancel()
        await asyncio.wait([deleting])
    async with core(home, model=model) as gateway:
        await until_no_hook_is_pending(gateway)
        with pytest.raises(NotFound):
            await gateway.service.session(outcome.session, ANNA)


async def test_an_end_runs_its_own_hooks_only(home: Path, model: ScriptedModel) -> None:
    """B6: pending hooks of other sessions are left to the timer and delay nobody."""
    diary = Diary()
    async with core(home, model=model, hooks={"diary": diary}) as gateway:
        one, two = await gateway.say("one"), await gateway.say("two", name="other")
        diary.broken = True
        await gateway.service.end(one.session, ANNA, "new")
        diary.broken = False
        await gateway.service.end(two.session, ANNA, "new")
        assert await entries(gateway) == [(two.session, 2)]
        assert await gateway.components.endings.finish() == 1
        assert await entries(gateway) == [(two.session, 2), (one.session, 2)]


async def test_a_hook_that_hangs_is_given_up_and_owed(home: Path, model: ScriptedModel) -> None:
    """B6: the end returns, and the hook is tried again."""
    diary = Diary()
    diary.block = asyncio.Event()
    async with core(home, model=model, hooks={"diary": diary}) as gateway:
        gateway.components.endings.prepare_seconds = 0.01
        outcome = await gateway.say("one")
        with anyio.fail_after(WAIT):
            assert await gateway.service.end(outcome.session, ANNA, "new")
        assert await entries(gateway) == []
        diary.block = None
        assert await gateway.components.endings.finish() == 1
        assert await entries(gateway) == [(outcome.session, 2)]


async def test_expiry_ends_idle_sessions_and_spares_busy_ones(home: Path, model: ScriptedModel) -> None:
    """V17, V05, S04: from the store, without a resident; never a session with a turn running or waiting."""
    extra = '[expiry]\nnamed_idle = "1h"'
    async with core(home, extra, model=model) as gateway:
        idle = await gateway.say("one", name="idle")
        busy = await gateway.accept("[hold gate]", name="busy")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        gateway.components.presence.unload(idle.session, reason="test")
        await gateway.store.write(lambda db: db.execute("UPDATE sessions SET active = 1"))
        assert await gateway.components.endings.expire("named", 3600.0) == 1
        assert (await gateway.service.session(idle.session, ANNA)).end_reason == "expiry"
        assert (await gateway.service.session(busy.session, ANNA)).ended is None
        assert gateway.components.presence.get(idle.session) is None
        model.release("gate")
        await gateway.answered(busy.turn)


async def test_an_ended_transcript_is_kept_for_its_retention_only(home: Path, model: ScriptedModel) -> None:
    """V06: and then removed on the timer."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        await gateway.service.end(outcome.session, ANNA, "new")
        assert await gateway.components.endings.purge(3600.0) == 0
        await gateway.store.write(lambda db: db.execute("UPDATE sessions SET ended = 1"))
        assert await gateway.components.endings.purge(3600.0) == 1
        with pytest.raises(NotFound):
            await gateway.service.session(outcome.session, ANNA)


@tool(effect="read")
async def speak(ctx: ToolContext) -> str:
    """Prints more than is shown."""
    return "a long story\n" * 10_000


async def used(gateway: Core) -> str:
    """A session with a file in its folder, a result in the spool and a notice."""
    call = '{"path": "made.txt", "content": "x"}'
    outcome = await gateway.say(f"[together write_file {call} speak {{}}] [say done]")
    assert outcome.text == "done"
    await gateway.store.write(messages.add_notice, outcome.session, "A process has ended.", 1.0)
    assert any((gateway.config.home / "spool" / outcome.session).iterdir())
    return outcome.session


async def _retained(gateway: Core, session: str, diary: Diary) -> None:
    await gateway.service.end(session, ANNA, "new")
    await gateway.store.write(lambda db: db.execute("UPDATE sessions SET ended = 1"))
    assert (gateway.config.home / "trash" / session / "made.txt").exists()
    assert await gateway.components.endings.purge(3600.0) == 1


async def _deleted(gateway: Core, session: str, diary: Diary) -> None:
    assert await gateway.service.delete(session, ANNA)


async def _deleted_later(gateway: Core, session: str, diary: Diary) -> None:
    diary.broken = True
    assert not await gateway.service.delete(session, ANNA)
    diary.broken = False
    await gateway.components.endings.finish()


async def _left_by_a_one_shot_call(gateway: Core, session: str, diary: Diary) -> None:
    await gateway.store.write(lambda db: db.execute("UPDATE sessions SET active = 1, kind = 'ephemeral'"))
    assert await gateway.components.endings.expire("ephemeral", 3600.0) == 1
    await gateway.components.endings.finish()


@pytest.mark.parametrize("goes", [_retained, _deleted, _deleted_later, _left_by_a_one_shot_call])
async def test_when_the_rows_of_a_session_go_so_do_its_files(
    home: Path, model: ScriptedModel, goes: Callable[[Core, str, Diary], Awaitable[None]]
) -> None:
    """B3, D4, L19, V06, V07, V09: at once, however the rows are removed; no later sweep is needed."""
    diary = Diary()
    options: dict[str, Any] = {"tools": '"files", "speak"', "toolsets": {"speak": Toolset((speak,))}}
    async with core(home, model=model, hooks={"diary": diary}, **options) as gateway:
        session = await used(gateway)
        await goes(gateway, session, diary)
        with pytest.raises(NotFound):
            await gateway.service.session(session, ANNA)
        assert [path for path in home.rglob("*") if session in str(path)] == []


async def test_a_notice_dies_with_its_session(home: Path, model: ScriptedModel) -> None:
    """B3, L04: a pending notice is dropped, and none is added to an ended session."""
    options: dict[str, Any] = {"tools": '"files", "speak"', "toolsets": {"speak": Toolset((speak,))}}

    async def left(gateway: Core) -> int:
        return int(await gateway.store.read(lambda db: db.execute("SELECT count(*) FROM notices").get))

    async with core(home, model=model, **options) as gateway:
        session = await used(gateway)
        assert await left(gateway) == 1
        await gateway.service.end(session, ANNA, "new")
        assert await left(gateway) == 0
        await gateway.store.write(messages.add_notice, session, "Another has ended.", 2.0)
        assert await left(gateway) == 0
        fresh, _ = await gateway.service.operations.resume(session, ANNA)
        await gateway.say("again", name=None, session=fresh)
        assert "has ended." not in str(gateway.requests()[-1])


async def test_a_one_shot_call_leaves_its_usage_and_nothing_else(home: Path, model: ScriptedModel) -> None:
    """V18, H04, L29: no session, no message, no resident."""
    async with core(home, model=model) as gateway:
        for _ in range(5):
            assert (await gateway.say("hello", name=None)).state == "answered"

        def count(db: Db) -> list[int]:
            return [int(db.execute(f"SELECT count(*) FROM {table}").get) for table in ("sessions", "turns", "messages")]

        assert await gateway.store.read(count) == [0, 0, 0]
        totals = await gateway.store.read(lambda db: usage.totals(db, by="principal"))
        assert [(total.key, total.calls) for total in totals] == [(ANNA.id, 5)]
        assert not any(gateway.service.census().values())


async def test_hooks_that_hang_delay_no_start_and_no_other_hook(home: Path, model: ScriptedModel) -> None:
    """B6, L23: a start runs pending hooks in the background, several at once; a hung hook stays pending."""
    stuck, quick = Diary(), Diary()
    stuck.broken = quick.broken = True
    async with core(home, model=model, hooks={"quick": quick, "stuck": stuck}) as gateway:
        ended = [(await gateway.say("one", name=f"talk {number}")).session for number in range(3)]
        for session in ended:
            await gateway.service.end(session, ANNA, "new")
        assert await entries(gateway) == []
    stuck.broken = quick.broken = False
    stuck.block = asyncio.Event()
    with anyio.fail_after(WAIT):
        async with core(home, model=model, hooks={"quick": quick, "stuck": stuck}) as gateway:
            assert (await gateway.say("[say here]", name="another")).text == "here"
            while len(await entries(gateway)) < 3:
                await anyio.lowlevel.checkpoint()
            assert sorted(session for session, _ in await entries(gateway)) == sorted(ended)
            assert {hook for _, hook in await gateway.store.read(sessions.pending_hooks)} == {"stuck"}


async def test_a_hook_that_hung_is_asked_once_in_a_run(home: Path, model: ScriptedModel) -> None:
    """B6: however many sessions have it pending, the run ends, and the next run tries all of them again."""
    diary = Diary()
    diary.broken = True
    async with core(home, model=model, hooks={"diary": diary}) as gateway:
        gateway.components.endings.prepare_seconds = 0.01
        gateway.components.endings.hooks_at_once = 1
        for number in range(3):
            await gateway.service.end((await gateway.say("one", name=f"talk {number}")).session, ANNA, "new")
        diary.broken, diary.block = False, asyncio.Event()
        diary.prepared.clear()
        with anyio.fail_after(WAIT):
            assert await gateway.components.endings.finish() == 0
        assert len(diary.prepared) == 1
        diary.block = None
        assert await gateway.components.endings.finish() == 3


async def test_waiters_of_an_ended_session_get_the_outcome_in_the_store(home: Path, model: ScriptedModel) -> None:
    """V05, H18, S19: the refusal is the same live and from the store."""
    async with core(home, model=model) as gateway:
        running = await gateway.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        waiting = [await gateway.accept(f"later {number}") for number in range(2)]
        told = [asyncio.ensure_future(gateway.answered(accepted.turn)) for accepted in waiting]
        await anyio.lowlevel.checkpoint()
        await gateway.service.end(running.session, ANNA, "new")
        for accepted, outcome in zip(waiting, told, strict=True):
            assert await gateway.service.outcome(accepted.turn, ANNA) == await outcome


@pytest.mark.parametrize("first", ["end", "delete"])
async def test_a_deletion_during_an_end_leaves_the_turn_time_to_stop(
    home: Path, model: ScriptedModel, first: str
) -> None:
    """B3, V01, V06: both callers get a true answer, and waiters of the turn learn that it was stopped."""
    letting_go = asyncio.Event()
    may_go = asyncio.Event()

    @tool(effect="execute")
    async def linger(ctx: ToolContext) -> str:
        """Takes its time to stop."""
        try:
            await asyncio.Event().wait()
        finally:
            letting_go.set()
            with anyio.CancelScope(shield=True):
                await may_go.wait()
        return ""

    toolsets = {"linger": Toolset((linger,))}
    async with core(home, model=model, tools='"linger"', toolsets=toolsets) as gateway:
        accepted = await gateway.accept("[tool linger {}]")
        waiting = asyncio.ensure_future(gateway.answered(accepted.turn))
        with anyio.fail_after(WAIT):
            while model.counts["requests"] < 1 or not await gateway.store.read(intents.open_of, accepted.turn):
                await anyio.lowlevel.checkpoint()
            one: asyncio.Future[bool] = asyncio.ensure_future(
                gateway.service.end(accepted.session, ANNA, "new")
                if first == "end"
                else gateway.service.delete(accepted.session, ANNA)
            )
            await letting_go.wait()
            two = asyncio.ensure_future(gateway.service.delete(accepted.session, ANNA))
            for _ in range(50):
                await asyncio.sleep(0)
            await gateway.components.endings.finish()
            may_go.set()
            assert (await one, await two) == (True, True)
        assert (await waiting).state == "stopped"
        with pytest.raises(NotFound):
            await gateway.service.session(accepted.session, ANNA)


async def test_a_delete_that_has_to_wait_says_so(home: Path, model: ScriptedModel) -> None:
    """B6, V06: the answer is "deleted" or "not yet"."""
    diary = Diary()
    diary.broken = True
    async with core(home, model=model, hooks={"diary": diary}) as gateway:
        outcome = await gateway.say("one")
        assert await gateway.service.delete(outcome.session, ANNA) is False
        diary.broken = False
        assert await gateway.service.delete(outcome.session, ANNA) is True
