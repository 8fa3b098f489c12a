"""Excerpts of long output."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.project.quick import example_count
from tidegate.spool import bound_text

NOTICE = re.compile(r"^\[… (\d+) of (\d+) bytes left out, (\d+) of (\d+) lines; (.*) …\]$", re.MULTILINE)


def test_text_at_the_limit_is_complete_and_one_byte_more_is_cut() -> None:
    text = "x" * 1000
    assert bound_text(text, 1000, 10) == text
    shown = bound_text(text + "y", 1000, 10)
    assert len(shown.encode()) <= 1000
    assert NOTICE.search(shown)
    assert shown.endswith("xy")


def test_lines_at_the_limit_are_complete_and_one_more_is_cut() -> None:
    text = "line\n" * 40
    assert bound_text(text, 10_000, 40) == text
    shown = bound_text(text + "last", 10_000, 40)
    assert len(shown.splitlines()) <= 40
    assert shown.endswith("\nlast")
    assert shown.startswith("line\nline\n")


def test_it_says_how_much_was_left_out_and_how_to_get_it() -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    shown = bound_text(text, 2000, 50, hint="read it with offset=40")
    found = NOTICE.search(shown)
    assert found
    kept = len(shown.encode()) - len(found[0].encode()) - 1
    assert int(found[1]) == len(text) - kept
    assert (int(found[2]), int(found[4]), found[5]) == (len(text), 1000, "read it with offset=40")
    head, tail = shown[: found.start()], shown[found.end() + 1 :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert head.endswith("\n")
    assert len(head.splitlines()) + len(tail.splitlines()) + int(found[3]) == 1000


@given(
    st.text(alphabet="aé🌊\n漢\r", max_size=3000).map(lambda text: text * 3),
    st.integers(min_value=200, max_value=1500),
    st.integers(min_value=2, max_value=60),
)
@settings(max_examples=example_count(150), deadline=None)
def test_any_text_is_cut_to_both_limits_and_between_characters(text: str, most: int, lines: int) -> None:
    shown = bound_text(text, most, lines)
    size, count = len(text.encode()), text.count("\n") + (not text.endswith("\n") and bool(text))
    if size <= most and count <= lines:
        assert shown == text
        return
    assert len(shown.encode()) <= most
    assert shown.count("\n") + (not shown.endswith("\n")) <= lines
    found = NOTICE.search(shown)
    assert found
    head, tail = shown[: found.start()], shown[found.end() + 1 :]
    assert text.startswith(head.removesuffix("\n"))
    assert text.endswith(tail)
    assert 0 < int(found[1]) <= size


@pytest.mark.parametrize("most", [0, 1, 50])
def test_limits_too_small_for_the_notice_return_only_the_notice(most: int) -> None:
    assert NOTICE.fullmatch(bound_text("x" * 1000, most, 5))
    assert NOTICE.fullmatch(bound_text("x\n" * 1000, 10_000, 1))


def test_text_without_a_utf8_form_is_replaced() -> None:
    assert bound_text("a\ud800b", 100, 10) == "a?b"
    assert bound_text("", 0, 0) == ""


@pytest.mark.parametrize("most", range(200, 216))
def test_a_single_long_line_is_cut_between_characters_at_both_ends(most: int) -> None:
    for text in ("🌊" * 1000, "x" + "漢" * 1000, "é" * 1000 + "y"):
        shown = bound_text(text, most, 10)
        head, _notice, tail = shown.split("\n")
        assert len(shown.encode()) <= most
        assert head
        assert tail
        assert text.startswith(head)
        assert text.endswith(tail)
