"""Survival: every cell of the table in docs/lifetimes.md, on a gateway that has one of each thing.

The things of a session are made over HTTP in a running gateway, then one event happens, then everything is inspected.
Stop and kill happen to a real process; the remains are inspected in the next process.
"""

import json
import re
import signal
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import WAIT, core
from tests.gateway.process import GatewayProcess
from tests.gateway.test_tools import own_number, processes_with
from tests.in_process import InProcessGateway, in_process_gateway
from tests.tasks import task
from tidegate.agent import Conversation
from tidegate.store import (
    Db,
    SummaryRow,
    approval_rules,
    approvals,
    audit,
    messages,
    notes,
    principals,
    sessions,
    settings,
    spooled,
    summaries,
    turns,
    workspaces,
)

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]

Table = dict[str, tuple[str, ...]]


def read_table(text: str) -> tuple[tuple[str, ...], Table]:
    """Its columns, and its rows by their first cell."""
    head, *rows = (tuple(cell.strip() for cell in line.strip("| ").split("|")) for line in text.strip().splitlines())
    return head[1:], {row[0]: row[1:] for row in rows}


EVENTS, TABLE = read_table("""
what                                | turn ends | unload    | stop or replace | kill      | session ends | deleted
a running turn                      | ended     | continues | continues       | continues | stopped      | removed
tasks given to other agents         | ended     | continues | continues       | continues | removed      | removed
the resident                        | stays     | removed   | removed         | removed   | removed      | removed
settings of the session             | stays     | stays     | stays           | stays     | removed      | removed
a pending approval                  | stays     | stays     | stays           | stays     | cancelled    | removed
an approval for the conversation    | stays     | stays     | stays           | stays     | removed      | removed
an approval for all conversations   | stays     | stays     | stays           | stays     | stays        | stays
a queued message                    | stays     | stays     | stays           | stays     | refused      | removed
the transcript                      | stays     | stays     | stays           | stays     | read-only    | removed
summaries                           | stays     | stays     | stays           | stays     | stays        | removed
spooled results and media           | stays     | stays     | stays           | stays     | stays        | removed
the frozen prompt and tool list     | stays     | stays     | stays           | stays     | stays        | removed
a workspace folder of the gateway   | stays     | stays     | stays           | stays     | in the trash | removed
a folder of your own                | stays     | stays     | stays           | stays     | stays        | stays
the shell                           | stays     | stays     | restored        | restored  | removed      | removed
a background process                | stays     | stays     | reported        | reported  | stopped      | stopped
a background process with `restart` | stays     | stays     | restarted       | restarted | stopped      | stopped
a sign-in to the chat page          | stays     | stays     | stays           | stays     | stays        | stays
memory                              | stays     | stays     | stays           | stays     | stays        | stays
usage                               | stays     | stays     | stays           | stays     | stays        | anonymous
the audit log                       | stays     | stays     | stays           | stays     | stays        | stays
""")
"""In the order of the page. A queued message "stays" while it is queued or once it was taken by its turn."""

NOT_BUILT = {
    "the browser": "promise V13",
    "tool servers of a session": "promise E1",
    "tool servers of the process or of a principal": "promise L12",
    "jobs of the conversation": "promise G1",
    "a run in the background": "command /background",
    "OAuth grants": "promise L27",
    "linked identities and pairings": "promise X02",
}
"""Things without a row because they do not exist yet, each with the sign that it was built: a promise that is kept now,
a command, a file. Move a thing into TABLE and onto the page when you build it."""


def toml(model: ScriptedModel, project: Path) -> str:
    return f"""
[models.main]
api = "openai-chat"
base_url = "{model.base_url}"
model = "scripted"
context_window = 10_000_000
retries = 0
[agents.main]
model = "main"
approvals = "autonomous"
tools = ["clock", "files", "terminal", "delegate", "memory"]
delegates = ["helper"]
rules = ["ask clock zone=Europe/*", "ask *_file path=asked"]
[agents.helper]
model = "main"
tools = ["clock"]
[agents.project]
model = "main"
approvals = "autonomous"
tools = ["files"]
workspace = "{project}"
[workspaces]
backend = "bubblewrap"
[memory]
at_end = false
[limits]
shutdown_seconds = 1
"""


