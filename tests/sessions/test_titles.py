"""Titles: a chosen title is kept or refused, a generated one is short."""

from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, core
from tidegate.errors import Refused
from tidegate.sessions.admission import TITLE_CHARACTERS, title_from
from tidegate.sessions.operations import LONGEST_TITLE

pytestmark = pytest.mark.anyio


async def test_a_title_that_is_too_long_is_refused_and_never_cut(home: Path, model: ScriptedModel) -> None:
    """H20: the bound is named, and the title is as it was."""
    async with core(home, model=model) as gateway:
        session = (await gateway.say("hello")).session
        await gateway.service.operations.set_title(session, ANNA, "  a\nline " + "x" * (LONGEST_TITLE - 7))
        kept = (await gateway.service.session(session, ANNA)).title
        assert kept == "a line " + "x" * (LONGEST_TITLE - 7)
        with pytest.raises(Refused, match="201 characters; the limit is 200"):
            await gateway.service.operations.set_title(session, ANNA, "x" * (LONGEST_TITLE + 1))
        assert (await gateway.service.session(session, ANNA)).title == kept


@pytest.mark.parametrize("text", ["short", "word " * 100, "x" * 500, "\n \n"])
def test_a_title_made_from_a_message_is_short(text: str) -> None:
    """L24: whatever the message is."""
    made = title_from(text)
    assert len(made) <= TITLE_CHARACTERS and (made or not text.strip())
