"""The scripted server's Messages format: as strict as the provider, valid by its types, with its caching rules."""

import base64
from typing import Any

import aiohttp
import anthropic
import anyio
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from bench.http_client import events
from bench.scripted.reuse import CONVERSATIONS, LOOK_BACK, Breakpoints
from bench.scripted_model import ScriptedModel
from tests.models.official import strictly

pytestmark = pytest.mark.anyio

HEADERS = {"x-api-key": "k", "anthropic-version": "2026-10-21"}
OLDER = {**HEADERS, "anthropic-version": "2023-06-01"}
USER = {"role": "user", "content": "hi"}
CLOCK = {"name": "clock", "input_schema": {"type": "object"}}
MARK = {"type": "ephemeral"}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
ENABLED = {"type": "enabled", "budget_tokens": 1024}
ADAPTIVE = {"type": "adaptive"}
WHOLE: TypeAdapter[Any] = TypeAdapter(Message)
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def asking(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 2000, "messages": list(messages), **more}


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def use(identity: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "clock", "input": {}, **more}


def result(identity: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, **more}


def picture(data: str = PNG, kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


async def post(server: ScriptedModel, body: Any, headers: dict[str, str] = HEADERS) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + "/messages", json=body, headers=headers) as response,
    ):
        assert response.headers["request-id"]
        return response.status, await response.json()


async def streamed(server: ScriptedModel, body: Any) -> bytes:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + "/messages", json={**body, "stream": True}, headers=HEADERS) as response,
    ):
        assert response.status == 200, await response.text()
        return await response.read()


def official(server: ScriptedModel, key: str = "k") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.root, api_key=key, max_retries=0)


# -- refusals ----------------------------------------------------------------------------------------------------------


