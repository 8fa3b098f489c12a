"""Conversations that are larger than memory should hold at once."""

import tracemalloc
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tidegate.store import Db, messages
from tidegate.values import Message, MessageAdded

pytestmark = pytest.mark.anyio

ROWS = 48
BYTES = 512 * 1024
"""Size of each message: all together are far more than a reader may hold at once."""
MOST = ROWS * BYTES // 4


async def long_talk(gateway: Core) -> str:
    session = (await gateway.say("one")).session

    def add(db: Db) -> None:
        for number in range(ROWS):
            message = Message(role="user", text=f"{number}:" + "x" * BYTES)
            messages.append(db, session=session, turn=None, step=None, message=message, now=1.0)

    await gateway.store.write(add)
    return session


async def test_following_a_long_conversation_holds_little_of_it(home: Path, model: ScriptedModel) -> None:
    """L24: every row is sent complete; only a few are in memory at a time."""
    async with core(home, model=model) as gateway:
        session = await long_talk(gateway)
        sizes: list[int] = []
        tracemalloc.start()
        try:
            with anyio.fail_after(WAIT):
                async with aclosing(gateway.service.watch(session, ANNA, 0)) as events:
                    async for _, event in events:
                        assert isinstance(event, MessageAdded)
                        sizes.append(len(event.message.text))
                        if len(sizes) == ROWS + 2:
                            break
            assert tracemalloc.get_traced_memory()[1] < MOST
        finally:
            tracemalloc.stop()
        assert min(sizes[2:]) > BYTES


async def test_exporting_a_long_conversation_holds_little_of_it(home: Path, model: ScriptedModel) -> None:
    """L24: every row is written complete; only a few are in memory at a time."""
    async with core(home, model=model) as gateway:
        session = await long_talk(gateway)
        sizes: list[int] = []
        tracemalloc.start()
        try:
            with anyio.fail_after(WAIT):
                async for line in gateway.service.export(session, ANNA):
                    sizes.append(len(line))
            assert tracemalloc.get_traced_memory()[1] < MOST
        finally:
            tracemalloc.stop()
        assert len(sizes) == ROWS + 3 and min(sizes[3:]) > BYTES


async def test_a_list_of_conversations_holds_none_of_their_prompts(home: Path, model: ScriptedModel) -> None:
    """L24: a caller's own prompt may be long, and neither a list nor a search loads it."""
    async with core(home, model=model) as gateway:
        for number in range(16):
            await gateway.say("tide", f"talk {number}", extra_prompt=f"{number}:" + "x" * BYTES)
        await gateway.service.sessions(ANNA, query="tide")  # the index catches up
        for query in (None, "tide", "talk"):
            tracemalloc.start()
            try:
                assert len(await gateway.service.sessions(ANNA, query=query)) == 16
                assert tracemalloc.get_traced_memory()[1] < 16 * BYTES // 4
            finally:
                tracemalloc.stop()
