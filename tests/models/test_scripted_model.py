"""The scripted server itself: strict, with correct counts, and bounded."""

import base64
import re
from typing import Any

import aiohttp
import anyio
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from bench.http_client import events
from bench.scripted.reuse import CONVERSATIONS, Ledger
from bench.scripted.script import read_script
from bench.scripted_model import RECORDED, ScriptedModel

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {}}}


def calling(*ids: str) -> dict[str, Any]:
    calls = [{"id": one, "type": "function", "function": {"name": "clock", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(identity: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": ""}


WAV = b"RIFF\x24\0\0\0WAVEfmt "
MP3 = b"ID3\x04\0\0"


def hearing(form: str, data: bytes) -> dict[str, Any]:
    sound = {"data": base64.b64encode(data).decode(), "format": form}
    return {"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]}


def reading(data: bytes) -> dict[str, Any]:
    url = f"data:application/pdf;base64,{base64.b64encode(data).decode()}"
    return {"role": "user", "content": [{"type": "file", "file": {"filename": "a.pdf", "file_data": url}}]}


async def post(server: ScriptedModel, body: Any, path: str = "/v1/chat/completions") -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(server.root + path, json=body) as response:
        return response.status, await response.json()


async def streamed(server: ScriptedModel, body: Any, path: str = "/v1/chat/completions") -> bytes:
    headers = {"x-api-key": "k", "anthropic-version": "2026-10-21"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.root + path, json={**body, "stream": True}, headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
        return await response.read()


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"model": "m"},
        {"model": "m", "messages": []},
        {"model": "m", "messages": [{"role": "robot", "content": "x"}]},
        {"model": "m", "messages": [USER, {"role": "system", "content": ""}]},
        {"model": "m", "messages": [{"role": "user", "content": []}]},
        {"model": "m", "messages": [{"role": "assistant", "content": None}, USER]},
        {"model": "m", "messages": [USER, calling("a")]},
        {"model": "m", "messages": [USER, calling("a"), USER]},
        {"model": "m", "messages": [USER, calling("a", "b"), result("a"), USER]},
        {"model": "m", "messages": [USER, calling("a", "a"), result("a")]},
        {"model": "m", "messages": [USER, calling(), USER]},
        {"model": "m", "messages": [USER, result("a")]},
        {"model": "m", "messages": [USER, calling("a"), result("a"), result("a")]},
        {"model": "m", "messages": [{**USER, "extra": 1}]},
        {"model": "m", "messages": [USER], "tools": [TOOL, TOOL]},
        {"model": "m", "messages": [USER], "tools": []},
        {"model": "m", "messages": [USER], "tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"model": "m", "messages": [USER], "tool_choice": "auto"},
        {"model": "m", "messages": [USER], "unheard_of": 1},
        {"model": "m", "messages": [USER], "temperature": 3},
        {"model": "m", "messages": [USER], "presence_penalty": -2.1},
        {"model": "m", "messages": [USER], "logit_bias": {"word": 1}},
        {"model": "m", "messages": [USER], "logit_bias": {"7": 101}},
        {"model": "m", "messages": [USER], "top_logprobs": 1},
        {"model": "m", "messages": [USER], "parallel_tool_calls": False},
        {"model": "m", "messages": [{**USER, "refusal": "no"}]},
        {"model": "m", "messages": [reading(b"no PDF")]},
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "file", "file": {"filename": "a"}}]}]},
        {"model": "m", "messages": [USER], "max_tokens": 0},
        {"model": "m", "messages": [USER], "stream_options": {"include_usage": True}},
        {"model": "m", "messages": [{**USER, "tool_call_id": "a"}]},
        {"model": "m", "messages": [{**USER, "tool_calls": calling("a")["tool_calls"]}, result("a")]},
        {"model": "m", "messages": [USER, calling("a"), {"role": "tool", "tool_call_id": "a"}]},
        {"model": "m", "messages": [{**USER, "reasoning_content": "so"}]},
        {"model": "m", "messages": [hearing("mp3", WAV)]},
        {"model": "m", "messages": [hearing("wav", MP3)]},
        {"model": "m", "messages": [hearing("ogg", b"OggS")]},
        {"model": "m", "messages": [{"role": "system", "content": hearing("wav", WAV)["content"]}]},
        {"model": "m", "messages": [{**hearing("wav", WAV), "content": [{"type": "input_audio", "input_audio": {}}]}]},
    ],
)
async def test_what_a_strict_provider_refuses_is_refused(server: ScriptedModel, body: Any) -> None:
    status, answer = await post(server, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert server.stats()["refused"] == 1


@pytest.mark.parametrize(
    "message", [hearing("wav", WAV), hearing("mp3", MP3), hearing("mp3", b"\xff\xfb\x90"), hearing("mp3", b"\xff\xf3x")]
)
async def test_sounds_of_users_are_accepted(server: ScriptedModel, message: dict[str, Any]) -> None:
    status, answer = await post(server, {"model": "m", "messages": [message]})
    assert status == 200 and answer["usage"]["prompt_tokens"] > 400


async def test_broken_sounds_are_refused(server: ScriptedModel) -> None:
    message = hearing("wav", WAV)
    message["content"][0]["input_audio"]["data"] = "not base64!"
    status, answer = await post(server, {"model": "m", "messages": [message]})
    assert status == 400 and "base64" in answer["error"]["message"]


async def test_reasoning_is_sent_and_accepted_like_by_compatible_servers(server: ScriptedModel) -> None:
    said = {"role": "user", "content": "[think deep water] [say so]"}
    body = {"model": "m", "messages": [said]}
    _, answer = await post(server, body)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("deep water", "so")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    deltas = [one["choices"][0]["delta"] for one in events(await streamed(server, {**body, "stream": True}))]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "deep water"
    taken = {"role": "assistant", "content": "so", "reasoning_content": "deep water"}
    assert (await post(server, {"model": "m", "messages": [said, taken, USER]}))[0] == 200


SCRIPTS = ["hello", '[saying so] [together clock {} clock {"x": 1}]', "[words 300]", "[finish length]", "[badargs]"]


@pytest.mark.parametrize("script", SCRIPTS)
async def test_the_official_types_and_client_accept_all_answers(server: ScriptedModel, script: str) -> None:
    body: Any = {"model": "m", "messages": [{"role": "user", "content": script}], "tools": [TOOL]}
    _, answer = await post(server, body)
    ChatCompletion.model_validate(answer)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for event in events(await streamed(server, {**body, **options})):
        ChatCompletionChunk.model_validate(event)
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        whole = await client.chat.completions.create(**body)
        async with client.chat.completions.stream(**body) as stream:
            async for _ in stream:
                pass
            snapshot: Any = stream.current_completion_snapshot
    assert snapshot.choices[0].message.content == whole.choices[0].message.content
    assert snapshot.choices[0].finish_reason == whole.choices[0].finish_reason


PLAIN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "stream_options": {"include_usage": True}},
    "/v1/responses": {"input": [USER]},
    "/v1/messages": {"messages": [USER], "max_tokens": 100},
}