CALL = said(use("a"), role="assistant")
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens: Field required", {"model": "m", "messages": [USER]}),
    ("messages: Field required", {"model": "m", "max_tokens": 9}),
    ("model: Field required", {"max_tokens": 9, "messages": [USER]}),
    ("unheard_of: Extra inputs are not permitted", asking(USER, unheard_of=1)),
    ("messages.0.extra: Extra inputs are not permitted", asking({**USER, "extra": 1})),
    ("messages.0.content.0.extra: Extra inputs", asking(said(text("x", extra=1)))),
    ("messages.0.role", asking({"role": "system", "content": "x"})),
    ("messages.0.role", asking({"role": "tool", "content": "x"})),
    ("at least one message", asking()),
    ("first message must use the user role", asking({"role": "assistant", "content": "x"}, USER)),
    ("prefill", asking(USER, {"role": "assistant", "content": "x"})),
    ("messages.0: text content blocks must be non-empty", asking({"role": "user", "content": ""})),
    ("messages.0.content.0: text content blocks must be non-empty", asking(said(text("")))),
    ("must contain non-whitespace text", asking(said(text(" \n")))),
    ("messages.0: all messages must have non-empty content", asking(said())),
    ("messages.1: all messages must have non-empty content", asking(USER, said(role="assistant"), USER)),
    ("messages.1.content.0: text content blocks", asking(USER, said(text(""), role="assistant"), USER)),
    ("system.0: text content blocks must be non-empty", asking(USER, system=[text("")])),
    ("system.0.type", asking(USER, system=[picture()])),
    ("max_tokens: Input should be", asking(USER, max_tokens=0)),
    # calls and results
    ("without `tool_result` blocks immediately after: a", asking(USER, CALL, USER)),
    ("without `tool_result` blocks immediately after: a", asking(USER, CALL, said(text("x"), result("a")))),
    ("immediately after: b", asking(USER, said(use("a"), use("b"), role="assistant"), said(result("a")))),
    ("immediately after: a", asking(USER, CALL, USER, said(result("a")))),
    ("unexpected `tool_use_id` found in `tool_result` blocks: a", asking(USER, said(result("a")))),
    ("unexpected `tool_use_id`", asking(USER, CALL, said(result("a")), said(result("a")))),
    ("must have a single result", asking(USER, CALL, said(result("a"), result("a")))),
    ("ids must be unique", asking(USER, said(use("a"), use("a"), role="assistant"), said(result("a")))),
    ("ids must be unique", asking(USER, CALL, said(result("a")), CALL, said(result("a")))),
    ("tool_use.id: String should match", asking(USER, said(use("a b"), role="assistant"), said(result("a b")))),
    ("tool_use.name: String should match", asking(USER, said(use("a", name=""), role="assistant"), said(result("a")))),
    ("messages.1.content.0.input", asking(USER, said(use("a", input="{}"), role="assistant"), said(result("a")))),
    ("not permitted in user messages", asking(said(use("a")))),
    ("not permitted in assistant messages", asking(USER, said(result("a"), role="assistant"), USER)),
    ("not permitted in assistant messages", asking(USER, said(picture(), role="assistant"), USER)),
    ("all content must be type `text`", asking(USER, CALL, said(result("a", content=[picture()], is_error=True)))),
    ("tool_result.content.0: text content", asking(USER, CALL, said(result("a", content=[text("")])))),
    # tools
    ("Tool names must be unique", asking(USER, tools=[CLOCK, CLOCK])),
    ("tools.0.custom.name", asking(USER, tools=[{**CLOCK, "name": "a b"}])),
    ("tools.0.input_schema: Field required", asking(USER, tools=[{"name": "clock"}])),
    ("tools.0.input_schema.type", asking(USER, tools=[{"name": "clock", "input_schema": {"type": "string"}}])),
    ("tools.0.parameters: Extra inputs", asking(USER, tools=[{**CLOCK, "parameters": {}}])),
    ("tool_choice: may only be given together", asking(USER, tool_choice={"type": "auto"})),
    ("is not among the `tools`", asking(USER, tools=[CLOCK], tool_choice={"type": "tool", "name": "x"})),
    # pictures
    ("image.source.base64: Invalid image", asking(said(picture(kind="image/jpeg")))),
    ("its base64 is broken", asking(said(picture("not base64!")))),
    ("media_type", asking(said(picture(kind="image/bmp")))),
    ("could not be downloaded", asking(said({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}))),
    ("messages.0.content.0.source.type", asking(said({"type": "image", "source": {"type": "file", "file_id": "f"}}))),
    # marks
    ("A maximum of 4 blocks", asking(said(*(text("x", cache_control=MARK) for _ in range(5))))),
    ("A maximum of 4 blocks", asking(said(*(text("x", cache_control=MARK) for _ in range(4))), cache_control=MARK)),
    (
        "A maximum of 4 blocks",
        asking(
            said(text("x", cache_control=MARK)),
            CALL,
            said(result("a", content=[text("x", cache_control=MARK)], cache_control=MARK)),
            system=[text("s", cache_control=MARK)],
            tools=[{**CLOCK, "cache_control": MARK}],
        ),
    ),
    ("cache_control.ttl", asking(said(text("x", cache_control={**MARK, "ttl": "1d"})))),
    ("cache_control.type", asking(said(text("x", cache_control={"type": "persistent"})))),
    (
        "must not come after",
        asking(said(text("x", cache_control={**MARK, "ttl": "1h"})), system=[text("s", cache_control=MARK)]),
    ),
    # thinking
    ("greater than or equal to 1024", asking(USER, thinking={**ENABLED, "budget_tokens": 1000})),
    ("must be greater than `thinking.budget_tokens`", asking(USER, thinking={**ENABLED, "budget_tokens": 2000})),
    ("thinking.budget_tokens: Field required", asking(USER, thinking={"type": "enabled"})),
    ("thinking.budget_tokens: Extra inputs", asking(USER, thinking={**ADAPTIVE, "budget_tokens": 1024})),
    ("thinking.type", asking(USER, thinking={"type": "much"})),
    ("forces tool use", asking(USER, thinking=ADAPTIVE, tools=[CLOCK], tool_choice={"type": "any"})),
    ("forces tool use", asking(USER, thinking=ADAPTIVE, tools=[CLOCK], tool_choice={"type": "tool", "name": "clock"})),
    (
        "Expected `thinking` or `redacted_thinking`, but found `tool_use`",
        asking(USER, CALL, said(result("a")), thinking=ENABLED),
    ),
    (
        "Expected `thinking` or `redacted_thinking`, but found `text`",
        asking(USER, said(text("x"), use("a"), role="assistant"), said(result("a")), USER, thinking=ENABLED),
    ),
    ("not permitted in user messages", asking(said({"type": "thinking", "thinking": "x", "signature": "y"}))),
    # the rest
    ("output_config.effort", asking(USER, output_config={"effort": "great"})),
    ("output_config.format.type", asking(USER, output_config={"format": {"type": "json_object", "schema": {}}})),
    ("output_config.format.schema: Field required", asking(USER, output_config={"format": {"type": "json_schema"}})),
    ("output_config.words: Extra inputs", asking(USER, output_config={"words": 1})),
    ("stop_sequences: each", asking(USER, stop_sequences=[" "])),
    ("metadata.user_id: String", asking(USER, metadata={"user_id": "u" * 257})),
    ("metadata.conversation: Extra inputs", asking(USER, metadata={"conversation": "c"})),
    ("temperature: Extra inputs are not permitted", asking(USER, temperature=1)),
    ("top_p: Extra inputs are not permitted", asking(USER, top_p=1)),
    ("top_k: Extra inputs are not permitted", asking(USER, top_k=1)),
    ("`citations` are not permitted", asking(said(text("x", citations=[{}])))),
]


