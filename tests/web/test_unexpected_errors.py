"""Unexpected errors inside a turn or a stream: reported in OpenAI's format, logged, and survived."""

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import WAIT, InProcessGateway
from tests.logs import capture_logs
from tests.web.client import CHAT, Reply, chat, chat_body
from tidegate.models.http.http_model import HttpModel
from tidegate.web.chat.chat_stream import ChatStream

pytestmark = pytest.mark.anyio

SECRET = "password=hunter2"


def told_and_logged(error: Any, logged: Any, event: str) -> None:
    """One sentence with an incident id; the log has the same id and the exception."""
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("server_error", "internal")
    assert SECRET not in error["message"] and error["message"].count(".") == 1
    incident = error["message"].rstrip(".").rpartition(" ")[2]
    assert incident.startswith("i_")
    [line] = [line for line in logged if line["event"] == event]
    assert line["level"] == "error" and incident in str(line)
    assert line["exc_info"], "the log tells where it happened"


NAMED = {"X-Session-Id": "n"}


async def begun_and_broken(
    h: InProcessGateway, text: str, goes_on: Callable[[], None], headers: Mapping[str, str] = NAMED
) -> Reply:
    """A stream that sends text, fails on demand, and is read to its end."""
    with anyio.fail_after(WAIT):
        async with h.client.post(CHAT, json=chat_body(text, stream=True), headers=headers) as response:
            seen = b""
            while b'"content":"w0' not in seen:
                seen += await response.content.readany()
            goes_on()
            return Reply(response.status, response.headers, seen + await response.read())


def has_ended_with_an_error(reply: Reply) -> Any:
    assert reply.status == 200 and reply.streamed.startswith("w0")
    assert b"[DONE]" not in reply.body
    return reply.chunks[-1]["error"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unexpected_error_in_a_turn_is_an_incident_and_the_session_continues(
    gateway: InProcessGateway, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """H20, H22, L23: with its status, before any text."""

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError(SECRET)

    with capture_logs() as logged, monkeypatch.context() as patched:
        patched.setattr(HttpModel, "ask", broken)
        reply = await chat(gateway, "one", session="n", stream=stream)
    assert reply.status == 500 and reply.headers["X-Turn-Id"].startswith("t_")
    told_and_logged(reply.error, logged, "a turn failed unexpectedly")
    assert (await chat(gateway, "two", session="n")).status == 200
    said = [message["content"] for message in model.recorded[-1].decoded()["messages"] if message["role"] == "user"]
    assert said == ["one", "two"]


async def test_an_unexpected_error_after_text_ends_the_stream_with_the_error(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H20, H22, L23: as an event; the session accepts the next message."""
    seen = anyio.Event()

    async def broken(*_: object, on_text: Callable[[str], None], **__: object) -> None:
        on_text("w0 and")
        await seen.wait()
        raise RuntimeError(SECRET)

    with capture_logs() as logged, monkeypatch.context() as patched:
        patched.setattr(HttpModel, "ask", broken)
        reply = await begun_and_broken(gateway, "one", seen.set)
    told_and_logged(has_ended_with_an_error(reply), logged, "a turn failed unexpectedly")
    assert (await chat(gateway, "two", session="n")).status == 200


async def test_an_unexpected_error_of_a_stream_ends_the_stream_and_not_its_turn(
    gateway: InProcessGateway, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H15, H20, H22: the answer is stored anyway, and the session accepts the next message."""
    tell = ChatStream.encode

    def broken(self: ChatStream, events: Any) -> bytes:
        if model.latch("there").opened.is_set():
            raise RuntimeError(SECRET)
        return tell(self, events)

    with capture_logs() as logged, monkeypatch.context() as patched:
        patched.setattr(ChatStream, "encode", broken)
        text = "one [words 30] [hold there after=5]"
        reply = await begun_and_broken(gateway, text, lambda: model.release("there"))
    told_and_logged(has_ended_with_an_error(reply), logged, "a request raised an unexpected exception")
    with anyio.fail_after(WAIT):
        outcome = await gateway.service.wait(reply.headers["X-Turn-Id"])
    assert outcome.state == "answered" and outcome.text.endswith("w29")
    assert (await chat(gateway, "two", session="n")).status == 200


async def test_an_ephemeral_turn_stops_when_its_stream_fails(
    gateway: InProcessGateway, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H16: no one is left to read it."""

    def broken(self: ChatStream, events: Any) -> bytes:
        raise RuntimeError(SECRET)

    with capture_logs(), monkeypatch.context() as patched:
        text = "one [words 30] [hold there after=5] [slow ms=20]"

        def breaks() -> None:
            patched.setattr(ChatStream, "encode", broken)
            model.release("there")

        has_ended_with_an_error(await begun_and_broken(gateway, text, breaks, {}))
        with anyio.fail_after(WAIT):
            while gateway.service.census()["turns_running"]:
                await anyio.sleep(0.005)
    assert gateway.service.status().turns.stopped == 1
