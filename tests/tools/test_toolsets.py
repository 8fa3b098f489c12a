"""Tools and toolsets are values: unique, ordered, immutable."""

import gc
import random
from itertools import combinations
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from tests.tools.contexts import bare
from tidegate.errors import Misconfigured, ToolFailed
from tidegate.tools import Tool, ToolContext, Toolset, Toolsets, builtin_toolsets, tool
from tidegate.tools.toolsets import BUILTIN
from tidegate.values import ToolDefinition

pytestmark = pytest.mark.anyio

CONTEXT = bare()


async def _nothing(ctx: ToolContext, arguments: str) -> str:
    return ""


async def _something(ctx: ToolContext, arguments: str) -> str:
    return "x"


def make(name: str, owner: str = "built-in", description: str = "d", run: Any = _nothing) -> Tool:
    return Tool(definition=ToolDefinition(name=name, description=description), effect="read", run=run, owner=owner)


def test_an_exact_duplicate_is_there_once() -> None:
    """C3: the same tool from two sides is one tool."""
    composed = Toolset.compose(
        Toolset([make("a"), make("b")]), Toolset([make("b", owner="memory")]), Toolset([make("b")])
    )
    assert composed.names == ("a", "b")
    assert composed.definitions == (make("a").definition, make("b").definition)


@pytest.mark.parametrize(
    "other", [make("b", owner="server x", description="other"), make("b", owner="server x", run=_something)]
)
def test_a_conflict_is_refused_with_both_owners_named(other: Tool) -> None:
    """C3: two different tools of one name never meet in a request."""
    for first, second in ((make("b", owner="memory"), other), (other, make("b", owner="memory"))):
        with pytest.raises(Misconfigured) as caught:
            Toolset.compose(Toolset([make("a"), first]), Toolset([second]))
        assert "memory" in caught.value.message
        assert "server x" in caught.value.message
        assert "'b'" in caught.value.message


@pytest.mark.parametrize("name", ["", "a b", "ä", "a" * 65, "a.b", "a\n"])
def test_a_name_that_providers_refuse_is_refused_here(name: str) -> None:
    """C5: before it can spoil a request."""
    with pytest.raises(Misconfigured, match="server x"):
        Toolset([make(name, owner="server x")])


def test_the_order_depends_on_the_names_alone() -> None:
    """C4: so that the prefix of a request stays the same."""
    tools = [make(name) for name in ("zeta", "alpha", "Beta", "beta-2", "_x", "0")]
    expected = Toolset(tools)
    assert list(expected.names) == sorted(expected.names)
    shuffler = random.Random(7)
    for _ in range(20):
        shuffler.shuffle(tools)
        parts = [Toolset(tools[:3]), Toolset(tools[2:])]
        shuffler.shuffle(parts)
        assert Toolset.compose(*parts).definitions == expected.definitions
        assert Toolset.compose(*parts).digest == expected.digest


def test_starting_many_agents_does_not_lengthen_the_list() -> None:
    """C3, L05: after any number of starts the list is as long as after the first."""
    registry = Toolsets(builtin_toolsets())
    first = registry.resolve(["clock", "files"])
    for _ in range(50):
        again = Toolset.compose(registry.resolve(["files", "clock"]), first, builtin_toolsets()["files"])
        assert again.names == first.names
        assert len({*again.names}) == len(again)


def test_nothing_that_a_caller_gets_can_be_changed() -> None:
    """C1, L05: at the first call as at every later one."""
    toolsets = builtin_toolsets()
    registry = Toolsets(toolsets)
    toolsets["evil"] = Toolset([make("evil")])
    toolsets.pop("clock")
    assert registry.names == tuple(sorted(BUILTIN))
    for _ in range(3):
        got = registry.resolve(["clock"])
        for change in (
            lambda got: setattr(got, "tools", ()),
            lambda got: setattr(got, "definitions", ()),
            lambda got: setattr(got, "anything", 1),
            lambda got: delattr(got, "tools"),
            lambda got: got.tools.append(make("evil")),
            lambda got: got.definitions.__setitem__(0, None),
            lambda got: got._by_name.__setitem__("evil", make("evil")),  # lint: allow nothing of it can be changed
            lambda got: setattr(got.tools[0], "effect", "write"),
            lambda got: setattr(got.definitions[0], "name", "evil"),
        ):
            with pytest.raises((AttributeError, TypeError)):
                change(got)
        schema = msgspec.json.decode(got.definitions[0].parameters)
        schema["properties"]["evil"] = {}
        assert got.names == ("clock",)
        assert registry.resolve(["clock"]) == got == Toolset.compose(builtin_toolsets()["clock"])
        assert b"evil" not in bytes(registry.resolve(["clock"]).definitions[0].parameters)