@pytest.mark.parametrize(("sentence", "body"), REFUSED)
async def test_what_the_provider_refuses_is_refused(server: ScriptedModel, sentence: str, body: Any) -> None:
    status, answer = await post(server, body)
    assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
    assert sentence in answer["error"]["message"]
    assert server.stats()["refused"] == 1


@pytest.mark.parametrize(
    ("sentence", "body"),
    [
        ("temperature: range", asking(USER, temperature=1.5)),
        ("top_p: range", asking(USER, top_p=1.5)),
        ("cannot both be specified", asking(USER, temperature=0.5, top_p=0.9)),
        ("`temperature` may only be set to 1", asking(USER, temperature=0.5, thinking=ADAPTIVE)),
        ("`top_k` must be unset", asking(USER, top_k=5, thinking=ENABLED)),
        ("`top_p` must be at least 0.95", asking(USER, top_p=0.5, thinking=ENABLED)),
    ],
)
async def test_the_older_version_accepts_some_sampling_parameters(
    server: ScriptedModel, sentence: str, body: Any
) -> None:
    status, answer = await post(server, body, OLDER)
    assert status == 400 and sentence in answer["error"]["message"]


@pytest.mark.parametrize(
    ("status", "sentence", "headers"),
    [
        (401, "x-api-key header is required", {"anthropic-version": "2026-10-21"}),
        (400, "anthropic-version: header is required", {"x-api-key": "k"}),
        (400, "is not a valid version", {"x-api-key": "k", "anthropic-version": "2022-01-01"}),
    ],
)
async def test_headers_are_required(server: ScriptedModel, status: int, sentence: str, headers: dict[str, str]) -> None:
    found, answer = await post(server, asking(USER), headers)
    assert found == status and sentence in answer["error"]["message"]


async def test_a_body_that_is_not_json_is_refused(server: ScriptedModel) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + "/messages", data=b"{", headers=HEADERS) as response,
    ):
        assert response.status == 400 and "not valid JSON" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        asking(USER, USER, {"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}, USER),
        asking(
            USER, said(text("x"), use("a"), use("b"), role="assistant"), said(result("b"), result("a"), text("so?"))
        ),
        asking(USER, CALL, said(result("a", content=[text("x"), picture()])), USER),
        asking(USER, CALL, said(result("a", content="")), system="be kind", tools=[CLOCK]),
        asking(USER, CALL, said(result("a", content="broken", is_error=True)), tools=[], thinking=ADAPTIVE),
        asking(USER, CALL, said(result("a")), {"role": "assistant", "content": "x"}, USER, thinking=ENABLED),
        asking(said(text("x", cache_control={**MARK, "ttl": "1h"}), text("y", cache_control=MARK)), cache_control=MARK),
        asking(USER, thinking={"type": "disabled"}, output_config={"effort": "xhigh"}, service_tier="auto"),
        asking(USER, tools=[CLOCK], tool_choice={"type": "tool", "name": "clock", "disable_parallel_tool_use": True}),
    ],
)
async def test_what_the_provider_accepts_is_accepted(server: ScriptedModel, body: Any) -> None:
    status, answer = await post(server, body)
    assert status == 200, answer
    strictly(WHOLE, answer)


