"""Calls to a model over a real socket: answers, retries, withdrawn text, deadlines, bounds, error messages."""

import asyncio

import anyio
import pytest

from tests.models.raw_server import HEAD, WAIT, answering
from tests.models.support import (
    ANSWER_BYTES,
    CANARY,
    PREFIX,
    Listener,
    ScriptedModel,
    Slept,
    ask,
    configured,
)
from tidegate.errors import ModelFailed
from tidegate.http_client import HttpClient
from tidegate.models.http.retry import LONGEST_RETRY_AFTER
from tidegate.values import Call, Message, Prefix, ToolCall

pytestmark = pytest.mark.anyio

ANSWER = "The tide comes in, the gate keeps the level."


async def failing(server: ScriptedModel, script: str, **given: object) -> tuple[ModelFailed, Listener, Slept]:
    listener, sleep = Listener(), Slept()
    async with configured(server.base_url, sleep=sleep, key="env:CANARY", **given) as model:  # type: ignore[arg-type]
        with anyio.fail_after(20), pytest.raises(ModelFailed) as caught:
            await ask(model, script, listener)
    return caught.value, listener, sleep


async def test_a_plain_answer_is_streamed_and_complete(server: ScriptedModel) -> None:
    listener = Listener()
    async with configured(server.base_url) as model:
        answer = await ask(model, "hello", listener)
    assert answer.text == listener.text == ANSWER
    assert (answer.role, answer.finish, answer.model, answer.calls) == ("assistant", "stop", "some-model", ())
    assert answer.usage is not None
    assert answer.usage.input > 0
    assert answer.usage.output == 5


async def test_tool_steps_keep_the_prefix_unchanged(server: ScriptedModel) -> None:
    """S32: two tool steps and a second turn; every request that the strict server sees starts with the previous one."""
    said = [Message(role="user", text='do it [tool clock {}] [together clock {} read_file {"path": "a]b"}]')]
    async with configured(server.base_url) as model:
        first = await ask(model, said)
        assert [(call.name, call.arguments) for call in first.calls] == [("clock", "{}")]
        assert first.finish == "tool_calls"
        said += [first, *results(first)]
        second = await ask(model, said)
        assert [(call.name, call.arguments) for call in second.calls] == [
            ("clock", "{}"),
            ("read_file", '{"path": "a]b"}'),
        ]
        said += [second, *results(second)]
        third = await ask(model, said)
        said += [third, Message(role="user", text="and now?", aside="It is late.")]
        fourth = await ask(model, said)
    assert third.text == fourth.text == ANSWER
    assert fourth.usage is not None
    assert fourth.usage.cached > 0
    stats = server.stats()
    assert (stats["followups"], stats["whole_prefix"], stats["reuse"], stats["refused"]) == (3, 3, 1.0, 0)


def results(message: Message) -> list[Message]:
    return [Message(role="tool", call_id=call.id, text=f"result of {call.name}") for call in message.calls]


async def test_a_long_answer_arrives_complete(server: ScriptedModel) -> None:
    listener = Listener()
    async with configured(server.base_url) as model:
        answer = await ask(model, "[words 5000]", listener)
    assert answer.text == listener.text == " ".join(f"w{n}" for n in range(5000))


async def test_parameters_of_the_call_are_sent(server: ScriptedModel) -> None:
    async with configured(server.base_url, headers={"X-Title": "tide"}) as model:
        answer = await ask(model, "hello", call=Call(max_tokens=2, temperature=0.25, reasoning="high"))
    body = server.recorded[0].decoded()
    assert (body["max_tokens"], body["temperature"], body["reasoning_effort"]) == (2, 0.25, "high")
    assert server.recorded[0].headers["x-title"] == "tide"
    assert (answer.text, answer.finish) == ("The tide comes in,", "length")


async def test_a_request_of_several_megabytes_is_sent_completely(server: ScriptedModel) -> None:
    async with configured(server.base_url) as model:
        with anyio.fail_after(30):
            answer = await ask(model, "x" * 3_000_000)
    assert answer.text == ANSWER
    assert len(server.recorded[0].decoded()["messages"][1]["content"]) == 3_000_000


async def test_an_endpoint_that_does_not_stream_is_supported(server: ScriptedModel) -> None:
    async with (
        serving(b'{"choices":[{"message":{"content":"whole"},"finish_reason":"stop"}]}') as url,
        configured(url) as model,
    ):
        assert (await ask(model, "hello")).text == "whole"


@pytest.mark.parametrize("status", [429, 500, 502, 503, 529, 408, 409])
async def test_temporary_failures_are_retried_after_growing_pauses(server: ScriptedModel, status: int) -> None:
    sleep = Slept()
    async with configured(server.base_url, sleep=sleep) as model:
        answer = await ask(model, f"[status {status} times=3]")
    assert answer.text == ANSWER
    assert sleep.pauses == [0.5, 1.0, 2.0]


async def test_pauses_have_jitter(server: ScriptedModel) -> None:
    sleep = Slept()
    async with configured(server.base_url, sleep=sleep, chance=lambda: 0.25) as model:
        await ask(model, "[status 503 times=2]")
    assert sleep.pauses == [0.125, 0.25]


