"""The scripted server's Responses format: as strict as the provider, valid by its types, without storage."""

import base64
from typing import Any

import aiohttp
import anyio
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from bench.http_client import events
from bench.scripted_model import ScriptedModel
from tests.models.official import strictly

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "well"}
CLOCK = {"type": "function", "name": "clock", "parameters": {}, "strict": False}
PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
SEALED = ["reasoning.encrypted_content"]
LOW = {"effort": "low"}
WHOLE: TypeAdapter[Any] = TypeAdapter(Response)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def asking(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": list(items), "store": False, **more}


def call(identity: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": identity, "name": "clock", "arguments": "{}", **more}


def output(identity: str, content: Any = "noon", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": identity, "output": content, **more}


def message_item(*parts: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(parts), **more}


def text(words: str, kind: str = "input_text", **more: Any) -> dict[str, Any]:
    return {"type": kind, "text": words, **more}


def picture(url: Any = PNG, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, **more}


async def post(server: ScriptedModel, body: Any) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + "/responses", json=body) as response,
    ):
        assert response.headers["x-request-id"]
        return response.status, await response.json()


async def streamed(server: ScriptedModel, body: Any) -> bytes:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + "/responses", json={**body, "stream": True}) as response,
    ):
        assert response.status == 200, await response.text()
        return await response.read()


def official(server: ScriptedModel, key: str = "k") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.base_url, api_key=key, max_retries=0)


# -- refusals ----------------------------------------------------------------------------------------------------------


