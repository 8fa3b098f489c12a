"""The same request twice is one turn."""

import time
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import open_ids
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import CHAT, Reply, call, chat, chat_body
from tidegate.store import receipts

pytestmark = pytest.mark.anyio

KEY = {"Idempotency-Key": "order-7"}


@pytest.mark.parametrize("session", [None, "n"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_turn_is_replayed(
    gateway: InProcessGateway, model: ScriptedModel, session: str | None, stream: bool
) -> None:
    """H18: the same answer, the same turn, and one model call; whitespace and key order do not matter."""
    first = await chat(gateway, headers=KEY, session=session, stream=stream)
    headers = {**KEY, **({"X-Session-Id": session} if session else {}), "Content-Type": "application/json"}
    flag = str(stream).lower()
    text = '{ "stream" : ' + flag + ', "messages": [ {"content": "hello", "role":"user"} ], "model" : "main" }'
    again = await call(gateway, "POST", CHAT, data=text, headers=headers)
    assert again.status == first.status == 200
    assert again.headers["X-Turn-Id"] == first.headers["X-Turn-Id"]
    if stream:
        assert again.streamed == first.streamed and again.body.endswith(b"[DONE]\n\n")
    else:
        assert again.json == first.json
    assert len(model.recorded) == 1


@pytest.mark.parametrize("session", [None, "notes"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_replay_has_the_same_header_about_caller_tools(
    gateway: InProcessGateway, session: str | None, stream: bool
) -> None:
    """H09, H18: `X-Caller-Tools` is part of the answer."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("clock", "depth")]
    if session:
        assert (await chat(gateway, session=session)).status == 200
    said = []
    for _ in range(3):
        reply = await chat(
            gateway, "more", session=session, tools=tools, stream=stream, headers={"Idempotency-Key": "k"}
        )
        said.append((reply.status, reply.headers["X-Turn-Id"], reply.headers.get("X-Caller-Tools")))
        assert (await chat(gateway, "meanwhile", session="others", tools=tools[1:])).status == 200
    assert said == [said[0]] * 3
    assert said[0][2] == ("changed, shadowed=clock" if session else "shadowed=clock")


async def test_a_running_turn_is_joined_from_its_start(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H18: both readers get the complete answer, streamed from the beginning."""
    replies: list[Reply] = []

    async def say() -> None:
        replies.append(await chat(gateway, "x [words 30] [hold there]", headers=KEY, stream=True))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(say)
            await model.held("there")
            group.start_soon(say)
            [turn] = await open_ids(gateway)
            while gateway.service.turn_log(turn).readers < 2:
                await anyio.sleep(0.005)
            model.release("there")
    first, second = replies
    assert first.headers["X-Turn-Id"] == second.headers["X-Turn-Id"]
    assert first.streamed == second.streamed
    assert first.streamed.split()[-1] == "w29"
    assert len(model.recorded) == 1


async def test_a_request_that_joins_a_running_turn_gets_its_text_from_the_beginning(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H18: the text so far, once, and then the rest."""
    text = "x [words 30] [hold there after=5]"
    replies: list[Reply] = []

    async def say() -> None:
        replies.append(await chat(gateway, text, headers=KEY, stream=True))

    with anyio.fail_after(WAIT):
        async with gateway.client.post(CHAT, json=chat_body(text, stream=True), headers=KEY) as first:
            seen = b""
            while b"w3" not in seen:
                seen += await first.content.readany()
            async with anyio.create_task_group() as group:
                group.start_soon(say)
                while gateway.service.turn_log(first.headers["X-Turn-Id"]).readers < 2:
                    await anyio.sleep(0.005)
                model.release("there")
            whole = Reply(first.status, first.headers, seen + await first.read())
    [joined] = replies
    assert joined.headers["X-Turn-Id"] == whole.headers["X-Turn-Id"]
    assert joined.streamed.split() == [f"w{number}" for number in range(30)]
    assert joined.streamed == whole.streamed
    assert len(model.recorded) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"json": chat_body("something else")},
        {"json": chat_body(temperature=0.1)},
        {"json": chat_body(stream=True)},
        {"headers": {"X-Session-Id": "other"}},
    ],
)
async def test_another_request_under_the_same_key_is_422(gateway: InProcessGateway, change: dict) -> None:  # type: ignore[type-arg]
    """H17: another body, or another conversation."""
    assert (await chat(gateway, headers=KEY)).status == 200
    options = {"json": chat_body(), **change, "headers": {**KEY, **change.get("headers", {})}}
    reply = await call(gateway, "POST", CHAT, **options)
    assert reply.status == 422
    assert reply.error["param"] == "Idempotency-Key"


async def test_an_idempotency_key_belongs_to_its_principal(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H17: two principals may use the same key."""
    anna = await gateway.add_key("anna")
    mine = await chat(gateway, headers=KEY)
    hers = await chat(gateway, headers=KEY, key=anna)
    assert mine.headers["X-Turn-Id"] != hers.headers["X-Turn-Id"]
    assert len(model.recorded) == 2


async def test_an_error_is_replayed_too(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H18: an error that a retry cannot fix is returned again unchanged."""
    text = "x [status 400 code=bad_thing]"
    first = await chat(gateway, text, headers=KEY)
    again = await chat(gateway, text, headers=KEY)
    assert first.status == again.status == 502
    assert again.error == first.error
    assert again.headers["X-Turn-Id"] == first.headers["X-Turn-Id"]
    assert len(model.recorded) == 1


async def test_a_temporary_error_is_not_replayed(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H18: the request is processed again."""
    text = "x [status 503 times=1]"
    first = await chat(gateway, text, headers=KEY)
    assert first.status == 503
    assert "Retry-After" in first.headers
    again = await chat(gateway, text, headers=KEY)
    assert again.status == 200
    assert again.headers["X-Turn-Id"] != first.headers["X-Turn-Id"]


async def test_a_refused_request_leaves_its_key_unused(gateway: InProcessGateway) -> None:
    """H18: nothing was accepted, so nothing is stored."""
    assert (await chat(gateway, n=2, headers=KEY)).status == 400
    assert (await chat(gateway, headers=KEY)).status == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
async def test_a_key_must_be_printable_and_short(gateway: InProcessGateway, key: str) -> None:
    """H17, H20: 1 to 255 characters."""
    reply = await chat(gateway, headers={"Idempotency-Key": key})
    assert reply.status == 400
    assert reply.error["param"] == "Idempotency-Key"


async def test_keys_are_kept_for_a_day_and_bounded_in_number(home: Path, model: ScriptedModel) -> None:
    """H17, L04: after a day a key can be reused; the oldest are dropped when there are too many."""
    async with in_process_gateway(home, "[limits]\nreceipts = 5", model=model) as h:
        first = await chat(h, headers=KEY)
        kept = await h.store.read(lambda db: db.execute("SELECT max(expires - at) FROM receipts").get)
        assert kept == pytest.approx(86400)
        await h.store.write(lambda db: db.execute("UPDATE receipts SET expires = ?", (time.time() - 1,)) and None)
        again = await chat(h, headers=KEY)
        assert again.headers["X-Turn-Id"] != first.headers["X-Turn-Id"]
        for number in range(8):
            await chat(h, headers={"Idempotency-Key": f"k{number}"})
        await h.store.write(receipts.prune, time.time(), h.config.limits.receipts)
        assert await h.store.read(lambda db: db.execute("SELECT count(*) FROM receipts").get) <= 5


FIRST = {"X-Stainless-Lang": "python", "X-Stainless-Retry-Count": "0"}
AGAIN = {"X-Stainless-Lang": "python", "X-Stainless-Retry-Count": "1"}


async def test_the_official_clients_retry_joins_the_turn_of_its_first_attempt(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H19: same principal, session and body, within ten minutes."""
    first = await chat(gateway, session="n", headers=FIRST)
    again = await chat(gateway, session="n", headers=AGAIN)
    assert again.headers["X-Turn-Id"] == first.headers["X-Turn-Id"]
    assert again.json == first.json
    assert len(model.recorded) == 1
    assert (await chat(gateway, session="m", headers=AGAIN)).headers["X-Turn-Id"] != first.headers["X-Turn-Id"]
    assert (await chat(gateway, "other", session="n", headers=AGAIN)).headers["X-Turn-Id"] != first.headers["X-Turn-Id"]
    anna = await gateway.add_key("anna")
    assert (await chat(gateway, session="n", headers=AGAIN, key=anna)).headers["X-Turn-Id"] != first.headers[
        "X-Turn-Id"
    ]


async def test_the_same_text_sent_twice_starts_two_turns(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H19: only a request that is marked as a retry is treated as one."""
    first = await chat(gateway, "yes", session="n", headers=FIRST)
    second = await chat(gateway, "yes", session="n", headers=FIRST)
    assert first.headers["X-Turn-Id"] != second.headers["X-Turn-Id"]
    assert len(model.recorded) == 2
    plain = await chat(gateway, "yes", session="n")
    assert plain.headers["X-Turn-Id"] != second.headers["X-Turn-Id"]


async def test_a_retry_after_ten_minutes_is_a_new_turn(gateway: InProcessGateway) -> None:
    """H19: attempts are remembered for ten minutes."""
    first = await chat(gateway, session="n", headers=FIRST)
    assert await gateway.store.read(
        lambda db: db.execute("SELECT max(expires - at) FROM receipts").get
    ) == pytest.approx(600)
    await gateway.store.write(lambda db: db.execute("UPDATE receipts SET expires = ?", (time.time() - 1,)) and None)
    again = await chat(gateway, session="n", headers=AGAIN)
    assert again.headers["X-Turn-Id"] != first.headers["X-Turn-Id"]


async def test_a_plain_client_leaves_no_receipt(gateway: InProcessGateway) -> None:
    """H19, V18: a client without a key or a retry header; of a one-shot call, the outcome is kept for minutes."""
    await chat(gateway, session="n")
    assert await gateway.store.read(lambda db: db.execute("SELECT count(*) FROM receipts").get) == 0
    await chat(gateway)
    await gateway.store.write(receipts.prune, time.time() + receipts.FOLLOWED_SECONDS, 100)
    assert await gateway.store.read(lambda db: db.execute("SELECT count(*) FROM receipts").get) == 0
