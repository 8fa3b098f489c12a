"""Turns that a finished background process starts: one for each, with the rights of the turn that started it."""

import asyncio
import base64
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted.script import OBEY
from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core, live_turn
from tests.effects import EffectRecord, asked, configured, results, until
from tests.sessions.test_maintenance import run
from tests.workspaces.harness import alive, token
from tidegate.store import ProcessRow, processes, turns

pytestmark = pytest.mark.anyio

SANDBOX = '[workspaces]\nbackend = "bubblewrap"'
PUSH = '[tool push {"what": "x"}] [say done]'


def working(
    home: Path, model: ScriptedModel, deeds: EffectRecord, *rules: str, mode: str = "autonomous", **options: Any
) -> AbstractAsyncContextManager[Core]:
    text = configured(model, SANDBOX, mode=mode, rules=rules).replace('"deeds"', '"deeds", "terminal"')
    return core(home, model=model, toml=text, toolsets={"deeds": deeds.toolset()}, **options)


def job(says: str, name: str = "job") -> str:
    """A message that starts a process whose end is to be reported; it waits for a signal and prints this at its end."""
    hidden = _hidden(says)
    command = f"until test -e {name}.go; do sleep 0.02; done; echo {hidden} | base64 -d"
    call = {"action": "start", "name": name, "command": command, "notify": True}
    return f"[tool process {json.dumps(call)}] [say started]"


def _hidden(says: str) -> str:
    return base64.b64encode(f"{OBEY} {says}".encode()).decode()


async def let_go(gateway: Core, name: str = "job") -> None:
    """Wait until the turn that started it has ended, then let the process end."""
    row = await the_process(gateway, name)
    (gateway.config.home / "workspaces" / row.session / f"{name}.go").touch()


async def report_turns(gateway: Core, count: int = 1) -> list[str]:
    """The turns besides the first, once there are this many and all have ended."""

    def begun(db: Any) -> list[str]:
        rows = db.execute("SELECT id, state FROM turns ORDER BY accepted, number").fetchall()
        return [id for id, state in rows[1:] if state == "answered"]

    with anyio.fail_after(WAIT):
        while len(found := await gateway.store.read(begun)) < count:
            await anyio.sleep(0.005)
    return found


async def the_process(gateway: Core, name: str = "job") -> ProcessRow:
    def latest(db: Any) -> ProcessRow:
        found = processes.get(db, db.execute("SELECT max(id) FROM processes WHERE name = ?", (name,)).get)
        assert found is not None
        return found

    return await gateway.store.read(latest)


# -- told once, whatever happens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [None, 0.05])
async def test_an_unreported_end_of_a_process_is_reported_once_by_the_next_gateway(
    home: Path, model: ScriptedModel, drain: float | None
) -> None:
    """S08, F4: killed or stopped in between; the next start begins the turn, and no later one repeats it."""
    deeds, stuck = EffectRecord(), anyio.Event()

    async def dies(row: ProcessRow, text: str) -> None:
        stuck.set()
        await asyncio.Event().wait()

    async with working(home, model, deeds, drain=drain) as gateway:
        gateway.components.workspaces.processes.finished = dies
        await gateway.say(job(PUSH))
        await let_go(gateway)
        with anyio.fail_after(WAIT):
            await stuck.wait()
        assert (await the_process(gateway)).state == "exited"
        assert deeds.done == []
    for _ in range(2):
        async with working(home, model, deeds, drain=drain) as gateway:
            assert len(await report_turns(gateway)) == 1
            assert (await the_process(gateway)).end_reported
            assert deeds.done == ["x"]
    assert "has ended with exit code 0" in model.recorded[-1].body.decode()


async def test_the_end_of_a_process_is_reported_once(home: Path, model: ScriptedModel) -> None:
    """S08, F4: the turn and its mark are one write."""
    deeds = EffectRecord()
    async with working(home, model, deeds) as gateway:
        await gateway.say(job(PUSH))
        await let_go(gateway)
        await report_turns(gateway)
        row = await the_process(gateway)
        await gateway.components.intake.process_finished(row, PUSH)
        await gateway.service.recover()
        assert len(await report_turns(gateway)) == 1
        assert deeds.done == ["x"]


