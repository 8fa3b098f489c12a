"""Falling back in a real process: killed meanwhile, asked from outside, with keys that nobody else may see."""

import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from anyio import to_thread

from tests.faulty_model import FORMATS, KEY, FaultyModel, toml
from tests.gateway.process import WAIT, GatewayProcess, tidegate

pytestmark = pytest.mark.anyio

T = TypeVar("T")
ANSWER = "The tide comes in, the gate keeps the level."


@pytest.fixture
async def server() -> AsyncIterator[FaultyModel]:
    async with FaultyModel() as server:
        yield server


async def away(do: Callable[..., T], *given: Any, **named: Any) -> T:
    """In a thread: the server that is asked meanwhile lives on this loop."""
    with anyio.fail_after(2 * WAIT):
        return await to_thread.run_sync(partial(do, *given, **named))


@asynccontextmanager
async def running(home: Path, text: str, **env: str) -> AsyncIterator[GatewayProcess]:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "tidegate.toml").write_text(text)
    gateway = GatewayProcess(home, **{KEY: "sesame", **env})
    try:
        await away(gateway.wait_ready)
        yield gateway
    finally:
        await away(gateway.end)


async def status(gateway: GatewayProcess, session: str) -> str:
    reply = await away(gateway.call, "POST", "/api/messages", {"text": "/status", "session": session})
    return str(reply["reply"]["text"])


async def the_session(gateway: GatewayProcess) -> dict[str, Any]:
    listed = await away(gateway.call, "GET", "/api/sessions")
    found: dict[str, Any] = await away(gateway.call, "GET", f"/api/sessions/{listed['sessions'][0]['id']}")
    return found


async def test_a_fallback_survives_a_kill_and_ends_after_its_time(tmp_path: Path, server: FaultyModel) -> None:
    """P06, S05: in mid-turn, with the substitute's answer under way; the turn goes on with it, and after its time the
    agent's own answers again."""
    home, text = tmp_path / "home", toml(server.base_url, "fallback_for = 3600")
    server.directives = {"first": "[status 503]", "second": "[hold there step=1]"}
    async with running(home, text) as gateway:
        said = {"text": "one [tool clock {}]", "agent": "main"}
        accepted = await away(gateway.call, "POST", "/api/messages", said)
        with anyio.fail_after(WAIT):
            await server.held("there")
        gateway.signal(signal.SIGKILL)
        await away(gateway.wait)
    server.directives.clear()
    server.release("there")
    async with running(home, text) as gateway:
        with anyio.fail_after(WAIT):
            while (turn := await away(gateway.call, "GET", f"/api/turns/{accepted['turn']}"))["state"] != "answered":
                assert turn["state"] == "running"
        assert server.requested == ["first", "second", "second", "second"]
        found = await the_session(gateway)
        assert (found["model"], found["fallback"]["instead_of"]) == ("second", "first")
        told = await status(gateway, found["id"])
        assert "second (instead of the agent's own, first, which is overloaded)" in told
        for command in (["sessions", "settings"], ["sessions", "show", found["id"]]):
            shown = await away(tidegate, *command, home=home)
            assert "second instead of first (overloaded)" in shown.stdout, shown.stderr
    async with running(home, text.replace("fallback_for = 3600", "fallback_for = 0")) as gateway:
        await away(gateway.call, "POST", "/api/messages", {"text": "two", "session": found["id"]})
        with anyio.fail_after(WAIT):
            while (found := await the_session(gateway))["fallback"] is not None or found["running"]:
                pass
        assert server.requested[-1] == "first"
        assert "first (the agent's own)" in await status(gateway, found["id"])


