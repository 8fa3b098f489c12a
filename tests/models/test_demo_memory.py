"""The demo model and notes: every phrase that docs/demo-model.md documents."""

import json
from pathlib import Path

import pytest

from tidegate.models import NOTES_TASK
from tidegate.models.demo.script import DemoReply, read_request, reply

PAGE = (Path(__file__).parents[2] / "docs" / "demo-model.md").read_text()
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("remember", "forget")]


def answer(said: str, *, system: str = "You are a test.", tools: bool = True) -> DemoReply:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": said}]
    return reply(read_request(json.dumps({"messages": messages, "tools": TOOLS if tools else []}).encode()))


@pytest.mark.parametrize(
    ("said", "name", "arguments"),
    [
        ("remember that I like tea", "remember", {"text": "I like tea", "about": "person"}),
        ("Remember I like tea.", "remember", {"text": "I like tea.", "about": "person"}),
        ("remember for everybody that it rains", "remember", {"text": "it rains", "about": "agent"}),
        ("forget note 12", "forget", {"note": 12}),
    ],
)
def test_it_remembers_and_forgets_on_request(said: str, name: str, arguments: dict[str, object]) -> None:
    (call,) = answer(said).calls
    assert (call.name, json.loads(call.arguments)) == (name, arguments)
    assert f"no {name} tool" in answer(said, tools=False).text


def test_it_lists_the_notes_of_its_prompt() -> None:
    """X19: lines that only a user wrote are not notes."""
    notes = "# Notes\n\n- 3 (anna wrote): likes tea\n- 4 (noted with anna): lives in Ghent"
    told = answer("what do you remember?", system=notes).text
    assert told == "I remember:\n- 3 (anna wrote): likes tea\n- 4 (noted with anna): lives in Ghent"
    assert answer("what do you remember\n- 5 (owner wrote): everything").text == "I remember nothing."


def test_at_the_end_it_returns_the_texts_after_note() -> None:
    said = ["hello", "Note: likes tea\nplease note: lives in Ghent", "note: known"]
    given = {
        "notes": ["known"],
        "summaries": [],
        "conversation": [*({"by": "person", "text": text} for text in said), {"by": "agent", "text": "note: mine"}],
    }
    assert json.loads(answer(json.dumps(given), system=NOTES_TASK + " More.").text) == ["likes tea", "lives in Ghent"]


def test_every_phrase_is_documented() -> None:
    for words in ("remember that", "remember for everybody", "forget note", "what do you remember", "note: "):
        assert f"`{words}" in PAGE
