"""Every failure in every format over real sockets: a ModelFailed of the right kind, in time and in bounded memory, with
an intact pool."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psutil
import pytest

from bench.scripted_model import ScriptedModel
from tests.faulty_model import FORMATS
from tests.models.raw_server import HEAD, WAIT, answering, pieces, spoken
from tests.models.support import CANARY, Listener, Slept, ask, configured
from tidegate.errors import ModelFailed
from tidegate.http_client import HttpClient
from tidegate.models import Model
from tidegate.values import Message

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("api", FORMATS)]

ANSWER = "The tide comes in, the gate keeps the level."
MOST_BEATS = 40
"""Events of the longest answer here; a loop that goes on beyond them is broken."""


@asynccontextmanager
async def asking(base_url: str, api: str, **given: Any) -> AsyncIterator[tuple[Model, HttpClient]]:
    """One model and its pool, which is clean afterwards."""
    async with HttpClient() as clients:
        options = {"retries": 0, "key": "env:CANARY", "first_byte_timeout": 5.0, "idle_timeout": 5.0, **given}
        async with configured(base_url, clients=clients, api=api, **options) as model:
            yield model, clients
            stats = clients.stats()
            assert (stats.busy, stats.waiting) == (0, 0)


async def fails(model: Model, text: str, listener: Listener | None = None) -> ModelFailed:
    with anyio.fail_after(WAIT), pytest.raises(ModelFailed) as caught:
        await ask(model, text, listener)
    failure = caught.value
    assert failure.message.startswith("Model 'main': ") and "\n" not in failure.message
    assert CANARY not in failure.message + repr(failure.__cause__) + repr(failure.__context__)
    return failure


async def is_clean(server: ScriptedModel, model: Model, clients: HttpClient) -> None:
    """Nothing of the failure is left: not in the pool, not in the kernel, not at the server."""
    with anyio.fail_after(WAIT):
        while server.stats()["busy"]:
            await anyio.lowlevel.checkpoint()
    assert (await ask(model, "still there?")).text == ANSWER
    assert clients.stats().open == clients.stats().idle <= 1
    port = int(server.root.rpartition(":")[2])
    ours = [one for one in psutil.Process().net_connections(kind="tcp") if one.raddr and one.raddr.port == port]
    assert sum(one.status == "CLOSE_WAIT" for one in ours) == 0


STATUSES = {
    **dict.fromkeys((300, 302, 307, 400, 404, 405, 406, 410, 413, 415, 422, 431, 451, 501, 505), ("invalid", False)),
    **dict.fromkeys((401, 403), ("authorisation", False)),
    402: ("quota", False),
    429: ("rate", True),
    **dict.fromkeys((408, 504, 522, 524), ("timeout", True)),
    **dict.fromkeys((409, 425, 498, 500, 502, 503, 507, 508, 520, 525, 529, 599), ("overloaded", True)),
}


async def test_every_status_has_its_kind(server: ScriptedModel, api: str) -> None:
    async with asking(server.base_url, api) as (model, clients):
        for status, expected in STATUSES.items():
            failure = await fails(model, f"[status {status} echo]")
            assert (failure.kind, failure.retryable) == expected, status
            assert (failure.upstream_status, failure.partial_answer) == (status, False)
            assert f"({status})" in failure.brief and "Your credential was" in failure.endpoint_message
        assert server.stats()["accepted_connections"] == 1, "a whole error leaves its connection in use"
        await is_clean(server, model, clients)


async def test_temporary_failures_are_retried_after_the_endpoints_retry_after(server: ScriptedModel, api: str) -> None:
    sleep = Slept()
    async with asking(server.base_url, api, retries=3, sleep=sleep) as (model, clients):
        assert (await ask(model, "[status 529 times=2] [status 429 retry-after=7 times=2]")).text == ANSWER
        assert (await ask(model, "[cut after=0 times=1]")).text == ANSWER
        await is_clean(server, model, clients)
    assert [round(pause) for pause in sleep.pauses if pause >= 7] in ([7, 7], [8, 8])


@pytest.mark.parametrize("script", ["[say one two three four]", "[saying I look] [together clock {} read_file {}]"])
@pytest.mark.parametrize(("fault", "kind"), [("cut", "network"), ("badjson", "protocol"), ("hugeline", "protocol")])
async def test_a_stream_that_breaks_at_any_event_fails_and_shows_only_received_text(
    server: ScriptedModel, api: str, script: str, fault: str, kind: str
) -> None:
    async with asking(server.base_url, api) as (model, clients):
        whole = await ask(model, script)
        for beat in range(MOST_BEATS):
            listener = Listener()
            with anyio.fail_after(WAIT):
                try:
                    answer = await ask(model, f"{script} [{fault} after={beat}]", listener)
                except ModelFailed as failure:
                    assert failure.kind == kind, beat
                    assert failure.partial_answer == bool(listener.text)
                    assert whole.text.startswith(listener.text)
                    continue
            assert answer.text == whole.text
            assert [call.name for call in answer.calls] == [call.name for call in whole.calls]
            break
        assert 2 <= beat < MOST_BEATS - 1, "the last beat was found"
        await is_clean(server, model, clients)


@pytest.mark.parametrize("script", ["[hang]", "[hang after=0]", "[hang after=1]", "[hang after=3]"])
async def test_silence_times_out(server: ScriptedModel, api: str, script: str) -> None:
    async with asking(server.base_url, api, first_byte_timeout=0.15, idle_timeout=0.15) as (model, clients):
        failure = await fails(model, script)
        assert (failure.kind, failure.retryable) == ("timeout", True)
        assert ("idle_timeout" if failure.partial_answer else "timeout") in failure.brief
        await is_clean(server, model, clients)


ERRORS = {
    "rate_limit_error": ("rate", True),
    "overloaded_error": ("overloaded", True),
    "server_error": ("overloaded", True),
    "invalid_request_error": ("invalid", False),
    "context_length_exceeded": ("context", False),
    "insufficient_quota": ("quota", False),
    "content_policy_violation": ("content", False),
}


@pytest.mark.parametrize("code", sorted(ERRORS))
async def test_an_error_event_has_its_kind_before_and_after_text(server: ScriptedModel, api: str, code: str) -> None:
    async with asking(server.base_url, api) as (model, clients):
        for after, shape in ((0, ""), (1, "failed"), (4, "nested"), (4, "failed")):
            listener = Listener()
            failure = await fails(model, f"[error after={after} code={code} {shape}]", listener)
            assert (failure.kind, failure.retryable) == ERRORS[code]
            assert "Scripted error." in failure.endpoint_message
            assert failure.partial_answer == bool(listener.text) == (after > 1)
        await is_clean(server, model, clients)


async def test_a_web_page_and_a_body_without_an_answer_are_reported(server: ScriptedModel, api: str) -> None:
    async with asking(server.base_url, api) as (model, clients):
        assert (await fails(model, "[html]")).kind == "protocol"
        await is_clean(server, model, clients)
    for body in (b"", b"{}", b"[]", b"null", b'"x"', b"{", b'{"choices":[]}', b"\xff", b'{"error":{"message":"no"}}'):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)

        async def say(writer: asyncio.StreamWriter, said: bytes = head + body) -> None:
            writer.write(said)

        async with answering(say) as url, asking(url, api) as (model, clients):
            assert (await fails(model, "x")).kind in ("protocol", "overloaded", "invalid"), body


async def test_an_answer_may_arrive_byte_by_byte_and_be_cut_off_anywhere(server: ScriptedModel, api: str) -> None:
    """A truncated recorded answer gives either the complete answer or a failure."""
    async with asking(server.base_url, api) as (model, _):
        whole = await ask(model, "[saying so it is] [tool clock {}]")
        said = await spoken(server)
    left = [len(said)]

    async def drip(writer: asyncio.StreamWriter) -> None:
        for piece in pieces(said, 1):
            writer.write(piece)
            await writer.drain()

    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(said[: left[0]])

    async with answering(drip) as url, asking(url, api) as (model, _):
        assert same(await ask(model, "x"), whole)
    async with answering(cut) as url, asking(url, api) as (model, clients):
        for left[0] in range(1, len(said), 23):
            listener = Listener()
            with anyio.fail_after(WAIT):
                try:
                    answer = await ask(model, "x", listener)
                except ModelFailed as failure:
                    assert failure.kind in ("network", "protocol"), said[: left[0]][-80:]
                    assert whole.text.startswith(listener.text)
                else:
                    assert same(answer, whole), said[: left[0]][-80:]
        assert clients.stats().open == 0


def same(one: Message, other: Message) -> bool:
    return (one.text, one.calls, one.finish) == (other.text, other.calls, other.finish)


async def test_endless_input_uses_bounded_memory(server: ScriptedModel, api: str) -> None:
    """An endless line, error body, comment and complete answer are each given up."""

    async def endless(writer: asyncio.StreamWriter, head: bytes, piece: bytes) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()

    plain = HEAD.replace(b"text/event-stream", b"application/json")
    for head, piece, kind in (
        (HEAD, b"data: " + b"x" * 65536, "protocol"),
        (HEAD, b": still here\n\n" * 4096, "protocol"),
        (HEAD, b"data: {}\n\n" * 4096, "protocol"),
        (HEAD.replace(b"200 OK", b"400 Bad Request"), b"x" * 65536, "invalid"),
        (plain, b'{"x":"' + b"x" * 65536, "protocol"),
    ):

        async def say(writer: asyncio.StreamWriter, head: bytes = head, piece: bytes = piece) -> None:
            await endless(writer, head, piece)

        async with answering(say) as url, asking(url, api, answer_bytes=2048) as (model, clients):
            tracemalloc.start()
            try:
                failure = await fails(model, "x")
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert failure.kind == kind, piece[:20]
            assert peak < 8 * 1024 * 1024
            assert clients.stats().busy == 0


async def test_an_answer_over_its_limit_is_cut_off_and_the_limit_is_named(server: ScriptedModel, api: str) -> None:
    async with asking(server.base_url, api, answer_bytes=1000) as (model, clients):
        failure = await fails(model, "[words 5000]")
        assert failure.kind == "protocol" and "limits.answer_bytes" in failure.brief
        await is_clean(server, model, clients)


async def test_a_hundred_requests_cancelled_at_any_moment_leave_a_clean_pool(server: ScriptedModel, api: str) -> None:
    """L11: before the first byte, between events, in the middle of an answer."""
    async with asking(server.base_url, api) as (model, clients):
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(_cancelled, model, f"{number} [words 40] [slow ms=5]", number / 1000)
        assert clients.stats().open == clients.stats().idle
        await is_clean(server, model, clients)


async def _cancelled(model: Model, text: str, after: float) -> None:
    with anyio.move_on_after(after):
        await ask(model, text)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "nonsense"])
async def test_an_unreadable_compressed_error_is_classified_by_its_status(api: str, encoding: str) -> None:
    """H22: an unreadable body is not quoted and does not change the kind; a decompression bomb is read only up to the
    bound."""
    plain = b'{"error":{"message":"slow down, please"}}' + b" " * 10_000_000
    body = (
        gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain) if encoding == "deflate" else b"\x8b\xff"
    )

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 429 Too Many Requests\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    async with answering(answer) as base_url, asking(base_url, api) as (model, _):
        failure = await fails(model, "x")
        assert (failure.kind, failure.upstream_status) == ("rate", 429)
        assert ("slow down" in failure.endpoint_message) is (encoding in ("gzip", "deflate"))
