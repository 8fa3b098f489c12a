"""Bad input gets a clear error, and nothing is lost."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scripted_model import ScriptedModel
from tests.in_process import InProcessGateway, in_process_gateway
from tests.logs import capture_logs
from tests.web.client import CHAT, call, chat, chat_body, raw
from tidegate.errors import Refused
from tidegate.web.app.http_request import decode
from tidegate.web.chat.messages import parse_conversation, parse_new_messages
from tidegate.web.chat.request import ChatRequest, parse_call

DEEP = 200_000


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"7",
        b"hello",
        b"\xff\xfe",
        b"\x00",
        b'{"model":"main","messages":[{"role":"user","content":"x"}]} trailing',
        b'\xef\xbb\xbf{"model":"main","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"main","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"main","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"main","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"model":"main","messages":[{"role":"user","content":"x"}],"temperature":Infinity}',
        b'{"model":"main","messages":[{"role":"user","content":"x"}],"temperature":1e999}',
        b'{"model":"main","messages":[{"role":"user","content":"x"}],"max_tokens":' + b"9" * 5000 + b"}",
        b'{"model":"main","messages":[{"role":"user","content":"x"}],"other":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b'{"model":"main","model":"main","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"main","messages":[{"role":"user","content":"x","content":"y"}]}',
        b'{"model":"main","messages":[{"role":"system","role":"user","content":"x"}]}',
        b'{"model":"main","messages":[],"messages":[{"role":"user","content":"x"}]}',
        b'{"model":"main"}',
        b'{"messages":[{"role":"user","content":"x"}]}',
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_an_invalid_chat_request_is_400(gateway: InProcessGateway, model: ScriptedModel, body: bytes) -> None:
    """H20: malformed, of another type, not UTF-8, too deep, out of range, ambiguous; never a 500, and nothing runs."""
    reply = await call(gateway, "POST", CHAT, data=body, headers={"Content-Type": "application/json"})
    assert reply.status == 400, reply.body
    assert reply.error["type"] == "invalid_request_error"
    assert "jSON" not in reply.error["message"]
    assert not model.recorded
    assert (await chat(gateway)).status == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "name"),
    [
        (rb'{"model":"main","messages":[{"role":"user"}],"mess\u0061ges":[{"role":"user","content":"x"}]}', "messages"),
        (rb'{"\u006dodel":"none","model":"main","messages":[{"role":"user","content":"x"}]}', "model"),
        (rb'{"model":"main","messages":[{"role":"user","content":"x","cont\u0065nt":"y"}]}', "content"),
        (rb'{"model":"main","messages":[{"role":"user","\u0072\u006f\u006C\u0065":"user"}]}', "role"),
        (b'{"model":"main","messages":[{"role":"user","content":"x"}],"temperature":0,"temperature":1}', "temperature"),
        (b'{"model":"main","messages":[{"role":"user","content":"x"}],"stop" :"a","stop"\n:null}', "stop"),
        (b'{"model":"main","messages":[{"role":"user","content":"x"}],"stream":false,"stream":null}', "stream"),
        (b'{"model":"main","messages":[{"role":"user","content":"x"}],"metadata":{"a":"1","a":"2"}}', "a"),
        (b'{"model":"main","messages":[{"role":"user","content":[{"type":"text","text":"x","text":"y"}]}]}', "text"),
        (b'{"model":"main","messages":[{"role":"user","content":"x"}],"other":[{"deep":1,"deep":1}]}', "deep"),
    ],
)
async def test_a_repeated_name_is_refused_however_it_is_escaped(
    gateway: InProcessGateway, model: ScriptedModel, body: bytes, name: str
) -> None:
    """H20: with escapes, spaces or null, anywhere in the body: the intended value is unknown."""
    reply = await call(gateway, "POST", CHAT, data=body)
    assert reply.status == 400, reply.body
    assert reply.error["param"] == name
    assert f"repeats '{name}'" in reply.error["message"]
    assert not model.recorded


@pytest.mark.anyio
async def test_names_and_texts_may_be_spelled_with_escapes(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H20: a name that occurs once is accepted; text may look like names or contain huge numbers."""
    said = '"model" "role":"content" \\u0061 "messages":'
    body = json.dumps(chat_body(said)).replace('"model"', '"\\u006dodel"', 1).encode()
    body = body[:-1] + b', "unknown": ' + b"9" * 5000 + b"}"
    assert (await call(gateway, "POST", CHAT, data=body)).status == 200
    assert model.recorded[-1].decoded()["messages"][-1]["content"] == said