# -- thinking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script", ["hi", "[redacted]", "[think deep water] [tool clock {}]", "[redacted] [tool clock {}]"]
)
@pytest.mark.parametrize("thinking", [ENABLED, ADAPTIVE, {**ADAPTIVE, "display": "omitted"}])
async def test_thinking_is_accepted_back_only_unchanged(server: ScriptedModel, script: str, thinking: Any) -> None:
    """S32: signed by the same model; changed, foreign or invented thinking is refused."""
    first = {"role": "user", "content": script}
    _, answer = await post(server, asking(first, thinking=thinking, tools=[CLOCK]))
    strictly(WHOLE, answer)
    thought = answer["content"][0]
    assert thought["type"] == ("redacted_thinking" if "redacted" in script else "thinking")
    if "think deep" in script and "display" not in thinking:
        assert thought["thinking"] == "deep water"
    if "display" in thinking and thought["type"] == "thinking":
        assert thought["thinking"] == ""
    calls = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
    then = said(*(result(one) for one in calls)) if calls else USER
    whole = asking(first, said(*answer["content"], role="assistant"), then, thinking=thinking, tools=[CLOCK])
    assert (await post(server, whole))[0] == 200
    assert (await post(server, {**whole, "thinking": {"type": "disabled"}}))[0] == 200
    assert (await post(server, {**whole, "model": "another"}))[0] == 400
    for name in thought.keys() - {"type"}:
        forged = {**thought, name: thought[name] + "x"}
        talk = [first, said(forged, *answer["content"][1:], role="assistant"), then]
        status, refused = await post(server, {**whole, "messages": talk})
        assert status == 400 and "messages.1.content.0: Invalid" in refused["error"]["message"]


@pytest.mark.parametrize("script", ["hi", "[redacted]"])
async def test_thinking_of_a_newer_model_is_bound_to_everything_before_it(server: ScriptedModel, script: str) -> None:
    """S32: with another prompt, tool or earlier message, or without an earlier thinking block, it is refused; cache
    marks do not matter."""
    first = {"role": "user", "content": script}
    body = asking(first, thinking=ADAPTIVE, system="be kind", tools=[CLOCK])
    _, answer = await post(server, body)
    talk = [first, said(*answer["content"], role="assistant"), first]
    body = {**body, "messages": talk}
    _, later = await post(server, body)
    talk = [*talk, said(*later["content"], role="assistant"), USER]
    marked = said(text(script, cache_control=MARK))
    same: list[dict[str, Any]] = [
        {"messages": talk},
        {"messages": [marked, *talk[1:]], "system": [text("be kind", cache_control=MARK)]},
        {"messages": talk, "tools": [{**CLOCK, "cache_control": MARK}], "thinking": {"type": "disabled"}},
    ]
    for more in same:
        status, taken = await post(server, {**body, **more})
        assert status == 200, taken
    thoughtless = said(*answer["content"][1:], role="assistant")
    changes: list[dict[str, Any]] = [
        {"messages": talk, "system": "be strict"},
        {"messages": talk, "tools": [{**CLOCK, "name": "watch"}]},
        {"messages": [USER, *talk]},
        {"messages": [first, thoughtless, *talk[2:]]},
    ]
    for more in changes:
        status, refused = await post(server, {**body, **more})
        assert status == 400 and "bound to a different conversation" in refused["error"]["message"]


async def test_thinking_of_an_older_model_is_not_bound(server: ScriptedModel) -> None:
    _, answer = await post(server, asking(USER, thinking=ENABLED))
    talk = [USER, said(*answer["content"], role="assistant"), USER]
    assert (await post(server, asking(*talk, thinking=ENABLED, system="be strict")))[0] == 200


