"""Ranked search by `context_search`: what it finds, what it says about itself, and what it never shows."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.recall.recall_store import BERT, RecallStore, open_recall_store
from tests.recall.test_recall import after, ours, quotes
from tidegate.recall import render
from tidegate.values import Message, ToolCall

pytestmark = pytest.mark.anyio


@pytest.fixture
async def past(tmp_path: Path) -> AsyncIterator[RecallStore]:
    async with open_recall_store(tmp_path) as made:
        yield made


async def test_a_question_is_answered_by_the_best_matches_and_the_answer_says_what_to_try_next(
    past: RecallStore,
) -> None:
    await past.say("s_1", "We adopted a puppy in June.", "Lovely!", "fog", "rain", "The puppy chewed my boots.", "oh")
    answer = await past.search("When did they adopt the puppies?!", exact=False)
    assert quotes(answer)[0] == "We adopted a puppy in June."
    assert ours(answer)[0] == render.NOTICE
    assert "the best matches for any of the words first; exact=true finds only messages with all of them" in answer
    assert quotes(await past.search("When did they adopt the puppies?!")) == []


async def test_pages_of_ranked_results_show_each_message_once(past: RecallStore) -> None:
    """L24: the best first, however small the pages are."""
    await past.say("s_1", *(f"heron {number}" for number in range(30)))
    found: list[str] = []
    at = ""
    while True:
        answer = await past.search("the heron", exact=False, limit=7, after=at)
        found += quotes(answer)
        if not (at := after(answer)):
            break
    assert found == [f"heron {number}" for number in range(29, -1, -1)]


@pytest.mark.parametrize("query", ["to be or not to be", "🎉", '"who are you?"', "!?"])
async def test_words_that_are_too_common_are_searched_for_as_they_stand(past: RecallStore, query: str) -> None:
    """X19: instead of finding nothing."""
    await past.say(
        "s_1", "He said: To be, or not", "that is: to be  or not to be 🎉 - who are you? !? indeed", "nothing"
    )
    for exact in (False, True):
        answer = await past.search(query, exact=exact)
        assert len(quotes(answer)) == 1 and "who are you" in answer
        assert "these words are too common to look up, so this is a search for the exact text" in answer


async def test_neighbours_of_a_match_that_quote_others_are_not_shown(past: RecallStore) -> None:
    """Results of these tools stay hidden in ranked searches too."""
    call = ToolCall(id="c", name="context_search", arguments='{"query": "grey heron"}')
    await past.say(
        "s_1",
        "a grey heron on the roof",
        Message(role="assistant", calls=(call,)),
        Message(role="tool", text="| a grey heron", name="context_search", call_id="c"),
    )
    assert quotes(await past.search("what grey heron?", exact=False)) == ["a grey heron on the roof"]


async def test_a_ranked_search_shows_only_conversations_of_the_same_person(past: RecallStore) -> None:
    """X06: and only if the agent may look at more than its own conversation."""
    await past.begin("s_2")
    await past.begin("s_bert", BERT)
    await past.begin("s_once", kind="ephemeral")
    for session in ("s_1", "s_2", "s_bert", "s_once"):
        await past.say(session, f"the grey heron of {session}", "a reply", "another reply")
    only = await past.search("grey herons?", exact=False)
    assert {line for line in quotes(only) if "heron" in line} == {"the grey heron of s_1"}
    everywhere = await past.search("grey herons?", exact=False, everywhere=True, context=past.context(agent="wide"))
    assert {line for line in quotes(everywhere) if "heron" in line} == {
        f"the grey heron of {id}" for id in ("s_1", "s_2")
    }
    assert "s_bert" not in everywhere and "s_once" not in everywhere
