"""A second message while the first is being answered."""

from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import idle
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import Reply, call, chat

pytestmark = pytest.mark.anyio


FIRST = "one [hold there] [say first answer]"


async def both(
    h: InProcessGateway, model: ScriptedModel, second: str, *, first: str = FIRST, **headers: str
) -> tuple[Reply, Reply]:
    """A first message that is held at the model, and a second one sent in the meantime."""
    replies: dict[str, Reply] = {}

    async def say(place: str, text: str, headers: dict[str, str]) -> None:
        replies[place] = await chat(h, text, session="n", headers=headers)

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(say, "first", first, {})
            await model.held("there")
            group.start_soon(say, "second", second, headers)
            arrived = {"steer": lambda: "second" in replies, "interrupt": lambda: "first" in replies}.get(
                headers.get("X-Busy", ""), lambda: h.service.status().turns.waiting == 1
            )
            while not arrived():
                await anyio.sleep(0.005)
            model.release("there")
    return replies["first"], replies["second"]


async def test_a_second_message_waits_and_gets_its_own_turn(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H12, S13: it is queued by default; each response belongs to its own turn."""
    first, second = await both(gateway, model, "two [say second answer]")
    assert (first.status, second.status) == (200, 200)
    assert first.text == "first answer" and second.text == "second answer"
    assert first.headers["X-Turn-Id"] != second.headers["X-Turn-Id"]
    said = [m["content"] for m in model.recorded[-1].decoded()["messages"] if m["role"] == "user"]
    assert said == [FIRST, "two [say second answer]"]


async def test_steering_joins_the_running_turn(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H13, S14: 202 names the turn; the model reads the message in that turn's next step, which answers both."""
    steered = "and another thing [say both answered]"
    working = "one [tool clock {}] [hold there step=0]"
    first, second = await both(gateway, model, steered, first=working, **{"X-Busy": "steer"})
    [view] = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    turn = first.headers["X-Turn-Id"]
    assert second.status == 202 and second.headers["X-Turn-Id"] == turn
    assert second.json == {"id": turn, "session": view["id"], "object": "turn", "status": "steered"}
    assert first.text == "both answered"
    asked, again = (request.decoded()["messages"] for request in model.recorded)
    assert steered not in [message["content"] for message in asked]
    assert again[: len(asked)] == asked
    assert [message["role"] for message in again[len(asked) :]] == ["assistant", "tool", "user"]
    assert again[-1]["content"] == steered


async def test_a_steering_message_that_comes_too_late_becomes_the_next_turn(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H13, S14: nothing is lost; the message appears once and is answered."""
    first, second = await both(gateway, model, "and another thing", **{"X-Busy": "steer"})
    assert (first.text, second.status) == ("first answer", 202)
    [view] = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    with anyio.fail_after(WAIT):
        await idle(gateway, view["id"])
    rows = (await call(gateway, "GET", f"/api/sessions/{view['id']}/messages")).json["messages"]
    assert [row["message"]["role"] for row in rows] == ["user", "assistant"] * 2
    assert rows[2]["message"]["text"] == "and another thing"


async def test_steering_an_idle_session_is_an_ordinary_message(gateway: InProcessGateway) -> None:
    """H13: there is no turn to join, so it is answered as usual."""
    reply = await chat(gateway, session="n", headers={"X-Busy": "steer"})
    assert reply.status == 200


async def test_interrupting_stops_the_running_turn_first(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H13: the first client is told that it was stopped, the second gets its answer."""
    first, second = await both(gateway, model, "two [say second answer]", **{"X-Busy": "interrupt"})
    assert second.status == 200 and second.text == "second answer"
    assert first.status == 409
    assert first.error["code"] == "stopped"
    assert first.headers["X-Turn-Id"] != second.headers["X-Turn-Id"]


async def test_a_stopped_turn_returns_the_text_it_had_produced(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H13: the text is the answer, marked as stopped."""
    replies: list[Reply] = []

    async def say() -> None:
        replies.append(await chat(gateway, "one [words 400] [hang after=5]", session="n"))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(say)
            while not (live := _running(gateway)) or not live.log.draft():
                await anyio.sleep(0.005)
            await call(gateway, "POST", f"/api/sessions/{live.session}/stop")
    [reply] = replies
    assert reply.status == 200
    assert reply.headers["X-Turn-State"] == "stopped"
    assert reply.text.startswith("w0")
    assert reply.json["choices"][0]["finish_reason"] == "stop"


def _running(h: InProcessGateway):  # type: ignore[no-untyped-def]
    for record in h.components.presence:
        if record.turn is not None:
            return record.turn
    return None


async def test_a_full_queue_is_429_with_a_retry_time(home: Path, model: ScriptedModel) -> None:
    """H14, L21: the error names the limit and its value."""
    async with in_process_gateway(home, "[limits]\nqueue_length = 1", model=model) as h:
        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: chat(h, "one [hold there]", session="n"))
                await model.held("there")
                group.start_soon(lambda: chat(h, "two", session="n"))
                while h.service.status().turns.waiting < 1:
                    await anyio.sleep(0.005)
                refused = await chat(h, "three", session="n")
                other = await chat(h, "elsewhere", session="m")
                model.release("there")
        assert refused.status == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert "limits.queue_length" in refused.error["message"] and "1" in refused.error["message"]
        assert refused.error["type"] == "rate_limit_error"
        assert other.status == 200


async def test_an_invalid_header_value_is_refused(gateway: InProcessGateway) -> None:
    """H13, H16, H20: the error names the header."""
    for name in ("X-Busy", "X-On-Disconnect"):
        reply = await chat(gateway, headers={name: "perhaps"})
        assert reply.status == 400
        assert reply.error["param"] == name