async def test_thinking_at_the_end_of_an_answer_or_with_a_cache_mark_is_refused(server: ScriptedModel) -> None:
    _, answer = await post(server, asking(USER, thinking=ADAPTIVE))
    thought = answer["content"][0]
    status, refused = await post(server, asking(USER, said(thought, role="assistant"), USER))
    assert status == 400 and "final block" in refused["error"]["message"]
    marked = {**thought, "cache_control": MARK}
    status, refused = await post(server, asking(USER, said(marked, text("x"), role="assistant"), USER))
    assert status == 400 and "cache_control: Extra inputs" in refused["error"]["message"]


async def test_optional_thinking_can_be_left_out(server: ScriptedModel) -> None:
    _, answer = await post(server, asking({"role": "user", "content": "[nothink]"}, thinking=ADAPTIVE))
    assert [block["type"] for block in answer["content"]] == ["text"]


# -- answers -----------------------------------------------------------------------------------------------------------


SCRIPTS = [
    ("hello", "end_turn"),
    ('[tool clock {"zone": "ä"}]', "tool_use"),
    ('[saying one moment] [together clock {} clock {"x": 1}]', "tool_use"),
    ("[unknowntool]", "tool_use"),
    ("[words 300]", "end_turn"),
    ("[words 3000]", "max_tokens"),
    ("[finish length]", "max_tokens"),
    ("[finish content_filter]", "refusal"),
    ("[finish pause_turn]", "pause_turn"),
    ('[say Grüße, 世界 🌊 and \\ "quotes"]', "end_turn"),
]


@pytest.mark.parametrize("thinking", [None, ENABLED, {**ADAPTIVE, "display": "omitted"}])
@pytest.mark.parametrize(("script", "stop"), SCRIPTS)
async def test_the_official_types_and_client_accept_all_answers(
    server: ScriptedModel, script: str, stop: str, thinking: Any
) -> None:
    """S32: streamed and not, with the same result."""
    body = asking({"role": "user", "content": script}, tools=[CLOCK], **({"thinking": thinking} if thinking else {}))
    _, answer = await post(server, body)
    whole = strictly(WHOLE, answer)
    for event in events(await streamed(server, body)):
        if event["type"] != "ping":
            strictly(EVENT, event)
    async with official(server) as client, client.messages.stream(**body) as stream:
        final = await stream.get_final_message()
    assert [block.model_dump(exclude_none=True) for block in final.content] == answer["content"]
    assert final.stop_reason == whole.stop_reason == stop
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.content[0].type == ("thinking" if thinking else whole.content[0].type)
    assert server.stats()["refused"] == 0


async def test_arguments_that_are_not_json_are_streamed_unchanged(server: ScriptedModel) -> None:
    body = asking({"role": "user", "content": "[badargs]"}, tools=[CLOCK])
    told = events(await streamed(server, body))
    parts = [one["delta"]["partial_json"] for one in told if one["type"] == "content_block_delta"]
    assert "".join(parts) == '{"path": '
    _, answer = await post(server, body)
    assert answer["content"][0]["input"] == {}


@pytest.mark.parametrize(
    ("script", "status", "kind"),
    [
        ("[status 400]", 400, anthropic.BadRequestError),
        ("[status 401]", 401, anthropic.AuthenticationError),
        ("[status 403]", 403, anthropic.PermissionDeniedError),
        ("[status 404]", 404, anthropic.NotFoundError),
        ("[status 413]", 413, anthropic.APIStatusError),
        ("[status 429 retry-after=7]", 429, anthropic.RateLimitError),
        ("[status 500]", 500, anthropic.InternalServerError),
        ("[status 529]", 529, anthropic.APIStatusError),
    ],
)
async def test_errors_are_recognised_by_the_official_client(
    server: ScriptedModel, script: str, status: int, kind: type[anthropic.APIStatusError]
) -> None:
    names = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    names |= {413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}
    async with official(server) as client:
        with pytest.raises(kind) as raised:
            await client.messages.create(**asking({"role": "user", "content": script}))
    body: Any = raised.value.body
    assert (raised.value.status_code, body["error"]["type"]) == (status, names[status])
    assert raised.value.request_id == body["request_id"] == "req_scripted"
    assert raised.value.response.headers.get("retry-after") == ("7" if status == 429 else None)


