"""Clients that disconnect."""

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import open_ids
from tests.in_process import WAIT, InProcessGateway
from tests.web.client import CHAT, call, chat, chat_body
from tidegate.store import turns

pytestmark = pytest.mark.anyio


async def leave(h: InProcessGateway, model: ScriptedModel, text: str, *, stream: bool, headers: dict[str, str]) -> str:
    """Send a request, hang up while its model is held, and return the id of its turn."""
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:

            async def send() -> None:
                async with h.client.post(CHAT, json=chat_body(text, stream=stream), headers=headers) as response:
                    await response.read()

            group.start_soon(send)
            await model.held("there")
            [turn] = await open_ids(h)
            group.cancel_scope.cancel()
    return turn


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_of_a_named_session_continues_without_its_reader(
    gateway: InProcessGateway, model: ScriptedModel, stream: bool
) -> None:
    """H15: its answer is available by turn, by session and under the same key."""
    headers = {"X-Session-Id": "n", "Idempotency-Key": "k"}
    turn = await leave(gateway, model, "one [hold there]", stream=stream, headers=headers)
    assert (await call(gateway, "GET", f"/api/turns/{turn}")).json["state"] == "running"
    model.release("there")
    with anyio.fail_after(WAIT):
        outcome = await gateway.service.wait(turn)
    assert outcome.state == "answered"
    fetched = (await call(gateway, "GET", f"/api/turns/{turn}")).json
    assert fetched["state"] == "answered" and fetched["text"] == outcome.text
    rows = (await call(gateway, "GET", f"/api/sessions/{outcome.session}/messages")).json["messages"]
    assert rows[-1]["message"]["text"] == outcome.text
    again = await chat(gateway, "one [hold there]", stream=stream, headers=headers)
    assert again.headers["X-Turn-Id"] == turn
    assert (again.streamed if stream else again.text) == outcome.text
    assert len(model.recorded) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_ephemeral_turn_is_stopped_when_its_reader_leaves(
    gateway: InProcessGateway, model: ScriptedModel, stream: bool
) -> None:
    """H16: no one else could fetch it."""
    turn = await leave(gateway, model, "one [hold there]", stream=stream, headers={})
    with anyio.fail_after(WAIT):
        while gateway.service.turn_log(turn) is not None:
            await anyio.sleep(0.005)
    assert gateway.service.status().turns.stopped == 1
    assert gateway.service.census()["turns_running"] == 0


