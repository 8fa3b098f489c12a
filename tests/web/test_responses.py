"""Chat responses in OpenAI's format, complete and streamed."""

import inspect
import itertools
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests import core
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import CHAT, Reply, call, chat, chat_body
from tidegate.web import create_app
from tidegate.web.app.sse import KEEP_ALIVE_SECONDS, OpenStreams, Stream

pytestmark = pytest.mark.anyio

ANSWER = "The tide comes in, the gate keeps the level."


async def test_a_complete_answer_has_openais_format(gateway: InProcessGateway) -> None:
    """H10: id, object, created, model, choices, usage; the turn's id in its header."""
    reply = await chat(gateway)
    answer = reply.json
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "main"
    assert answer["id"] == f"chatcmpl-{reply.headers['X-Turn-Id']}"
    assert isinstance(answer["created"], int) and answer["created"] > 0
    [choice] = answer["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] == "stop"
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"] == ANSWER
    assert reply.headers["X-Turn-Id"].startswith("t_")
    assert reply.headers["Content-Type"] == "application/json"


async def test_usage_is_summed_over_the_steps_of_the_turn(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H10: a turn with a tool call has two model calls; cached and reasoning tokens are reported."""
    await chat(gateway, "one", session="n")
    reply = await chat(gateway, "time please [think of it] [tool clock {}]", session="n")
    usage = reply.json["usage"]
    rows = [row.message.usage for row in await _assistant_rows(gateway)][-2:]
    assert usage["prompt_tokens"] == sum(row.input for row in rows)
    assert usage["completion_tokens"] == sum(row.output for row in rows)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == sum(row.cached for row in rows) > 0
    assert usage["completion_tokens_details"]["reasoning_tokens"] == sum(row.reasoning for row in rows) > 0


async def _assistant_rows(h: InProcessGateway):  # type: ignore[no-untyped-def]
    from tests.core import OWNER

    [view] = await h.service.sessions(OWNER, everyone=True)
    rows = (await h.service.transcript(view.id, OWNER)).rows
    return [row for row in rows if row.message.role == "assistant"]


async def test_a_streamed_answer_is_chunks_and_an_end_marker(gateway: InProcessGateway) -> None:
    """H10: the role first, then text, then the finish reason; the same text as the complete answer."""
    reply = await chat(gateway, stream=True)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert reply.headers["X-Turn-Id"].startswith("t_")
    assert reply.body.endswith(b"data: [DONE]\n\n")
    chunks = reply.chunks
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["id"] for chunk in chunks} == {f"chatcmpl-{reply.headers['X-Turn-Id']}"}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert reply.streamed == ANSWER
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_stream_reports_its_usage_on_request(gateway: InProcessGateway) -> None:
    """H08, H10: stream_options.include_usage."""
    reply = await chat(gateway, stream=True, stream_options={"include_usage": True})
    *others, last = reply.chunks
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] > 0


async def test_the_models_finish_reason_reaches_the_client(gateway: InProcessGateway) -> None:
    """H10: length, streamed and not."""
    assert (await chat(gateway, "x [finish length]")).json["choices"][0]["finish_reason"] == "length"
    streamed = await chat(gateway, "x [finish length]", stream=True)
    assert streamed.chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_tool_progress_is_comments_for_a_plain_client(gateway: InProcessGateway) -> None:
    """H11: only chunks and comments, so that every parser works."""
    reply = await chat(gateway, "time [tool clock {}]", stream=True)
    assert [comment for comment in reply.comments if "clock" in comment] == ["tool clock started", "tool clock ended"]
    assert reply.events == []
    assert reply.streamed == ANSWER
    assert reply.body.endswith(b"data: [DONE]\n\n")


async def test_tool_progress_is_named_events_on_request(gateway: InProcessGateway) -> None:
    """H11: X-Events: full."""
    reply = await chat(gateway, "time [tool clock {}]", stream=True, headers={"X-Events": "full"})
    names = [name for name, _ in reply.events]
    assert names == ["turn_started", "tool_started", "tool_ended", "turn_ended"]
    started, ended = reply.events[1][1], reply.events[2][1]
    assert started["name"] == ended["name"] == "clock"
    assert started["call_id"] == ended["call_id"]
    assert reply.events[-1][1]["outcome"]["state"] == "answered"
    assert reply.streamed == ANSWER
    assert not [comment for comment in reply.comments if "clock" in comment]
    wrong = await chat(gateway, headers={"X-Events": "some"})
    assert wrong.status == 400 and wrong.error["param"] == "X-Events"


async def test_an_idle_stream_is_kept_alive_by_comments(home: Path, model: ScriptedModel) -> None:
    """H11: comments while a model thinks; the answer follows unchanged."""
    async with in_process_gateway(home, model=model, keep_alive=0.05) as h:
        with anyio.fail_after(WAIT):
            async with h.client.post(CHAT, json=chat_body("x [hold there]", stream=True)) as response:
                seen = b""
                while seen.count(b": keep-alive\n\n") < 2:
                    seen += await response.content.readany()
                model.release("there")
                reply = Reply(response.status, response.headers, seen + await response.read())
        assert reply.streamed == ANSWER
        assert reply.body.endswith(b"data: [DONE]\n\n")


async def test_text_before_and_after_a_tool_is_separated(gateway: InProcessGateway) -> None:
    """H10, H11: in a stream by an empty line; a complete answer is the last text, and the transcript has both."""
    script = "x [saying Let me look.] [tool clock {}] [tool clock {}] [say It is late.]"
    reply = await chat(gateway, script, stream=True, session="n")
    assert reply.streamed == "Let me look.\n\nLet me look.\n\nIt is late."
    whole = await chat(gateway, script, session="n")
    assert whole.text == "It is late."
    said = [row.message.text for row in await _assistant_rows(gateway)]
    assert said == ["Let me look.", "Let me look.", "It is late."] * 2


async def test_an_idle_stream_gets_a_comment_every_fifteen_seconds() -> None:
    """H11: at the latest, and not much more often; with the test's own clock."""
    now = 0.0
    told: list[float] = []

    async def send(message: dict[str, Any]) -> None:
        if message.get("body") == b": keep-alive\n\n":
            told.append(now)

    streams = OpenStreams(clock=lambda: now)
    async with Stream(send, streams, []):
        while now < 120:
            now += streams.check_interval
            await streams.send_keep_alives()
    gaps = [later - earlier for earlier, later in itertools.pairwise([0.0, *told])]
    assert len(gaps) >= 8 and all(10 <= gap <= 15 for gap in gaps)


def test_fifteen_seconds_is_the_gateways_default_interval() -> None:
    """H11: no setting is needed."""
    assert inspect.signature(create_app).parameters["keep_alive"].default == KEEP_ALIVE_SECONDS == 15


async def test_a_plain_stream_ends_with_an_error_when_the_answer_restarts_after_visible_text(
    home: Path, model: ScriptedModel
) -> None:
    """H11, H22: sent text is never withdrawn silently; a client that gets all events is told and gets the new
    answer."""
    async with in_process_gateway(home, toml=core.settings(model).replace("retries = 0", "retries = 1")) as gateway:
        await check_broken_off(gateway, model)


async def check_broken_off(gateway: InProcessGateway, model: ScriptedModel) -> None:
    broken = "x [words 40] [cut after=3 times=1]"
    plain = await chat(gateway, broken, stream=True, session="a")
    assert plain.status == 200
    error = plain.chunks[-1]["error"]
    assert error["code"] == "answer_restarted"
    assert plain.headers["X-Turn-Id"] in error["message"]
    assert not plain.body.endswith(b"[DONE]\n\n")
    with anyio.fail_after(WAIT):
        outcome = await gateway.service.wait(plain.headers["X-Turn-Id"])
    assert outcome.state == "answered" and outcome.text.split()[-1] == "w39"
    model.reset()
    full = await chat(gateway, broken, stream=True, session="b", headers={"X-Events": "full"})
    assert "text_reset" in [name for name, _ in full.events]
    assert full.body.endswith(b"data: [DONE]\n\n")
    assert full.streamed.endswith("w39")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/healthz", 200), ("GET", "/v1/models", 200), ("GET", "/v1/nope", 404), ("PUT", "/v1/models", 405)],
)
async def test_every_response_has_its_own_id(gateway: InProcessGateway, method: str, path: str, status: int) -> None:
    """H10: users can quote it to the operator."""
    replies = [await call(gateway, method, path) for _ in range(2)]
    assert {reply.status for reply in replies} == {status}
    first, second = (reply.headers["x-request-id"] for reply in replies)
    assert first.startswith("req_") and first != second