class Caller:
    """The owner, over HTTP, with a gateway in this process or in another."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self._client = client

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        async with self._client.request(method, path, json=body) as response:
            answer = await response.read()
            assert response.status < 300, answer
            return json.loads(answer) if answer else None

    async def send(self, text: str, session: str | None = None, agent: str = "main") -> dict[str, Any]:
        """Returns `session` and `turn`."""
        place = {"agent": agent} if session is None else {"session": session}
        answer: dict[str, Any] = await self.call("POST", "/api/messages", {"text": text, "attended": True, **place})
        return answer

    async def say(self, text: str, session: str | None = None, agent: str = "main") -> str:
        """Wait for the answer and return the session."""
        sent = await self.send(text, session, agent)
        await self.until(lambda: self.is_answered(sent["turn"]))
        return str(sent["session"])

    async def is_answered(self, turn: str) -> bool:
        return (await self.call("GET", f"/api/turns/{turn}"))["state"] == "answered"

    async def approve(self, scope: str) -> None:
        """Approve what is asked next."""
        found: list[dict[str, Any]] = []

        async def is_asked() -> bool:
            found[:] = (await self.call("GET", "/api/approvals"))["approvals"]
            return bool(found)

        await self.until(is_asked)
        await self.call("POST", f"/api/approvals/{found[0]['id']}", {"decision": "approved", "scope": scope})

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        with anyio.fail_after(WAIT):
            while not await holds():
                await anyio.sleep(0.005)


class Scene:
    """One of each thing, and an inspection of all of them."""

    def __init__(self, home: Path, project: Path, model: ScriptedModel) -> None:
        self.home = home
        self.project = project
        self.model = model
        self.toml = toml(model, project)
        self.keeper, self.again = own_number(), own_number()
        self.cookie = self.page_token = ""
        self.idle = self.asking = self.running = self.elsewhere = ""
        """Sessions: with everything and no turn; with a turn that waits for a person; with one that waits for a task,
        and a message behind it; with a folder of the user's."""
        self.turn = self.queued = ""
        self.task = ""

    # -- making --

    async def prepare(self) -> None:
        """The remains of an earlier process: a conversation with a summary, and a sign-in."""
        self.project.mkdir()
        self.project.chmod(0o777)  # where root has made it, agents are another user
        async with in_process_gateway(self.home, toml=self.toml) as h:
            self.idle = await Caller(h.client).say("[say hello]")
            await h.store.write(summarise, self.idle)
            body, headers = {"code": await h.code()}, {"Origin": h.url}
            async with h.client.post("/api/login", json=body, headers=headers) as response:
                self.cookie = response.headers["Set-Cookie"].split(";")[0].partition("=")[2]
                self.page_token = (await response.json())["page_token"]

    async def furnish(self, caller: Caller) -> None:
        made = "mkdir deep && cd deep && export TIDE=high && echo made > file && seq 100000"
        await caller.say(f"[tool terminal {json.dumps({'command': made})}] [say done]", self.idle)
        for name, seconds, restart in (("keeper", self.keeper, False), ("again", self.again, True)):
            start = {"action": "start", "name": name, "command": f"exec sleep {seconds}", "restart": restart}
            await caller.say(f"[tool process {json.dumps(start)}] [say done]", self.idle)
        await caller.send("/reasoning low", self.idle)
        await caller.say('[tool remember {"text": "likes tea", "about": "person"}] [say done]', self.idle)
        written = json.dumps({"path": "mine.txt", "content": "x"})
        for scope, call in (
            ("conversation", 'write_file {"path": "asked", "content": "x"}'),
            ("always", 'read_file {"path": "asked"}'),
        ):
            sent = await caller.send(f"[tool {call}] [say done]", self.idle)
            await caller.approve(scope)
            await caller.until(partial(caller.is_answered, sent["turn"]))
        self.elsewhere = await caller.say(f"[tool write_file {written}] [say done]", agent="project")
        self.asking = (await caller.send('[tool clock {"zone": "Europe/Paris"}] [say done]'))["session"]
        sent = await caller.send(f"{task('helper', '[hold gate] [say found]')} [say done]")
        self.running, self.turn = sent["session"], sent["turn"]
        self.queued = (await caller.send("[say next]", self.running))["turn"]
        with anyio.fail_after(WAIT):
            await self.model.held("gate")

        async def is_asked() -> bool:
            return len((await caller.call("GET", "/api/approvals"))["approvals"]) == 1

        await caller.until(is_asked)
        assert processes_with(self.keeper) and processes_with(self.again)

    @property
    def sessions(self) -> tuple[str, ...]:
        return (self.idle, self.asking, self.running, self.elsewhere)

    # -- looking --

    async def look(self, h: InProcessGateway) -> dict[str, str]:
        found: dict[str, str] = await h.store.read(self._rows)
        record = h.components.presence.get(self.idle)
        live = h.service.turn_log(self.turn) is not None
        found["a running turn"] = "continues" if live else found["a running turn"]
        found["tasks given to other agents"] = await self._task(h, over=found["a running turn"] == "ended")
        found["the resident"] = _left(record is not None and record.resident is not None)
        found["spooled results and media"] = _left(await self._is_spooled(h))
        found["a workspace folder of the gateway"] = self._folder()
        found["a folder of your own"] = _left((self.project / "mine.txt").exists())
        found["a background process"] = "stays" if processes_with(self.keeper) else "stopped"
        found["a background process with `restart`"] = "stays" if processes_with(self.again) else "stopped"
        found["a sign-in to the chat page"] = _left(await self._is_signed_in(h))
        return {thing: found[thing] for thing in TABLE}

    def _rows(self, db: Db) -> dict[str, str]:
        row = sessions.get(db, self.idle)
        owner = principals.by_name(db, "owner")
        assert owner is not None
        asked = approvals.of_session(db, self.asking, principal=None)
        rules = {rule.session for rule in approval_rules.listing(db)}
        turn, queued = turns.get(db, self.turn), turns.get(db, self.queued)
        said = bool(messages.page(db, self.idle))
        prefix = row.prefix if row is not None else None
        chosen = {each.key for each in settings.get_all(db, self.idle, 0)}
        remembered = [note.text for note in notes.listing(db, "person", owner.id)]
        named = db.execute("SELECT count(session), count(*) FROM usage").get
        return {
            "a running turn": {"answered": "ended"}.get(turn.state, turn.state) if turn is not None else "removed",
            "settings of the session": _left("reasoning" in chosen),
            "a pending approval": {"open": "stays"}.get(asked[0].state, asked[0].state) if asked else "removed",
            "an approval for the conversation": _left(self.idle in rules),
            "an approval for all conversations": _left(None in rules),
            "a queued message": {"refused": "refused"}.get(queued.state, "stays") if queued is not None else "removed",
            "the transcript": "removed" if not said else "read-only" if row is None or row.ended else "stays",
            "summaries": _left(bool(summaries.shown(db, self.idle))),
            "the frozen prompt and tool list": _left(prefix is not None and bool(sessions.prefix(db, prefix).tools)),
            "the shell": _left(workspaces.shell(db, self.idle) is not None),
            "memory": _left(remembered == ["likes tea"]),
            "the audit log": _left(bool(audit.listing(db, session=self.idle, kind="tool"))),
            "usage": "removed" if not named[1] else "stays" if named[0] else "anonymous",
        }

    async def _task(self, h: InProcessGateway, *, over: bool) -> str:
        """The state of the turn that is working on the task, once it has been resumed."""
        if over:
            return "ended"
        if h.service.turn_log(self.turn) is None:
            return _left(bool(h.components.engine.stats().delegating))
        with anyio.fail_after(WAIT):
            while not h.components.engine.stats().delegating:
                await anyio.lowlevel.checkpoint()
        return "continues"

    async def _is_spooled(self, h: InProcessGateway) -> bool:
        names = [path.name for path in (self.home / "spool" / self.idle).glob("sp_*") if path.stat().st_size > 100_000]
        return bool(names) and await h.store.read(spooled.existing, names) == set(names)

    def _folder(self) -> str:
        places = {"stays": self.home / "workspaces", "in the trash": self.home / "trash"}
        found = [word for word, place in places.items() if (place / self.idle / "deep" / "file").exists()]
        return found[0] if found else "removed"

    async def _is_signed_in(self, h: InProcessGateway) -> bool:
        """The name of the cookie contains the port, which differs in each process of a test."""
        headers = {
            "Cookie": f"tidegate_{h.url.rpartition(':')[2]}={self.cookie}",
            "X-Page-Token": self.page_token,
        }
        async with aiohttp.ClientSession() as browser, browser.get(f"{h.url}/api/agents", headers=headers) as response:
            return response.status == 200

    async def speak(self, h: InProcessGateway) -> dict[str, str]:
        """The next turn of the session: the folder of its shell, and the notices to the agent."""
        caller = Caller(h.client)
        look = json.dumps({"command": "basename $PWD; echo $TIDE"})
        await caller.say(f"[tool terminal {look}] [say done]", self.idle)
        rows = await h.store.read(messages.page, self.idle)
        heard = "\n".join(row.message.aside or "" for row in rows)
        is_restored = any(row.message.role == "tool" and "deep\nhigh" in row.message.text for row in rows)
        with anyio.fail_after(WAIT):
            while not processes_with(self.again) or processes_with(self.keeper):
                await anyio.sleep(0.005)
        return {
            "the shell": "restored" if is_restored else "removed",
            "a background process": "reported" if "keeper" in heard else "stopped",
            "a background process with `restart`": "restarted",
        }