async def test_retry_after_is_respected(server: ScriptedModel) -> None:
    sleep = Slept()
    async with configured(server.base_url, sleep=sleep, chance=lambda: 0.0) as model:
        await ask(model, "[status 429 retry-after=7 times=1]")
    assert sleep.pauses == [7.0]


async def test_a_too_long_retry_after_is_not_waited_for(server: ScriptedModel) -> None:
    failure, _, sleep = await failing(server, f"[status 429 retry-after={LONGEST_RETRY_AFTER + 1}]")
    assert (failure.kind, failure.retry_after, failure.retryable) == ("rate", LONGEST_RETRY_AFTER + 1, True)
    assert sleep.pauses == []
    assert server.stats()["requests"] == 1


async def test_the_number_of_retries_is_limited(server: ScriptedModel) -> None:
    failure, _, sleep = await failing(server, "[status 503]", retries=2)
    assert (failure.kind, failure.upstream_status) == ("overloaded", 503)
    assert len(sleep.pauses) == 2
    assert server.stats()["requests"] == 3


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("[status 401]", "authorisation"),
        ("[status 403]", "authorisation"),
        ("[status 402]", "quota"),
        ("[status 429 code=insufficient_quota]", "quota"),
        ("[status 400]", "invalid"),
        ("[status 400 code=context_length_exceeded]", "context"),
        ("[status 400 code=content_filter]", "content"),
        ("[status 404]", "invalid"),
        ("[status 413]", "invalid"),
        ("[status 302]", "invalid"),
        ("[html]", "protocol"),
        ("[badjson after=0]", "protocol"),
        ("[hugeline after=0]", "protocol"),
    ],
)
async def test_permanent_failures_are_reported_at_once(server: ScriptedModel, script: str, kind: str) -> None:
    failure, _, sleep = await failing(server, script)
    assert (failure.kind, failure.retryable, failure.partial_answer) == (kind, False, False)
    assert sleep.pauses == []
    assert failure.message.startswith("Model 'main': ")


@pytest.mark.parametrize("script", ["[status 401 echo]", "[status 500 echo]", "[status 400 echo]"])
async def test_a_credential_that_the_endpoint_echoes_is_redacted(server: ScriptedModel, script: str) -> None:
    """X15: in the message and in anything that a traceback shows."""
    failure, _, _ = await failing(server, script)
    assert server.recorded[0].authorization == f"Bearer {CANARY}"
    assert "Your credential was" in failure.message
    for seen in (failure.message, repr(failure), str(failure.__cause__), repr(failure.__context__)):
        assert CANARY not in seen
        assert "4f9d1c77" not in seen


@pytest.mark.parametrize(
    "script", ["[close times=2]", "[cut after=1 times=2]", "[hang times=2]", "[hang after=1 times=2]"]
)
async def test_a_stream_that_breaks_before_any_text_is_retried_silently(server: ScriptedModel, script: str) -> None:
    listener = Listener()
    async with configured(server.base_url, first_byte_timeout=0.2, idle_timeout=0.2) as model:
        with anyio.fail_after(20):
            answer = await ask(model, script, listener)
    assert answer.text == listener.text == ANSWER
    assert listener.resets == []


@pytest.mark.parametrize("script", ["[cut after=3 times=1]", "[hang after=3 times=1]", "[error after=3 times=1]"])
async def test_a_stream_that_breaks_after_text_is_withdrawn_and_retried(server: ScriptedModel, script: str) -> None:
    listener = Listener()
    async with configured(server.base_url, idle_timeout=0.2) as model:
        with anyio.fail_after(20):
            answer = await ask(model, script, listener)
    assert answer.text == listener.text == ANSWER
    assert len(listener.resets) == 1


@pytest.mark.parametrize(
    ("script", "kind"), [("[cut after=3]", "network"), ("[hang after=3]", "timeout"), ("[error after=3]", "overloaded")]
)
async def test_a_stream_that_breaks_after_text_twice_fails(server: ScriptedModel, script: str, kind: str) -> None:
    failure, listener, _ = await failing(server, script, idle_timeout=0.2)
    assert (failure.kind, failure.partial_answer) == (kind, True)
    assert len(listener.resets) == 1
    assert listener.text == "The tide comes in,"
    assert server.stats()["requests"] == 2


async def test_without_retries_a_broken_stream_with_text_fails(server: ScriptedModel) -> None:
    failure, listener, _ = await failing(server, "[cut after=3]", retries=0)
    assert failure.partial_answer
    assert listener.resets == []


async def test_a_silent_endpoint_fails_at_the_first_byte_timeout(server: ScriptedModel) -> None:
    failure, _, _ = await failing(server, "[hang]", first_byte_timeout=0.2, retries=1)
    assert failure.kind == "timeout"
    assert "first_byte_timeout" in failure.message
    assert server.stats()["requests"] == 2


