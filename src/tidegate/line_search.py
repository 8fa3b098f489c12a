"""Line-by-line text search, in time proportional to the length of the text, whatever the pattern.

Patterns are RE2 regular expressions (google-re2), which never backtrack. A match lies within one line: the pattern is
applied to each line separately. Lines may end with `\\n` or `\\r\\n`. `\\d`, `\\w`, `\\s` and `\\b` cover ASCII; `.`,
`[…]`, `\\pL` and ignoring case cover every character. Look-around, back references, and everything that looks beyond
the line (`\\A`, `\\z`, `\\C`, `\\n`, `(?-m)`) are refused with a one-sentence error. Bytes that are not UTF-8 match
nothing.

RE2 is imported when the first pattern is compiled. Compiling takes at most about 40 ms; searching does not hold the
interpreter's lock. Both block and belong in worker threads. Text is read in blocks, and the caller can stop the search
between two blocks; how long a block can take is bounded by `MOST_INSTRUCTIONS`. Nothing is kept between searches.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

from tidegate.errors import ToolFailed

LONGEST = 1000
"""The maximum length of a pattern in characters."""

MOST_INSTRUCTIONS = 5_000
"""The maximum size of a compiled pattern. The slowest patterns of this size take 0.7 s per block."""

BLOCK = 256 * 1024

OVERLAP = 4 * 1024
"""The number of bytes by which consecutive pieces of a long line overlap. A match that spans two pieces is found only
if it is shorter than this."""

Span = tuple[int, int]


class LinePattern(Protocol):
    """`whole_lines` is true if a line has at most one match."""

    whole_lines: bool

    def find(self, data: bytes, start: int, end: int) -> Span | None:
        """Returns the next match within `data[start:end]` as (start, end). `^`, `$` and `\\b` take the surrounding text
        into account."""
        ...


class Match(NamedTuple):
    """A match in line number `line`, counted from 1. `byte` is its offset in the text, and `next` is the offset at
    which the next match may begin. `column` is its position in the line, in bytes counted from 1. `text` is the line,
    or a piece of a long line, and contains the match from `start` to `end`."""

    line: int
    column: int
    byte: int
    next: int
    text: bytes
    start: int
    end: int


class Block(NamedTuple):
    """A part of a text: complete lines without the last line break, or a piece of a long line. `line` is the number of
    its first line, counted from 0, `byte` is its offset in the text, and `skipped` is the number of bytes of that line
    before it. Matches in a piece lie between `first` and `last`; the bytes around that range are only context."""

    line: int
    byte: int
    skipped: int
    data: bytes
    first: int
    last: int

    def matches(self, pattern: LinePattern, at: int, *, spacing: int = 0) -> Iterator[Match]:
        """Yields the matches that begin at offset `at` in the text or later. If a line may have several matches, each
        begins at least `spacing` bytes after the previous one."""
        data, place = self.data, max(self.first, at - self.byte)
        line, counted = self.line, 0
        while place <= self.last and (found := pattern.find(data, place, self.last)) is not None:
            start, end = found
            line += data.count(b"\n", counted, start)
            counted = start
            begins = data.rfind(b"\n", 0, start) + 1
            ends = data.find(b"\n", end)
            ends = len(data) if ends < 0 else ends
            place = ends + 1
            if spacing and not pattern.whole_lines:
                place = min(place, max(start + spacing, end, start + 1))
            column = start - begins + (self.skipped if not begins else 0) + 1
            text = data[begins:ends]
            yield Match(line + 1, column, self.byte + start, self.byte + place, text, start - begins, end - begins)


def blocks(read: Callable[[int], bytes], size: int = BLOCK) -> Iterator[Block]:
    """Yields the blocks of a text that `read(size)` returns piece by piece."""
    line = byte = skipped = first = 0
    buffer = b""
    while data := read(size):
        buffer += data
        cut = buffer.rfind(b"\n")
        if cut >= 0:
            yield Block(line, byte, skipped, buffer[:cut], first, cut)
            line += buffer.count(b"\n", 0, cut) + 1
            byte += cut + 1
            buffer, skipped, first = buffer[cut + 1 :], 0, 0
        elif len(buffer) >= size:
            # One byte on each side is context, so that the piece does not look like a complete line.
            yield Block(line, byte, skipped, buffer, first, len(buffer) - 1)
            byte += len(buffer) - OVERLAP
            skipped += len(buffer) - OVERLAP
            buffer, first = buffer[-OVERLAP:], 1
    if buffer:
        yield Block(line, byte, skipped, buffer, first, len(buffer))


# -- patterns --


class Regex:
    whole_lines = False

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def find(self, data: bytes, start: int, end: int) -> Span | None:
        found = self._compiled.search(data, start, end)
        return None if found is None else cast(Span, found.span())


class Words:
    """Finds the lines that contain all of the words. The match is where the first of these words is. Case and accents
    are ignored; a word that ends in * is a prefix."""

    whole_lines = True

    def __init__(self, words: Sequence[str]) -> None:
        self._first, *self._others = [_compiled(_word(word), captures=True) for word in words]

    def find(self, data: bytes, start: int, end: int) -> Span | None:
        place = max(0, start - 4)  # so that the character before the word is visible
        while place <= end and (found := self._first.search(data, place, end)) is not None:
            spot: Span = found.span(1)
            begins = data.rfind(b"\n", 0, spot[0]) + 1
            ends = data.find(b"\n", spot[1])
            ends = len(data) if ends < 0 else ends
            if spot[0] >= start and all(each.search(data, begins, ends) for each in self._others):
                return spot
            place = ends + 1 if spot[0] >= start else max(spot[1], place + 1)
        return None


def read_pattern(text: str, *, literal: bool = False, ignore_case: bool = False) -> LinePattern:
    """Compiles a pattern written by a model; with `literal`, every character stands for itself. Raises `ToolFailed`."""
    pattern = per_line(text, literal=literal)
    compiled = _compiled(pattern, literal=literal, ignore_case=ignore_case)
    if compiled.programsize > MOST_INSTRUCTIONS:
        raise _refused("is too large once its repetition counts are expanded; use smaller ones")
    return Regex(compiled)


_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|\Z) | \\. | \[\^?\]?(?:\[:\^?\w+:\]|\\.|[^]\\])*\] | \(\?[a-zA-Z]*-[a-zA-Z]*m | \$",
    re.DOTALL | re.VERBOSE,
)
"""The parts of a pattern that matter here: quotations, escapes, classes, the option that turns off `m`, and `$`."""


def per_line(text: str, *, literal: bool = False) -> str:
    """Returns the pattern with each `$` adapted to lines. Raises `ToolFailed` if the pattern looks beyond the line."""
    if not 0 < len(text) <= LONGEST:
        raise ToolFailed(f"The pattern must have 1 to {LONGEST} characters.")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        raise ToolFailed("The pattern must be valid Unicode.")
    if "\n" in text:
        raise _refused("has a line break, but the search is line by line; search for one of the lines")
    return text if literal else _TOKEN.sub(_token, text)


def _token(found: "re.Match[str]") -> str:
    token = found[0]
    if token in (r"\n", r"\A", r"\z", r"\C") or token.startswith("(?"):
        raise _refused(f"has {token}, but the search is line by line; leave it out, or use ^ and $")
    return r"(?:\r?$)" if token == "$" else token


def _compiled(pattern: str, *, literal: bool = False, ignore_case: bool = False, captures: bool = False) -> Any:
    import re2  # type: ignore[import-untyped]  # 5 MB, and needed only for searches

    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    options.never_capture = not captures
    options.literal = literal
    options.case_sensitive = not ignore_case
    try:
        return re2.compile((pattern if literal else f"(?m){pattern}").encode(), options)
    except re2.error as error:
        raise _refused(_complaint(error.args[0].decode("utf-8", "replace"))) from None
    finally:
        re2.purge()  # RE2 would keep the last patterns, each with up to 8 MB of states


def _complaint(error: str) -> str:
    """Returns RE2's message as the rest of a sentence."""
    what, _, where = error.replace("(?m)", "", 1).replace(r"(?:\r?$)", "$").partition(": ")
    where = where[:80]
    if what == "invalid escape sequence":
        back = " (back references are not supported)" if where[1:2].isdigit() else ""
        return f"has {where}, which is not supported{back}; write \\\\ for a backslash"
    if what == "invalid perl operator":
        return f"has {where}, but look-around and other extensions are not supported; leave it out"
    if what == "bad repetition operator":
        return f"has two counts in a row, {where}; put brackets around the first, or write \\+ for the character"
    if what == "no argument for repetition operator":
        return f'has "{where}" with nothing before it; write \\{where} for the character'
    if what == "invalid repetition size":
        return f"has the count {where}, which is not valid; a count is at most 1000, and its first number the smaller"
    if what.startswith("pattern too large"):
        return "is too large once its repetition counts are expanded; use smaller ones"
    return f"is not a valid regular expression ({what}: {where})" if where else f"is not valid ({what})"


def _refused(what: str) -> ToolFailed:
    return ToolFailed(f"The pattern {what}.")


# -- words --


def _word(word: str) -> str:
    end = "" if word.endswith("*") else r"(?:[^\pL\pN]|$)"
    return rf"(?i)(?:^|[^\pL\pN])({_letters(word)}){end}"


def word_pattern(word: str) -> str:
    """Returns a Python regular expression that matches a word as the search index does: only complete words, ignoring
    case and accents. A word that ends in * is a prefix. Matching takes linear time."""
    end = "" if word.endswith("*") else r"(?![^\W_])"
    return rf"(?i)(?<![^\W_]){_letters(word)}{end}"


def _letters(word: str) -> str:
    return "".join(f"{_variants(letter)}[\u0300-\u036f]*" for letter in word.rstrip("*"))


def _variants(letter: str) -> str:
    import unicodedata  # large, and needed only for words

    if not ("a" <= letter <= "z"):
        return re.escape(letter)
    # Unicode has Latin letters with accents in these two blocks.
    accented = (chr(code) for block in (range(0xC0, 0x250), range(0x1E00, 0x1F00)) for code in block)
    return f"[{letter}{''.join(each for each in accented if unicodedata.normalize('NFD', each)[0].lower() == letter)}]"