def _left(there: bool) -> str:
    return "stays" if there else "removed"


def summarise(db: Db, session: str) -> None:
    """Replace its first message by a summary."""
    row = SummaryRow(0, 0, 1, 1, None, "applied", "model", "m", 1.0, "It began.")
    summaries.apply(db, session, [summaries.add(db, session, row, 1.0)])


@pytest.fixture
async def scene(tmp_path: Path, model: ScriptedModel) -> Scene:
    made = Scene(tmp_path / "home", tmp_path / "project", model)
    await made.prepare()
    return made


# -- events in this process --


async def _turn_ends(h: InProcessGateway, scene: Scene) -> None:
    scene.model.release("gate")
    caller = Caller(h.client)
    await caller.until(lambda: caller.is_answered(scene.queued))
    await caller.say("[say more]", scene.idle)


async def _unload(h: InProcessGateway, scene: Scene) -> None:
    record = h.components.presence.get(scene.running)
    assert record is not None
    busy = record.resident
    assert isinstance(busy, Conversation)
    h.components.presence.sweep(now=float("inf"))
    assert record.resident is busy and busy.history.parts, "no unload in mid-turn"


async def _end(h: InProcessGateway, scene: Scene) -> None:
    for session in scene.sessions:
        await Caller(h.client).call("POST", f"/api/sessions/{session}/end")