async def test_an_interrupted_report_is_sent_once_by_the_timer(home: Path, model: ScriptedModel) -> None:
    """S08, L16: the timer repairs the state, and the interrupted sender repeats nothing."""
    deeds, stuck, goes_on = EffectRecord(), anyio.Event(), anyio.Event()
    async with working(home, model, deeds) as gateway:
        tell = gateway.components.workspaces.processes.finished

        async def dawdle(row: ProcessRow, text: str) -> None:
            stuck.set()
            await goes_on.wait()
            await tell(row, text)

        gateway.components.workspaces.processes.finished = dawdle
        session = (await gateway.say(job(PUSH))).session
        await let_go(gateway)
        with anyio.fail_after(WAIT):
            await stuck.wait()
        gateway.components.workspaces.processes.finished = tell
        await run(gateway, "recover")
        assert len(await report_turns(gateway)) == 1
        goes_on.set()
        await until(lambda: not (site := gateway.components.workspaces.present(session)) or not site.running)
        await run(gateway, "recover")
        assert len(await report_turns(gateway)) == 1
        assert deeds.done == ["x"]


async def test_an_end_during_shutdown_is_reported_after_the_next_start(home: Path, model: ScriptedModel) -> None:
    """S08: as a turn, as requested."""
    deeds = EffectRecord()
    async with working(home, model, deeds) as gateway:
        call = {"action": "start", "name": "job", "command": "read line", "notify": True}
        await gateway.say(f"[tool process {json.dumps(call)}] [say started]")
        await gateway.service.drain(0)
        row = await the_process(gateway)
        workspace = gateway.components.workspaces.of(row.session, "main", "t")
        await workspace.write("job", b"go\n")
        await until(lambda: not (site := gateway.components.workspaces.present(row.session)) or not site.running)
        row = await the_process(gateway)
        assert (row.state, row.end_reported) == ("exited", False)
    async with working(home, model, deeds) as gateway:
        assert len(await report_turns(gateway)) == 1


async def test_an_end_that_can_start_no_turn_is_reported_once_with_the_next_message(
    home: Path, model: ScriptedModel
) -> None:
    """S08: the queue is full, for example."""
    deeds = EffectRecord()

    async def refuse(row: ProcessRow, text: str) -> None:
        raise RuntimeError("no turns today")

    async with working(home, model, deeds) as gateway:
        gateway.components.workspaces.processes.finished = refuse
        await gateway.say(job("fine"))
        await let_go(gateway)
        with anyio.fail_after(WAIT):
            while not (await the_process(gateway)).end_reported:
                await anyio.sleep(0.005)
    async with working(home, model, deeds) as gateway:
        await gateway.say("[say next]")
        assert "has ended with exit code 0" in model.recorded[-1].body.decode()
        assert len(await report_turns(gateway)) == 1


# -- with the rights of its channel ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["page", "http"])
async def test_a_rule_about_a_channel_holds_in_the_turn_that_a_process_of_it_begins(
    home: Path, model: ScriptedModel, first: str
) -> None:
    """X11, X14: whichever channel the session began on, and however many processes are in between."""
    deeds = EffectRecord()
    async with working(home, model, deeds, "deny push channel:page") as gateway:
        await gateway.say("[say hello]", channel=first)
        await gateway.say(job(job(PUSH, "second"), "first"), channel="page")
        await let_go(gateway, "first")
        await report_turns(gateway, 2)
        await let_go(gateway, "second")
        await report_turns(gateway, 3)
        assert results(gateway)[-1].startswith("Not run: denied")
        assert deeds.done == []
        await gateway.say(job(PUSH, "third"), channel="http")
        await let_go(gateway, "third")
        await report_turns(gateway, 5)
        assert deeds.done == ["x"]