async def test_error_codes_of_other_formats_become_sentences(server: ScriptedModel) -> None:
    body = asking({"role": "user", "content": "[status 400 code=context_length_exceeded quote echo]"})
    _, answer = await post(server, body)
    message = answer["error"]["message"]
    assert message.startswith("prompt is too long") and "You said: [status" in message and "credential was k" in message


async def test_a_wrong_key_is_refused() -> None:
    async with (
        ScriptedModel(key="right") as server,
        official(server, "wrong") as wrong,
        official(server, "right") as right,
    ):
        with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
            await wrong.messages.create(**asking(USER))
        assert (await right.messages.create(**asking(USER))).stop_reason == "end_turn"
        assert (await post(server, asking(USER), {**HEADERS, "x-api-key": "right"}))[0] == 200
        assert [one.authorization for one in server.recorded] == ["Bearer wrong", "Bearer right", "right"]


async def test_an_error_inside_a_stream_is_recognised_by_the_official_client(server: ScriptedModel) -> None:
    seen: list[str] = []
    async with official(server) as client:
        with pytest.raises(anthropic.APIStatusError, match="Scripted error") as raised:
            said = {"role": "user", "content": "[words 9] [error after=3 code=overloaded_error]"}
            async with client.messages.stream(**asking(said)) as stream:
                async for piece in stream.text_stream:
                    seen.append(piece)
    body: Any = raised.value.body
    assert (seen, body["error"]["type"]) == (["w0", " w1"], "overloaded_error")


async def test_all_other_faults_work_in_this_format(server: ScriptedModel) -> None:
    def asks(script: str) -> dict[str, Any]:
        return asking({"role": "user", "content": f"[words 9] {script}"})

    with anyio.fail_after(30):
        with pytest.raises(aiohttp.ClientPayloadError):
            await streamed(server, asks("[cut after=3]"))
        assert b"[oops" in await streamed(server, asks("[badjson after=3]"))
        assert b"message_stop" not in await streamed(server, asks("[nodone]"))
        assert len(await streamed(server, asks("[hugeline bytes=200000]"))) > 200_000
        assert (await streamed(server, asks("[html]"))).startswith(b"<html>")
        assert b"w8" in await streamed(server, asks("[slow ms=1]"))
        assert (await post(server, asks("[status 503 times=1]")))[0] == 503
        assert (await post(server, asks("[status 503 times=1]")))[0] == 200


async def test_steps_are_counted_over_results_and_notes(server: ScriptedModel) -> None:
    """Directives come from the last message of a user, not from results or notes."""
    talk: list[Any] = [{"role": "user", "content": "[tool clock {}] [together clock {} clock {}] [say done]"}]
    names: list[list[str]] = []
    for _ in range(3):
        _, answer = await post(server, asking(*talk, tools=[CLOCK]))
        calls = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        names.append(calls)
        talk.append(said(*answer["content"], role="assistant"))
        if calls:
            talk.append(said(*(result(one, content="noon") for one in calls)))
            talk.append(said(text("[Note from the gateway: nothing]")))
    assert [len(calls) for calls in names] == [1, 2, 0]
    assert talk[-1]["content"][0]["text"] == "done"


# -- the cache ---------------------------------------------------------------------------------------------------------


def usage(answer: Any) -> tuple[int, int, int]:
    found = answer["usage"]
    return found["input_tokens"], found["cache_read_input_tokens"], found["cache_creation_input_tokens"]


LONG = "x" * 4000