async def test_a_slow_stream_does_not_time_out(server: ScriptedModel) -> None:
    """The deadline is for silence, not for the whole answer."""
    async with configured(server.base_url, idle_timeout=0.5) as model:
        answer = await ask(model, "[words 8] [slow ms=100]")
    assert answer.text.endswith("w7")


async def test_an_unreachable_endpoint_is_reported_with_its_address(server: ScriptedModel) -> None:
    async with serving(b"") as url:
        pass
    sleep = Slept()
    async with configured(url, sleep=sleep, retries=2) as model:
        with pytest.raises(ModelFailed) as caught:
            await ask(model, "hello")
    assert caught.value.kind == "network"
    assert url in caught.value.message
    assert len(sleep.pauses) == 2


async def test_a_server_that_is_not_http_is_reported(server: ScriptedModel) -> None:
    """X15: and a traceback shows nothing that was sent."""
    async with serving(None) as url, configured(url, key="env:CANARY") as model:
        with pytest.raises(ModelFailed) as caught:
            await ask(model, "hello")
    assert caught.value.kind == "protocol"
    for seen in (caught.value.message, repr(caught.value.__cause__), repr(caught.value.__context__)):
        assert CANARY not in seen


async def test_an_answer_over_the_limit_is_cut_off_and_the_limit_is_named(server: ScriptedModel) -> None:
    failure, _, _ = await failing(server, "[words 20000]", answer_bytes=1000)
    assert failure.kind == "protocol"
    assert "1000 bytes" in failure.message
    assert "limits.answer_bytes" in failure.message


async def test_a_stream_without_an_end_mark_is_complete_if_it_had_a_finish(server: ScriptedModel) -> None:
    async with configured(server.base_url) as model:
        assert (await ask(model, "[nodone]")).text == ANSWER


async def test_an_answer_with_a_finish_is_complete_even_if_its_connection_breaks() -> None:
    """L11: it is not requested, and not paid, a second time."""
    asked: list[None] = []

    async def answer(writer: asyncio.StreamWriter) -> None:
        asked.append(None)
        event = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
        writer.write(HEAD + b"%x\r\n%b\r\n" % (len(event), event))

    async with answering(answer) as url, configured(url, retries=2) as model:
        assert (await ask(model, "x")).text == "hi"
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("script", "call"), [("[badargs read_file]", ("read_file", '{"path": ')), ("[unknowntool]", ("no_such_tool", "{}"))]
)
async def test_an_invalid_tool_call_is_passed_on_verbatim(
    server: ScriptedModel, script: str, call: tuple[str, str]
) -> None:
    """The tools decide about it."""
    async with configured(server.base_url) as model:
        first = await ask(model, script)
        assert [(one.name, one.arguments) for one in first.calls] == [call]
        again = [Message(role="user", text=script), first, *results(first)]
        assert (await ask(model, again)).text == ANSWER


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_the_finish_is_passed_on(server: ScriptedModel, finish: str) -> None:
    async with configured(server.base_url) as model:
        assert (await ask(model, f"[finish {finish}]")).finish == finish


async def test_an_orphan_is_refused_by_the_strict_server(server: ScriptedModel) -> None:
    orphan = Message(role="assistant", calls=(ToolCall(id="c", name="clock", arguments="{}"),))
    async with configured(server.base_url) as model:
        with pytest.raises(ModelFailed) as caught:
            await ask(model, [Message(role="user", text="hi"), orphan, Message(role="user", text="hi")])
    assert caught.value.kind == "invalid"


async def test_an_agent_without_prompt_or_tools_sends_neither(server: ScriptedModel) -> None:
    async with configured(server.base_url) as model:
        await ask(model, "hi", prefix=Prefix(prompt=""))
    body = server.recorded[0].decoded()
    assert "tools" not in body
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert PREFIX.tools
    assert ANSWER_BYTES


def serving(body: bytes | None) -> "OneAnswer":
    return OneAnswer(body)


class OneAnswer:
    """A server that answers everything with one JSON body, or with bytes that are not HTTP."""

    def __init__(self, body: bytes | None) -> None:
        self._answer = b"SSH-2.0-gate\r\n\r\n"
        if body is not None:
            self._answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
                len(body),
                body,
            )

    async def __aenter__(self) -> str:
        self._listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._listener.serve, self._serve)
        return f"http://127.0.0.1:{self._listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"

    async def _serve(self, stream: anyio.abc.ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(self._answer)

    async def __aexit__(self, *_: object) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        await self._listener.aclose()


async def test_an_endpoint_that_stops_reading_a_long_request_times_out() -> None:
    """L10: sending has its own deadline, because no other timeout applies meanwhile."""
    done = asyncio.Event()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        async with (
            HttpClient(upload_rate=1 << 30) as clients,
            configured(url, clients=clients, retries=0, connect_timeout=0.2, first_byte_timeout=0.2) as model,
        ):
            with anyio.fail_after(WAIT), pytest.raises(ModelFailed) as caught:
                await ask(model, "x" * (32 << 20))
        assert (caught.value.kind, caught.value.retryable) == ("timeout", True)
    finally:
        done.set()
        server.close()
        await server.wait_closed()
