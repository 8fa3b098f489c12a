"""Fallback to another model, as HTTP clients see it: streams, sessions, status, metrics."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.faulty_model import FORMATS, KEY, NAMES, FaultyModel, toml
from tests.in_process import InProcessGateway, in_process_gateway
from tests.spool.pictures import plain, saved
from tests.web.client import chat
from tidegate.models.http.error_body import LONGEST_WAIT

pytestmark = pytest.mark.anyio

ANSWER = "The tide comes in, the gate keeps the level."
BROKEN = "[words 9] [cut after=4]"
FULL = {"X-Events": "full"}


@pytest.fixture
async def server() -> AsyncIterator[FaultyModel]:
    async with FaultyModel() as server:
        yield server


@pytest.fixture
async def gateway(
    tmp_path: Path, server: FaultyModel, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[InProcessGateway]:
    monkeypatch.setenv(KEY, "sesame")
    async with in_process_gateway(tmp_path / "home", toml=toml(server.base_url)) as h:
        yield h


@pytest.mark.parametrize("mood", ["[status 503]", "[cut after=1]", "[status 401]"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_any_text_is_invisible(
    gateway: InProcessGateway, server: FaultyModel, mood: str, stream: bool
) -> None:
    server.directives["first"] = mood
    reply = await chat(gateway, "x", stream=stream)
    assert reply.status == 200, reply.body
    assert (reply.streamed if stream else reply.text) == ANSWER
    assert server.requested == ["first", "second"]


@pytest.mark.parametrize("wish", ["inf", "9" * 30])
async def test_an_invalid_parameter_is_not_passed_to_another_model(
    gateway: InProcessGateway, server: FaultyModel, wish: str
) -> None:
    """H22: the failure is reported like any other."""
    server.directives = dict.fromkeys(NAMES, f"[status 429 retry-after={wish}]")
    reply = await chat(gateway, "x")
    assert reply.status == 429 and "rate" in reply.error["message"]
    assert int(reply.headers["Retry-After"]) <= LONGEST_WAIT


async def test_a_plain_stream_ends_with_an_error_after_visible_text_and_the_turn_continues(
    gateway: InProcessGateway, server: FaultyModel
) -> None:
    """H22, S19: text that a client has shown is not withdrawn; the new answer is in the conversation."""
    server.directives["first"] = BROKEN
    reply = await chat(gateway, "x", session="talk", stream=True)
    assert reply.status == 200
    assert reply.streamed.startswith("w0") and "tide" not in reply.streamed
    assert reply.chunks[-1]["error"]["type"] and b"[DONE]" not in reply.body
    whole = await chat(gateway, "and then", session="talk")
    assert whole.text == ANSWER
    assert server.requested == ["first", "second", "second"]
    said = [message["content"] for message in server.recorded[-1].decoded()["messages"] if message["role"] != "system"]
    assert said == ["x", ANSWER, "and then"]


async def test_a_client_that_gets_all_events_is_sent_the_other_answer(
    gateway: InProcessGateway, server: FaultyModel
) -> None:
    server.directives["first"] = BROKEN
    reply = await chat(gateway, "x", session="talk", stream=True, headers=FULL)
    names = [name for name, _ in reply.events]
    assert names.count("text_reset") == 1
    assert names.index("text_reset") < names.index("turn_ended")
    notice = next(event for name, event in reply.events if name == "notice")
    assert notice["text"] == "The model first cannot be reached, so second answers for now."
    assert reply.streamed.endswith(ANSWER) and b"[DONE]" in reply.body


async def test_a_call_that_does_not_stream_gets_the_other_answer(
    gateway: InProcessGateway, server: FaultyModel
) -> None:
    server.directives = {"first": BROKEN, "second": BROKEN}
    reply = await chat(gateway, "x", session="talk")
    assert (reply.status, reply.text) == (200, ANSWER)
    assert server.requested == ["first", "second", "third"]


async def test_the_failure_of_all_models_is_one_error(gateway: InProcessGateway, server: FaultyModel) -> None:
    server.directives = {"first": "[status 429 retry-after=5]", "second": "[status 401]", "third": "[cut after=0]"}
    reply = await chat(gateway, "x")
    assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
    assert reply.headers["Retry-After"] == "5"
    assert all(f"'{name}'" in reply.error["message"] for name in ("first", "second", "third"))


async def test_a_session_shows_which_model_answers_and_why(gateway: InProcessGateway, server: FaultyModel) -> None:
    server.directives["first"] = "[status 503]"
    await chat(gateway, "x", session="talk")
    async with gateway.client.get("/api/sessions") as response:
        session = (await response.json())["sessions"][0]["id"]
    async with gateway.client.get(f"/api/sessions/{session}") as response:
        found = await response.json()
    assert found["model"] == "second"
    until = found["fallback"].pop("until")
    assert found["fallback"] == {"model": "second", "instead_of": "first", "why": "overloaded"}
    assert until > found["created"]
    assert found["settings"] == {}, "it is nobody's choice"
    async with gateway.client.get("/api/settings") as response:
        (setting,) = (await response.json())["settings"]
    assert (setting["key"], setting["value"]["model"]) == ("fallback", "second")
    async with gateway.client.delete(f"/api/sessions/{session}/settings/fallback") as response:
        assert response.status < 300


async def test_status_and_metrics_show_the_state_of_models(gateway: InProcessGateway, server: FaultyModel) -> None:
    """X15: with closed labels and without secrets."""
    server.directives = {"first": "[status 402]", "second": "[status 400]"}
    await chat(gateway, "x")
    async with gateway.client.get("/api/status") as response:
        whole = await response.text()
        states = (await response.json())["model_states"]
    assert states["first"]["rests_because"] == "quota"
    assert states["first"]["failures"] == {"quota": 1}
    assert (states["second"]["rests_until"], states["second"]["failures"]) == (None, {"invalid": 1})
    assert (states["third"]["fallbacks"], states["third"]["keys"], states["third"]["keys_resting"]) == (1, 1, 0)
    async with gateway.client.get("/metrics") as response:
        metrics = await response.text()
    for line in (
        'tidegate_model_failures_total{kind="quota",model="first"} 1.0',
        'tidegate_model_failures_total{kind="invalid",model="second"} 1.0',
        'tidegate_model_fallbacks_total{model="third"} 1.0',
        'tidegate_model_resting{model="first"} 1.0',
        'tidegate_model_resting{model="third"} 0.0',
        'tidegate_model_keys{model="first",state="ready"} 1.0',
    ):
        assert line in metrics
    assert "sesame" not in whole + metrics


@pytest.mark.parametrize("failing", [(), ("first",), ("first", "second")])
async def test_a_callers_tools_are_sent_to_the_model_that_answers(
    tmp_path: Path, server: FaultyModel, monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...]
) -> None:
    """Tools are sent in each provider's format, and calls are returned in the caller's."""
    monkeypatch.setenv(KEY, "sesame")
    text = toml(server.base_url, "caller_tools = true", formats=FORMATS)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": parameters}}
    server.directives = dict.fromkeys(failing, "[status 503]")
    async with in_process_gateway(tmp_path / "home", toml=text) as h:
        reply = await chat(h, '[tool weather {"city": "Aarhus"}]', tools=[tool], tool_choice="auto")
        assert reply.status == 200, reply.body
        (choice,) = reply.json["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "weather")
        assert msgspec.json.decode(call["function"]["arguments"]) == {"city": "Aarhus"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
        said = [{"role": "user", "content": '[tool weather {"city": "Aarhus"}]'}, choice["message"], result]
        again = await chat(h, messages=said, tools=[tool])
        assert (again.status, again.text) == (200, ANSWER)
    assert server.requested == [*NAMES[: len(failing) + 1], NAMES[len(failing)]]
    assert server.stats()["refusals"] == []


@pytest.mark.parametrize("other", FORMATS)
async def test_a_fallback_model_without_vision_gets_a_description_of_the_picture(
    tmp_path: Path, server: FaultyModel, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """It gets a note instead of an error; the model with vision gets the picture again later."""
    monkeypatch.setenv(KEY, "sesame")
    text = toml(server.base_url, "fallback_for = 0", formats=("openai-chat", other, "openai-chat"))
    text = text.replace("[models.first]", "[models.first]\nvision = true").replace(
        "[models.second]", "[models.second]\nvision = false"
    )
    address = "data:image/png;base64," + base64.b64encode(saved(plain(4, 3), "PNG")).decode()
    content = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": address}}]
    async with in_process_gateway(tmp_path / "home", toml=text) as h:
        server.directives["first"] = "[status 400]"
        reply = await chat(h, session="talk", messages=[{"role": "user", "content": content}])
        assert (reply.status, reply.text) == (200, ANSWER)
        assert b"cannot see" in server.recorded[-1].body and b"4 x 3" in server.recorded[-1].body
        assert address.encode() in server.recorded[0].body
        assert address.encode() not in server.recorded[1].body
        server.directives.clear()
        assert (await chat(h, "and now?", session="talk")).text == ANSWER
        assert address.encode() in server.recorded[-1].body
    assert server.requested == ["first", "second", "first"]
    assert server.stats()["refusals"] == []


CALLED_TWICE = [
    {"role": "assistant", "content": "Hello, I am your clock."},
    {"role": "user", "content": "what time is it"},
    *(
        {"role": role, **rest}
        for name in ("what.time is it", "clock")
        for role, rest in (
            (
                "assistant",
                {"content": None, "tool_calls": [{"id": "call_0", "function": {"name": name, "arguments": "{}"}}]},
            ),
            ("tool", {"tool_call_id": "call_0", "content": f"from {name}"}),
        )
    ),
]


@pytest.mark.parametrize("api", FORMATS)
async def test_an_untidy_conversation_is_normalised_for_each_provider(
    tmp_path: Path, server: FaultyModel, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    """A2, H22: it begins with an assistant message, reuses call ids, and has calls of unknown tools."""
    monkeypatch.setenv(KEY, "sesame")
    async with in_process_gateway(tmp_path / "home", toml=toml(server.base_url, formats=(api, *FORMATS[:2]))) as h:
        reply = await chat(h, messages=CALLED_TWICE)
    assert reply.status == 200, reply.body
    assert server.requested == ["first"] and server.stats()["refusals"] == []