SCHEMA = {"type": "json_schema", "name": "x", "schema": {}}
STRICT = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}
REFUSED: list[tuple[str, str | None, dict[str, Any]]] = [
    ("missing required field `model`", "invalid_value", {"input": "x"}),
    ("missing required field `input`", "invalid_value", {"model": "m"}),
    ("Unknown parameter: 'unheard_of'", "unknown_parameter", asking(USER, unheard_of=1)),
    ("Unknown parameter: 'input[0].extra'", "unknown_parameter", asking({**USER, "extra": 1})),
    ("Unknown parameter: 'messages'", "unknown_parameter", asking(USER, messages=[])),
    ("previous_response_id", "invalid_value", asking(USER, previous_response_id=7)),
    ("'resp_1' not found", "previous_response_not_found", asking(USER, previous_response_id="resp_1")),
    ("Background mode", "unsupported_parameter", asking(USER, background=True)),
    ("'input' must not be empty", "missing_required_parameter", asking()),
    # items
    ("input[0].type", "invalid_value", asking({"type": "web_search_call", "id": "ws_1"})),
    ("input[0].role", "invalid_value", asking({"role": "tool", "content": "x"})),
    ("'input[0].role'", "missing_required_parameter", asking({"content": "x"})),
    ("'input[0].content'", "missing_required_parameter", asking({"role": "user"})),
    ("'input[0].call_id'", "unknown_parameter", asking({**USER, "call_id": "a"})),
    ("'input[1].output'", "unknown_parameter", asking(USER, call("a", output="x"), output("a"))),
    ("'input[1].arguments'", "missing_required_parameter", asking(USER, {**call("a"), "arguments": None}, output("a"))),
    ("a user message needs content", "invalid_value", asking({"role": "user", "content": []})),
    ("a developer message must not be empty", "invalid_value", asking(USER, {"role": "developer", "content": " "})),
    ("a system message must not be empty", "invalid_value", asking(USER, {"role": "system", "content": ""})),
    ("such a part is not of user", "invalid_value", asking(message_item(text("x", "output_text")))),
    ("such a part is not of assistant", "invalid_value", asking(USER, message_item(text("x"), role="assistant"))),
    ("input[0].content[0].type", "invalid_value", asking(message_item({"type": "text", "text": "x"}))),
    ("begins with 'msg'", "invalid_value", asking(USER, {**SAID, "id": "chatcmpl-1"}, USER)),
    ("begins with 'fc'", "invalid_value", asking(USER, call("a", id="call_1"), output("a"))),
    ("begins with 'fc'", "invalid_value", asking(USER, call("a", id="fc_" + "1" * 64), output("a"))),
    ("'input[1].call_id': wrong length", "invalid_value", asking(USER, call(""), output(""))),
    ("'input[1].call_id': wrong length", "invalid_value", asking(USER, call("a" * 65), output("a" * 65))),
    ("Invalid 'input[1].name'", "invalid_value", asking(USER, call("a", name="a b"), output("a"))),
    # calls and outputs
    ("No tool output found for function call a.", None, asking(USER, call("a"))),
    ("No tool output found for function call b.", None, asking(USER, call("a"), call("b"), output("a"), USER)),
    ("No tool call found for function call output with call_id a.", None, asking(USER, output("a"))),
    ("No tool call found", None, asking(USER, output("a"), call("a"))),
    ("Duplicate function call with call_id a", None, asking(USER, call("a"), call("a"), output("a"))),
    ("Duplicate function call output", None, asking(USER, call("a"), output("a"), output("a"))),
    # reasoning
    (
        "The encrypted content rs_1 could not be verified",
        "invalid_encrypted_content",
        asking(USER, {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}, SAID, USER),
    ),
    ("'input[1].summary'", "missing_required_parameter", asking(USER, {"type": "reasoning", "id": "rs_1"}, SAID, USER)),
    # pictures
    ("a base64 data URL", None, asking(message_item(picture("https://example.org/x.png")))),
    ("it is not what it says", None, asking(message_item(picture(PNG.replace("png", "gif"))))),
    ("its base64 is broken", None, asking(message_item(picture("data:image/png;base64,!")))),
    ("content[0].image_url", "missing_required_parameter", asking(message_item(picture(None)))),
    (
        "only a user message may contain images",
        "invalid_value",
        asking(USER, message_item(picture(), role="developer")),
    ),
    ("a base64 data URL", None, asking(USER, call("a"), output("a", [picture("x")]))),
    # tools
    ("Tool names must be unique", None, asking(USER, tools=[CLOCK, CLOCK])),
    ("Invalid 'tools[0].name'", "invalid_value", asking(USER, tools=[{**CLOCK, "name": "a b"}])),
    (
        "unknown field `function`",
        "invalid_value",
        asking(USER, tools=[{"type": "function", "function": {"name": "x"}}]),
    ),
    (
        "Invalid schema for function 'clock'",
        "invalid_function_parameters",
        asking(USER, tools=[{**CLOCK, "strict": True}]),
    ),
    (
        "Invalid schema",
        "invalid_function_parameters",
        asking(USER, tools=[{**CLOCK, "strict": True, "parameters": {**STRICT, "required": []}}]),
    ),
    ("only allowed when 'tools'", None, asking(USER, tool_choice="auto")),
    ("tool_choice", "invalid_value", asking(USER, tools=[CLOCK], tool_choice="any")),
    ("is not among the 'tools'", None, asking(USER, tools=[CLOCK], tool_choice={"type": "function", "name": "x"})),
    # parameters
    ("Expected a value >= 16, but got 15", "integer_below_min_value", asking(USER, max_output_tokens=15)),
    ("include[0]", "invalid_value", asking(USER, include=["reasoning.content"])),
    ("reasoning.effort", "invalid_value", asking(USER, reasoning={"effort": "huge"})),
    ("reasoning.summary", "invalid_value", asking(USER, reasoning={"summary": "long"})),
    ("'reasoning.budget'", "unknown_parameter", asking(USER, reasoning={"budget": 1})),
    ("text.format", "invalid_value", asking(USER, text={"format": {"type": "yaml"}})),
    (
        "missing required field `name`",
        "invalid_value",
        asking(USER, text={"format": {"type": "json_schema", "schema": {}}}),
    ),
    ("Invalid 'text.format.name'", "invalid_value", asking(USER, text={"format": {**SCHEMA, "name": "a b"}})),
    ("the word 'json'", None, asking(USER, text={"format": {"type": "json_object"}})),
    ("'response_format'", "unknown_parameter", asking(USER, response_format={})),
    ("'temperature' must be", "decimal_out_of_range", asking(USER, temperature=3)),
    ("'top_p' must be", "decimal_out_of_range", asking(USER, top_p=2)),
    ("'temperature' is not supported", "unsupported_parameter", asking(USER, temperature=1, reasoning=LOW)),
    ("'top_p' is not supported", "unsupported_parameter", asking(USER, top_p=1, reasoning=LOW)),
    ("'stream_options' is only allowed", None, asking(USER, stream_options={})),
    (
        "'stream_options.include_usage'",
        "unknown_parameter",
        asking(USER, stream=True, stream_options={"include_usage": True}),
    ),
    ("'prompt_cache_key': string too long", "string_above_max_length", asking(USER, prompt_cache_key="k" * 65)),
    ("'safety_identifier': string too long", "string_above_max_length", asking(USER, safety_identifier="k" * 65)),
]


