"""The context window as users see it, and compaction on request."""

from pathlib import Path

import pytest

from bench.scripted import ScriptedModel
from bench.scripted.behaviour import Behaviour
from tests.core import ANNA, BERT, OWNER
from tests.slash_commands.test_commands import run
from tests.turns.test_compaction import WORDS, compacting_core, talk
from tidegate.errors import NotFound
from tidegate.models import SUMMARY_TASK
from tidegate.store import summaries

pytestmark = pytest.mark.anyio


async def test_context_shows_the_window_by_part(home: Path, model: ScriptedModel) -> None:
    """The parts are those of the next request, and add up to the provider's count."""
    async with compacting_core(home, model) as h:
        session = (await talk(h, 3))[-1].session
        await h.say("now [tool clock {}]")
        filling = await h.service.window_usage(session, ANNA)
        assert filling.model == "main" and filling.window == 4096 and filling.counted
        tokens = {share.part: share.tokens for share in filling.parts}
        counts = {share.part: share.count for share in filling.parts}
        assert set(tokens) == {"prompt", "tools", "people", "answers", "results"}
        assert counts["people"] == 4 and counts["results"] == 2 and counts["answers"] == 4
        assert abs(sum(tokens.values()) - filling.tokens) <= len(tokens)
        assert tokens["people"] > tokens["answers"] and tokens["people"] > 3 * 100
        text = (await run(h, "/context", session)).text
        assert f"{filling.tokens:,} of 4,096 tokens" in text and "messages from people" in text
        assert "(4)" in text and "[" in text
        status = (await run(h, "/status", session)).text
        assert f"{filling.tokens:,} of 4,096 tokens" in status
        assert f"messages from people {tokens['people']:,}" in status, "by part, the largest first"


async def test_context_is_the_same_from_the_store_alone(home: Path, model: ScriptedModel) -> None:
    """Whether or not the session is in memory; without a count it is marked as an estimate."""
    async with compacting_core(home, model) as h:
        session = (await talk(h, 3))[-1].session
        before = await h.service.window_usage(session, ANNA)
    async with compacting_core(home, model) as h:
        after = await h.service.window_usage(session, ANNA)
        assert [share.part for share in after.parts] == [share.part for share in before.parts]
        assert [share.count for share in after.parts] == [share.count for share in before.parts]
        assert not after.counted and 0.5 < after.tokens / before.tokens < 2
        assert (await run(h, "/context", session)).text.startswith("about ")


async def test_compact_summarises_with_the_next_message(home: Path, model: ScriptedModel) -> None:
    """Also during a cooldown, since a user requested it."""
    model.behave(Behaviour(marker=SUMMARY_TASK))
    async with compacting_core(home, model) as h:
        session = (await talk(h, 8))[-1].session
        before = await h.service.window_usage(session, ANNA)
        reply = await run(h, "/compact", session)
        assert "nothing is deleted" in reply.text and "rebuilt" in reply.text
        outcome = await h.say("short")
        assert any("instead of messages 1 to" in note for note in outcome.notices)
        after = await h.service.window_usage(session, ANNA)
        assert after.tokens < before.tokens and after.summaries == 1 and after.summarised > 1
        text = (await run(h, "/context", session)).text
        assert f"Messages 1 to {after.summarised} are replaced by a summary or list of them." in text
        assert "summaries of older messages" in text


async def test_compact_says_so_when_there_is_nothing_to_summarise(home: Path, model: ScriptedModel) -> None:
    async with compacting_core(home, model) as h:
        session = (await h.say("hello")).session
        await run(h, "/compact", session)
        outcome = await h.say("short")
        assert outcome.state == "answered"
        assert outcome.notices == ("This conversation was not summarised: too few of its messages are old.",)
        assert not await h.store.read(summaries.shown, session)
        assert not (await h.say("short")).notices


async def test_context_shows_why_summaries_are_suspended(home: Path, model: ScriptedModel) -> None:
    """S35: and /compact tries anyway."""
    model.behave(Behaviour(marker=SUMMARY_TASK, summary="empty", times=1))
    async with compacting_core(home, model) as h:
        session = (await talk(h, 30))[-1].session
        filling = await h.service.window_usage(session, ANNA)
        assert filling.resting == "the summary was empty"
        told = (await run(h, "/context", session)).text
        assert "Automatic summaries are suspended until" in told and told.endswith(": the summary was empty.")
        await run(h, "/compact", session)
        await h.say("short")
        assert (await h.service.window_usage(session, ANNA)).resting is None
        assert (await h.store.read(summaries.shown, session))[-1].how == "model"


async def test_the_window_of_another_principal_is_not_visible(home: Path, model: ScriptedModel) -> None:
    async with compacting_core(home, model) as h:
        session = (await h.say(WORDS)).session
        with pytest.raises(NotFound):
            await h.service.window_usage(session, BERT)
        assert (await h.service.window_usage(session, OWNER)).tokens