async def test_a_process_that_is_started_again_keeps_its_channel(home: Path, model: ScriptedModel) -> None:
    """X11, V12: over a restart of the gateway, too."""
    deeds = EffectRecord()
    hidden = _hidden(PUSH)
    command = f"test -e seen && {{ echo {hidden} | base64 -d; exit; }}; touch seen; sleep 97531"
    call = {"action": "start", "name": "job", "command": command, "notify": True, "restart": True}
    async with working(home, model, deeds, "deny push channel:page", drain=0) as gateway:
        await gateway.say("[say hello]")
        await gateway.say(f"[tool process {json.dumps(call)}] [say started]", channel="page")
        seen = home / "workspaces" / (await the_process(gateway)).session / "seen"
        await until(seen.exists)
    async with working(home, model, deeds, "deny push channel:page") as gateway:
        await report_turns(gateway, 2)
        assert results(gateway)[-1].startswith("Not run: denied")
        assert deeds.done == []


async def test_the_person_who_started_a_process_can_be_asked_in_the_turn_of_its_report(
    home: Path, model: ScriptedModel
) -> None:
    """S29, X11: if there is a person; otherwise the action is denied."""
    deeds = EffectRecord()
    async with working(home, model, deeds, mode="balanced") as gateway:
        await gateway.know(ANNA)
        session = (await gateway.say("[say hello]", channel="http")).session
        await gateway.say(job(PUSH), channel="page")
        await let_go(gateway)
        await until(lambda: gateway.service.questions.waiting == 1)
        running = live_turn(gateway, session)
        [question] = await asked(gateway, running.turn)
        await gateway.service.questions.answer(question.id, ANNA, "approved")
        await report_turns(gateway, 2)
        assert deeds.done == ["x"]
        await gateway.say(job(PUSH, "another"), channel="http")
        await let_go(gateway, "another")
        await report_turns(gateway, 4)
        assert "nobody can be asked on the channel http" in results(gateway)[-1]
        assert deeds.done == ["x"]


async def test_a_turn_that_is_tried_again_has_the_rights_that_it_had(home: Path, model: ScriptedModel) -> None:
    """X11: not those of the channel on which the session began."""
    deeds = EffectRecord()
    async with working(home, model, deeds, "deny push channel:page") as gateway:
        await gateway.say("[say hello]", channel="http")
        outcome = await gateway.say(PUSH, channel="page")
        accepted = await gateway.service.operations.retry(outcome.session, ANNA)
        await gateway.answered(accepted.turn)
        again = await gateway.store.read(turns.get, accepted.turn)
        assert again is not None and again.channel == "page"
        assert deeds.done == []


# -- and it keeps nothing alive --------------------------------------------------------------------------------------


async def test_a_session_with_a_running_process_expires_like_any_other(home: Path, model: ScriptedModel) -> None:
    """S08, L16: a process is not activity, whatever its output; it ends with its session."""
    deeds, now, mark = EffectRecord(), [1e9], token()
    call = {"action": "start", "name": "server", "command": f"while echo busy; do sleep 0.01; done & sleep {mark}"}
    expiry = f'{SANDBOX}\n[expiry]\nnamed_idle = "1h"'
    text = configured(model, expiry, mode="autonomous").replace('"deeds"', '"deeds", "terminal"')
    options = {"toml": text, "toolsets": {"deeds": deeds.toolset()}, "clock": lambda: now[0]}
    async with core(home, model=model, **options) as gateway:
        session = (await gateway.say(f"[tool process {json.dumps(call)}] [say started]")).session
        now[0] += 1800
        await run(gateway, "expire")
        assert alive(mark)
        assert (await gateway.service.row(session, ANNA)).ended is None
        now[0] += 1801
        await run(gateway, "expire")
        assert (await gateway.service.row(session, ANNA)).ended is not None
        await until(lambda: not alive(mark))
        assert (await the_process(gateway, "server")).state == "ended"