async def _delete(h: InProcessGateway, scene: Scene) -> None:
    for session in scene.sessions:
        await Caller(h.client).call("DELETE", f"/api/sessions/{session}")


HAPPENINGS = {"turn ends": _turn_ends, "unload": _unload, "session ends": _end, "deleted": _delete}


@pytest.mark.parametrize("event", HAPPENINGS)
async def test_survival_of_events_within_the_process(scene: Scene, event: str) -> None:
    """V01, V02, V03, V04, V05, V06, V07, V08, V09, V10, V11, V12, V14, V15: one event, and a look at everything."""
    async with in_process_gateway(scene.home, toml=scene.toml, drain=0.1) as h:
        await scene.furnish(Caller(h.client))
        await HAPPENINGS[event](h, scene)
        assert await scene.look(h) == expected(event)
        scene.model.release("gate")


# -- the end of the process --


@asynccontextmanager
async def process(scene: Scene) -> AsyncIterator[tuple[GatewayProcess, Caller]]:
    """A gateway of its own, over the same home folder."""
    running = await anyio.to_thread.run_sync(GatewayProcess, scene.home)
    try:
        await anyio.to_thread.run_sync(running.wait_ready)
        key = (scene.home / "api-key").read_text().strip()
        timeout = aiohttp.ClientTimeout(total=WAIT)
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(running.address, headers=headers, timeout=timeout) as client:
            yield running, Caller(client)
    finally:
        await anyio.to_thread.run_sync(running.end)


