"""The version of the wire format in which a conversation's last request was made."""

from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import WAIT, Core, core
from tidegate.store import sessions
from tidegate.values import Notice

pytestmark = pytest.mark.anyio


async def notices(gateway: Core, text: str) -> list[str]:
    accepted = await gateway.accept(text)
    log = gateway.components.engine.follow(accepted.turn)
    assert log is not None
    with anyio.fail_after(WAIT):
        return [event.text async for batch in log.read() for event in batch if isinstance(event, Notice)]


@pytest.mark.parametrize("before", [1001, 1])
async def test_a_conversation_that_is_encoded_otherwise_than_before_says_so_once(
    home: Path, model: ScriptedModel, before: int
) -> None:
    """S32: a rebuild of the prefix is always announced; the next request extends it."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("one")
        assert await notices(gateway, "two") == []
        await gateway.store.write(sessions.reencode, outcome.session, before)
    async with core(home, model=model) as gateway:
        (said,) = await notices(gateway, "three")
        assert "encoded again" in said
        row = await gateway.store.read(sessions.get, outcome.session)
        assert row is not None and row.encoder == 1003
        assert await notices(gateway, "four") == []
    async with core(home, model=model) as gateway:
        assert await notices(gateway, "five") == []
