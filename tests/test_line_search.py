"""Line search: what a pattern means, what is refused, and that blocks and pieces make no difference."""

import gc
import io
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import ToolFailed
from tidegate.line_search import BLOCK, OVERLAP, LinePattern, Words, blocks, read_pattern
from tidegate.values import Frozen


def places(pattern: LinePattern, text: bytes, *, size: int = BLOCK, spacing: int = 0) -> list[tuple[int, int]]:
    """Line and column of each match."""
    found: list[tuple[int, int]] = []
    at = 0
    for block in blocks(io.BytesIO(text).read, size):
        for match in block.matches(pattern, at, spacing=spacing):
            found.append((match.line, match.column))
            at = match.next
    return found


def lines(pattern: str, *given: str, literal: bool = False, ignore_case: bool = False) -> list[str]:
    """The matching lines."""
    compiled = read_pattern(pattern, literal=literal, ignore_case=ignore_case)
    text = "".join(f"{line}\n" for line in given).encode()
    return [given[line - 1] for line, _ in places(compiled, text)]


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("def \\w+\\(", ["def a1_(x)", "  def b():"], ["def (", "def é("]),
        ("^a.c$", ["abc", "aéc", "a🌊c", "abc\r"], ["abcd", "xabc", "ac"]),
        ("^$", ["", "\r"], ["x"]),
        ("a|bc|", ["a", "bc", "", "x"], []),
        ("(foo|ba[rz])+x", ["foobarx", "bazx"], ["foo", "bax"]),
        ("(?:a)(?P<n>b)(?<m>c)", ["abc"], ["ab"]),
        ("a{2}c{1,}d{0,2}$", ["aac", "aaccdd"], ["ac", "aacddd"]),
        ("a{x}|{|}|b{", ["a{x}", "{", "}", "b{"], ["a"]),
        ("\\bover\\b", ["over", "x over.", "éover"], ["overs", "_over"]),
        ("[a-c-]", ["b", "-"], ["d"]),
        ("[]^$]", ["]", "^", "$"], ["a"]),
        ("[^]a]", ["b"], ["]a"]),
        ("[[:alpha:]_][[:^space:]\\d]", ["a1", "_x"], ["1a", "a "]),
        ("\\d\\D\\s\\S\\W", ["1a bé"], ["11 b.", "1a b"]),
        ("\\x41\\x{e9}\\x{1F30A}\\t", ["Aé🌊\t"], ["A"]),
        ("\\.\\*\\/\\-\\ \\\\", [".*/- \\"], ["x"]),
        ("a.*?b.+?c??", ["axxbx"], ["ab"]),
        ("(?i)straße", ["STRAßE", "straße"], ["strasse"]),
        ("a(?i:b)c", ["aBc"], ["ABc"]),
        ("\\pL\\p{Greek}", ["äω"], ["1ω"]),
        ("\\Q$a.\\E$", ["$a."], ["$ax", "$a.b"]),
        ("a[^\\n]c", ["abc"], ["ac"]),
        ("a[^b]*$", ["a", "axx"], ["ab"]),
        ("a\\s+b", ["a  b"], ["a", "b"]),
    ],
)
def test_a_pattern_matches_as_documented(pattern: str, fits: list[str], fits_not: list[str]) -> None:
    assert lines(pattern, *fits, *fits_not) == fits


def test_case_is_ignored_on_request_in_every_script() -> None:
    assert lines("ä[x-z]ж", "Äyж", "ÄYЖ", "äwж", ignore_case=True) == ["Äyж", "ÄYЖ"]
    assert lines("[^a]", "A", "b", ignore_case=True) == ["b"]
    assert lines("a.B", "A.b", "axb", ignore_case=True, literal=True) == ["A.b"]