@pytest.mark.parametrize("path", PLAIN)
async def test_the_canned_answer_equals_the_generated_one(server: ScriptedModel, path: str) -> None:
    """Except for ids."""
    canned = await streamed(server, {"model": "m", **PLAIN[path]}, path)
    server.reset()
    told = await streamed(server, {"model": "m", **PLAIN[path], **directing(path)}, path)
    assert shape(canned) == shape(told)


def directing(path: str) -> dict[str, Any]:
    """The same request with a script that changes nothing."""
    return {"input" if path == "/v1/responses" else "messages": [{"role": "user", "content": "[obey]"}]}


def shape(body: bytes) -> list[str]:
    """The events without ids and token counts."""
    return [re.sub(r"[a-z]+_[0-9a-z_]+-?[a-z]?\d*\b|\d+", "N", str(event)) for event in events(body)]


async def test_balanced_calls_and_results_are_accepted(server: ScriptedModel) -> None:
    messages = [USER, calling("a", "b"), result("b"), result("a"), {"role": "assistant", "content": ""}, USER]
    status, answer = await post(server, {"model": "m", "messages": messages, "tools": [TOOL]})
    assert (status, answer["choices"][0]["message"]["content"][:8]) == (200, "The tide")


def test_reuse_is_counted_by_content() -> None:
    """S32: growth at the end keeps the prefix; another start, tool list or a missing message does not; a repeat is
    neither."""
    reuse = Ledger()
    first = ("be kind", "a")
    grown = ("be kind", "a", "b", "c")
    other = ("today is Monday", "a", "b", "c", "d")
    assert reuse.note("t", first, 1, 10)[1] == 0
    assert reuse.note("t", first, 1, 10)[1] == 10
    assert reuse.note("t", grown, 1, 20)[1] == 10
    assert reuse.note("t", grown, 2, 20)[1] == 0
    assert reuse.note("t", other, 2, 30)[1] == 0
    assert reuse.note("t", other[:2], 2, 30)[1] == 0
    view = reuse.view()
    assert (view["conversations"], view["repeats"], view["followups"], view["whole_prefix"]) == (1, 1, 4, 1)
    assert view["reuse"] == 0.25
    assert [one["reason"] for one in view["violations"]] == [
        "tools changed",
        "messages changed",
        "messages went missing",
    ]


