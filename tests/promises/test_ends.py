"""Every way a session can end: its hooks, its turn, its transcript, and the operations still allowed on it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tidegate.agent import is_balanced
from tidegate.errors import Conflict, NotFound
from tidegate.sessions.lifecycle import Write
from tidegate.slash_commands import build
from tidegate.store import Db, SessionRow, messages, sessions
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.values import Acceptance

pytestmark = pytest.mark.anyio


class Diary:
    """An end hook that records each message of the transcript in the store."""

    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None
        self.asked = 0

    async def __call__(self, session: SessionRow) -> Write:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()

        def write(db: Db) -> None:
            db.execute("CREATE TABLE IF NOT EXISTS diary(session TEXT, reason TEXT, role TEXT, text TEXT)")
            for said in messages.history(db, session.id):
                row = (session.id, session.end_reason, said.role, said.text)
                db.execute("INSERT INTO diary VALUES(?, ?, ?, ?)", row)

        return write


async def diary_of(gateway: Core, session: str) -> list[tuple[str, str, str]]:
    def read(db: Db) -> list[tuple[str, str, str]]:
        if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'diary'").get is None:
            return []
        return list(db.execute("SELECT reason, role, text FROM diary WHERE session = ?", (session,)))

    found: list[tuple[str, str, str]] = await gateway.store.read(read)
    return found


async def _new(gateway: Core, session: str) -> None:
    await build(gateway.service).run("/new", principal=ANNA, channel="page", session=session, agent="main")


async def _reset(gateway: Core, session: str) -> None:
    await build(gateway.service).run("/reset", principal=ANNA, channel="page", session=session, agent="main")


async def _expiry(gateway: Core, session: str) -> None:
    await gateway.store.write(lambda db: db.execute("UPDATE sessions SET active = 1 WHERE id = ?", (session,)))
    for chore in gateway.service.maintenance_tasks():
        if chore.name == "expire":
            await chore.run()


async def _delete(gateway: Core, session: str) -> None:
    await gateway.service.delete(session, ANNA)


WAYS: dict[str, tuple[Callable[[Core, str], Awaitable[None]], str]] = {
    "/new": (_new, "new"),
    "/reset": (_reset, "new"),
    "expiry": (_expiry, "expiry"),
    "delete": (_delete, "delete"),
}


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("way", WAYS)
async def test_the_end_hook_takes_effect_once_with_the_complete_transcript(
    home: Path, model: ScriptedModel, way: str, resident: bool
) -> None:
    """S01, S02, B6, B3: with and without a resident, by command, timer and deletion, and never again afterwards."""
    go, reason = WAYS[way]
    extra = '[expiry]\nnamed_idle = "1h"'
    async with core(home, extra, model=model, hooks={"diary": Diary()}) as gateway:
        outcome = await gateway.say("[say hello] one")
        await gateway.say("[say you too] bye")
        if not resident:
            gateway.components.presence.unload(outcome.session, reason="test")
        await go(gateway, outcome.session)
        said = [
            ("user", "[say hello] one"),
            ("assistant", "hello"),
            ("user", "[say you too] bye"),
            ("assistant", "you too"),
        ]
        assert await diary_of(gateway, outcome.session) == [(reason, *each) for each in said]
        for chore in gateway.service.maintenance_tasks():
            if chore.name == "expire":
                await chore.run()
        assert not await gateway.components.endings.end(outcome.session, "again")
        assert len(await diary_of(gateway, outcome.session)) == 4
        again = await gateway.say("[say fresh] three")
        assert again.session != outcome.session and len(gateway.requests()[-1]["messages"]) == 2
    async with core(home, extra, model=model, hooks={"diary": Diary()}) as gateway:
        assert len(await diary_of(gateway, outcome.session)) == 4


async def test_concurrent_ends_end_the_session_once(home: Path, model: ScriptedModel) -> None:
    """S02, B3, B6: one of them ends it, and the hook takes effect once."""
    async with core(home, model=model, hooks={"diary": Diary()}) as gateway:
        outcome = await gateway.say("one")
        ended: list[bool] = []

        async def end(number: int) -> None:
            ended.append(await gateway.service.end(outcome.session, ANNA, f"reason {number}"))

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(end, number)
        assert sorted(ended) == [False] * 19 + [True]
        written = await diary_of(gateway, outcome.session)
        assert len(written) == 2
        assert {reason for reason, *_ in written} == {(await gateway.service.session(outcome.session, ANNA)).end_reason}


@pytest.mark.parametrize("way", ["/new", "/reset", "delete"])
async def test_the_running_turn_ends_before_the_hook_runs(home: Path, model: ScriptedModel, way: str) -> None:
    """B3, S01, V01, V19: waiting callers are told, queued messages refused, and the hook sees how the turn ended."""
    go, _ = WAYS[way]
    async with core(home, model=model, hooks={"diary": Diary()}) as gateway:
        running = await gateway.accept("[tool clock {}] [words 50] [hang after=5 step=1]")
        log = gateway.service.turn_log(running.turn)
        assert log is not None
        with anyio.fail_after(WAIT):
            async for _ in log.read():
                if log.draft():
                    break
        waiting = await gateway.accept("later")
        told: dict[str, str] = {}

        async def wait(accepted: Acceptance) -> None:
            told[accepted.turn] = (await gateway.answered(accepted.turn)).state

        async with anyio.create_task_group() as group:
            group.start_soon(wait, running)
            group.start_soon(wait, waiting)
            await anyio.lowlevel.checkpoint()
            await go(gateway, running.session)
        assert told == {running.turn: "stopped", waiting.turn: "refused"}
        roles = [role for _, role, _ in await diary_of(gateway, running.session)]
        assert roles == ["user", "assistant", "tool", "assistant", "user"]
        assert not any(gateway.service.census().values())
        if way == "delete":
            with pytest.raises(NotFound):
                await gateway.service.session(running.session, ANNA)

            def left(db: Db) -> list[int]:
                tables = ("sessions", "turns", "messages", "intents", "settings", "endings")
                return [int(db.execute(f"SELECT count(*) FROM {table}").get) for table in tables]

            assert await gateway.store.read(left) == [0] * 6


async def test_a_crash_between_the_end_and_its_turn_leaves_both_to_the_next_start(
    home: Path, model: ScriptedModel
) -> None:
    """B6, V01, S01, F4: the turn does not continue in an ended session; it is stopped, and the hook sees all of it."""
    started = asyncio.Event()

    @tool(effect="execute")
    async def wait_for_ever(ctx: ToolContext) -> str:
        """Waits."""
        started.set()
        await asyncio.Event().wait()
        return ""

    options: dict[str, Any] = {"tools": '"waiting"', "toolsets": {"waiting": Toolset((wait_for_ever,))}}
    async with core(home, model=model, hooks={"diary": Diary()}, drain=None, **options) as gateway:
        running = await gateway.accept("[tool wait_for_ever {}]")
        with anyio.fail_after(WAIT):
            await started.wait()
        # The committed state of an end that is killed before it releases anything.
        await gateway.store.write(
            lambda db: sessions.end(db, running.session, reason="new", hooks=("diary",), now=gateway.components.clock())
        )
    asked = model.counts["requests"]
    async with core(home, model=model, hooks={"diary": Diary()}, **options) as gateway:
        assert (await gateway.answered(running.turn)).state == "stopped"
        assert model.counts["requests"] == asked
        with anyio.fail_after(WAIT):
            while not (found := await diary_of(gateway, running.session)):
                await anyio.lowlevel.checkpoint()
        assert [role for _, role, _ in found] == ["user", "assistant", "tool"]
        assert is_balanced(await gateway.store.read(lambda db: messages.history(db, running.session)))


async def test_an_ended_session_can_only_be_read_resumed_and_deleted(home: Path, model: ScriptedModel) -> None:
    """S02, B3, V06, V16: its transcript is read-only."""
    async with core(home, model=model) as gateway:
        service = gateway.service
        outcome = await gateway.say("one")
        await service.end(outcome.session, ANNA, "new")
        exported = [line async for line in service.export(outcome.session, ANNA)]
        for attempt in (
            lambda: gateway.accept("two", name=None, session=outcome.session),
            lambda: gateway.accept("two", name=None, session=outcome.session, busy="steer"),
            lambda: gateway.accept("two", name=None, session=outcome.session, busy="interrupt"),
            lambda: service.operations.set_setting(outcome.session, ANNA, "model", "other", source="command"),
            lambda: service.operations.set_title(outcome.session, ANNA, "a title"),
            lambda: service.operations.undo(outcome.session, ANNA),
            lambda: service.operations.retry(outcome.session, ANNA),
            lambda: service.operations.reload(outcome.session, ANNA),
        ):
            with pytest.raises(Conflict, match="ended"):
                await attempt()
        assert await service.stop(outcome.session, ANNA) is None
        resumed, _ = await service.operations.resume(outcome.session, ANNA)
        await gateway.say("on", name=None, session=resumed)
        await service.operations.undo(resumed, ANNA)
        assert [line async for line in service.export(outcome.session, ANNA)] == exported
        await service.delete(outcome.session, ANNA)
        assert len((await service.transcript(resumed, ANNA)).rows) == 2


async def test_a_folder_that_the_user_configured_is_never_touched(home: Path, model: ScriptedModel) -> None:
    """V10: not by an end, a delete, a restart or a purge."""
    folder = home / "project"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    before = folder.stat()
    extra = '[agents.writer]\nmodel = "main"\nworkspace = "project"\ntools = ["files"]'
    async with core(home, extra, model=model) as gateway:
        ended = await gateway.say('[tool read_file {"path": "notes.txt"}]', agent="writer")
        await gateway.service.end(ended.session, ANNA, "new")
        deleted = await gateway.say("hello", agent="writer")
        await gateway.service.delete(deleted.session, ANNA)
        await gateway.store.write(lambda db: db.execute("UPDATE sessions SET ended = 1"))
        for chore in gateway.service.maintenance_tasks():
            await chore.run()
        assert await gateway.components.endings.purge(1.0) == 0
    async with core(home, extra, model=model):
        after = folder.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("notes.txt", "mine")]


async def test_leftovers_of_a_one_shot_call_are_ended_by_the_timer(home: Path, model: ScriptedModel) -> None:
    """V17, L29: completely, after a day."""
    async with core(home, model=model) as gateway:
        assert gateway.config.expiry.ephemeral_idle == 86400.0
        assert (gateway.config.expiry.named_idle, gateway.config.expiry.retention) == (None, 90 * 86400.0)
        # No current path leaves this: the turn is over and its session is not.
        await gateway.say("named", name="stays")
        await gateway.store.write(
            lambda db: db.execute("UPDATE sessions SET active = 1, kind = 'ephemeral', name = NULL")
        )
        for chore in gateway.service.maintenance_tasks():
            if chore.name == "expire":
                await chore.run()
        count = "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM messages), (SELECT count(*) FROM turns)"
        assert await gateway.store.read(lambda db: db.execute(count).get) == (0, 0, 0)