@pytest.mark.parametrize(("sentence", "code", "body"), REFUSED)
async def test_what_the_provider_refuses_is_refused(
    server: ScriptedModel, sentence: str, code: str | None, body: Any
) -> None:
    status, answer = await post(server, body)
    error = answer["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert sentence in error["message"] or sentence == error["param"]
    assert code is None or error["code"] == code
    assert server.stats()["refused"] == 1


@pytest.mark.parametrize(
    ("sentence", "body"),
    [
        ("'rs_1' not found", asking(USER, {"type": "reasoning", "id": "rs_1", "summary": []}, SAID, USER)),
        ("'msg_1' not found", asking({"type": "item_reference", "id": "msg_1"})),
        ("no such conversation", asking(USER, conversation="conv_1")),
    ],
)
async def test_references_to_stored_responses_are_refused(server: ScriptedModel, sentence: str, body: Any) -> None:
    status, answer = await post(server, body)
    assert status == 404 and sentence in answer["error"]["message"]


async def test_a_body_that_is_not_json_is_refused(server: ScriptedModel) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + "/responses", data=b"{") as response,
    ):
        assert response.status == 400


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "input": "x"},
        asking(USER, call("a"), call("b"), output("b"), output("a"), SAID, USER, instructions="be kind", tools=[CLOCK]),
        asking(USER, call("a", id="fc_1", status="completed"), USER, output("a", [text("x"), picture(detail="auto")])),
        asking(
            message_item(text("x"), picture(detail="high")),
            message_item(text("y", "output_text", annotations=[]), role="assistant"),
            USER,
        ),
        asking(
            USER,
            message_item({"type": "refusal", "refusal": "no"}, role="assistant", id="msg_1", status="completed"),
            USER,
        ),
        asking({"role": "developer", "content": "be kind"}, USER, reasoning={"effort": "none"}, include=[], top_p=1),
        asking(USER, text={"format": SCHEMA, "verbosity": "low"}, max_output_tokens=16, metadata={"a": "b"}, user="u"),
        asking({"role": "user", "content": "say JSON"}, text={"format": {"type": "json_object"}}),
        asking(
            USER,
            tools=[{**CLOCK, "strict": True, "parameters": STRICT}],
            tool_choice={"type": "function", "name": "clock"},
        ),
        asking(USER, tools=[{"type": "function", "name": "clock", "parameters": None}], parallel_tool_calls=False),
    ],
)
async def test_what_the_provider_accepts_is_accepted(server: ScriptedModel, body: Any) -> None:
    status, answer = await post(server, body)
    assert status == 200, answer
    strictly(WHOLE, answer)


# -- reasoning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["hi", "[tool clock {}]", "[saying now] [together clock {} clock {}]"])
async def test_reasoning_is_accepted_back_only_unchanged(server: ScriptedModel, script: str) -> None:
    """S32: sealed by the same model; changed, foreign or displaced reasoning is refused."""
    first = {"role": "user", "content": script}
    _, answer = await post(server, asking(first, reasoning=LOW, include=SEALED, tools=[CLOCK]))
    strictly(WHOLE, answer)
    thought, *led_to = answer["output"]
    assert thought["type"] == "reasoning" and thought["encrypted_content"] and thought["summary"] == []
    calls = [output(item["call_id"]) for item in led_to if item["type"] == "function_call"]
    then = [*calls, *([] if calls else [USER])]

    async def refused(*items: Any, **more: Any) -> str:
        status, refusal = await post(server, asking(first, *items, **more))
        assert status == 400
        return f"{refusal['error']['code']}: {refusal['error']['message']}"

    assert (await post(server, asking(first, thought, *led_to, *then)))[0] == 200
    unnamed = [{name: value for name, value in item.items() if name != "id"} for item in (thought, *led_to)]
    assert (await post(server, asking(first, *unnamed, *then)))[0] == 200
    assert (await post(server, asking(first, *unnamed[1:], *then)))[0] == 200
    changed = {**thought, "encrypted_content": thought["encrypted_content"][:-2] + "AA"}
    assert "invalid_encrypted_content" in await refused(changed, *led_to, *then)
    assert "invalid_encrypted_content" in await refused({**thought, "id": "rs_other"}, *led_to, *then)
    assert "invalid_encrypted_content" in await refused(thought, *led_to, *then, model="another")
    assert "without its required following item" in await refused(thought)
    assert "without its required following item" in await refused(thought, USER)
    assert f"without its required 'reasoning' item: '{thought['id']}'" in await refused(*led_to, *then)
    assert "without its required 'reasoning' item" in await refused(thought, SAID, USER, *led_to, *then)


