"""What a server offers is cleaned, bounded, and named so that providers accept it."""

import hashlib
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.mcp.listing import (
    INSTRUCTION_CHARACTERS,
    TOOLS_AT_MOST,
    ListingBuilder,
    ServerListing,
    encoded_schema,
    exposed_name,
    is_allowed,
    quoted,
    server_of,
)
from tidegate.mcp.message_limits import MessageRefused, ValueCount, check_values
from tidegate.mcp.tail import OutputTail
from tidegate.safe_text import strip_invisible

SERVERS = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9-]|_(?!_)){0,22}", fullmatch=True).filter(
    lambda name: name[-1] != "_"
)


def listing(*tools: tuple[str, str, dict[str, Any]], **more: Any) -> ServerListing:
    builder = ListingBuilder("s")
    for name, description, schema in tools:
        builder.add_tool(name, description, schema, read_only=False, idempotent=False)
    given = {"revision": "", "server": "", "instructions": "", "has_resources": False, "at": 0.0, "ttl": None, **more}
    return builder.build(**given)


@given(SERVERS, st.text(min_size=1, max_size=300))
def test_every_tool_name_fits_what_providers_accept_and_names_its_server(server: str, tool: str) -> None:
    """C5"""
    name = exposed_name(server, tool)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
    assert server_of(name) == server
    assert name == exposed_name(server, tool)


@given(SERVERS, st.lists(st.text(min_size=1, max_size=120), min_size=2, max_size=20, unique=True))
def test_different_tools_of_a_server_have_different_names(server: str, tools: list[str]) -> None:
    """C5"""
    assert len({exposed_name(server, tool) for tool in tools}) == len(tools)


def test_a_shortened_name_is_the_same_after_a_restart() -> None:
    """C5: it depends on nothing but the two names."""
    digest = hashlib.sha256(b"a tool.with a long name" * 5).hexdigest()[:8]
    assert exposed_name("files", "a tool.with a long name" * 5).endswith(f"_{digest}")
    assert exposed_name("files", "read.file") == "files__read_file_" + hashlib.sha256(b"read.file").hexdigest()[:8]
    assert exposed_name("files", "read_file") == "files__read_file"


def test_invisible_characters_are_removed_from_what_a_model_sees() -> None:
    """X19"""
    hidden = "\u200b\u202e\x1b\u2066\U000e0041\ufeff\xad"
    schema = {"type": "object", "properties": {f"a{hidden}": {"description": f"b{hidden}c"}}}
    made = listing(("t", f"does{hidden} it", schema), instructions=f"use{hidden} me", server=f"n{hidden}")
    assert made.tools[0].description == "does it"
    assert msgspec.json.decode(made.tools[0].parameters)["properties"] == {"a": {"description": "bc"}}
    assert made.instructions == "use me"
    assert made.server == "n"


@given(st.text(max_size=200))
def test_cleaned_text_is_cleaned_for_good(text: str) -> None:
    """X19"""
    once = strip_invisible(text)
    assert strip_invisible(once) == once


def test_what_a_server_offers_is_bounded() -> None:
    """D7, L24: tools, descriptions, schemas and instructions, each with a warning that names what was left out."""
    many = [(f"t{number:04}", "x" * 10_000, {}) for number in range(TOOLS_AT_MOST + 5)]
    made = listing(*many, instructions="y" * 100_000)
    assert len(made.tools) < TOOLS_AT_MOST + 1
    assert all(len(tool.description) <= 4096 for tool in made.tools)
    assert len(made.instructions) <= INSTRUCTION_CHARACTERS
    assert made.warnings
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"properties": {"a": deep}}
    for schema, why in (
        ({"properties": {"a": {"enum": ["x" * 100_000]}}}, "more than"),
        (deep, "nested too deeply"),
        ({"type": "string"}, "does not describe an object"),
    ):
        made = listing(("bad", "", schema), ("good", "", {}))
        assert [tool.name for tool in made.tools] == ["good"]
        assert why in made.warnings[0]


def test_a_tool_that_takes_the_name_of_another_is_left_out() -> None:
    """C3"""
    taken = exposed_name("s", "a.b").removeprefix("s__")
    made = listing(("a.b", "first", {}), (taken, "second", {}))
    assert [tool.description for tool in made.tools] == ["first"]
    assert "same name" in made.warnings[0]


def test_a_schema_without_properties_is_an_object_for_every_provider() -> None:
    """C5"""
    assert json.loads(bytes(encoded_schema({}))) == {"type": "object", "properties": {}}


def test_instructions_are_quoted_line_by_line() -> None:
    """X19"""
    assert list(quoted("time", "one\n\ntwo")) == ["The server 'time' says about its tools:", "> one", ">", "> two"]


@pytest.mark.parametrize(
    ("name", "allowed", "denied", "expected"),
    [
        ("get_time", ["*"], [], True),
        ("get_time", ["get_*"], ["*_time"], False),
        ("set_time", ["get_*"], [], False),
        ("set_time", [], [], False),
    ],
)
def test_patterns_allow_and_deny_tools(name: str, allowed: list[str], denied: list[str], expected: bool) -> None:
    """X12"""
    assert is_allowed(name, allowed, denied) is expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)


@given(JSON, st.integers(1, 7), st.booleans())
def test_values_are_counted_alike_however_a_body_is_cut(value: Any, size: int, events: bool) -> None:
    """D7"""
    text = json.dumps(value).encode()
    whole = ValueCount(events=False)
    whole.add(text)
    pieces = ValueCount(events=events)
    for start in range(0, len(text), size):
        pieces.add(text[start : start + size])
    assert pieces.count == whole.count


def test_the_values_of_each_event_are_counted_by_themselves() -> None:
    """D7"""
    count = ValueCount(events=True, most=10)
    assert sum(count.add(b"data: [1,2,3,4]\n\n") for _ in range(100)) == 100
    with pytest.raises(MessageRefused):
        count.add(b"data: [" + b"1," * 100 + b"1]\n\n")


def test_text_within_a_message_counts_as_one_value() -> None:
    """D7"""
    check_values(json.dumps({"a": "[{," * 1000}).encode(), most=10)
    with pytest.raises(MessageRefused):
        check_values(b"[" + b"{}," * 100 + b"0]", most=10)


def test_the_tail_of_an_output_keeps_its_newest_lines() -> None:
    """D7"""
    tail = OutputTail(200)
    for number in range(1000):
        tail.add(f"line {number}\n".encode())
    assert tail.last == "line 999"
    assert sum(map(len, tail.lines)) <= 200
    tail.add(b"\x1b[31mred\x1b[0m and " + b"x" * 5000)
    assert all("\x1b" not in line for line in tail.lines)
    tail.add(b"rest of the long line\nnext\n")
    assert tail.last == "next"