async def test_every_wire_format_can_replace_every_other_one_in_one_conversation(
    tmp_path: Path, server: FaultyModel
) -> None:
    """S32: tool calls and results of each in the histories of the others, in one process."""
    text = toml(server.base_url, "fallback_for = 0", formats=FORMATS)
    turns = [
        ("first", ()),
        ("second", ("first",)),
        ("third", ("first", "second")),
        ("first", ()),
        ("second", ("first",)),
    ]
    async with running(tmp_path / "home", text) as gateway:
        for number, (answers, fail) in enumerate(turns):
            server.directives = dict.fromkeys(fail, "[status 400 step=1]")
            before = len(server.requested)
            said = await away(gateway.say, f"{number} [tool clock {{}}] [together clock {{}} clock {{}}]", "talk")
            assert said == ANSWER
            assert server.requested[before] == "first", "its time is over at once"
            assert server.requested[-1] == answers
        assert await away(gateway.say, "one shot [tool clock {}]") == ANSWER
    assert server.stats()["refusals"] == []


async def test_the_status_lists_the_models_of_the_process(tmp_path: Path, server: FaultyModel) -> None:
    """X15: with several keys, of which one rests; by where they come from, never by what they are."""
    keys = {"TIDE_KEY_A": "canary-alpha-5511", "TIDE_KEY_B": "canary-beta-7722"}
    text = toml(server.base_url).replace(f'key = "env:{KEY}"', 'keys = ["env:TIDE_KEY_A", "env:TIDE_KEY_B"]')
    async with running(tmp_path / "home", text + '[log]\nlevel = "debug"\n', **keys) as gateway:
        server.directives["second"] = "[status 503]"
        assert await away(gateway.say, "[status 402 echo times=1]") == ANSWER
        server.directives["first"] = "[status 503]"
        assert await away(gateway.say, "hello") == ANSWER
        shown = await away(tidegate, "status", home=tmp_path / "home")
        whole = await away(tidegate, "status", "--json", home=tmp_path / "home")
        states = json.loads(whole.stdout)["model_states"]
        assert (states["first"]["keys"], states["first"]["keys_resting"]) == (2, 1)
        assert states["first"]["rests_because"] == "overloaded"
        assert states["third"]["fallbacks"] == 1
        for line in (
            "model first: 2 keys, 1 in cooldown; in cooldown until",
            "(overloaded)",
            "used as a fallback 1 time",
        ):
            assert line in shown.stdout
        metrics = await away(_read, gateway, "/metrics")
        assert 'tidegate_model_keys{model="first",state="resting"} 1.0' in metrics
        log = gateway.log.read_text()
        assert "env:TIDE_KEY_A" in log
        for secret in keys.values():
            for seen in (shown.stdout, whole.stdout, metrics, log):
                assert secret not in seen
    assert [request.authorization for request in server.recorded][:2] == [f"Bearer {key}" for key in keys.values()]


def _read(gateway: GatewayProcess, path: str) -> str:
    try:
        return json.dumps(gateway.call("GET", path))
    except json.JSONDecodeError as plain:
        return plain.doc


async def test_a_caller_that_did_not_follow_a_turn_learns_of_the_fallback_with_its_answer(
    tmp_path: Path, server: FaultyModel
) -> None:
    """S16: the plain answer has it, the turn has it when it is asked for again, and so does the terminal, whose stream
    opens when a fast turn is over."""
    server.directives = {"first": "[status 503]"}
    notice = "The model first is overloaded, so second answers for now."
    async with running(tmp_path / "home", toml(server.base_url)) as gateway:
        body = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
        answer = await away(gateway.call, "POST", "/v1/chat/completions", body)
        assert answer["notices"] == [notice]
        said = {"text": "hello", "agent": "main"}
        accepted = await away(gateway.call, "POST", "/api/messages", said)
        with anyio.fail_after(WAIT):
            while (turn := await away(gateway.call, "GET", f"/api/turns/{accepted['turn']}"))["state"] != "answered":
                assert turn["state"] in ("queued", "running")
        assert turn["notices"] == [notice]
        spoken = await away(tidegate, "chat", "--new", home=gateway.home, input="hello\n")
        assert spoken.stderr.count(notice) == 1 and ANSWER in spoken.stdout