@pytest.mark.anyio
async def test_a_repeated_name_is_refused_by_the_api_too(gateway: InProcessGateway) -> None:
    """H20: the check applies to every endpoint with a body."""
    reply = await call(gateway, "POST", "/api/messages", data=rb'{"text":"a","te\u0078t":"b"}')
    assert reply.status == 400
    assert reply.error["param"] == "text"


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ({}, "messages"),
        ("hello", "messages"),
        (None, "messages"),
        (["hello"], "messages[0]"),
        ([None], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": "boss", "content": "x"}], "messages[0].role"),
        ([{"role": 5, "content": "x"}], "messages[0].role"),
        (user(5), "messages[0].content"),
        (user({"text": "x"}), "messages[0].content"),
        (user([5]), "messages[0].content[0]"),
        (user([{"text": "x"}]), "messages[0].content[0].type"),
        (user([{"type": "text"}]), "messages[0].content[0].text"),
        (user([{"type": "text", "text": 5}]), "messages[0].content[0].text"),
        (user([{"type": "image_url", "image_url": {"url": "http://x"}}]), "messages[0].content[0].image_url.url"),
        (user([{"type": "image_url"}]), "messages[0].content[0].image_url"),
        (user([{"type": "input_audio"}]), "messages[0].content[0].input_audio"),
        (user([{"type": "file"}]), "messages[0].content[0].file"),
        (user([{"type": "file", "file": {"file_id": "f"}}]), "messages[0].content[0].file.file_data"),
        (user([{"type": "file", "file": {"file_data": "/w=="}}]), "messages[0].content[0].file.file_data"),
        (user([{"type": "file", "file": {"file_data": "data:,hi"}}]), "messages[0].content[0].file.file_data"),
        (user([{"type": "video_url"}]), "messages[0].content[0].type"),
        ([{"role": "system", "content": [{"type": "input_audio"}]}, *user("x")], "messages[0].content[0].type"),
        (user(None), "messages[0].content"),
        ([*user("a"), {"role": "assistant", "content": "b"}, *user(7)], "messages[2].content"),
        ([*user("a"), {"role": "tool", "content": "x"}], "messages[1].tool_call_id"),
        ([*user("a"), {"role": "tool", "tool_call_id": "c", "content": "x"}], "messages[1].tool_call_id"),
        ([*user("a"), {"role": "assistant", "tool_calls": [{"id": "c"}]}], "messages[1].tool_calls[0].function"),
        (
            [
                *user("a"),
                {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
                *user("b"),
            ],
            "messages[1]",
        ),
    ],
)
async def test_invalid_messages_are_named_by_their_path(
    gateway: InProcessGateway, model: ScriptedModel, messages: Any, param: str
) -> None:
    """H20, H04: wrong types, no text, no user message, parts other than text, unmatched tool calls."""
    reply = await chat(gateway, messages=messages)
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param, reply.error
    assert reply.error["message"].endswith(".")
    assert not model.recorded


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"temperature": "hot"}, "`temperature` must be a number or null, not a string."),
        ({"temperature": 3}, "`temperature` must be a number of at most 2."),
        ({"top_p": -0.5}, "`top_p` must be a number of at least 0."),
        ({"max_tokens": 1.5}, "`max_tokens` must be a whole number or null, not a number with a fraction."),
        ({"max_tokens": 0}, "`max_tokens` must be at least 1, or -1 for no limit."),
        ({"stream": "yes"}, "`stream` must be true, false or null, not a string."),
        ({"stream_options": True}, "`stream_options` must be an object or null, not true or false."),
        ({"logit_bias": {"7": "x"}}, "Each value in `logit_bias` must be a number, not a string."),
        (
            {"tool_choice": {"type": "custom"}},
            "`tool_choice.type` must be 'function' or 'allowed_tools', not 'custom'.",
        ),
        ({"stop": 5}, "`stop` must be a string, a list or null, not a number."),
        ({"stop": [None]}, "`stop[0]` must be a string, not null."),
        ({"user": "x" * 513}, "`user` must be a string of at most 512 characters."),
        ({"metadata": {"k" * 65: "x"}}, "Each name in `metadata` must be a string of at most 64 characters."),
        ({"model": ""}, "`model` must be a string of at least 1 character."),
        ({"messages": []}, "`messages` must be a list of at least 1 entry."),
        ({"messages": ["x"]}, "`messages[0]` must be an object, not a string."),
        ({"messages": [{"content": "x"}]}, "`messages[0].role` is missing."),
        (
            {"messages": [{"role": "boss"}]},
            "`messages[0].role` must be 'assistant', 'developer', 'function', 'system', 'tool' or 'user', not 'boss'.",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_validation_errors_are_plain_sentences(
    gateway: InProcessGateway, fields: dict[str, Any], sentence: str
) -> None:
    """H20: they say what the value must be and what it was, without terms of a programming language."""
    reply = await chat(gateway, **fields)
    assert reply.status == 400
    assert reply.error["message"] == sentence
    assert reply.error["param"] == sentence.split("`")[1]
    assert reply.error["type"] == "invalid_request_error"


@pytest.mark.anyio
async def test_validation_errors_of_other_bodies_and_queries_are_plain_sentences(gateway: InProcessGateway) -> None:
    """H20: a body that is not an object; a query, whose values are all strings; a very long value."""
    body = await call(gateway, "POST", CHAT, data=b"[1]")
    assert body.error["message"] == "The body must be an object, not a list."
    query = await call(gateway, "GET", "/api/sessions?limit=many")
    assert query.status == 400
    assert (query.error["param"], query.error["message"]) == ("limit", "`limit` must be a whole number.")
    message = await call(gateway, "POST", "/api/messages", json={"text": "x", "busy": "y" * 10_000})
    assert message.error["message"].startswith("`busy` must be 'interrupt', 'queue' or 'steer', not 'yyyy")
    assert len(message.error["message"]) < 300


@pytest.mark.anyio
async def test_a_refused_part_says_its_type(gateway: InProcessGateway) -> None:
    """H20: the error names the part, its type and the supported types."""
    reply = await chat(
        gateway, messages=user([{"type": "text", "text": "see"}, {"type": "video_url", "video_url": {}}])
    )
    assert "content[1]" in reply.error["message"]
    assert "video_url" in reply.error["message"] and "text" in reply.error["message"]


@pytest.mark.anyio
async def test_a_body_over_the_limit_is_413_with_the_limits_name(home: Path, model: ScriptedModel) -> None:
    """H20, H21: by its Content-Length before it is read, or by counting without one; it is never cut silently."""
    async with in_process_gateway(home, "[limits]\nbody_bytes = 8192\nmessage_bytes = 2048", model=model) as h:
        large = json.dumps(chat_body("x" * 9000)).encode()
        declared = await call(h, "POST", CHAT, data=large)

        async def pieces():  # type: ignore[no-untyped-def]
            for start in range(0, len(large), 500):
                yield large[start : start + 500]

        counted = await call(h, "POST", CHAT, data=pieces())
        for reply in (declared, counted):
            assert reply.status == 413
            assert reply.error["code"] == "too_large"
            assert "limits.body_bytes" in reply.error["message"] and "8192" in reply.error["message"]
        message = await chat(h, "x" * 3000)
        assert message.status == 413
        assert message.error["param"] == "messages[0].content"
        assert "limits.message_bytes" in message.error["message"] and "2048" in message.error["message"]
        said = await call(h, "POST", "/api/messages", json={"text": "x" * 3000})
        assert said.status == 413
        multibyte = await chat(h, "ö" * 1100)
        assert multibyte.status == 413
        assert not model.recorded
        assert (await chat(h, "ö" * 1000)).status == 200


@pytest.mark.anyio
async def test_a_message_of_ten_megabytes_within_the_limit_is_accepted(home: Path, model: ScriptedModel) -> None:
    """H20: it reaches the model and the transcript unchanged."""
    text = "".join(f'tide {number} "é"\n' for number in range(600_000))
    assert len(text.encode()) > 10_000_000
    async with in_process_gateway(home, model=model) as h:
        body = io.BytesIO(json.dumps(chat_body(text)).encode())
        assert (await call(h, "POST", CHAT, data=body, headers={"X-Session-Id": "n"})).status == 200
        [request] = model.recorded
        said = request.decoded()["messages"][-1]["content"]
        assert hashlib.sha256(said.encode()).digest() == hashlib.sha256(text.encode()).digest()
        [view] = (await call(h, "GET", "/api/sessions")).json["sessions"]
        [row, *_] = (await call(h, "GET", f"/api/sessions/{view['id']}/messages?after=0")).json["messages"]
        assert row["message"]["text"] == text


@pytest.mark.anyio
async def test_a_repeated_header_is_refused(gateway: InProcessGateway) -> None:
    """H20: the intended value is unknown."""
    body = b'{"model":"main","messages":[{"role":"user","content":"x"}]}'
    head, answer = await raw(
        gateway,
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nX-Session-Id: a\r\n"
        b"X-Session-Id: b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
        % (gateway.key.encode(), len(body), body),
    )
    assert head.startswith(b"HTTP/1.1 400")
    assert b"x-session-id" in answer


@pytest.mark.anyio
async def test_errors_contain_no_control_characters(gateway: InProcessGateway) -> None:
    """A terminal that shows the message interprets none of it."""
    for path in ("/api/sessions/%1b%5b31m%00x", "/api/turns/%1b%5b31m%00x", "/api/approvals?session=%1b%5b31m%00x"):
        refused = await call(gateway, "GET", path)
        assert refused.status == 404
        assert refused.error["message"].isprintable(), path


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path", ["/nope", "/v1/nope", "/api/nope", "/v1/chat/completions/x", "/static/nope.js", "/api/sessions/"]
)
async def test_an_unknown_path_has_openais_error_shape(gateway: InProcessGateway, path: str) -> None:
    """H20: every 404, with a key and without."""
    for key in (None, ""):
        reply = await call(gateway, "GET", path, key=key)
        assert reply.status == 404
        assert reply.error["code"] == ("unknown_url" if path.startswith("/v1") else "not_found")


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/chat/completions", "/models", "/v1"])
async def test_a_base_url_without_its_version_is_reported_with_the_right_one(
    gateway: InProcessGateway, path: str
) -> None:
    """H20: the most frequent mistake in setting up a client."""
    assert "OpenAI's API is under /v1" in (await call(gateway, "POST", path)).error["message"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", CHAT, "POST"),
        ("POST", "/v1/models", "GET"),
        ("PATCH", "/api/sessions/s_x", "DELETE"),
        ("OPTIONS", "/api/sessions", "GET"),
        ("DELETE", "/healthz", "GET"),
    ],
)
async def test_a_wrong_method_has_openais_error_shape(
    gateway: InProcessGateway, method: str, path: str, allowed: str
) -> None:
    """H20: every 405, with the allowed methods."""
    reply = await call(gateway, method, path)
    assert reply.status == 405
    assert reply.error["code"] == "method_not_allowed"
    assert allowed in reply.headers["Allow"]