@pytest.mark.parametrize(
    ("event", "number"), [("stop or replace", signal.SIGTERM), ("kill", signal.SIGKILL)], ids=["stop", "kill"]
)
async def test_survival_of_the_end_of_the_process(scene: Scene, event: str, number: signal.Signals) -> None:
    """V01, V02, V03, V04, V05, V06, V07, V08, V09, V10, V11, V12, V14, V15, F4: in the next process everything is where
    it was; interrupted work continues, and the agent is told about losses."""
    async with process(scene) as (running, caller):
        await scene.furnish(caller)
        running.signal(number)
        await anyio.to_thread.run_sync(running.wait)
    async with in_process_gateway(scene.home, toml=scene.toml) as h:
        found = await scene.look(h)
        scene.model.release("gate")
        found |= await scene.speak(h)
        assert found == expected(event)
        caller = Caller(h.client)
        await caller.until(lambda: caller.is_answered(scene.turn))
        await caller.until(lambda: caller.is_answered(scene.queued))
        (asked,) = (await caller.call("GET", "/api/approvals"))["approvals"]
        await caller.call("POST", f"/api/approvals/{asked['id']}", {"decision": "approved"})


def expected(event: str) -> dict[str, str]:
    return {thing: cells[EVENTS.index(event)] for thing, cells in TABLE.items()}


# -- the page --


def test_the_documented_table_matches_the_test() -> None:
    """V01, V06: docs/lifetimes.md has the same rows, in the same order, with the same words."""
    page = (ROOT / "docs" / "lifetimes.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    columns, rows = read_table("\n".join(lines))
    assert columns == EVENTS
    assert list(rows.items()) == list(TABLE.items())
    words = {word for cells in TABLE.values() for word in cells}
    explained = set(re.findall(r"^- \*\*(.+?)\*\*", page, flags=re.MULTILINE))
    assert explained == words, "each word of the table is explained once"


def is_built(sign: str) -> bool:
    kind, _, name = sign.partition(" ")
    if kind == "promise":
        groups = tomllib.loads((ROOT / "docs" / "promises.toml").read_text()).values()
        return any(group["promises"][name]["owner"] == "now" for group in groups if name in group["promises"])
    return (ROOT / name).exists() if kind == "file" else f"`{name}" in (ROOT / "docs" / "commands.md").read_text()


def test_a_thing_without_a_row_is_not_built() -> None:
    """V13: each of these gets a row when it is built."""
    assert [thing for thing, sign in NOT_BUILT.items() if is_built(sign)] == []
    assert (
        is_built("promise V12") and is_built("command /new") and is_built("file src/tidegate/store/tables/settings.py")
    )
    assert not set(TABLE) & set(NOT_BUILT)


async def test_a_resident_that_was_replaced_in_mid_turn_is_released_when_that_turn_ends(
    home: Path, model: ScriptedModel
) -> None:
    """V20, A8: the running instance counts."""
    async with core(home, model=model) as in_process_gateway:
        first = await in_process_gateway.say("one")
        record = in_process_gateway.components.presence.get(first.session)
        assert record is not None
        running = record.resident
        assert isinstance(running, Conversation)
        accepted = await in_process_gateway.accept("[hold gate] two")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        assert in_process_gateway.components.presence.unload(first.session, reason="test")
        assert running.history.parts
        model.release("gate")
        assert (await in_process_gateway.answered(accepted.turn)).state == "answered"
        with anyio.fail_after(WAIT):
            while running.history.parts:
                await anyio.lowlevel.checkpoint()