def test_the_cache_of_resolved_toolsets_stays_at_its_bound() -> None:
    """C2: filled past the bound with distinct keys it keeps the newest eight."""
    toolsets = {name: Toolset([make(name)]) for name in "abcdef"}
    registry = Toolsets(toolsets)
    keys = [*combinations("abcdef", 2), *combinations("abcdef", 3)]
    for key in keys:
        assert registry.resolve(key).names == key
        assert registry.stats().size <= 8
    assert (registry.stats().size, registry.stats().cap) == (8, 8)
    hits = registry.stats().hits
    newest = registry.resolve(keys[-1])
    assert registry.resolve(reversed(keys[-1])) is newest
    assert registry.stats().hits == hits + 2
    gc.collect()
    assert registry.resolve(keys[0]).names == keys[0]


def test_an_unknown_toolset_is_refused_with_the_nearest_name() -> None:
    registry = Toolsets(builtin_toolsets())
    with pytest.raises(Misconfigured) as caught:
        registry.resolve(["clock", "fils"], where="agents.main.tools")
    assert caught.value.message == "agents.main.tools: there is no toolset 'fils'; did you mean 'files'?"
    with pytest.raises(Misconfigured, match="known: ask, clock, "):
        registry.resolve(["qqq"])
    assert registry.resolve([]).definitions == ()


def test_toolsets_are_compared_by_what_they_hold() -> None:
    """A2: the digest differs when what a model sees differs."""
    assert Toolset() == Toolset([])
    assert Toolset([make("a")]) == Toolset([make("a")])
    assert hash(Toolset([make("a")])) == hash(Toolset([make("a")]))
    assert Toolset([make("a")]) != Toolset([make("a", run=_something)])
    assert Toolset([make("a")]).digest != Toolset([make("a", description="other")]).digest
    assert Toolset([make("a")]).get("a") == make("a")
    assert Toolset([make("a")]).get("b") is None


class Point(msgspec.Struct):
    x: int


@tool(effect="write", timeout=5)
async def sample(
    ctx: ToolContext,
    *,
    path: Annotated[str, Meta(description="Where.")],
    offset: Annotated[int, Meta(ge=0)] = 0,
    deep: bool = False,
    points: list[Point] = [],  # noqa: B006 - never changed; shows that a default may be a list
) -> str:
    """Does something
    to a sample.

    This is for people, not for models.
    """
    return f"{ctx.session} {path} {offset} {deep} {len(points)}"


def test_a_tool_is_made_of_a_typed_function() -> None:
    assert sample.name == "sample"
    assert sample.definition.description == "Does something to a sample."
    assert (sample.effect, sample.timeout, sample.parallel, sample.owner) == ("write", 5.0, False, "built-in")
    assert not sample.repeatable
    repeatable = {tool.name for tool in builtin_toolsets()["files"] if tool.repeatable}
    assert repeatable == {"list_files", "read_file", "search_files"}