@pytest.mark.anyio
async def test_an_unexpected_exception_is_an_incident_with_an_id(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H20: OpenAI's format, an incident id that is in the log, and no details of the exception."""

    async def broken(*_: object, **__: object) -> None:
        raise ValueError("password=hunter2")

    monkeypatch.setattr(gateway.service, "accept", broken)
    monkeypatch.setattr(gateway.service, "sessions", broken)
    with capture_logs() as logged:
        replies = (
            await chat(gateway),
            await chat(gateway, stream=True),
            await call(gateway, "GET", "/api/sessions"),
        )
    for reply, line in zip(replies, logged, strict=True):
        assert reply.status == 500
        assert reply.error["type"] == "server_error"
        assert "hunter2" not in reply.body.decode()
        incident = reply.error["message"].rstrip(".").rpartition(" ")[2]
        assert incident.startswith("i_")
        assert incident in line["response"]
        assert "hunter2" in str(line["exc_info"])


# -- whatever the bytes are --------------------------------------------------------------------------------------------

DECODER = msgspec.json.Decoder(ChatRequest)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
fields = st.fixed_dictionaries(
    {"model": st.just("main"), "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "x"])},
            optional={"content": anything, "name": anything, "tool_calls": anything, "tool_call_id": anything,
                      "function_call": anything, "refusal": anything},
        ), max_size=5)},
    optional={name: anything for name in ("tools", "tool_choice", "functions", "function_call", "response_format",
                                          "stop", "metadata", "n", "stream_options", "reasoning_effort")},
)  # fmt: skip


@settings(max_examples=100)
@given(st.binary(max_size=200) | anything.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_accepted_or_refused(body: bytes) -> None:
    """H20: decoding a body has no other outcome."""
    try:
        assert isinstance(decode(body, DECODER), ChatRequest)
    except Refused as refused:
        assert refused.status == 400
        assert refused.message


@settings(max_examples=100)
@given(fields, st.booleans())
def test_any_request_is_accepted_or_refused(request: dict[str, Any], named: bool) -> None:
    """H20, H04, H05: an accepted conversation is well formed; everything else is refused."""
    try:
        typed = decode(json.dumps(request).encode(), DECODER)
        parse_call(typed, "merge")
        if named:
            *results, last = parse_new_messages(typed.messages, 10_000).messages
            assert all(message.role == "tool" and message.call_id for message in results)
            assert last.role == "tool" or last.text.strip() or last.aside
            return
        messages = parse_conversation(typed.messages, 10_000).messages
    except Refused as refused:
        assert refused.status == 400
        return
    assert messages
    owed: list[str] = []
    for message in messages:
        if message.role == "tool":
            owed.remove(message.call_id)
        else:
            assert not owed
            owed = [wanted.id for wanted in message.calls]
    assert not owed