async def test_conversations_are_distinguished_by_tag_or_first_message(server: ScriptedModel) -> None:
    for text, tag in [("a", None), ("b", None), ("a", "t")]:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **({"user": tag} if tag else {})}
        assert (await post(server, body))[0] == 200
    stats = server.stats()
    assert (stats["conversations"], stats["followups"]) == (3, 0)
    assert stats["formats"]["chat"]["conversations"] == 3


def test_the_memory_of_conversations_is_bounded() -> None:
    reuse = Ledger()
    for number in range(CONVERSATIONS + 10):
        reuse.note(str(number), (), 0, 1)
    assert reuse.remembered == CONVERSATIONS


async def test_recorded_requests_are_bounded(server: ScriptedModel) -> None:
    for number in range(RECORDED + 5):
        server.record("/", {}, b"%d" % number)
    server.record("/", {}, b"x" * 9_000_000)
    assert len(server.recorded) == 1


def test_the_script_is_read_with_json_verbatim() -> None:
    script = read_script('please [tool a {"x": "]}"}] and [status 429 retry-after=1 times=2] [broken {oops] [open')
    assert [(one.name, one.words, one.options) for one in script] == [
        ("tool", ["a", '{"x": "]}"}'], {}),
        ("status", ["429"], {"retry-after": "1", "times": "2"}),
    ]


async def test_a_held_answer_is_sent_after_its_release(server: ScriptedModel) -> None:
    async def ask() -> None:
        answers.append(await post(server, {"model": "m", "messages": [{"role": "user", "content": "[hold x]"}]}))

    answers: list[tuple[int, Any]] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await server.held("x")
            assert server.stats()["holding"] == {"x": 1}
            assert answers == []
            assert (await post(server, {}, "/release/x"))[0] == 200
    assert answers[0][0] == 200


async def test_an_answer_is_held_after_some_of_its_pieces(server: ScriptedModel) -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "[words 9] [hold x after=3]"}]}
    with anyio.fail_after(10):
        async with (
            aiohttp.ClientSession() as session,
            session.post(server.base_url + "/chat/completions", json=body) as answer,
        ):
            await server.held("x")
            seen = b""
            while b"w1" not in seen:
                seen += await answer.content.readany()
            server.release("x")
            rest = await answer.read()
    assert b"w2" not in seen and b"w2" in rest and b"w8" in rest


async def test_text_can_precede_a_tool_call(server: ScriptedModel) -> None:
    said = {"role": "user", "content": "[saying one moment] [tool clock {}] [say done]"}
    _, answer = await post(server, {"model": "m", "messages": [said], "tools": [TOOL]})
    message = answer["choices"][0]["message"]
    assert message["content"] == "one moment" and len(message["tool_calls"]) == 1
    _, answer = await post(server, {"model": "m", "messages": [said, calling("a"), result("a")]})
    assert answer["choices"][0]["message"]["content"] == "done"


async def test_a_stop_sequence_ends_the_answer_before_it(server: ScriptedModel) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "[say one two three]"}]}
    _, answer = await post(server, {**body, "stop": ["three", "wo"]})
    assert answer["choices"][0]["message"]["content"] == "one t"
    said = await streamed(server, {**body, "max_tokens": 9, "stop_sequences": ["two"]}, "/v1/messages")
    assert b'"text":"one"' in said and b'"text":" two"' not in said
    assert b'"stop_reason":"stop_sequence","stop_sequence":"two"' in said


async def test_an_answer_can_have_lines(server: ScriptedModel) -> None:
    _, answer = await post(
        server, {"model": "m", "messages": [{"role": "user", "content": '[text {"text": "a\\n b\\n"}]'}]}
    )
    assert answer["choices"][0]["message"]["content"] == "a\n b\n"


async def test_files_and_refusals_are_accepted(server: ScriptedModel) -> None:
    declined = {"role": "assistant", "content": None, "refusal": "no"}
    assert (await post(server, {"model": "m", "messages": [reading(b"%PDF-1.7"), declined, USER]}))[0] == 200


async def test_the_other_endpoints_answer(server: ScriptedModel) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/stats", "/requests", "/v1/models"):
            async with session.get(server.root + path) as response:
                assert response.status == 200
        async with session.get(server.root + "/nothing") as response:
            assert response.status == 404
    await post(server, {"model": "m", "messages": [USER]})
    assert (await post(server, {}, "/reset"))[0] == 200
    assert server.stats()["requests"] == 0


async def test_a_wrong_key_is_refused() -> None:
    async with ScriptedModel(key="right") as server:
        assert (await post(server, {"model": "m", "messages": [USER]}))[0] == 401
