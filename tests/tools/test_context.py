"""The toolset `context`: lookup of earlier messages by a model."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.recall.recall_store import RecallStore, open_recall_store, summarise
from tests.tools.contexts import bare
from tidegate.errors import ToolFailed
from tidegate.tools import Tool, builtin_toolsets
from tidegate.tools.builtin.context import context_describe, context_expand, context_search

pytestmark = pytest.mark.anyio

TOOLS = (context_search, context_describe, context_expand)


@pytest.fixture
async def past(tmp_path: Path) -> AsyncIterator[RecallStore]:
    async with open_recall_store(tmp_path) as made:
        yield made


async def call(past: RecallStore, tool: Tool, **arguments: Any) -> str:
    given = await tool.run(past.context(), msgspec.json.encode(arguments).decode())
    assert isinstance(given, str)
    return given


def test_they_only_read_and_may_be_run_again() -> None:
    """P04: a crash in the middle of one costs nothing."""
    for tool in TOOLS:
        assert (tool.effect, tool.repeatable, tool.parallel) == ("read", True, True)
    assert builtin_toolsets(["context"])["context"].names == ("context_describe", "context_expand", "context_search")


def test_they_take_little_of_a_prompt() -> None:
    """Their definitions stand in every request."""
    assert sum(len(msgspec.json.encode(tool.definition)) for tool in TOOLS) < 2200


def test_no_argument_names_a_principal() -> None:
    """X06: identity comes from the call's context alone."""
    for tool in TOOLS:
        names = set(msgspec.json.decode(tool.definition.parameters)["properties"])
        assert not names & {"principal", "agent", "user", "turn"}


async def test_a_search_leads_to_the_complete_message(past: RecallStore) -> None:
    """S19: search names a place, expand gives it, describe says where it is covered."""
    await past.say("s_1", *(f"entry {number}: {'calm ' * 200}" for number in range(1, 10)), "the heron came", "ok")
    number = await past.store.write(summarise, "s_1", 1, 11)
    assert "message 10 · assistant ·" in await call(past, context_search, query="heron")
    assert "\n| the heron came\n" in await call(past, context_expand, first=10)
    assert f"Summary {number}: messages 1 to 11 (11 messages" in await call(past, context_describe)
    assert "\n| the heron came\n" in await call(past, context_expand, summary=number, first=10)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        (context_search, {}, '"query" is missing'),
        (context_search, {"query": "x", "limit": 51}, '"limit"'),
        (context_search, {"query": "x", "principal": "p_bert"}, 'no argument "principal"'),
        (context_search, {"query": "x", "everywhere": True}, 'recall = "person"'),
        (context_expand, {"first": 0}, '"first"'),
        (context_expand, {"first": 2**60}, '"first"'),
        (context_describe, {"summary": -1}, '"summary"'),
    ],
)
async def test_errors_are_one_sentence(past: RecallStore, tool: Tool, arguments: dict[str, Any], words: str) -> None:
    await past.say("s_1", "x")
    with pytest.raises(ToolFailed, match=words):
        await call(past, tool, **arguments)


async def test_without_the_recall_service_the_tools_fail() -> None:
    with pytest.raises(ToolFailed, match="cannot be looked up here"):
        await context_search.run(bare(), '{"query": "x"}')
