"""A census after calls through every entry point: calls of every kind, valid and invalid, leave nothing behind."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import idle
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import CHAT, call, chat, chat_body
from tidegate.agent import Conversation
from tidegate.engine import TurnLog
from tidegate.engine.journal import Journal
from tidegate.engine.live_turn import LiveTurn
from tidegate.lifetimes import Present

pytestmark = pytest.mark.anyio

ROUNDS = 12
POOLED = ("tasks", "descriptors", "threads", "Future")
SLACK = 6
"""By how much pooled things may exceed the baseline: connections and workers are kept for a while. A leak of one per
round is more."""


def census(h: InProcessGateway) -> dict[str, int]:
    gc.collect()
    kinds = (Conversation, LiveTurn, TurnLog, Journal, Present, asyncio.Future, aiohttp.ClientResponse)
    found = gc.get_objects()
    return {
        **h.service.census(),
        **{kind.__name__: sum(type(thing) is kind for thing in found) for kind in kinds},
        "tasks": len(asyncio.all_tasks()),
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "leases": sum(h.clients.stats().leases.values()),
        "owners": len(h.service.ledger.owners(top=1000)),
    }


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, tuple[int, int]]:
    slack = dict.fromkeys(POOLED, SLACK)
    return {name: (before[name], count) for name, count in after.items() if count > before[name] + slack.get(name, 0)}


async def settled(h: InProcessGateway, before: dict[str, int] | None = None) -> dict[str, int]:
    """The census once nothing exceeds the baseline; without a baseline, once it has been stable for a while."""
    last, same = census(h), 0
    with anyio.move_on_after(WAIT):
        while grown(before, last) if before is not None else same < 5:
            await anyio.sleep(0.02)
            now = census(h)
            last, same = now, same + 1 if now == last else 0
    return last


@contextlib.asynccontextmanager
async def stranger(h: InProcessGateway) -> AsyncIterator[aiohttp.ClientSession]:
    """A client with its own connections, so that disconnecting closes them."""
    headers = {"Authorization": f"Bearer {h.key}"}
    async with aiohttp.ClientSession(h.url, headers=headers, timeout=aiohttp.ClientTimeout(total=WAIT)) as client:
        yield client


async def say(h: InProcessGateway, text: str, **fields: Any) -> dict[str, Any]:
    reply = await call(h, "POST", "/api/messages", json={"text": text, **fields})
    assert reply.status in (200, 202), reply.body
    return dict(reply.json)


async def page(h: InProcessGateway, model: ScriptedModel) -> None:
    """A page: starts, follows, steers, queues, interrupts, disconnects and reconnects, and gives commands."""
    begun = await say(h, "[hold here] [tool clock {}]", channel="page")
    session = begun["session"]
    with anyio.fail_after(WAIT):
        await model.held("here")
        async with stranger(h) as client, client.get(f"/api/sessions/{session}/events") as events:
            await events.content.readline()
            await say(h, "by the way", session=session, busy="steer")
            await say(h, "later", session=session)
        async with stranger(h) as client:
            request = client.get(f"/api/sessions/{session}/events", headers={"Last-Event-ID": "1"})
            async with request as events:
                await events.content.readline()  # it follows the turn from here on
                model.release("here")
                async for line in events.content:
                    if line.startswith(b"data: ") and msgspec.json.decode(line[6:]).get("type") == "turn_ended":
                        break
        await idle(h, session)
        model.latch("here").opened.clear()
        last = await say(h, "[words 400] [hang after=3]", session=session)
        stopper = await say(h, "[say at last]", session=session, busy="interrupt")
        assert (await h.service.wait(last["turn"])).state in ("stopped", "answered")
        await h.service.wait(stopper["turn"])
        await idle(h, session)
    for line in ("/status", "/title a name", "/model other", "/reasoning low", "/undo", "/retry", "/sessions"):
        reply = await say(h, line, session=session)
        if reply.get("turn"):
            with anyio.fail_after(WAIT):
                await h.service.wait(reply["turn"])
    await say(h, "/new", session=session)


async def api(h: InProcessGateway, model: ScriptedModel, number: int) -> None:
    """The HTTP API: complete and streamed, named and one-shot, failing, cut off, abandoned, repeated under a key."""
    for script in ("hello", "[tool clock {}]", "[status 500]", "[words 20] [cut after=3]", "[close]", "[unknowntool]"):
        for name in (None, "talk"):
            for stream in (False, True):
                await chat(h, script, session=name, stream=stream)
    await chat(h, "same", headers={"Idempotency-Key": f"key {number}"})
    await chat(h, "same", headers={"Idempotency-Key": f"key {number}"})
    for bad in ({"model": "nobody"}, {"messages": "x"}, {"n": 3}):
        await call(h, "POST", CHAT, json=chat_body(**bad))
    for name in ({}, {"X-Session-Id": "talk"}, {"X-Session-Id": "talk", "X-On-Disconnect": "cancel"}):
        for stream in (False, True):
            with anyio.fail_after(WAIT):
                async with stranger(h) as client, anyio.create_task_group() as group:

                    async def leave(client: aiohttp.ClientSession, stream: bool, name: dict[str, str]) -> None:
                        body = chat_body("[hold there]", stream=stream)
                        async with client.post(CHAT, json=body, headers=name) as reply:
                            await reply.read()

                    group.start_soon(leave, client, stream, name)
                    await model.held("there")
                    group.cancel_scope.cancel()
                model.release("there")
                while h.components.engine.stats().running:
                    await anyio.sleep(0.001)
                model.latch("there").opened.clear()
    while listed := (await call(h, "GET", "/api/sessions")).json["sessions"]:
        for place, session in enumerate(listed):
            if place % 2:
                await call(h, "DELETE", f"/api/sessions/{session['id']}")
            else:
                await call(h, "POST", f"/api/sessions/{session['id']}/end")


@pytest.mark.slow
async def test_the_census_returns_to_its_baseline_after_every_kind_of_call(home: Path, model: ScriptedModel) -> None:
    """F5, L06, L02, L31, B7, L07: descriptors, tasks, threads, leases, records, accounts and the objects of turns."""
    async with in_process_gateway(home, model=model) as h:
        # Each round ends its own conversations.
        for number in range(2):
            await page(h, model)
            await api(h, model, number)
        before = await settled(h)
        nothing = ("present", "residents", "turns_running", "LiveTurn", "TurnLog", "Journal", "Conversation", "leases")
        assert {name: before[name] for name in nothing} == dict.fromkeys(nothing, 0)
        for number in range(ROUNDS):
            await page(h, model)
            await api(h, model, 100 + number)
        after = await settled(h, before)
        assert grown(before, after) == {}, "before and after"