async def test_an_ephemeral_turn_continues_on_request(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H16: X-On-Disconnect: continue."""
    await leave(gateway, model, "one [hold there]", stream=True, headers={"X-On-Disconnect": "continue"})
    model.release("there")
    with anyio.fail_after(WAIT):
        while gateway.service.census()["turns_running"]:
            await anyio.sleep(0.005)
    assert gateway.service.status().turns.answered == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_named_turn_is_stopped_on_request(
    gateway: InProcessGateway, model: ScriptedModel, stream: bool
) -> None:
    """H16: X-On-Disconnect: cancel; the session accepts the next message."""
    headers = {"X-Session-Id": "n", "X-On-Disconnect": "cancel"}
    turn = await leave(gateway, model, "one [hold there]", stream=stream, headers=headers)
    with anyio.fail_after(WAIT):
        while gateway.service.turn_log(turn) is not None:
            await anyio.sleep(0.005)
    assert (await call(gateway, "GET", f"/api/turns/{turn}")).json["state"] == "stopped"
    assert (await chat(gateway, "two", session="n")).status == 200


TALKING = "one [words 30] [hold there after=5]"


async def leave_after_words(h: InProcessGateway, model: ScriptedModel, headers: dict[str, str]) -> str:
    """Start a stream, read its first words, hang up, and return the id of its turn."""
    with anyio.fail_after(WAIT):
        async with h.client.post(CHAT, json=chat_body(TALKING, stream=True), headers=headers) as response:
            await model.held("there")
            seen = b""
            while b'"content":"w0' not in seen:
                seen += await response.content.readany()
            response.close()
        while h.server.connections:  # until the gateway knows
            await anyio.sleep(0.005)
    return str(response.headers["X-Turn-Id"])


async def until_ended(h: InProcessGateway, turn: str) -> None:
    with anyio.fail_after(WAIT):
        while h.service.turn_log(turn) is not None:
            await anyio.sleep(0.005)


async def test_a_named_turn_continues_when_its_reader_leaves_in_mid_stream(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H15: its complete answer is stored, including the words after the last one read."""
    turn = await leave_after_words(gateway, model, {"X-Session-Id": "n"})
    assert (await call(gateway, "GET", f"/api/turns/{turn}")).json["state"] == "running"
    model.release("there")
    await until_ended(gateway, turn)
    fetched = (await call(gateway, "GET", f"/api/turns/{turn}")).json
    assert fetched["state"] == "answered" and fetched["text"].split()[-1] == "w29"
    rows = (await call(gateway, "GET", f"/api/sessions/{fetched['session']}/messages")).json["messages"]
    assert rows[-1]["message"]["text"] == fetched["text"]


async def test_an_ephemeral_turn_is_stopped_when_its_reader_leaves_in_mid_stream(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H16: its model call is stopped too, since no one would read it."""
    turn = await leave_after_words(gateway, model, {})
    await until_ended(gateway, turn)
    assert gateway.service.status().turns.stopped == 1
    with anyio.fail_after(WAIT):
        while not model.stats()["disconnects"]:
            await anyio.sleep(0.005)


async def test_a_named_turn_is_stopped_in_mid_stream_on_request(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H16: X-On-Disconnect: cancel; the text so far is kept."""
    turn = await leave_after_words(gateway, model, {"X-Session-Id": "n", "X-On-Disconnect": "cancel"})
    await until_ended(gateway, turn)
    fetched = (await call(gateway, "GET", f"/api/turns/{turn}")).json
    assert fetched["state"] == "stopped" and fetched["text"].startswith("w0") and "w29" not in fetched["text"]
    assert (await chat(gateway, "two", session="n")).status == 200


@pytest.mark.parametrize("headers", [{"X-On-Disconnect": "continue"}, {"Idempotency-Key": "k"}])
async def test_an_ephemeral_turn_with_a_key_or_on_request_continues_in_mid_stream(
    gateway: InProcessGateway, model: ScriptedModel, headers: dict[str, str]
) -> None:
    """H16, H18: on request, or because it has an idempotency key, under which the complete answer is available."""
    turn = await leave_after_words(gateway, model, headers)
    assert gateway.service.census()["turns_running"] == 1
    row = await gateway.store.read(turns.get, turn)
    assert row is not None and row.on_disconnect == "continue", "after a restart as well"
    model.release("there")
    await until_ended(gateway, turn)
    stats = gateway.service.status().turns
    assert (stats.answered, stats.stopped) == (1, 0)
    if "Idempotency-Key" in headers:
        again = await chat(gateway, TALKING, stream=True, headers=headers)
        assert again.headers["X-Turn-Id"] == turn and again.streamed.split()[-1] == "w29"
        assert len(model.recorded) == 1


async def test_a_reader_that_leaves_does_not_stop_the_turn_of_another_reader(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H16, H18: two requests with one key are two readers of one turn; the turn is stopped with the last."""
    headers = {"Idempotency-Key": "k", "X-On-Disconnect": "cancel"}
    answers = []

    async def stay() -> None:
        answers.append(await chat(gateway, "one [hold there]", headers=headers))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            turn = await _left_to_another(gateway, model, headers, group, stay)
            assert gateway.service.turn_log(turn) is not None
            model.release("there")
    assert answers[0].status == 200
    assert answers[0].headers["X-Turn-Id"] == turn


async def _left_to_another(h, model, headers, group, stay):  # type: ignore[no-untyped-def]
    async with anyio.create_task_group() as leaving:

        async def send() -> None:
            async with h.client.post(CHAT, json=chat_body("one [hold there]"), headers=headers) as response:
                await response.read()

        leaving.start_soon(send)
        await model.held("there")
        [turn] = await open_ids(h)
        group.start_soon(stay)
        while h.service.turn_log(turn).readers < 2:
            await anyio.sleep(0.005)
        leaving.cancel_scope.cancel()
    while h.server.requests > 1:  # until the request of the client that left has ended, with its effect on the turn
        await anyio.sleep(0.005)
    assert h.service.turn_log(turn).readers == 1
    return turn