async def test_reasoning_is_sealed_or_shown_on_request(server: ScriptedModel) -> None:
    _, answer = await post(server, asking(USER, reasoning=LOW))
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert "encrypted_content" not in answer["output"][0]
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    told = {"role": "user", "content": "[think deep water]"}
    _, answer = await post(server, asking(told, reasoning={**LOW, "summary": "auto"}))
    assert answer["output"][0]["summary"] == [{"type": "summary_text", "text": "deep water"}]
    for reasoning in (None, {"effort": "none"}):
        _, answer = await post(server, asking(told, reasoning=reasoning, include=SEALED))
        assert [item["type"] for item in answer["output"]] == ["message"]
    _, answer = await post(server, asking({"role": "user", "content": "[nothink]"}, reasoning=LOW))
    assert [item["type"] for item in answer["output"]] == ["message"]


# -- answers -----------------------------------------------------------------------------------------------------------


SCRIPTS = [
    ("hello", None),
    ('[tool clock {"zone": "ä"}]', None),
    ('[saying one moment] [together clock {} clock {"x": 1}]', None),
    ("[unknowntool]", None),
    ("[badargs]", None),
    ("[words 300]", None),
    ("[words 3000]", "max_output_tokens"),
    ("[finish length]", "max_output_tokens"),
    ("[finish content_filter]", "content_filter"),
    ('[say Grüße, 世界 🌊 and \\ "quotes"]', None),
]


@pytest.mark.parametrize("reasoning", [None, LOW, {**LOW, "summary": "auto"}])
@pytest.mark.parametrize(("script", "incomplete"), SCRIPTS)
async def test_the_official_types_and_client_accept_all_answers(
    server: ScriptedModel, script: str, incomplete: str | None, reasoning: Any
) -> None:
    """S32: streamed and not, with the same result; the events are numbered and add up to the answer."""
    user = {"role": "user", "content": script}
    body = asking(user, tools=[CLOCK], max_output_tokens=2000, reasoning=reasoning, include=SEALED)
    _, answer = await post(server, body)
    whole = strictly(WHOLE, answer)
    assert whole.status == ("incomplete" if incomplete else "completed")
    assert (answer["incomplete_details"] or {}).get("reason") == incomplete
    told = [strictly(EVENT, event) for event in events(await streamed(server, body))]
    assert [event.sequence_number for event in told] == list(range(len(told)))
    assert told[-1].type == f"response.{whole.status}"
    done = [event.item for event in told if event.type == "response.output_item.done"]
    assert done == told[-1].response.output
    pieces = "".join(event.delta for event in told if event.type == "response.output_text.delta")
    assert pieces == whole.output_text
    async with official(server) as client:
        last: Any = None
        async for event in await client.responses.create(**body, stream=True):
            last = event
    plain = script == "hello" and reasoning is None
    assert plain or last.response.output == whole.output
    assert last.response.usage.output_tokens == whole.usage.output_tokens
    assert last.response.output_text == whole.output_text
    assert server.stats()["refused"] == 0


async def test_the_official_client_accumulates_the_events(server: ScriptedModel) -> None:
    body = asking({"role": "user", "content": '[saying so] [tool clock {"a": 1}]'}, tools=[CLOCK], include=SEALED)
    async with official(server) as client:
        async with client.responses.stream(**body, reasoning={"effort": "low", "summary": "auto"}) as stream:
            final = await stream.get_final_response()
        whole = await client.responses.create(**body, reasoning={"effort": "low", "summary": "auto"})
    assert [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in final.output] == [
        item.model_dump(exclude_none=True) for item in whole.output
    ]


@pytest.mark.parametrize(
    ("script", "status", "kind"),
    [
        ("[status 400 code=context_length_exceeded]", 400, openai.BadRequestError),
        ("[status 401 code=invalid_api_key]", 401, openai.AuthenticationError),
        ("[status 403]", 403, openai.PermissionDeniedError),
        ("[status 404]", 404, openai.NotFoundError),
        ("[status 429 retry-after=7 code=rate_limit_exceeded]", 429, openai.RateLimitError),
        ("[status 500]", 500, openai.InternalServerError),
        ("[status 529]", 529, openai.InternalServerError),
    ],
)
async def test_errors_are_recognised_by_the_official_client(
    server: ScriptedModel, script: str, status: int, kind: type[openai.APIStatusError]
) -> None:
    async with official(server) as client:
        for ask in (client.responses.create(**asking({"role": "user", "content": script})), chat(client, script)):
            with pytest.raises(kind, match=r"Scripted failure\.") as raised:
                await ask
            assert (raised.value.status_code, raised.value.request_id) == (status, "req_scripted")
            assert "code=" not in script or raised.value.code is not None
            assert raised.value.response.headers.get("retry-after") == ("7" if status == 429 else None)


