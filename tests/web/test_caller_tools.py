"""Tools that a caller runs itself, beside those of the agent."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import InProcessGateway, in_process_gateway
from tests.web.client import Reply, call, chat
from tidegate.security import Principal
from tidegate.values import Inbound, Message

pytestmark = pytest.mark.anyio

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells the weather.", "parameters": {"type": "object"}},
}
TIDES = {"type": "function", "function": {"name": "tides"}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The caller's own clock."}}
MODES = """
[agents.only]
model = "main"
tools = ["clock"]
caller_tools = "only"
[agents.ignore]
model = "main"
tools = ["clock"]
caller_tools = "ignore"
[agents.refuse]
model = "main"
tools = ["clock"]
caller_tools = "refuse"
[agents.formerly_on]
model = "main"
tools = ["clock"]
caller_tools = true
[agents.formerly_off]
model = "main"
caller_tools = false
"""


def offered(model: ScriptedModel) -> list[str]:
    return [tool["function"]["name"] for tool in model.recorded[-1].decoded().get("tools", ())]


def sent_messages(model: ScriptedModel) -> list[tuple[str, Any]]:
    """Roles and contents of the last request, without the system message."""
    messages = model.recorded[-1].decoded()["messages"]
    return [(message["role"], message.get("content")) for message in messages if message["role"] != "system"]


def calls(reply: Reply) -> list[str]:
    message = reply.json["choices"][0]["message"]
    return [each["function"]["name"] for each in message.get("tool_calls") or ()]


def call_id(reply: Reply) -> str:
    return str(reply.json["choices"][0]["message"]["tool_calls"][0]["id"])


@pytest.mark.parametrize("session", [None, "notes"])
async def test_a_callers_tools_follow_the_agents_own_and_each_runs_where_it_belongs(
    gateway: InProcessGateway, model: ScriptedModel, session: str | None
) -> None:
    """H09, C3: the agent's calls run inside the turn; the first step that calls the caller's tools ends it."""
    reply = await chat(gateway, "go [tool clock {}] [tool weather {}]", session=session, tools=[WEATHER])
    assert reply.status == 200
    assert offered(model)[-1] == "weather" and "clock" in offered(model)
    assert len(model.recorded) == 2, "the clock was read inside the turn"
    assert reply.json["choices"][0]["finish_reason"] == "tool_calls"
    assert calls(reply) == ["weather"]
    assert "x-caller-tools" not in reply.headers


@pytest.mark.parametrize("session", [None, "notes"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_step_that_calls_both_runs_the_agents_calls_and_returns_the_callers(
    gateway: InProcessGateway, model: ScriptedModel, session: str | None, stream: bool
) -> None:
    """H09, H10: only the caller's calls are returned: live, from the store and under an idempotency key."""
    headers = {"Idempotency-Key": "one"}
    wish = "go [together clock {} weather {}]"
    first = await chat(gateway, wish, session=session, tools=[WEATHER], stream=stream, headers=headers)
    again = await chat(gateway, wish, session=session, tools=[WEATHER], stream=stream, headers=headers)
    assert len(model.recorded) == 1
    for reply in (first, again):
        if stream:
            deltas = [chunk["choices"][0] for chunk in reply.chunks]
            names = [each["function"]["name"] for delta in deltas for each in delta["delta"].get("tool_calls", ())]
            assert names == ["weather"]
            assert deltas[-1]["finish_reason"] == "tool_calls"
        else:
            assert calls(reply) == ["weather"]
    if session is not None:
        turn = await call(gateway, "GET", f"/api/turns/{first.headers['x-turn-id']}")
        assert [each["name"] for each in turn.json["calls"]] == ["weather"]


