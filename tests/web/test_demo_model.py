"""The API says whether the built-in demo model answers."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import settings
from tests.in_process import in_process_gateway
from tests.web.client import call, chat

pytestmark = pytest.mark.anyio

AGENT = '[models.toy]\napi = "demo"\n[agents.toy]\nmodel = "toy"\nprompt = "Play."\n'


async def test_agents_and_conversations_say_whether_the_demo_model_answers(home: Path, model: ScriptedModel) -> None:
    """S05: for an agent by its configuration, for a conversation by the model chosen there."""
    async with in_process_gateway(home, toml=settings(model, AGENT)) as h:
        agents = (await call(h, "GET", "/api/agents")).json["agents"]
        assert {agent["name"]: (agent["model"], agent["demo"]) for agent in agents} == {
            "main": ("main", False),
            "toy": ("toy", True),
        }
        first = (await call(h, "POST", "/api/messages", json={"text": "hello"})).json
        await h.service.wait(first["turn"])
        for line, name, demo in (("/model toy", "toy", True), ("/model default", "main", False)):
            said = {"text": line, "session": first["session"]}
            assert (await call(h, "POST", "/api/messages", json=said)).status == 200
            view = (await call(h, "GET", f"/api/sessions/{first['session']}")).json
            assert (view["model"], view["demo"]) == (name, demo)
    async with in_process_gateway(home, toml="") as h:
        [agent] = (await call(h, "GET", "/api/agents")).json["agents"]
        assert agent["demo"] is True


@pytest.mark.parametrize("stream", [False, True])
async def test_the_demo_model_honours_stop_sequences(home: Path, stream: bool) -> None:
    """H08: the answer ends before the first one, even if it spans two pieces of the stream."""
    async with in_process_gateway(home) as h:
        reply = await chat(h, "say one two three", stop=["e t", "three"], stream=stream)
        assert (reply.streamed if stream else reply.text) == "on"


async def test_the_demo_model_refuses_log_probabilities(home: Path) -> None:
    """H08: it has none, and leaving them out silently would change the answer."""
    async with in_process_gateway(home) as h:
        reply = await chat(h, "say hello", logprobs=True)
        assert (reply.status, reply.error["param"]) == (400, "logprobs")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "clock"}}),
    ],
)
async def test_the_demo_model_refuses_to_be_constrained(home: Path, field: str, value: object) -> None:
    """H08: it would ignore the field, and the caller would take its answer for JSON or for a call."""
    async with in_process_gateway(home) as h:
        reply = await chat(h, "say hello", **{field: value})
        assert (reply.status, reply.error["param"]) == (400, field)
        assert "demo model" in reply.error["message"]
        for harmless in ({"response_format": {"type": "text"}}, {"tool_choice": "auto"}):
            assert (await chat(h, "say hello", **harmless)).status == 200