def test_toolsets_with_long_results_imply_the_output_tool() -> None:
    """D1: and not where no result can be long."""
    registry = Toolsets(builtin_toolsets())
    assert "output" in registry.resolve(["terminal"]).names
    assert "output" not in registry.resolve(["clock", "ask"]).names
    schema = msgspec.json.decode(sample.definition.parameters)
    assert schema["type"] == "object"
    assert schema["required"] == ["path"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["path"] == {"description": "Where.", "type": "string"}
    assert schema["properties"]["offset"]["minimum"] == 0
    assert "Point" in schema["$defs"]
    assert "title" not in schema


async def test_a_call_with_right_arguments_runs() -> None:
    """X23: whom it works for is in its context."""
    assert await sample.run(CONTEXT, '{"path": "p"}') == "s p 0 False 0"
    assert (
        await sample.run(CONTEXT, '{"path": "p", "offset": "3", "deep": true, "points": [{"x": 1}]}') == "s p 3 True 1"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{}", 'sample: the argument "path" is missing; it accepts path, offset, deep, points'),
        ("", 'sample: the argument "path" is missing; it accepts path, offset, deep, points'),
        ('{"path": 3}', 'sample: the argument "path" must be text, not a whole number'),
        ('{"path": null}', 'sample: the argument "path" must be text, not null'),
        ('{"path": "p", "offset": "x"}', 'sample: the argument "offset" must be a whole number, not text'),
        ('{"path": "p", "offset": -1}', 'sample: the argument "offset" is refused: Expected `int` >= 0'),
        (
            '{"path": "p", "points": [{"x": []}]}',
            'sample: the argument "points[0].x" must be a whole number, not a list',
        ),
        ('{"path": "p", "pth": 1}', 'sample: there is no argument "pth"; it accepts path, offset, deep, points'),
        ("[1]", "sample: the arguments must be an object, not a list; it accepts path, offset, deep, points"),
        ("{", "sample: the arguments are not a valid JSON object; it accepts path, offset, deep, points"),
        ("path=p", "sample: the arguments are not a valid JSON object; it accepts path, offset, deep, points"),
        (
            '{"path": "\ud800"}',
            "sample: the arguments are not a valid JSON object; it accepts path, offset, deep, points",
        ),
        ('{"path": ' + "[" * 100_000, "sample:"),
    ],
)
async def test_wrong_arguments_are_reported_in_one_sentence_that_names_the_argument(arguments: str, said: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        await sample.run(CONTEXT, arguments)
    assert caught.value.message.startswith(said)
    assert "\n" not in caught.value.message


def test_a_function_that_cannot_be_a_tool_is_refused_when_it_is_defined() -> None:
    async def undocumented(ctx: ToolContext) -> str:
        return ""

    async def positional(ctx: ToolContext, path: str) -> str:
        """Reads."""
        return path

    async def untyped(ctx: ToolContext, *, path) -> str:  # type: ignore[no-untyped-def]
        """Reads."""
        return str(path)

    for function in (undocumented, positional, untyped):
        with pytest.raises(TypeError):
            tool(effect="read")(function)


DECLARED = {
    # tool: effect, may be run again after a crash, contained, beside others, seconds
    "ask_user": ("read", True, False, False, None),
    "clock": ("read", True, False, True, 10),
    "context_describe": ("read", True, False, True, 60),
    "context_expand": ("read", True, False, True, 60),
    "context_search": ("read", True, False, True, 90),
    "delegate": ("write", True, True, True, None),
    "edit_file": ("write", False, True, False, 60),
    "forget": ("write", False, True, False, 30),
    "list_files": ("read", True, False, True, 60),
    "output": ("read", True, False, True, 60),
    "process": ("execute", False, True, False, None),
    "read_file": ("read", True, False, True, 60),
    "remember": ("write", False, True, False, 30),
    "search_files": ("read", True, False, True, 60),
    "skill": ("read", True, False, True, 30),
    "terminal": ("execute", False, True, False, None),
    "web_fetch": ("network", False, True, True, 600),
    "web_search": ("network", True, True, True, 600),
    "write_file": ("write", False, True, False, 60),
}
"""What is asked about and what is repeated rests on this. A tool that is new is to be entered, with thought."""


def test_every_builtin_tool_declares_its_effect() -> None:
    """X11, F4, P04: its effect and whether it may be run again are known for each."""
    found = [tool for toolset in builtin_toolsets().values() for tool in toolset.tools]
    assert {
        tool.name: (tool.effect, tool.repeatable, tool.contained, tool.parallel, tool.timeout) for tool in found
    } == DECLARED