async def chat(client: openai.AsyncOpenAI, script: str) -> Any:
    return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": script}])


async def test_a_wrong_key_is_refused() -> None:
    async with (
        ScriptedModel(key="right") as server,
        official(server, "wrong") as wrong,
        official(server, "right") as right,
    ):
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
            await wrong.responses.create(**asking(USER))
        assert (await right.responses.create(**asking(USER))).status == "completed"


@pytest.mark.parametrize("word", ["", "nested", "failed"])
async def test_an_error_inside_a_stream_has_the_providers_shape(server: ScriptedModel, word: str) -> None:
    script = f"[words 9] [error after=3 code=rate_limit_exceeded {word}]"
    told = events(await streamed(server, asking({"role": "user", "content": script})))
    assert [event["delta"] for event in told if event["type"].endswith("text.delta")] == ["w0", " w1"]
    last = told[-1]
    assert last["sequence_number"] == len(told) - 1
    if word == "nested":
        assert (last["type"], last["error"]["code"]) == ("error", "rate_limit_exceeded")
        async with official(server) as client:
            with pytest.raises(openai.APIError, match="Scripted error"):
                async for _ in await client.responses.create(model="m", input=script, stream=True):
                    pass
        return
    found = strictly(EVENT, last)
    if word == "failed":
        assert (found.type, found.response.status) == ("response.failed", "failed")
        assert found.response.error.code == "rate_limit_exceeded"
    else:
        assert (found.type, found.code, found.message) == ("error", "rate_limit_exceeded", "Scripted error.")


async def test_all_other_faults_work_in_this_format(server: ScriptedModel) -> None:
    def asks(script: str) -> dict[str, Any]:
        return asking({"role": "user", "content": f"[words 9] {script}"})

    with anyio.fail_after(30):
        with pytest.raises(aiohttp.ClientPayloadError):
            await streamed(server, asks("[cut after=3]"))
        assert b"[oops" in await streamed(server, asks("[badjson after=3]"))
        assert b"response.completed" not in await streamed(server, asks("[nodone]"))
        assert len(await streamed(server, asks("[hugeline bytes=200000]"))) > 200_000
        assert (await streamed(server, asks("[html]"))).startswith(b"<html>")
        assert (await post(server, asks("[status 503 times=1]")))[0] == 503
        assert (await post(server, asks("[status 503 times=1]")))[0] == 200
        assert "You said: [words 9]" in (await post(server, asks("[status 400 quote]")))[1]["error"]["message"]


async def test_steps_are_counted_over_outputs_and_notes(server: ScriptedModel) -> None:
    """Consecutive calls are one step; directives come from the last message of a user, not from a note."""
    talk: list[Any] = [{"role": "user", "content": "[together clock {} clock {}] [tool clock {}] [say done]"}]
    counts: list[int] = []
    for _ in range(3):
        _, answer = await post(server, asking(*talk, tools=[CLOCK], reasoning=LOW, include=SEALED))
        calls = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
        counts.append(len(calls))
        talk += [*answer["output"], *(output(one) for one in calls)]
        if calls:
            talk.append(message_item(text("[Note from the gateway: nothing]")))
    assert counts == [2, 1, 0]
    assert talk[-1]["content"][0]["text"] == "done"
    stats = server.stats()
    assert stats["formats"]["responses"]["whole_prefix"] == 2 and stats["reuse"] == 1.0


# -- caching -----------------------------------------------------------------------------------------------------------


async def test_a_repeated_prefix_is_cached(server: ScriptedModel) -> None:
    """S32: the whole previous request, if the next one starts with it; instructions and tools come before the items."""
    first = {"role": "user", "content": "x" * 400}
    body = asking(first, instructions="be kind", tools=[CLOCK])
    _, answer = await post(server, body)
    before = answer["usage"]["input_tokens"]
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 0
    grown = {**body, "input": [first, SAID, USER]}
    _, answer = await post(server, grown)
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == before
    changes: list[dict[str, Any]] = [
        {"instructions": "be strict"},
        {"tools": [{**CLOCK, "name": "watch"}]},
        {"input": [first, USER, USER]},
        {"input": [first]},
    ]
    for more in changes:
        await post(server, grown)
        _, answer = await post(server, {**grown, **more})
        assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 0
    reasons = [one["reason"] for one in server.stats()["formats"]["responses"]["violations"]]
    assert reasons.count("tools changed") >= 2
    assert {"messages changed", "messages went missing"} <= set(reasons)
    assert server.stats()["reuse"] < 1
