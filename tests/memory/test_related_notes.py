"""Notes that are offered with a message: those of its person and agent that match it and are not in the prompt."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, OWNER, WAIT, Core, core
from tests.memory.test_memory import TOOLS, add, conversation_text, memory_of, people, system
from tidegate.store import messages, notes, search_index, session_search

pytestmark = pytest.mark.anyio

SMALL = "[memory]\nprompt_bytes = 256\n"
FILLER = [
    f"prefers the {word} one of any two things that look the same" for word in ("first", "newer", "taller", "calm")
]
"""They fill the prompt, since newer notes come first."""


async def with_notes(gateway: Core) -> None:
    await people(gateway)
    await add(gateway, ANNA, "keeps a red sailing boat called Heron in Ostend")
    await add(gateway, ANNA, "is allergic to hazelnuts")
    await add(gateway, BERT, "keeps a motor boat")
    await add(gateway, OWNER, "boats are moored by the harbour office", agent="main")
    for text in FILLER:
        await add(gateway, ANNA, text)
        await add(gateway, BERT, text)
        await add(gateway, OWNER, text.replace("prefers", "offers"), agent="main")


async def test_notes_that_match_a_message_and_are_not_in_the_prompt_are_offered_with_it(
    home: Path, model: ScriptedModel
) -> None:
    """P16, X19, X20: after the message, as data, and nobody else's; earlier messages are sent again byte for byte."""
    async with core(home, SMALL, model=model, tools=TOOLS) as gateway:
        await with_notes(gateway)
        await gateway.say("How are you?")
        request = gateway.requests()[-1]
        assert "Heron" not in system(request) and notes.RELATED not in conversation_text(request)
        await gateway.say("What colour does my boat have?")
        first = gateway.requests()[-1]["messages"]
        offered = str(first[-1])
        assert "not written by the user" in offered and notes.RELATED in offered
        assert "(anna wrote): keeps a red sailing boat" in offered and "(owner wrote): boats are moored" in offered
        assert "motor" not in offered and "hazelnuts" not in offered
        assert "What colour does my boat have?" in str(first[-2])
        await gateway.say("And where is the boat?")
        second = gateway.requests()[-1]["messages"]
        assert second[: len(first)] == first
        assert str(second).count("Heron in Ostend") == 1


async def test_offered_notes_are_no_words_of_the_person_and_no_search_finds_them(
    home: Path, model: ScriptedModel
) -> None:
    async with core(home, SMALL, model=model, tools=TOOLS) as gateway:
        await with_notes(gateway)
        outcome = await gateway.say("What colour does my boat have?")
        rows = await gateway.store.read(messages.page, outcome.session, after=0, limit=10)
        assert [row.message.text for row in rows if row.message.role == "user" and row.message.text] == [
            "What colour does my boat have?"
        ]
        offers = [row.message for row in rows if notes.is_offer(row.message)]
        assert len(offers) == 1 and not search_index.searchable(offers[0])
        found = await session_search.search(gateway.store, "sailing", principal=ANNA.id)
        assert found == []


async def test_a_resumed_turn_has_the_same_notes(home: Path, model: ScriptedModel) -> None:
    """F4, P16: after a crash, and although the notes have changed; the next turn begins with the same messages."""
    async with core(home, SMALL, model=model, tools=TOOLS, drain=None) as gateway:
        await with_notes(gateway)
        accepted = await gateway.accept("What colour does my boat have? [hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        first = gateway.requests()[-1]["messages"]
        await memory_of(gateway).drop(ANNA, await memory_of(gateway).subject(ANNA), 1)
    model.release("gate")
    async with core(home, SMALL, model=model, tools=TOOLS) as gateway:
        await gateway.answered(accepted.turn)
        assert notes.RELATED in str(first) and gateway.requests()[-1]["messages"][: len(first)] == first


async def test_a_message_that_waits_has_its_notes_unless_nobody_answers_it(home: Path, model: ScriptedModel) -> None:
    """X19: if the conversation ends first, only the person's own words are in its transcript."""
    async with core(home, SMALL, model=model, tools=TOOLS) as gateway:
        await with_notes(gateway)
        running = await gateway.accept("[hold gate]")
        with anyio.fail_after(WAIT):
            await model.held("gate")
        await gateway.accept("What colour does my boat have?")
        assert await gateway.service.end(running.session, ANNA, "new")
        rows = await gateway.store.read(messages.page, running.session, after=0, limit=10)
        assert [row.message.text for row in rows if row.message.unanswered] == ["What colour does my boat have?"]
        assert not any(notes.is_offer(row.message) for row in rows)
        model.release("gate")


async def test_a_retried_message_has_the_same_notes(home: Path, model: ScriptedModel) -> None:
    """P16: also after the notes have changed."""
    async with core(home, SMALL, model=model, tools=TOOLS) as gateway:
        await with_notes(gateway)
        outcome = await gateway.say("What colour does my boat have?")
        before = [part for part in map(str, gateway.requests()[-1]["messages"]) if notes.RELATED in part]
        await memory_of(gateway).drop(ANNA, await memory_of(gateway).subject(ANNA), 1)
        again = await gateway.service.operations.retry(outcome.session, ANNA)
        await gateway.components.engine.result(again.turn)
        after = [part for part in map(str, gateway.requests()[-1]["messages"]) if notes.RELATED in part]
        assert before == after and len(before) == 1


@pytest.mark.parametrize(("room", "count"), [(0, 0), (100, 1), (1024, 5)])
async def test_offered_notes_are_bounded_in_number_and_size(
    home: Path, model: ScriptedModel, room: int, count: int
) -> None:
    """X07: `related_bytes = 0` turns them off."""
    async with core(home, f"{SMALL}related_bytes = {room}\n", model=model, tools=TOOLS) as gateway:
        await people(gateway)
        for number in range(30):
            await add(gateway, ANNA, f"heron {number} of the " + ("boat" if number < 3 else f"thing {number}"))
        await gateway.say("Where is the boat of heron 7 or heron 8, 9, 10, 11, 12, 13 and 14?")
        offered = [part for part in gateway.requests()[-1]["messages"] if notes.RELATED in str(part)]
        lines = text_of(offered[0]).splitlines() if offered else []
        assert sum(line.startswith("- Of the person: ") for line in lines) == count


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


async def test_people_whose_notes_fit_into_the_prompt_cost_no_read(home: Path, model: ScriptedModel) -> None:
    """Their notes, and those of the agent, are read once and not again until they change."""
    async with core(home, model=model, tools=TOOLS) as gateway:
        await with_notes(gateway)
        await gateway.say("What colour does my boat have?")
        before = gateway.store.stats()
        await gateway.say("And where is the boat?")
        assert notes.RELATED not in conversation_text(gateway.requests()[-1])
        after = gateway.store.stats()
        assert after.writes - before.writes == 2
