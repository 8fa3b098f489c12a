"""Real turns: output and pictures of tools, across unload and restart."""

import base64
import itertools
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core
from tests.spool.pictures import noise, plain, saved
from tests.spool.spools import ID
from tidegate.tools import Result, ToolContext, Toolset, tool
from tidegate.values import MessageAdded

pytestmark = pytest.mark.anyio
LARGE = saved(noise(400, 400), "PNG")
SMALL = saved(plain(20, 10), "PNG")


@tool(effect="read", timeout=30, parallel=True)
async def snap(ctx: ToolContext, *, large: bool = True) -> Result:
    """Takes a picture."""
    media = await ctx.spool.media("snap", LARGE if large else SMALL)
    return Result(text=f"{media.width} x {media.height}", media=(media,))


@tool(effect="read", timeout=30)
async def shout(ctx: ToolContext, *, lines: int = 5000) -> str:
    """Prints a lot."""
    return "".join(f"line {number}\n" for number in range(1, lines + 1))


TOOLS = {"test": Toolset((snap, shout))}


def running(home: Path, model: ScriptedModel) -> Any:
    return core(home, model=model, toolsets=TOOLS, tools='"test", "output"')


async def messages_until(gateway: Core, session: str, until: int) -> list[MessageAdded]:
    """The messages that a watcher receives, up to position `until`."""
    found: list[MessageAdded] = []
    with anyio.fail_after(WAIT):
        async with aclosing(gateway.service.watch(session, ANNA, 0)) as events:
            async for _, event in events:
                if isinstance(event, MessageAdded):
                    found.append(event)
                    if event.seq >= until:
                        break
    return found


def check_growth(model: ScriptedModel) -> None:
    assert model.stats()["refused"] == 0
    for earlier, later in itertools.pairwise([request.body for request in model.recorded]):
        assert later.startswith(earlier.removesuffix(b"]}"))


def seen(gateway: Core) -> list[bytes]:
    """The pictures in the last request."""
    contents = [message["content"] for message in gateway.requests()[-1]["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


async def test_a_model_sees_pictures_and_its_requests_only_grow_over_unload_and_restart(
    home: Path, model: ScriptedModel
) -> None:
    """D3, B4, S32: spooled and inline, side by side, live and from the store."""
    async with running(home, model) as gateway:
        first = await gateway.say('[together snap {} snap {"large":false} snap {}] one')
        assert first.state == "answered"
        assert seen(gateway) == [LARGE, SMALL, LARGE]
        await gateway.say("two")
        assert gateway.components.presence.unload(first.session, reason="test")
        await gateway.say("[tool snap {}] three")
    async with running(home, model) as gateway:
        await gateway.say("four")
        assert seen(gateway) == [LARGE, SMALL, LARGE, LARGE]
        check_growth(model)


async def test_events_describe_a_picture_without_its_bytes(home: Path, model: ScriptedModel) -> None:
    """D6: live and for later readers; the model's own result is unchanged."""
    async with running(home, model) as gateway:
        accepted = await gateway.accept('[hold there] [tool snap {"large":false}] one')
        with anyio.fail_after(WAIT):
            await model.held("there")
        live: list[MessageAdded] = []

        async def listen() -> None:
            live.extend(await messages_until(gateway, accepted.session, 4))

        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            model.release("there")
        outcome = await gateway.answered(accepted.turn)
        later = await messages_until(gateway, outcome.session, 4)
        for added in (live, later):
            (shown,) = (event.message for event in added if event.message.role == "tool")
            assert [(picture.data, picture.width) for picture in shown.media] == [(b"", 20)]
        assert seen(gateway) == [SMALL]


async def test_the_rest_of_a_result_is_read_with_the_tool_output(home: Path, model: ScriptedModel) -> None:
    """D1: the excerpt contains its id; pages and search find it, also after a restart."""
    async with running(home, model) as gateway:
        await gateway.say("[tool shout {}] one")
        excerpt = next(
            message["content"] for message in gateway.requests()[-1]["messages"] if message["role"] == "tool"
        )
        assert len(excerpt.encode()) <= 16 * 1024
        (id,) = ID.findall(excerpt)
    async with running(home, model) as gateway:
        page = msgspec.json.encode({"id": id, "offset": 2499, "lines": 1}).decode()
        found = msgspec.json.encode({"id": id, "search": "line 4321"}).decode()
        await gateway.say(f"[together output {page} output {found}] two")
        results = [message["content"] for message in gateway.requests()[-1]["messages"] if message["role"] == "tool"]
        assert results[1] == "line 2500\n[line 2500 of 5000; continue with offset=2500]"
        assert results[2].startswith("4321 (byte 42093): line 4321\n[1 match")
        check_growth(model)


async def test_a_deleted_conversation_leaves_nothing_in_the_spool(home: Path, model: ScriptedModel) -> None:
    """D4, L19, V07: an ended one keeps its results with the transcript."""
    async with running(home, model) as gateway:
        outcome = await gateway.say("[tool shout {}] [tool snap {}] one")
        folder = gateway.components.spool.root / outcome.session
        assert len(list(folder.iterdir())) == 2
        await gateway.service.end(outcome.session, ANNA, "test")
        assert len(list(folder.iterdir())) == 2
        await gateway.service.delete(outcome.session, ANNA)
        assert not folder.exists()
