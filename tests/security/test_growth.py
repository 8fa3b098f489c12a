"""What foreign bytes are read by on the event loop takes time that grows with them, and not with their square."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.scaling import LINEAR, growth, ratio
from tidegate.errors import ToolFailed
from tidegate.models.demo.script import read_request, reply
from tidegate.models.formats.json_repair import _without_usage, repair_json
from tidegate.models.http import endpoint_failures, error_body
from tidegate.models.http.sse import EventParser
from tidegate.security import Redactor, Secret
from tidegate.security.policy import Action, parse
from tidegate.skills import InvalidSkill, frontmatter
from tidegate.store.tables.approvals import SUMMARY_CHARACTERS
from tidegate.tools.builtin.files.edit import replaced
from tidegate.tools.builtin.web.http_access import content_type
from tidegate.tools.builtin.web.search_engines import SearXNG
from tidegate.turns.permissions import summary
from tidegate.values import ToolCall
from tidegate.web.app.http_request import _is_crowded, refuse_duplicates
from tidegate.web.app.validation_errors import refusal
from tidegate.workspaces.files.globs import Glob

KIB, MIB = 1024, 1024 * 1024


def repeat(unit: Any, size: int) -> Any:
    return unit * (size // len(unit))


def dribbled(data: bytes) -> None:
    events = EventParser()
    for place in range(0, len(data), 64):
        events.feed(data[place : place + 64])


def permitted(pattern: str, text: str) -> bool:
    action = Action(tool="t", effect="execute", arguments={"command": text}, channel="page", contained=True)
    return parse(f"allow t command={pattern}").matches(action)


def edited(text: str) -> None:
    """Replaces the first half of it, which occurs more than once."""
    with pytest.raises(ToolFailed, match="occurs"):
        replaced(text, text[: len(text) // 2], "b", every=False, path="f")


def head_read(text: str) -> None:
    with pytest.raises(InvalidSkill):
        frontmatter.read(text)


def said(before: str, after: str, text: str) -> None:
    """A message to the demo model."""
    content = before + text + after
    tools = [{"function": {"name": name}} for name in ("read_file", "terminal", "ask_user", "delegate", "skill")]
    reply(read_request(json.dumps({"messages": [{"role": "user", "content": content}], "tools": tools}).encode()))


def found(text: str) -> None:
    SearXNG("http://127.0.0.1", None).hits(json.dumps({"results": [{"url": "http://a", "title": text}] * 8}).encode())


REDACT = Redactor([Secret("a" * 40)]).text
READERS: dict[str, tuple[Callable[[Any], object], Any, int]] = {
    "a line of a stream in small pieces": (dribbled, b"data: a", MIB // 8),
    "empty lines of a stream": (EventParser().feed, b"\n", MIB // 8),
    "halves of pairs": (repair_json, b"\\ud800", MIB // 8),
    "usage that is no JSON": (_without_usage, b'"usage":{"', MIB // 8),
    "tokens that look like keys": (REDACT, "-eyJ", 64 * KIB),
    "addresses with a password": (REDACT, "://a:b", MIB // 8),
    "the beginning of a secret": (REDACT, "a" * 39 + "b", MIB // 8),
    "an error of an endpoint": (error_body.read, b'"try again in 1 ', 32 * KIB),
    "a wait of an endpoint": (lambda text: error_body.retry_after_of({"retry-after": text}, 0), "1 ", 32 * KIB),
    "reasoning in a complaint": (endpoint_failures.refuses_reasoning, "thinking blocks ", 32 * KIB),
    "a rule with stars": (partial(permitted, "*a*a*a*a*b"), "a", MIB),
    "a rule with a long word": (partial(permitted, f"*{'a' * 50}b*"), "a", 64 * KIB),
    "commas within texts": (_is_crowded, b'"' + b"a, " * 1000 + b'",', MIB),
    "a text of quotes that is never closed": (_is_crowded, b'\\",[{', MIB),
    "objects in a body": (lambda body: refuse_duplicates(b"[%b1]" % body), b'{"a":1},', MIB // 8),
    "a value told to its sender": (lambda text: refusal(f"Invalid enum value '{text}'", str), " - at `$", MIB),
    "an overlapping text in a file": (edited, "a", MIB // 8),
    "the head of a skill": (head_read, "---\n", 64 * KIB),
    "a title with mark-up": (found, "&amp<a", MIB // 8),
    "a path to read": (partial(said, "read ", " x"), ".", 4 * KIB),
    "spaces in a call": (partial(said, "call x ", "y"), " ", 4 * KIB),
    "spaces in a question": (partial(said, "ask me x?", "b\nc"), " ", 4 * KIB),
    "an agent's name": (partial(said, "delegate to ", " "), "a:", 64 * KIB),
    "a note to forget": (partial(said, "forget note 1", "x"), ".", 64 * KIB),
    "a glob": (Glob("**/*a*a*a*a*b").matches, "a" * 99 + "/", 32 * KIB),
}


@pytest.mark.parametrize("reader", READERS)
def test_four_times_as_much_takes_four_times_as_long(reader: str) -> None:
    work, unit, size = READERS[reader]
    assert growth(work, partial(repeat, unit), size) < LINEAR


def test_a_text_that_overlaps_itself_is_looked_for_no_longer_than_others() -> None:
    """Each of ten thousand places was looked for anew."""
    half = "".join(map(str, range(50_000)))
    assert ratio(edited, half + half, "a" * 2 * len(half)) < 50 * LINEAR


@pytest.mark.parametrize("unit", [";", '"', ";a=b", ";charset*0=a", " ", "(", "/"])
def test_the_type_of_a_page_is_read_from_a_bounded_part(unit: str) -> None:
    """The library's own reader took quadratic time for a header of 8 KiB."""
    assert growth(content_type, lambda size: "text/plain" + unit * size, 4 * KIB) < LINEAR
    assert content_type(f"text/plain{';' * 8000}") == ("text/plain", "")
    assert content_type('Text/HTML ; a=b; CharSet="KOI8-R"; c=d') == ("text/html", "KOI8-R")
    assert content_type("nothing") == ("application/octet-stream", "")


def test_an_action_that_is_too_long_to_be_shown_is_not_prepared_for_it() -> None:
    """Escaping an invisible character takes a hundred times as long as reading it, and no person sees it."""

    def call(characters: int) -> ToolCall:
        return ToolCall(
            "c", "t", json.dumps({"a": "\u202e" * characters, **dict.fromkeys(map(str, range(10)), "\u202e")})
        )

    too_long = 2 * SUMMARY_CHARACTERS
    assert len(summary(call(too_long))) > SUMMARY_CHARACTERS
    assert ratio(summary, call(too_long), call(16 * too_long)) < LINEAR
