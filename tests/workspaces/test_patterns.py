"""Search patterns: what is accepted, and that both engines agree on its meaning."""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tidegate.errors import ToolFailed
from tidegate.values import Frozen
from tidegate.workspaces.files import Pattern, SearchQuery, line_matcher, read_pattern
from tidegate.workspaces.files.file_search import _python, _rg
from tidegate.workspaces.processes.children import find_program

Places = list[tuple[int, int]]

PYTHON_SECONDS = 2.0
"""For Python's search in a few short lines; some patterns would take it hours."""


def by_python(pattern: Pattern, text: bytes, chunk: int = line_matcher.CHUNK) -> Places:
    with tempfile.TemporaryFile() as file:
        file.write(text)
        file.seek(0)
        return list(line_matcher.matching_lines(re.compile(pattern.python, re.MULTILINE), file.fileno(), chunk))


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Interrupts the block with TimeoutError after this time, also inside of a match."""

    def interrupt(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def by_ripgrep(pattern: Pattern, text: bytes) -> Places:
    program = find_program("rg")
    assert program is not None
    command = _rg(program, SearchQuery(pattern=pattern, limit=10_000)).command
    reading = "/proc/self/fd/0"  # here the text comes from standard input
    ended = subprocess.run([*command[:-1], reading], input=text, capture_output=True, check=False, timeout=60)
    assert ended.returncode in (0, 1), ended.stderr
    places = [line.split(b":", 2)[:2] for line in ended.stdout.split(b"\n") if line]
    return [(int(line), int(column)) for line, column in places]


def lines(pattern: str, *given: str, **options: bool) -> list[str]:
    """The matching lines, according to both engines."""
    text = "".join(f"{line}\n" for line in given).encode()
    read = read_pattern(pattern, **options)
    found = by_python(read, text)
    if find_program("rg") is not None:
        assert by_ripgrep(read, text) == found
    return [given[number - 1] for number, _column in found]


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("def \\w+\\(", ["def a1_(x)", "  def b():"], ["def (", "def é("]),
        ("^a.c$", ["abc", "aéc", "a🌊c", "abc\r"], ["abcd", "xabc", "ac"]),
        ("^$", ["", "\r"], ["x"]),
        ("a|bc|", ["a", "bc", "", "x"], []),
        ("(foo|ba[rz])+x", ["foobarx", "bazx"], ["foo", "bax"]),
        ("(?:a)(?P<n>b)(?<m>c)", ["abc"], ["ab"]),
        ("a{2}b{,1}c{1,}d{0,2}$", ["aac", "aabccdd"], ["ac", "aacddd", "aabbc"]),
        ("a{x}|{|}|b{", ["a{x}", "{", "}", "b{"], ["a"]),
        ("\\bover\\b", ["over", "x over.", "éover"], ["overs", "_over"]),
        ("[a-c-]", ["b", "-"], ["d"]),
        ("[]^]", ["]", "^"], ["a"]),
        ("[^]a]", ["b"], ["]a"]),
        ("[[:alpha:]_][[:^space:]\\d]", ["a1", "_x"], ["1a", "a "]),
        ("\\d\\D\\s\\S\\W", ["1a bé"], ["11 b.", "1a b"]),
        ("\\x41\\u00e9\\x{1F30A}\\U0001F30A\\t", ["Aé🌊🌊\t"], ["A"]),
        ("\\.\\*\\/\\-\\ \\\\", [".*/- \\"], ["x"]),
        ("a.*?b.+?c??", ["axxbx"], ["ab"]),
        ("\\w[\\w.]*@", ["a.b@c"], ["@", "é@"]),
        ("(?i)straße", ["STRAßE", "straße"], ["strasse"]),
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
        ("a\\nb", "leave \\n out"),
        ("[\\n]", "leave \\n out"),
        ("\\x0a", "line by line"),
        ("(a)\\1", "\\1, which is not supported"),
        ("(?=a)", "uses lookaround"),
        ("(?<!a)b", "uses lookaround"),
        ("(?s:a)", "uses lookaround or options"),
        ("\\Aa", "\\A, which is not supported"),
        ("\\p{L}", "\\p, which is not supported"),
        ("a**", "has two counts in a row"),
        ("a++", "has two counts in a row"),
        ("a{2}{3}", "has two counts in a row"),
        ("^*", "repeats a position"),
        ("(a|^)+", "repeats a position"),
        ("\\b?", "repeats a position"),
        ("a^", "write \\^ or \\$"),
        ("$name", "write \\^ or \\$"),
        ("a(b|^c)", "write \\^ or \\$"),
        ("*a", '"*" with nothing before it'),
        ("(|+)", '"+" with nothing before it'),
        ("{2}", '"{" with nothing before it'),
        ("(a", '"(" without a ")"'),
        ("a)", '")" without a matching "("'),
        ("[a", '"[" without a "]"'),
        ("[", '"[" without a "]"'),
        ("[]", '"[" without a "]"'),
        ("[z-a]", "a range in [ ]"),
        ("[a-\\d]", "a range in [ ]"),
        ("[^\\s\\S]", "matches no character"),
        ("[[:letter:]]", "[:letter:], which is unknown"),
        ("a\\", "ends with a backslash"),
        ("a{3,2}", "is smaller than the first"),
        ("\\U00110000", "does not exist"),
        ("\\ud800", "does not exist"),
        ("\ud800", "valid Unicode"),
        ("(a{50}){50}", "too large"),
        ("a{9999}", "too large"),
        ("(" * 60 + ")" * 60, "more than 50 levels of brackets"),
    ],
)
def test_unsupported_syntax_is_refused_in_one_sentence(pattern: str, said: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        read_pattern(pattern)
    assert said in caught.value.message
    assert caught.value.message.startswith("The pattern ") and caught.value.message.endswith(".")


def test_case_insensitive_classes_are_bounded() -> None:
    with pytest.raises(ToolFailed, match="use smaller ranges"):
        read_pattern("[\\u0100-\\u0400]" * 6, ignore_case=True)


@pytest.mark.skipif(find_program("rg") is None, reason="there is no ripgrep here to be compared with")
@pytest.mark.parametrize("pattern", ["a{1990}", "\\w{490}", "[^a]{400}", "(.|é){200}", "([^é]{20}){20}"])
def test_ripgrep_accepts_the_largest_accepted_pattern(pattern: str) -> None:
    assert by_ripgrep(read_pattern(pattern), b"abc\n" + b"b" * 3000 + b"\n") in ([], [(2, 1)])


# -- any pattern, any text --

CHARACTERS = "aabB c1_-.é\r\tÄßſkK0²🌊\u0301"
CLASSES = ["a-c", "\\d", "\\w", "\\s", "\\W", "\\S", "[:alpha:]", "[:^digit:]", "é", "B", "\\u00e0-\\u00ff"]
COUNTS = ["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "{,2}", "*?", "+?", "??", "{1,2}?"]


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


@pytest.mark.skipif(find_program("rg") is None, reason="there is no ripgrep here to be compared with")
@settings(max_examples=150)
@given(case=st.builds(PatternCase, pattern=PATTERNS, text=TEXTS, ignore_case=st.booleans()), chunk=st.integers(1, 40))
def test_both_engines_find_the_same_places(case: PatternCase, chunk: int) -> None:
    """Lines and columns, in any text, even if it is not UTF-8, in pieces of any size."""
    try:
        pattern = read_pattern(case.pattern, ignore_case=case.ignore_case)
    except ToolFailed:
        return
    try:
        with within(PYTHON_SECONDS):
            places = by_python(pattern, case.text, chunk)
    except TimeoutError:
        reject()  # Python backtracks: such a search runs in a child with a deadline
    assert places == by_ripgrep(pattern, case.text)


@settings(max_examples=200)
@given(text=st.text("ab^$[](){}*+?|\\.,-:dwsbnxPi<>é\n0123", min_size=1, max_size=12), ignore_case=st.booleans())
def test_any_text_is_either_a_pattern_or_refused_in_a_sentence(text: str, ignore_case: bool) -> None:
    """Every accepted pattern compiles."""
    try:
        pattern = read_pattern(text, ignore_case=ignore_case)
    except ToolFailed as error:
        assert error.message.startswith("The pattern ")
        return
    re.compile(pattern.python, re.MULTILINE)


def test_the_matcher_program_prints_places_up_to_its_limit() -> None:
    """Started as the gateway starts it, with nothing of Tidegate to import."""
    reading, writing = os.pipe()
    os.write(writing, b"x\nab\nb\nb\nb")
    os.close(writing)
    try:
        command = [*_python(SearchQuery(pattern=read_pattern("b"), limit=2)).command[:-1], str(reading)]
        ended = subprocess.run(command, pass_fds=(reading,), capture_output=True, timeout=60, check=True, env={})
    finally:
        os.close(reading)
    assert ended.stdout == b"2:2:\n3:1:\n4:1:\n"
