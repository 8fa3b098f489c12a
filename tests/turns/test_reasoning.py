"""Reasoning effort: one setting, changed in place, in every format."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.core import ANNA, Core, core
from tests.faulty_model import FORMATS, KEY, NAMES, FaultyModel, toml
from tidegate.values import Call, Reasoning

pytestmark = pytest.mark.anyio

OPENAI = 'thinking = "effort"\nefforts = ["minimal", "low", "medium", "high"]\n'
THINKING = {
    "openai-chat": OPENAI,
    "openai-responses": OPENAI,
    "anthropic": 'thinking = "adaptive"\nefforts = ["low", "medium", "high", "max"]\nmax_output = 32000\n',
    "anthropic by budget": 'thinking = "budget"\nmax_output = 32000\n',
}
"""By format: how the effort is sent."""
WORDS: tuple[Reasoning | None, ...] = ("low", "high", None, "medium", "off", "max", "low")


@pytest.fixture
async def server() -> AsyncIterator[FaultyModel]:
    async with FaultyModel() as server:
        yield server


def thinking(home: Path, server: FaultyModel, how: str, agent: str = "", *, prompt: str = "You are a test.") -> Any:
    api = how.partition(" ")[0]
    text = toml(server.base_url, agent, formats=(api, api, api), each=THINKING[how])
    text = text.replace("You are a test.", prompt)
    return core(home, model=server, toml=text, environment={KEY: "sesame"})


def frozen(body: bytes) -> tuple[bytes, ...]:
    """The parts of a request that a session has frozen, byte for byte."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    found = [bytes(fields[name]) for name in ("system", "instructions", "tools") if name in fields]
    said = msgspec.json.decode(fields.get("messages") or fields["input"], type=list[msgspec.Raw])
    return (*found, bytes(said[0]) if "system" not in fields else b"")


def requested_effort(body: dict[str, Any]) -> Any:
    """The reasoning effort of the request, in its format's words."""
    if "reasoning" in body:
        return body["reasoning"].get("effort")
    if "thinking" in body or "output_config" in body:
        return (body.get("output_config") or {}).get("effort") or body["thinking"].get("budget_tokens") or "off"
    return body.get("reasoning_effort")


async def choose(gateway: Core, session: str, effort: Reasoning | None) -> None:
    if effort is None:
        await gateway.service.operations.clear_setting(session, ANNA, "reasoning")
    else:
        await gateway.service.operations.set_setting(session, ANNA, "reasoning", effort, source="command")


@pytest.mark.parametrize("how", sorted(THINKING))
async def test_reasoning_changes_in_place(home: Path, server: FaultyModel, how: str) -> None:
    """A3, S32: the resident stays, the frozen parts stay byte for byte, and every request begins like the one before,
    also with reasoning carried between the steps of a turn."""
    async with thinking(home, server, how) as gateway:
        session = (await gateway.say("hello [tool clock {}]")).session
        record = gateway.components.presence.get(session)
        assert record is not None
        resident = record.resident
        first = frozen(server.recorded[0].body)
        seen = []
        for effort in WORDS:
            await choose(gateway, session, effort)
            outcome = await gateway.say(f"{effort} [tool clock {{}}]")
            assert outcome.state == "answered", outcome.error
            assert record.resident is resident is not None
            seen.append(requested_effort(server.recorded[-1].decoded()))
        assert {frozen(request.body) for request in server.recorded} == {first}
    assert len({str(word) for word in seen}) >= 3, seen
    assert seen[0] == seen[-1]
    stats = server.stats()
    assert (stats["refusals"], stats["violations"], stats["reuse"]) == ([], [], 1.0)


@pytest.mark.parametrize("api", FORMATS)
async def test_a_call_outranks_the_session_and_that_the_agent(home: Path, server: FaultyModel, api: str) -> None:
    """A3, S05: and none of them changes the agent."""
    async with thinking(home, server, api, 'reasoning = "low"') as gateway:
        session = (await gateway.say("one")).session

        def said() -> Any:
            return requested_effort(server.recorded[-1].decoded())

        assert said() == "low"
        await choose(gateway, session, "medium")
        await gateway.say("two")
        assert said() == "medium"
        await gateway.say("three", call=Call(reasoning="high"))
        assert said() == "high"
        await gateway.say("four")
        assert said() == "medium", "a call's own was for its turn only"
        await choose(gateway, session, None)
        await gateway.say("five")
        assert said() == "low"
        await gateway.say("six", None)
        assert said() == "low", "a one-shot call has its agent's"
        await gateway.say("seven", None, call=Call(reasoning="minimal"))
        assert said() == "minimal" or api == "anthropic"
        assert gateway.config.agents["main"].reasoning == "low"


@pytest.mark.parametrize("api", FORMATS)
async def test_without_any_setting_the_provider_decides(home: Path, server: FaultyModel, api: str) -> None:
    async with thinking(home, server, api) as gateway:
        await gateway.say("one")
    body = server.recorded[0].decoded()
    assert not {"reasoning_effort", "thinking", "output_config"} & set(body)
    assert "effort" not in body.get("reasoning", {})


@pytest.mark.parametrize("own", FORMATS)
@pytest.mark.parametrize("other", FORMATS)
async def test_thoughts_stay_with_the_model_that_had_them(
    home: Path, server: FaultyModel, own: str, other: str
) -> None:
    """A turn that reasons, calls tools and falls back and returns: no format gets another's reasoning, and each gets
    its own back."""
    text = toml(server.base_url, 'reasoning = "high"\nfallback_for = 0', formats=(own, other, own))
    for name, api in zip(NAMES, (own, other, own), strict=True):
        text = text.replace(f"[models.{name}]\n", f"[models.{name}]\n{THINKING[api]}")
    async with core(home, model=server, toml=text, environment={KEY: "sesame"}) as gateway:
        for number in range(3):
            server.directives = {"first": "[status 400 step=1]"} if number != 1 else {}
            outcome = await gateway.say(f"{number} [think] [tool clock {{}}] [tool clock {{}}]")
            assert outcome.state == "answered", outcome.error
    assert {"first", "second"} == set(server.requested)
    assert server.stats()["refusals"] == []