async def test_content_before_a_mark_of_an_earlier_request_is_read_from_the_cache(server: ScriptedModel) -> None:
    """S32: the longest marked prefix is read, the rest up to the last mark is written, and nothing else."""
    system = [text(LONG, cache_control=MARK)]
    first = said(text(LONG, cache_control=MARK))
    _, answer = await post(server, asking(first, system=system))
    assert usage(answer) == (0, 0, 2004)
    then = {"role": "assistant", "content": "x"}
    # The mark has moved on, and a mark is no content.
    _, answer = await post(server, asking(said(text(LONG)), then, said(text(LONG, cache_control=MARK)), system=system))
    assert usage(answer) == (0, 2004, 1008)
    _, answer = await post(server, asking(said(text(LONG)), then, said(text(LONG)), USER, system=[text(LONG)]))
    assert usage(answer)[1:] == (0, 0)
    _, answer = await post(server, asking(said(text("other")), USER, system=system))
    assert usage(answer)[1:] == (1000, 0)
    view = server.stats()["formats"]["anthropic"]
    assert (view["conversations"], view["followups"], view["whole_prefix"], view["reuse"]) == (2, 2, 2, 1.0)


async def test_longer_cache_times_are_counted_separately(server: ScriptedModel) -> None:
    system = [text(LONG, cache_control={**MARK, "ttl": "1h"})]
    _, answer = await post(server, asking(said(text(LONG, cache_control=MARK)), system=system))
    split = answer["usage"]["cache_creation"]
    assert split == {"ephemeral_5m_input_tokens": 1004, "ephemeral_1h_input_tokens": 1000}


@pytest.mark.parametrize(("more", "found"), [({"thinking": ADAPTIVE}, 1000), ({"model": "another"}, 0), ({}, 2004)])
async def test_other_settings_invalidate_part_of_the_cache(server: ScriptedModel, more: Any, found: int) -> None:
    system = [text(LONG, cache_control=MARK)]
    body = asking(said(text(LONG, cache_control=MARK)), system=system)
    await post(server, body)
    _, answer = await post(server, {**body, **more})
    assert usage(answer)[1] == found


@pytest.mark.parametrize(("between", "found"), [(LOOK_BACK - 1, True), (LOOK_BACK, False)])
async def test_a_mark_is_found_only_within_the_look_back(server: ScriptedModel, between: int, found: bool) -> None:
    await post(server, asking(said(text(LONG, cache_control=MARK))))
    later = [text(str(n)) for n in range(between)]
    later[-1]["cache_control"] = MARK
    _, answer = await post(server, asking(said(text(LONG), *later)))
    assert (usage(answer)[1] > 0) is found


def changed(*, system: str = "s", first: str = "a", tool: str = "clock", mark: bool = True) -> dict[str, Any]:
    words = [text(first, cache_control=MARK)] if mark else [text(first)]
    tools = [{**CLOCK, "name": tool}]
    return asking(said(*words), system=system, tools=tools, metadata={"user_id": "same"})


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (changed(), changed(system="t"), "messages changed"),
        (changed(), changed(first="b"), "messages changed"),
        (changed(), changed(tool="watch"), "messages changed"),
        (changed(), asking(USER, metadata={"user_id": "same"}), "messages went missing"),
        (changed(mark=False), changed(), "nothing was marked"),
        (changed(), changed(), None),
        (changed(), changed(mark=False), None),
    ],
)
async def test_a_changed_prefix_is_reported(server: ScriptedModel, before: Any, now: Any, reason: str | None) -> None:
    """S32: by content up to the last mark of the previous request."""
    for body in (before, {**now, "messages": [*now["messages"], USER]} if reason != "messages went missing" else now):
        status, answer = await post(server, body)
        assert status == 200, answer
    view = server.stats()["formats"]["anthropic"]
    assert view["reuse"] == (1.0 if reason is None else 0.0)
    assert [one["reason"] for one in view["violations"]] == ([reason] if reason else [])
    assert server.stats()["followups"] == 1


async def test_an_identical_request_is_a_repeat(server: ScriptedModel) -> None:
    for _ in range(2):
        await post(server, changed())
    view = server.stats()["formats"]["anthropic"]
    assert (view["repeats"], view["followups"]) == (1, 0)


def test_the_memory_of_marks_is_bounded() -> None:
    ledger = Breakpoints()
    for number in range(CONVERSATIONS + 10):
        ledger.note_marked(str(number), [number], [number], [4], [0])
    assert ledger.remembered == ledger.remembered_marks == CONVERSATIONS
