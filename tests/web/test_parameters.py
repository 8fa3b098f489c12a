"""Parameters of one call."""

from pathlib import Path
from typing import Any

import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import InProcessGateway, in_process_gateway
from tests.web.client import CHAT, call, chat

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
OPEN_AGENT = """
[agents.open]
model = "main"
prompt = "You are open."
caller_tools = "only"
"""


@pytest.mark.parametrize("session", [None, "notes"])
async def test_parameters_apply_to_their_call_only(
    gateway: InProcessGateway, model: ScriptedModel, session: str | None
) -> None:
    """H08: sampling, length, reasoning, stops and the caller's own marks reach the model for this call only."""
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 50,
        "reasoning_effort": "low",
        "stop": ["END"],
        "user": "u-1",
        "metadata": {"ticket": "7"},
    }
    assert (await chat(gateway, session=session, **given)).status == 200
    asked = model.recorded[-1].decoded()
    assert asked["temperature"] == 0.5
    assert asked["top_p"] == 0.9
    assert 50 in (asked.get("max_tokens"), asked.get("max_completion_tokens"))
    assert asked["reasoning_effort"] == "low"
    assert asked["stop"] in ("END", ["END"])
    assert asked["user"] == "u-1"
    assert asked["metadata"] == {"ticket": "7"}
    assert (await chat(gateway, session=session)).status == 200
    plain = model.recorded[-1].decoded()
    assert not {*given, "max_tokens"} & set(plain)