def test_a_literal_matches_every_character_as_written() -> None:
    for text in ("a.b", "^$[](){}*+?|\\", "(?i)x", "\\d", "é🌊", "a-b & c~~d#e", " "):
        assert lines(text, f"<{text}>", "nothing", literal=True) == [f"<{text}>"]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("", "1 to 1000 characters"),
        ("a" * 1001, "1 to 1000 characters"),
        ("a\nb", "line by line"),
        ("a\\nb", "has \\n, but the search is line by line"),
        ("(a)\\1", "has \\1, which is not supported (back references are not supported)"),
        ("(?=a)", "look-around and other extensions are not supported"),
        ("(?<!a)b", "look-around and other extensions are not supported"),
        ("(?>a)", "look-around and other extensions are not supported"),
        ("\\Aa", "has \\A, but the search is line by line"),
        ("a\\z", "has \\z, but the search is line by line"),
        ("a\\C", "has \\C, but the search is line by line"),
        ("(?i-m)^a", "has (?i-m, but the search is line by line"),
        ("\\Z", "has \\Z, which is not supported"),
        ("a**", "has two counts in a row, **"),
        ("a++", "has two counts in a row, ++"),
        ("*a", '"*" with nothing before it'),
        ("(a", "missing )"),
        ("a)", "unexpected )"),
        ("[a", "missing ]"),
        ("[z-a]", "invalid character class range: z-a"),
        ("[[:letter:]]", "invalid character class range: [:letter:]"),
        ("a\\", "trailing \\"),
        ("a{3,2}", "has the count {3,2}"),
        ("a{1001}", "has the count {1001}"),
        ("\ud800", "valid Unicode"),
        ("((a{50}){50}){50}", "a count is at most 1000"),
        ("\\pL{900}", "too large"),
        ("(a|b.{30}){30}", "too large"),
    ],
)
def test_unsupported_syntax_is_refused_in_one_sentence(pattern: str, said: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        read_pattern(pattern)
    message = caught.value.message
    assert said in message
    assert message.startswith("The pattern ") and message.endswith(".") and "(?m)" not in message


# -- any pattern, any text --

CHARACTERS = "aabB c1_-.é\r\tÄßſkK0²🌊\u0301"
CLASSES = ["a-c", "\\d", "\\w", "\\s", "\\W", "\\S", "é", "B", "à-ÿ"]
COUNTS = ["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?", "??", "{1,2}?"]


def characters() -> st.SearchStrategy[str]:
    return st.sampled_from(CHARACTERS).map(re.escape)


def classes() -> st.SearchStrategy[str]:
    members = st.lists(st.sampled_from(CLASSES), min_size=1, max_size=3).map("".join)
    return st.tuples(st.sampled_from(["[", "[^"]), members).map(lambda parts: f"{parts[0]}{parts[1]}]")


def sequences(atoms: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    piece = st.tuples(atoms, st.sampled_from(COUNTS)).map("".join) | st.just("\\b")
    return st.lists(piece, max_size=4).map("".join)


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.lists(sequences(inner), min_size=1, max_size=3).map(lambda choices: f"({'|'.join(choices)})")
    return inner | group


ATOMS = st.recursive(characters() | classes() | st.sampled_from([".", "\\d", "\\w", "\\S"]), larger, max_leaves=8)
EDGED = st.tuples(st.sampled_from(["", "", "^"]), sequences(ATOMS), st.sampled_from(["", "", "$"])).map("".join)
PATTERNS = st.lists(EDGED, min_size=1, max_size=3).map("|".join).filter(bool)
BROKEN = st.sampled_from([b"", b"", b"", b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"\0"])
LINE = st.tuples(st.text(CHARACTERS, max_size=6).map(str.encode), BROKEN, st.sampled_from([b"", b"a"])).map(b"".join)
TEXTS = st.lists(LINE, min_size=1, max_size=8).map(lambda given: b"".join(line + b"\n" for line in given))


class PatternCase(Frozen, frozen=True):
    pattern: str
    text: bytes
    ignore_case: bool


@settings(max_examples=200)
@given(case=st.builds(PatternCase, pattern=PATTERNS, text=TEXTS, ignore_case=st.booleans()))
def test_a_line_is_found_if_it_matches_on_its_own(case: PatternCase) -> None:
    """In any text, even if it is not UTF-8: no match spans lines, and the neighbours of a line change nothing."""
    pattern = read_pattern(case.pattern, ignore_case=case.ignore_case)
    alone = [
        (number, places(pattern, line)[0][1])
        for number, line in enumerate(case.text.split(b"\n")[:-1], 1)
        if line and places(pattern, line)
    ]
    # A text of no bytes has no lines, so empty lines cannot be searched on their own.
    empty = {number for number, line in enumerate(case.text.split(b"\n")[:-1], 1) if not line}
    assert [place for place in places(pattern, case.text) if place[0] not in empty] == alone


@pytest.mark.parametrize("size", range(OVERLAP + 100, OVERLAP + 106))
def test_pieces_of_a_long_line_do_not_look_like_lines(size: int) -> None:
    """Wherever the pieces begin and end, every match is found once and in its place."""
    text = b"hit" * 6000
    assert places(read_pattern("^hit"), text, size=size, spacing=1) == [(1, 1)]
    assert places(read_pattern("hit$"), text, size=size, spacing=1) == [(1, len(text) - 2)]
    assert places(read_pattern("\\bhit\\b"), text, size=size, spacing=1) == []
    assert places(read_pattern("hit"), text, size=size, spacing=1) == [(1, 3 * number + 1) for number in range(6000)]


def test_no_pattern_is_kept_after_its_search() -> None:
    """L22: the engine's own cache would keep the states of many patterns."""

    def kept() -> int:
        return sum(
            type(each).__module__.startswith("re2") for each in gc.get_objects() if type(each).__name__ == "_Regexp"
        )

    before = kept()
    pattern = read_pattern("a{20}b")
    assert kept() == before + 1
    del pattern
    assert kept() == before


@settings(max_examples=200)
@given(text=st.text("ab^$[](){}*+?|\\.,-:dwsbnxPiAzCQE<>é\n0123", min_size=1, max_size=12), ignore_case=st.booleans())
def test_any_text_is_either_a_pattern_or_refused_in_a_sentence(text: str, ignore_case: bool) -> None:
    try:
        read_pattern(text, ignore_case=ignore_case)
    except ToolFailed as error:
        assert error.message.startswith("The pattern ") and error.message.endswith(".")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a|aa)+$b",
        "(.*)(.*)(.*)(.*)(.*)z",
        "(x+x+)+y",
        "(a?){100}a{100}b",
        "|".join(f"a.{{{n}}}b" for n in range(30)),
    ],
)
def test_time_grows_in_proportion_to_the_text(pattern: str) -> None:
    """D7: for patterns that make other engines take hours. Four times the text takes far less than sixteen times."""
    compiled = read_pattern(pattern)
    best: list[int] = []
    for size in (BLOCK // 8, BLOCK // 2):
        times: list[int] = []
        for _ in range(3):
            began = time.thread_time_ns()
            compiled.find(b"ac" * (size // 2), 0, size)
            times.append(time.thread_time_ns() - began)
        best.append(min(times))
    assert best[1] < 10 * best[0] + 5_000_000


def test_words_are_found_whole_without_case_and_accents() -> None:
    text = "Nädel im Heu\nnadeln\nim nadel, heu\nheu\nxnadel heu\nnadel_heu\n".encode()
    assert places(Words(["nadel"]), text) == [(1, 1), (3, 4), (6, 1)]
    assert places(Words(["nadel", "heu"]), text) == [(1, 1), (3, 4), (6, 1)]
    assert places(Words(["nad*"]), text) == [(1, 1), (2, 1), (3, 4), (6, 1)]
    assert places(Words(["heu", "im"]), text) == [(1, 11), (3, 11)]


def test_a_search_for_words_can_start_at_a_word() -> None:
    """Where an earlier search stopped, the character before the word is still seen."""
    (block,) = blocks(io.BytesIO(b"xnadel nadel").read)
    assert [match.byte for match in block.matches(Words(["nadel"]), 7)] == [7]
    assert [match.byte for match in block.matches(Words(["nadel"]), 1)] == [7]