async def test_tool_results_continue_a_named_session(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H05, H09: the gateway has the history, even between a call and its result; the request only grows at its end."""
    first = await chat(gateway, "go [together clock {} weather {}]", session="notes", tools=[WEATHER])
    before = model.recorded[-1].decoded()
    result = {"role": "tool", "tool_call_id": call_id(first), "content": "sunny"}
    history = [{"role": "user", "content": "go"}, first.json["choices"][0]["message"], result]
    second = await chat(gateway, messages=history, session="notes", tools=[WEATHER])
    assert (second.status, second.json["choices"][0]["finish_reason"]) == (200, "stop")
    assert [role for role, _ in sent_messages(model)] == ["user", "assistant", "tool", "tool"]
    assert sent_messages(model)[-1][1] == "sunny"
    after = model.recorded[-1].decoded()
    assert (after["tools"], after["messages"][: len(before["messages"])]) == (before["tools"], before["messages"])
    late = await chat(gateway, messages=history, session="notes", tools=[WEATHER])
    assert late.status == 400
    assert late.error["code"] == "unknown_tool_call"


async def test_results_of_legacy_functions_continue_a_named_session(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H05, H09: their results name the function, not the call."""
    functions = [WEATHER["function"]]
    first = await chat(gateway, "go [tool weather {}]", session="notes", functions=functions)
    said = first.json["choices"][0]["message"]
    assert said["function_call"]["name"] == "weather"
    result = {"role": "function", "name": "weather", "content": "sunny"}
    for wrong, param in (({"name": "tides"}, "messages"), ({"name": None}, "messages[1].name")):
        refused = await chat(gateway, messages=[said, {**result, **wrong}], session="notes", functions=functions)
        assert (refused.status, refused.error["param"]) == (400, param)
    second = await chat(gateway, messages=[said, result], session="notes", functions=functions)
    assert second.status == 200
    assert sent_messages(model)[-1] == ("tool", "sunny")
    assert "x-caller-tools" not in second.headers


@pytest.mark.parametrize("session", [None, "notes"])
async def test_legacy_functions_ask_for_one_call_at_a_time_and_lose_none(
    gateway: InProcessGateway, model: ScriptedModel, session: str | None
) -> None:
    """H09: `function_call` holds one call. A model that makes several nevertheless is answered with all of them."""
    functions = [WEATHER["function"], TIDES["function"]]
    wish = 'go [together weather {"place": "Kiel"} tides {}]'
    reply = await chat(gateway, wish, session=session, functions=functions)
    assert model.recorded[-1].decoded()["parallel_tool_calls"] is False
    message = reply.json["choices"][0]["message"]
    assert message["function_call"]["name"] == "weather"
    assert calls(reply) == ["weather", "tides"]
    assert reply.json["choices"][0]["finish_reason"] == "function_call"

    streamed = await chat(gateway, wish, functions=functions, stream=True)
    [delta] = [each for chunk in streamed.chunks for each in [chunk["choices"][0]["delta"]] if "function_call" in each]
    assert delta["function_call"]["name"] == "weather"
    assert [call["function"]["name"] for call in delta["tool_calls"]] == ["weather", "tides"]

    result = {"role": "function", "name": "weather", "content": "sunny"}
    history = [{"role": "user", "content": wish}, message, result]
    second = await chat(gateway, messages=history, session=session, functions=functions)
    assert second.status == 200, second.body
    assert ("tool", "sunny") in sent_messages(model)

    await chat(gateway, "go [tool weather {}]", functions=functions, parallel_tool_calls=True)
    assert model.recorded[-1].decoded()["parallel_tool_calls"] is True


async def test_tool_results_are_accepted_after_a_restart(home: Path, model: ScriptedModel) -> None:
    """F4, H09: the open call is in the store."""
    async with in_process_gateway(home, model=model) as h:
        first = await chat(h, "go [tool weather {}]", session="notes", tools=[WEATHER])
    async with in_process_gateway(home, model=model) as h:
        result = {"role": "tool", "tool_call_id": call_id(first), "content": "rain"}
        second = await chat(h, messages=[result], session="notes", tools=[WEATHER])
        assert second.status == 200
        assert sent_messages(model)[-1] == ("tool", "rain")


@pytest.mark.parametrize("tools", [[WEATHER], []])
async def test_an_unanswered_call_gets_a_result_that_says_so(
    gateway: InProcessGateway, model: ScriptedModel, tools: list[Any]
) -> None:
    """H09: no provider sees a call without a result, whatever follows."""
    await chat(gateway, "go [tool weather {}]", session="notes", tools=[WEATHER])
    second = await chat(gateway, "never mind", session="notes", tools=tools)
    assert second.status == 200
    assert [role for role, _ in sent_messages(model)] == ["user", "assistant", "tool", "user"]
    assert "No result" in sent_messages(model)[2][1]


async def test_undoing_the_turn_after_an_open_call_leaves_a_legal_conversation(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H09, A5: after /undo, an open call is last again, and the caller may no longer have that tool."""
    await chat(gateway, "go [tool weather {}]", session="notes", tools=[WEATHER])
    await chat(gateway, "never mind", session="notes")
    [session] = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    sent = {"session": session["id"], "text": "/undo"}
    assert (await call(gateway, "POST", "/api/messages", json=sent)).status == 200
    assert (await chat(gateway, "again", session="notes")).status == 200
    assert [role for role, _ in sent_messages(model)] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize("answer", [False, True], ids=["left open", "answered"])
@pytest.mark.parametrize("commands", [["/retry"], ["/undo", "/retry"], ["/undo", "/undo"]], ids=" ".join)
async def test_no_undo_or_retry_leaves_a_result_without_its_call_or_a_call_with_two_results(
    gateway: InProcessGateway, model: ScriptedModel, commands: list[str], answer: bool
) -> None:
    """H09, A5: results belong to a turn and are undone or resent with it."""
    first = await chat(gateway, "go [tool weather {}]", session="notes", tools=[WEATHER])
    result = {"role": "tool", "tool_call_id": call_id(first), "content": "sunny"}
    await chat(gateway, messages=[*([result] if answer else ()), {"role": "user", "content": "so?"}], session="notes")
    [session] = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    for text in commands:
        done = await call(gateway, "POST", "/api/messages", json={"session": session["id"], "text": text})
        assert done.status == 200
        if turn := done.json["reply"]["turn"]:
            outcome = await gateway.service.wait(turn)
            assert outcome.state == "answered"
    assert (await chat(gateway, "again", session="notes")).status == 200
    shown = model.recorded[-1].decoded()["messages"]
    asked = [each["id"] for message in shown for each in message.get("tool_calls") or ()]
    assert [message["tool_call_id"] for message in shown if message["role"] == "tool"] == asked
    assert len(asked) == (0 if commands == ["/undo", "/undo"] else 1)


async def test_a_resumed_conversation_has_no_open_call(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H09: a new conversation that begins with an ended one's transcript is valid too."""
    await chat(gateway, "go [tool weather {}]", session="notes", tools=[WEATHER])
    [old] = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    await call(gateway, "POST", f"/api/sessions/{old['id']}/end")
    anyone = Principal(id="", name="owner", role="owner")
    owner = Principal(id=(await gateway.service.row(old["id"], anyone)).principal, name="owner", role="owner")
    new, is_new = await gateway.service.operations.resume(old["id"], owner)
    assert is_new
    inbound = Inbound(
        principal=owner.id,
        channel="http",
        agent="main",
        session=new,
        messages=(Message(role="user", text="go on"),),
    )
    outcome = await gateway.service.wait((await gateway.service.accept(inbound)).turn)
    assert outcome.state == "answered"
    assert [role for role, _ in sent_messages(model)] == ["user", "assistant", "tool", "user"]


async def test_a_different_set_of_tools_rebuilds_the_prefix_and_is_reported(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H09, A4: a header and a notice report that the provider's cache was lost."""
    first = await chat(gateway, session="notes", tools=[WEATHER])
    same = await chat(gateway, session="notes", tools=[WEATHER])
    assert "x-caller-tools" not in first.headers and "x-caller-tools" not in same.headers
    assert "notices" not in same.json
    other = await chat(gateway, session="notes", tools=[WEATHER, TIDES])
    assert other.headers["x-caller-tools"] == "changed"
    assert "prefix was rebuilt" in other.json["notices"][0]
    assert offered(model)[-2:] == ["weather", "tides"]
    none = await chat(gateway, session="notes")
    assert none.headers["x-caller-tools"] == "changed"
    assert "weather" not in offered(model)


async def test_the_same_tools_in_another_order_leave_the_prefix_unchanged(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H09, A4: clients that collect their tools in a set send them in any order."""
    await chat(gateway, session="notes", tools=[WEATHER, TIDES])
    again = await chat(gateway, "go [tool tides {}]", session="notes", tools=[TIDES, WEATHER])
    assert "x-caller-tools" not in again.headers and "notices" not in again.json
    assert offered(model)[-2:] == ["weather", "tides"]
    assert [call["function"]["name"] for call in again.json["choices"][0]["message"]["tool_calls"]] == ["tides"]


async def test_a_retried_turn_uses_the_tools_of_its_conversation(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H09, A4: the earlier set is replaced; a later request with that set has its tools again."""
    await chat(gateway, "one", session="notes", tools=[WEATHER])
    await chat(gateway, "two", session="notes", tools=[TIDES])
    [session] = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    for text in ("/undo", "/retry"):
        done = await call(gateway, "POST", "/api/messages", json={"session": session["id"], "text": text})
    await gateway.service.wait(done.json["reply"]["turn"])
    assert offered(model)[-1] == "tides"
    again = await chat(gateway, "three", session="notes", tools=[WEATHER])
    assert again.headers["x-caller-tools"] == "changed"
    assert offered(model)[-1] == "weather"


async def test_a_message_that_was_steered_too_late_keeps_the_callers_tools(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H09, A4: the turn it becomes has no request of its own, so the frozen set stays."""

    async def send() -> None:
        await chat(gateway, "go [hold gate]", session="notes", tools=[WEATHER])

    async with anyio.create_task_group() as group:
        group.start_soon(send)
        await model.held("gate")
        steered = await chat(gateway, "also", session="notes", tools=[WEATHER], headers={"X-Busy": "steer"})
        assert steered.status == 202
        model.release("gate")
    last = await chat(gateway, "then", session="notes", tools=[WEATHER])
    assert [role for role, _ in sent_messages(model)] == ["user", "assistant", "user", "assistant", "user"]
    assert "x-caller-tools" not in last.headers and "notices" not in last.json
    assert [record.decoded()["tools"][-1]["function"]["name"] for record in model.recorded] == ["weather"] * 3


async def test_a_queued_turn_uses_its_own_tools_when_it_starts(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H09: the running turn keeps its tools."""
    replies: dict[str, Reply] = {}

    async def send(name: str, text: str, tools: list[Any]) -> None:
        replies[name] = await chat(gateway, text, session="notes", tools=tools)

    async with anyio.create_task_group() as group:
        group.start_soon(send, "first", "go [hold gate]", [WEATHER])
        await model.held("gate")
        group.start_soon(send, "second", "then [tool tides {}]", [TIDES])
        while (await call(gateway, "GET", "/api/sessions")).json["sessions"][0]["waiting"] != 1:
            await anyio.lowlevel.checkpoint()
        model.release("gate")
    assert replies["first"].status == 200
    assert calls(replies["second"]) == ["tides"]
    assert offered(model)[-1] == "tides"


async def test_the_tools_header_of_a_queued_turn_compares_with_the_turn_before_it(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H09, A4: header and notice agree, however many turns are queued."""
    replies: dict[int, Reply] = {}

    async def send(number: int, tools: list[Any]) -> None:
        text = "then" if number else "go [hold gate]"
        replies[number] = await chat(gateway, text, session="notes", tools=tools)

    async with anyio.create_task_group() as group:
        group.start_soon(send, 0, [WEATHER])
        await model.held("gate")
        for number, tools in enumerate(([TIDES], [TIDES], [WEATHER], []), start=1):
            group.start_soon(send, number, tools)
            while (await call(gateway, "GET", "/api/sessions")).json["sessions"][0]["waiting"] != number:
                await anyio.lowlevel.checkpoint()
        model.release("gate")
    found = [replies[number] for number in range(5)]
    assert [reply.headers.get("x-caller-tools") for reply in found] == [None, "changed", None, "changed", "changed"]
    assert ["notices" in reply.json for reply in found] == [False, True, False, True, True]


async def test_on_a_name_clash_the_agents_tool_wins_and_a_header_says_so(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H09, C3: a caller cannot answer for a tool of the agent."""
    reply = await chat(gateway, "go [tool clock {}]", tools=[CLOCK, WEATHER])
    assert reply.headers["x-caller-tools"] == "shadowed=clock"
    assert (offered(model).count("clock"), calls(reply)) == (1, [])
    about = [tool["function"]["description"] for tool in model.recorded[-1].decoded()["tools"]]
    assert "The caller's own clock." not in about


async def test_each_mode_of_caller_tools_works_as_documented(home: Path, model: ScriptedModel) -> None:
    """H09: `only` hides the agent's tools, `ignore` says so in a header, `refuse` gets 400; older configurations still
    work."""
    async with in_process_gateway(home, MODES, model=model) as h:
        only = await chat(h, "go [tool clock {}]", model="only", tools=[CLOCK])
        assert (calls(only), offered(model)) == (["clock"], ["clock"])
        assert "x-caller-tools" not in only.headers
        ignored = await chat(h, "go [tool clock {}]", model="ignore", tools=[WEATHER], tool_choice="required")
        assert (ignored.headers["x-caller-tools"], offered(model)) == ("ignored", ["clock"])
        assert "tool_choice" not in model.recorded[-1].decoded()
        for name in ("refuse", "formerly_off"):
            refused = await chat(h, model=name, tools=[WEATHER])
            assert (refused.status, refused.error["param"]) == (400, "tools")
            assert "caller_tools" in refused.error["message"]
        assert calls(await chat(h, "go [tool weather {}]", model="formerly_on", tools=[WEATHER])) == ["weather"]
        assert offered(model) == ["weather"], "true means only"


async def test_a_prompt_does_not_mention_tools_that_the_caller_replaced(home: Path, model: ScriptedModel) -> None:
    """H09: neither at the beginning of the conversation nor after /reload."""
    delegating = """
[agents.boss]
model = "main"
tools = ["delegate"]
delegates = ["main"]
caller_tools = "only"
"""
    prompts: list[str] = []

    async def ask(h: InProcessGateway, **fields: Any) -> None:
        assert (await chat(h, model="boss", **fields)).status == 200
        prompts.append(model.recorded[-1].decoded()["messages"][0]["content"])

    async with in_process_gateway(home, delegating, model=model) as h:
        await ask(h, session="notes", tools=[WEATHER])
        [session] = (await call(h, "GET", "/api/sessions")).json["sessions"]
        reloaded = await call(h, "POST", f"/api/sessions/{session['id']}/reload")
        assert (reloaded.status, reloaded.json["changed"]) == (200, False)
        await ask(h, session="notes", tools=[WEATHER])
        await ask(h)
    replaced, after_reload, own = prompts
    assert replaced == after_reload
    assert replaced in own and replaced != own


async def test_a_forced_tool_choice_applies_to_the_first_step(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H09: a model that must call a tool in every step would never answer."""
    await chat(gateway, "go [tool clock {}]", tools=[WEATHER], tool_choice="required")
    first, second = (recorded.decoded() for recorded in model.recorded)
    assert (first["tool_choice"], second.get("tool_choice")) == ("required", None)


@pytest.mark.parametrize("session", [None, "notes"])
async def test_a_choice_must_name_a_tool_that_is_offered(
    gateway: InProcessGateway, model: ScriptedModel, session: str | None
) -> None:
    """H09, H20: it is the caller's error, not the provider's."""

    def named(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name}}

    for name in ("weather", "clock"):
        assert (await chat(gateway, session=session, tools=[WEATHER], tool_choice=named(name))).status == 200
        assert model.recorded[-1].decoded()["tool_choice"] == named(name)
    refused = await chat(gateway, session=session, tools=[WEATHER], tool_choice=named("tides"))
    assert (refused.status, refused.error["param"]) == (400, "tool_choice")


@pytest.mark.parametrize("session", [None, "notes"])
async def test_the_response_format_is_forwarded_to_every_provider(
    gateway: InProcessGateway, model: ScriptedModel, session: str | None
) -> None:
    """H09: `response_format` needs no permission, and works in named sessions."""
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert (await chat(gateway, session=session, response_format=shape)).status == 200
    assert model.recorded[-1].decoded()["response_format"] == shape


async def test_the_definitions_are_stored_once_however_many_turns_bring_them(gateway: InProcessGateway) -> None:
    """H09, L20: a page sends its complete list of tools with every message."""
    large = {"type": "function", "function": {"name": "large", "description": "x" * 50_000}}
    for _ in range(3):
        assert (await chat(gateway, session="notes", tools=[large])).status == 200
    stored = await gateway.store.read(lambda db: db.execute("SELECT max(length(call)) FROM turns").get)
    assert stored < 1000


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_that_fails_after_calls_in_its_history_is_reported_as_failed(
    gateway: InProcessGateway, stream: bool
) -> None:
    """H22: calls in the history that the caller sends are not calls of this turn."""
    asked = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": "", "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "[status 400]"},
    ]
    reply = await chat(gateway, messages=history, tools=[WEATHER], stream=stream)
    assert reply.status == 502
    assert "refused" in reply.error["message"]
