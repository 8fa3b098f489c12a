"""Messages with pictures or sounds: accepted with all of them or not at all, whatever happens meanwhile."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, WAIT, Core, core
from tests.spool.sounds import wav
from tidegate.errors import Busy, NotFound, Refused
from tidegate.store import spooled
from tidegate.values import IDEMPOTENCY, Acceptance, Attachment, Inbound, Message, Receipt

pytestmark = pytest.mark.anyio
LARGE = wav(10)


async def bring(gateway: Core, text: str = "listen", name: str | None = "talk", **fields: Any) -> Acceptance:
    given: dict[str, Any] = {
        "principal": ANNA.id,
        "channel": "http",
        "agent": "main",
        "messages": (Message(role="user", text=text),),
        "name": name,
        "attachments": (Attachment(message=0, name="messages[0].content[0]", data=LARGE),),
        **fields,
    }
    return await gateway.service.accept(Inbound(**given))


def stored_uploads(gateway: Core) -> list[tuple[str, str]]:
    """Folder and name of the files in the spool."""
    return sorted((path.parent.name, path.name) for path in gateway.components.spool.root.rglob("sp_*"))


async def named(gateway: Core, session: str) -> list[tuple[str, str]]:
    """The media of the session's transcript, after a check that each has its row."""
    rows = (await gateway.service.transcript(session, ANNA)).rows
    found = [media.spooled for row in rows for media in row.message.media]
    for id in found:
        assert await gateway.store.read(spooled.get, id, session) is not None
        assert await gateway.components.spool.load(session, id) == LARGE
    return sorted((session, id) for id in found)


async def test_several_that_begin_a_conversation_at_once_are_one_conversation(home: Path, model: ScriptedModel) -> None:
    """D3: the second message joins the first one's conversation, with its own media; nothing else is left."""
    async with core(home, model=model) as gateway:
        with anyio.fail_after(WAIT):
            accepted = await asyncio.gather(*(bring(gateway, f"number {number}") for number in range(3)))
            for each in accepted:
                assert (await gateway.answered(each.turn)).state == "answered"
        assert len({each.session for each in accepted}) == 1
        assert stored_uploads(gateway) == await named(gateway, accepted[0].session)
        assert len(stored_uploads(gateway)) == 3
        assert gateway.components.spool.stats().writing == 0


async def test_a_conversation_that_ends_meanwhile_is_followed_by_another(home: Path, model: ScriptedModel) -> None:
    """D3: the message and its media go to the same one, whichever that is."""
    async with core(home, model=model) as gateway:
        first = await gateway.say("begin")
        with anyio.fail_after(WAIT):
            accepted, _ = await asyncio.gather(bring(gateway), gateway.service.end(first.session, ANNA, "test"))
            await gateway.answered(accepted.turn)
        assert stored_uploads(gateway) == await named(gateway, accepted.session)
        assert len(stored_uploads(gateway)) == 1


async def test_a_refused_upload_leaves_nothing_behind(home: Path, model: ScriptedModel) -> None:
    """H20, D4, X08: a full queue, another principal's conversation, a file that is no sound; the error names
    its path."""
    async with core(home, "[limits]\nqueue_length = 1\n", model=model) as gateway:
        first = await gateway.accept("[hold there] begin")
        with anyio.fail_after(WAIT):
            await model.held("there")
        await gateway.accept("waits")
        with pytest.raises(Busy, match="queue_length"):
            await bring(gateway)
        with pytest.raises(NotFound):
            await bring(gateway, principal=BERT.id, name=None, session=first.session)
        with pytest.raises(NotFound):
            await bring(gateway, name=None, session="../../etc")
        with pytest.raises(Refused, match="is not a PNG") as refused:
            await bring(gateway, attachments=(Attachment(message=0, name="messages[0].content[0]", data=b"hello"),))
        assert (refused.value.status, refused.value.param) == (400, "messages[0].content[0]")
        assert stored_uploads(gateway) == []
        assert gateway.components.spool.stats().writing == 0
        model.release("there")


async def test_a_message_may_be_steered_with_a_sound(home: Path, model: ScriptedModel) -> None:
    """D3, S14: into the running turn."""
    async with core(home, model=model) as gateway:
        first = await gateway.accept("[hold there] [tool clock {}] begin")
        with anyio.fail_after(WAIT):
            await model.held("there")
            steered = await bring(gateway, "and this", busy="steer")
            assert (steered.how, steered.turn) == ("steered", first.turn)
            model.release("there")
            await gateway.answered(first.turn)
        assert stored_uploads(gateway) == await named(gateway, first.session)
        assert b"input_audio" in model.recorded[-1].body


async def test_a_one_shot_call_that_goes_on_after_a_crash_still_has_its_sound(home: Path, model: ScriptedModel) -> None:
    """D3, H18: a caller with a key returns for the answer; after that nothing is left."""
    receipt = Receipt(source=IDEMPOTENCY, key="k", digest=b"x")
    async with core(home, model=model, drain=None) as gateway:
        accepted = await bring(gateway, "[hold there] listen", name=None, receipts=(receipt,))
        with anyio.fail_after(WAIT):
            await model.held("there")
        assert len(stored_uploads(gateway)) == 1
    model.release("there")
    async with core(home, model=model) as gateway:
        assert (await gateway.answered(accepted.turn)).state == "answered"
        (said,) = (message for message in gateway.requests()[-1]["messages"] if message["role"] == "user")
        heard = next(part["input_audio"]["data"] for part in said["content"] if part["type"] == "input_audio")
        assert base64.b64decode(heard) == LARGE
        assert stored_uploads(gateway) == []


async def test_uploads_of_a_caller_that_left_are_swept_or_accepted(home: Path, model: ScriptedModel) -> None:
    """D4, L15: cancelled at any moment, there is no file without a row for longer than the sweep takes."""
    async with core(home, model=model) as gateway:
        for pause in (0.0, 0.005, 0.05, 0.1):
            with anyio.move_on_after(pause):
                await bring(gateway, name=f"talk-{pause}")
        assert gateway.components.spool.stats().writing == 0
        with anyio.fail_after(WAIT):
            for row in await gateway.service.sessions(ANNA):
                assert set(await named(gateway, row.id)) <= set(stored_uploads(gateway))
