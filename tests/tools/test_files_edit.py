"""edit_file: exactly the named text is replaced, or nothing; and the diff is correct."""

import re
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.workspaces.file_tree import FileTree as Yard
from tidegate.errors import ToolFailed
from tidegate.tools.builtin.files import diffs
from tidegate.tools.builtin.files import edit as editing
from tidegate.tools.builtin.files.diffs import NO_BREAK, Span, bounded, unified
from tidegate.tools.builtin.files.edit import edit, replaced

pytestmark = pytest.mark.anyio


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


def refusal(text: str, old: str, new: str, *, every: bool = False) -> str:
    with pytest.raises(ToolFailed) as caught:
        replaced(text, old, new, every=every, path="f")
    return caught.value.message


def applied(text: str, diff: list[str]) -> str:
    """Applies a diff like `patch`, and checks every number and every line of it."""
    lines = re.findall(r"[^\n]*\n|[^\n]+$", text)
    output: list[str] = []
    place = index = 0
    while index < len(diff):
        header = re.fullmatch(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@", diff[index])
        assert header, diff[index]
        start, length, new_start, new_length = map(int, header.groups())
        first = start - (length > 0)
        assert first >= place
        output += lines[place:first]
        assert len(output) == new_start - (new_length > 0)
        place, added, index = first, len(output), index + 1
        while index < len(diff) and not diff[index].startswith("@@"):
            mark, line = diff[index][0], diff[index][1:] + "\n"
            index += 1
            if index < len(diff) and diff[index] == NO_BREAK:
                line, index = line[:-1], index + 1
            if mark in " -":
                assert lines[place] == line
                place += 1
            if mark in " +":
                output.append(line)
        assert (place - first, len(output) - added) == (length, new_length)
    return "".join(output + lines[place:])


async def test_the_one_place_is_replaced_and_shown(yard: Yard) -> None:
    yard.put({"a.py": "1\n2\n3\n4\nold text\n6\n7\n8\n9\n"})
    (yard.work / "a.py").chmod(0o755)
    assert await edit(yard.files(), "a.py", "old text\n", "new\ntext\n") == (
        'Replaced 1 place in "a.py".\n@@ -2,7 +2,8 @@\n 2\n 3\n 4\n-old text\n+new\n+text\n 6\n 7\n 8'
    )
    assert (yard.work / "a.py").read_text() == "1\n2\n3\n4\nnew\ntext\n6\n7\n8\n9\n"
    assert stat.S_IMODE((yard.work / "a.py").stat().st_mode) == 0o755


async def test_every_place_is_replaced_on_request(yard: Yard) -> None:
    yard.put({"f": "a.a.a"})
    assert (await edit(yard.files(), "f", "a", "bb", every=True)).startswith('Replaced 3 places in "f".\n')
    assert (yard.work / "f").read_text() == "bb.bb.bb"


def test_several_occurrences_are_reported_with_their_lines() -> None:
    assert refusal("x\nold\nold\ny old\n", "old", "new") == (
        'The old text occurs 3 times in "f", at lines 2, 3, 4; include more of the surrounding text, or set all=true.'
    )
    assert "occurs 20 times" in (said := refusal("old\n" * 20, "old", "new"))
    assert "9, 10, …; include" in said


def test_places_that_overlap_are_several() -> None:
    """It is not known which one is meant."""
    assert "occurs 2 times" in refusal("aaa", "aa", "b")
    assert replaced("aaa", "aa", "b", every=True, path="f").text == "ba"


def test_a_missing_text_is_reported_with_a_similar_line() -> None:
    assert refusal("x\n", "y", "z") == 'The old text does not occur in "f"; read the file and copy it exactly.'
    assert "line 2 resembles its beginning, but the spaces" in refusal("x\n\tif a:\n\t\tb\n", "  if a:\n    b\n", "")
    assert "the same" in refusal("x", "x", "x")


def test_the_line_endings_of_the_file_are_kept() -> None:
    """A model writes line feeds; a file of another kind stays one, and in a mixed one the exact text goes first."""
    windows = "a\r\nb\r\nc\r\n"
    assert replaced(windows, "a\nb\n", "x\ny\nz\n", every=False, path="f").text == "x\r\ny\r\nz\r\nc\r\n"
    assert replaced(windows, "b", "x\ny", every=False, path="f").text == "a\r\nx\r\ny\r\nc\r\n"
    assert replaced(windows, "a\r\nb", "x\r\ny", every=False, path="f").text == "x\r\ny\r\nc\r\n"
    assert "does not occur" not in refusal(windows, "\n", "\n\n")
    mixed = "a\nb\r\nc\r\n"
    assert replaced(mixed, "a\n", "x\n", every=False, path="f").text == "x\nb\r\nc\r\n"
    assert replaced(mixed, "b\nc\n", "x\ny\n", every=False, path="f").text == "a\nx\r\ny\r\n"
    assert replaced("a\nb\n", "a", "x\r\ny", every=False, path="f").text == "x\r\ny\nb\n"


async def test_a_file_changed_in_between_is_not_overwritten(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.put({"f": "old\n"})
    real = editing.replaced

    def slow(*arguments: object, **options: object) -> object:
        (yard.work / "f").write_text("old, and something new\n")
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(editing, "replaced", slow)
    with pytest.raises(ToolFailed, match="changed by someone else in the meantime"):
        await edit(yard.files(), "f", "old", "new")
    assert (yard.work / "f").read_text() == "old, and something new\n"


async def test_very_long_texts_are_replaced_without_a_diff(yard: Yard) -> None:
    long = "x" * (editing.DIFFED_CHARACTERS + 1)
    yard.put({"f": long})
    assert "too long to show the difference" in await edit(yard.files(), "f", long, "y")
    assert (yard.work / "f").read_text() == "y"


async def test_files_that_cannot_be_edited_are_refused(yard: Yard) -> None:
    limit = editing.EDITED_BYTES
    yard.put({"latin": b"caf\xe9", "long": "x" * (limit + 1), "short": "x"})
    (yard.shared / "theirs").write_text("old")
    for path, said in (
        ("latin", "is binary or not UTF-8 text; change it with a command"),
        ("none", "There is no file"),
        (".", "is a folder"),
        ("/shared/theirs", "read-only"),
    ):
        with pytest.raises(ToolFailed, match=said):
            await edit(yard.files(), path, "old", "new")
    with pytest.raises(ToolFailed, match="lone surrogates"):
        await edit(yard.files(), "short", "x", "\ud800")
    with pytest.raises(ToolFailed, match=f"has {limit + 1} bytes, more than the limit of {limit}"):
        await edit(yard.files(), "long", "x", "y", every=True)


# -- any edit --

PIECES = st.lists(st.sampled_from(["a", "b", "\n", "\n", "é", "\r", "\u2028"]), max_size=40).map("".join)
OLD = st.lists(st.sampled_from(["a", "b", "\n", "é"]), min_size=1, max_size=3).map("".join)


@settings(max_examples=300)
@given(text=PIECES, old=OLD, new=PIECES)
def test_every_edit_is_the_plain_replacement_and_its_diff_is_correct(text: str, old: str, new: str) -> None:
    """In a file with line feeds alone; the diff, applied to the old text, gives the new one."""
    text = text.replace("\r\n", "\n")
    if old == new or old not in text:
        assert refusal(text, old, new, every=True)
        return
    change = replaced(text, old, new, every=True, path="f")
    assert change.text == text.replace(old, new)
    assert applied(text, list(unified(text, change.spans, change.new))) == change.text
    places = sum(text.startswith(old, place) for place in range(len(text)))
    if places > 1:
        assert f"occurs {places} times" in refusal(text, old, new)
    else:
        assert replaced(text, old, new, every=False, path="f") == change


@settings(max_examples=100)
@given(text=PIECES, old=OLD, new=PIECES)
def test_any_edit_of_a_file_with_carriage_returns_leaves_it_one(text: str, old: str, new: str) -> None:
    text, new = (given.replace("\r", "").replace("\n", "\r\n") for given in (text, new))
    text += "\r\n"
    try:
        change = replaced(text, old, new.replace("\r\n", "\n"), every=True, path="f")
    except ToolFailed:
        return
    assert change.text.count("\n") == change.text.count("\r\n")
    assert change.text.replace("\r\n", "\n") == text.replace("\r\n", "\n").replace(old, new.replace("\r\n", "\n"))
    assert applied(text, list(unified(text, change.spans, change.new))) == change.text


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PIECES, old=OLD, new=PIECES, every=st.booleans())
async def test_any_edit_is_on_disk_as_a_whole_or_not_at_all(
    yard: Yard, text: str, old: str, new: str, every: bool
) -> None:
    yard.put({"f": text})
    try:
        wanted = replaced(text, old, new, every=every, path="f").text
    except ToolFailed as error:
        wanted = text
        with pytest.raises(ToolFailed, match=re.escape(error.message)):
            await edit(yard.files(), "f", old, new, every=every)
    else:
        await edit(yard.files(), "f", old, new, every=every)
    assert (yard.work / "f").read_bytes() == wanted.encode()
    assert [path.name for path in yard.work.iterdir()] == ["f"]


# -- diffs --


def test_a_long_diff_is_shown_in_part_and_says_so() -> None:
    text = "x\n" * 1000
    spans = [Span(place * 2, place * 2 + 1) for place in range(0, 1000, 10)]
    diff = list(unified(text, spans, "y" * 1000))
    assert applied(text, diff) == "".join(("y" * 1000 if place % 10 == 0 else "x") + "\n" for place in range(1000))
    shown = bounded(diff).split("\n")
    assert len(shown) == diffs.SHOWN_LINES + 1
    assert shown[-1] == f"[… {len(diff) - diffs.SHOWN_LINES} more lines of the difference left out …]"
    assert max(map(len, shown)) <= diffs.SHOWN_CHARACTERS + 1


def test_a_diff_in_a_large_file_does_not_take_long() -> None:
    """Its cost grows with the file, not with its square: comparing the two would take hours."""
    text = "same\n" * 100_000
    change = replaced(f"{text}end\n{text}", "e\nend\ns", "E\nS", every=True, path="f")
    assert next(unified(f"{text}end\n{text}", change.spans, change.new)) == "@@ -99997,9 +99997,8 @@"
    many = replaced("same\n" * 10_000, "same\n", "other\n", every=True, path="f")
    assert len(list(unified("same\n" * 10_000, many.spans, many.new))) == 20_001


def test_an_edit_that_would_be_too_much_is_refused() -> None:
    """Before it takes memory: too many places, or too long a text in them."""
    assert "occurs more than 10000 times" in refusal("a" * 10_001, "a", "b", every=True)
    assert "more than can be written" in refusal("a" * 10_000, "a", "b" * 1000, every=True)