async def test_max_tokens_is_accepted_and_nulls_are_ignored(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H08: the older name works; clients send null for omitted fields."""
    assert (await chat(gateway, max_tokens=9)).status == 200
    asked = model.recorded[-1].decoded()
    assert 9 in (asked.get("max_tokens"), asked.get("max_completion_tokens"))
    nulls = dict.fromkeys(
        ("temperature", "top_p", "max_tokens", "stop", "n", "user", "metadata", "stream", "tools", "response_format"),
    )
    assert (await chat(gateway, **nulls)).status == 200


async def test_unknown_fields_are_ignored(gateway: InProcessGateway) -> None:
    """H08: as OpenAI does."""
    reply = await chat(
        gateway, something_new={"deep": [1, None]}, store=True, prediction={"type": "content", "content": "x"}
    )
    assert reply.status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", 1.5),
        ("max_tokens", 0),
        ("max_tokens", 10**30),
        ("max_completion_tokens", -5),
        ("reasoning_effort", "enormous"),
        ("reasoning_effort", 3),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", ""),
        ("stop", ["x" * 501]),
        ("stop", [1]),
        ("n", 2),
        ("n", 0),
        ("stream", "yes"),
        ("stream_options", True),
        ("user", 5.5),
        ("metadata", {"a": "x" * 513}),
        ("seed", 2**63),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -3),
        ("logit_bias", {"5": 200}),
        ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("top_logprobs", 2),
        ("verbosity", "chatty"),
        ("modalities", ["text", "audio"]),
        ("modalities", ["text", "image"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("web_search_options", {}),
        ("moderation", {"model": "omni-moderation-latest", "policy": {"input": {"mode": "block"}}}),
        ("tool_choice", {"type": "custom", "custom": {"name": "clock"}}),
        ("metadata", {str(i): "x" for i in range(17)}),
    ],
)
async def test_a_parameter_that_cannot_be_honoured_is_refused_by_name(
    gateway: InProcessGateway, field: str, value: Any
) -> None:
    """H08, H09, H20: 400 with the parameter, never a silent default."""
    reply = await chat(gateway, **{field: value})
    assert reply.status == 400
    assert reply.error["param"].split("[")[0].split(".")[0] == field


async def test_a_text_response_format_and_empty_tools_have_no_effect(gateway: InProcessGateway) -> None:
    """H09: values without an effect are accepted everywhere, however the client writes them."""
    assert (await chat(gateway, session="n", tools=[], response_format={"type": "text"})).status == 200
    spaced = b'{"model": "main", "messages": [{"role": "user", "content": "hello"}], "tools": [\n  ]}'
    again = await call(gateway, "POST", CHAT, data=spaced, headers={"X-Session-Id": "n"})
    assert (again.status, again.headers.get("x-caller-tools")) == (200, None)


async def test_a_tool_choice_without_tools_applies_to_the_agents_own(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H09: it is validated and forwarded, not dropped."""
    assert (await chat(gateway, tool_choice="none")).status == 200
    assert model.recorded[-1].decoded()["tool_choice"] == "none"
    refused = await chat(gateway, tool_choice="sometimes")
    assert (refused.status, refused.error["param"]) == (400, "tool_choice")


@pytest.mark.parametrize("field", ["tool_choice", "function_call"])
@pytest.mark.parametrize("tools", [{}, {"tools": [TOOL]}, {"functions": [TOOL["function"]]}])
async def test_either_name_of_the_tool_choice_applies_to_either_kind_of_tools(
    gateway: InProcessGateway, model: ScriptedModel, tools: dict[str, Any], field: str
) -> None:
    """H09: a choice is never dropped because the request uses the other name for its tools."""
    assert (await chat(gateway, **tools, **{field: "none"})).status == 200
    assert model.recorded[-1].decoded()["tool_choice"] == "none"


async def test_a_tool_choice_is_refused_by_the_name_that_the_caller_used(gateway: InProcessGateway) -> None:
    """H09, H20: `function_call` is not reported as `tool_choice`."""
    refused = await chat(gateway, functions=[TOOL["function"]], function_call={"name": "tides"})
    assert (refused.status, refused.error["param"]) == (400, "function_call")
    assert "`function_call`" in refused.error["message"] and "`functions`" in refused.error["message"]


async def test_tools_and_functions_together_are_refused(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H09: neither set is dropped silently."""
    other = {"name": "tides", "parameters": {"type": "object", "properties": {}}}
    refused = await chat(gateway, tools=[TOOL], functions=[other])
    assert (refused.status, refused.error["param"]) == (400, "functions")
    assert not model.recorded


@pytest.mark.parametrize("session", [None, "notes"])
async def test_a_required_call_without_any_tool_is_refused(
    home: Path, model: ScriptedModel, session: str | None
) -> None:
    """H09, H20: an answer without a call would break the promise that the caller asked for."""
    agent = '[agents.bare]\nmodel = "main"\nprompt = "p"\ntools = []\napprovals = "autonomous"\n'
    async with in_process_gateway(home, agent, model=model) as h:
        refused = await chat(h, model="bare", session=session, tool_choice="required")
        assert (refused.status, refused.error["param"]) == (400, "tool_choice")
        for choice in ("none", "auto"):
            assert (await chat(h, model="bare", session=session, tool_choice=choice)).status == 200
        assert (await chat(h, model="bare", session=session, tool_choice="required", tools=[TOOL])).status == 200


async def test_function_parameters_must_be_an_object(gateway: InProcessGateway) -> None:
    """H09, H20: the error names the field of the request."""
    function = {"name": "weather", "parameters": []}
    for field, value in (("functions", [function]), ("tools", [{"type": "function", "function": function}])):
        reply = await chat(gateway, **{field: value})
        assert (reply.status, reply.error["param"]) == (400, field)


async def test_a_callers_tool_call_comes_back_and_its_result_goes_in(home: Path, model: ScriptedModel) -> None:
    """H09, H10: OpenAI's tool loop, run by the caller, streamed and not, in the old form and the new."""
    async with in_process_gateway(home, OPEN_AGENT, model=model) as h:
        wish = "go [tool weather {}]"
        whole = await chat(h, wish, model="open", tools=[TOOL])
        choice = whole.json["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        [call] = choice["message"]["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "weather")
        streamed = await chat(h, wish, model="open", tools=[TOOL], stream=True)
        deltas = [chunk["choices"][0] for chunk in streamed.chunks]
        [calls] = [delta["delta"]["tool_calls"] for delta in deltas if "tool_calls" in delta["delta"]]
        assert calls[0]["index"] == 0 and calls[0]["function"]["name"] == "weather"
        assert deltas[-1]["finish_reason"] == "tool_calls"
        history = [
            {"role": "user", "content": wish},
            choice["message"],
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
        ]
        assert (await chat(h, model="open", tools=[TOOL], messages=history)).status == 200
        told = model.recorded[-1].decoded()["messages"]
        assert told[-1]["role"] == "tool" and told[-1]["content"] == "sunny"
        old = await chat(h, wish, model="open", functions=[TOOL["function"]], function_call="auto")
        choice = old.json["choices"][0]
        assert choice["finish_reason"] == "function_call"
        assert choice["message"]["function_call"]["name"] == "weather"
        history = [
            {"role": "user", "content": wish},
            {"role": "assistant", "content": None, "function_call": choice["message"]["function_call"]},
            {"role": "function", "name": "weather", "content": "rain"},
        ]
        assert (await chat(h, model="open", functions=[TOOL["function"]], messages=history)).status == 200


@pytest.mark.parametrize(
    ("field", "value", "param", "said"),
    [
        ("tools", {"a": 1}, "tools", "must be a list, not an object"),
        ("tools", [{"type": "retrieval"}], "tools[0].type", "must be 'function', not 'retrieval'"),
        (
            "tools",
            [{"type": "function", "function": {"name": "bad name!"}}],
            "tools[0].function.name",
            "must be a string that matches ^[A-Za-z0-9_-]{1,64}$",
        ),
        (
            "tools",
            [{"type": "function", "function": {"name": "weather\n"}}],
            "tools[0].function.name",
            "must be a string that matches ^[A-Za-z0-9_-]{1,64}$",
        ),
        ("tools", [TOOL, TOOL], "tools", "repeats the name 'weather'"),
        ("functions", [{"name": 5}], "functions[0].name", "must be a string, not a number"),
        ("functions", [{}], "functions[0].name", "is missing"),
        ("tool_choice", "sometimes", "tool_choice", "must be 'auto', 'none' or 'required', not 'sometimes'"),
        (
            "response_format",
            {"type": "xml"},
            "response_format.type",
            "must be 'json_object', 'json_schema' or 'text', not 'xml'",
        ),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema", "is missing"),
    ],
)
async def test_caller_tools_must_be_valid(
    home: Path, model: ScriptedModel, field: str, value: Any, param: str, said: str
) -> None:
    """H09, H20: refused with its path before a model is called."""
    async with in_process_gateway(home, OPEN_AGENT, model=model) as h:
        fields = {"tools": [TOOL], field: value} if field == "tool_choice" else {field: value}
        reply = await chat(h, model="open", **fields)
        assert reply.status == 400
        assert reply.error["param"] == param
        assert reply.error["message"] == f"`{param}` {said}."
        assert not model.recorded
