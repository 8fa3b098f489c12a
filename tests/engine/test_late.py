"""What comes in while a session is being ended."""

from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, core
from tidegate.store import sessions

pytestmark = pytest.mark.anyio


async def test_steering_that_an_end_overtakes_does_not_keep_the_turn_from_ending(
    home: Path, model: ScriptedModel
) -> None:
    """S02, S14, B7: the steered message stays untaken in the ended session, and the turn is settled all the same."""
    async with core(home, model=model) as house:
        accepted = await house.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        await house.accept("steered", busy="steer")
        await house.store.write(
            lambda db: sessions.end(db, accepted.session, reason="new", hooks=(), now=house.door.clock())
        )
        model.release("gate")
        assert (await house.answered(accepted.turn)).state == "answered"
        rows = (await house.door.transcript(accepted.session, ANNA)).rows
        assert [row.message.text for row in rows if row.message.role == "user"] == ["[hold gate]"]
        assert house.door.census()["turns_running"] == 0
