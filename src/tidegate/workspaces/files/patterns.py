"""Regular expressions for searching lines, in a dialect that two engines interpret identically.

An accepted pattern means the same to ripgrep and to Python's `re`. Both get a translation that does not depend on their
own character tables: classes are lists of code points, and both cases of letters are written out. A pattern never spans
lines, and its size is bounded. Unsupported syntax (back references, lookaround) is refused with a one-sentence error.
No pattern is compiled in this process.

The dialect: characters, `.`, `[…]`, `(…)`, `(?:…)`, `|`, `*`, `+`, `?`, `{n,m}`, their lazy forms, `^`, `$` (which also
matches before a carriage return), `\\b`, `\\d`, `\\w`, `\\s` and the opposites of the last three (ASCII only), and
`[:alpha:]` and similar within a class. A `{` that does not begin a count is an ordinary character.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tidegate.errors import ToolFailed
from tidegate.values import Frozen

LONGEST = 1000
LARGEST = 2000
"""Size limit of a pattern with its counts expanded. Larger patterns take an engine too much memory and time."""

DEEPEST = 50
FOLDED_AT_MOST = 4096
"""The maximum number of a pattern's characters whose other case is looked up."""

LARGE_RANGE = 1024
"""A range larger than this contains both cases of nearly all its characters, because scripts with two cases are
smaller."""

Ranges = tuple[tuple[int, int], ...]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_BREAK = (0x0A, 0x0A)
_DIGIT: Ranges = ((0x30, 0x39),)
_UPPER: Ranges = ((0x41, 0x5A),)
_LOWER: Ranges = ((0x61, 0x7A),)
_SPACE: Ranges = ((0x09, 0x09), (0x0B, 0x0D), (0x20, 0x20))
_WORD: Ranges = (*_DIGIT, *_UPPER, (0x5F, 0x5F), *_LOWER)
_PUNCTUATION: Ranges = ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E))
_NAMED: dict[str, Ranges] = {
    "alnum": (*_DIGIT, *_UPPER, *_LOWER),
    "alpha": (*_UPPER, *_LOWER),
    "digit": _DIGIT,
    "lower": _LOWER,
    "punct": _PUNCTUATION,
    "space": _SPACE,
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": (*_DIGIT, (0x41, 0x46), (0x61, 0x66)),
}
_SHORT: dict[str, Ranges] = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B, "a": 0x07, "e": 0x1B, "0": 0x00}
_COUNT = re.compile(r"\{(?:(\d{1,4})(,(\d{0,4}))?|,(\d{1,4}))\}")
_CODE = re.compile(r"x\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_NAME = re.compile(r"\?P?<[A-Za-z_][A-Za-z0-9_]*>")


class Pattern(Frozen, frozen=True):
    """One pattern in the syntax of both engines."""

    python: str
    rust: str


def read_pattern(text: str, *, literal: bool = False, ignore_case: bool = False) -> Pattern:
    """Parse a pattern written by a model; with `literal`, every character stands for itself."""
    if not text or len(text) > LONGEST:
        raise ToolFailed(f"The pattern must have 1 to {LONGEST} characters.")
    if not text.isascii() and any(_SURROGATES[0] <= ord(character) <= _SURROGATES[1] for character in text):
        raise ToolFailed("The pattern must be valid Unicode.")
    if not literal and text.startswith("(?i)"):
        text, ignore_case = text.removeprefix("(?i)"), True
    reader = _Reader(text, ignore_case)
    pattern = reader.literal() if literal else reader.expression()
    if pattern.size > LARGEST:
        raise _refused("is too large when its counts are expanded; use smaller counts")
    return Pattern(python=pattern.python, rust=pattern.rust)


class _Piece(NamedTuple):
    """A part of a pattern in both syntaxes. `size` is its expanded size. `start` and `end` are true if the piece
    contains the edge of a line, so that nothing may come before or after it. `fixed` is true if the piece is a
    position, which cannot be repeated."""

    python: str
    rust: str
    size: int
    start: bool = False
    end: bool = False
    fixed: bool = False


_NOTHING = _Piece("", "", 0)
_ANY = _Piece(r"[^\n\ud800-\udfff]", r"[^\n]", 4)
_START = _Piece("^", "^", 1, start=True)
_END = _Piece(r"(?:\r?$)", r"(?:\r?$)", 2, end=True)
_BOUNDARY = _Piece(r"(?a:\b)", r"(?-u:\b)", 1, fixed=True)


class _Reader:
    def __init__(self, text: str, ignore_case: bool) -> None:
        self._text = text
        self._ignore_case = ignore_case
        self._place = 0
        self._depth = 0
        self._foldable = FOLDED_AT_MOST

    def literal(self) -> _Piece:
        return _joined([self._character(ord(character)) for character in self._text])

    def expression(self) -> _Piece:
        piece = self._alternatives()
        if self._place < len(self._text):
            raise _refused('has a ")" without a matching "("; write \\) to match the character itself')
        return piece

    # -- structure --

    def _alternatives(self) -> _Piece:
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refused(f"has more than {DEEPEST} levels of brackets")
        choices = [self._sequence()]
        while self._take("|"):
            choices.append(self._sequence())
        self._depth -= 1
        return _Piece(
            "|".join(choice.python for choice in choices),
            "|".join(choice.rust for choice in choices),
            sum(choice.size + 1 for choice in choices),
            any(choice.start for choice in choices),
            any(choice.end for choice in choices),
        )

    def _sequence(self) -> _Piece:
        pieces: list[_Piece] = []
        while self._place < len(self._text) and self._text[self._place] not in "|)":
            pieces.append(self._repeated(self._atom()))
        return _joined(pieces)

    def _repeated(self, atom: _Piece) -> _Piece:
        bounds = self._bounds()
        if bounds is None:
            return atom
        if atom.fixed or atom.start or atom.end:
            raise _refused("repeats a position such as ^, $ or \\b; put the count after something that can be repeated")
        least, most = bounds
        if most is not None and least > most:
            raise _refused(f"has the count {{{least},{most}}}, whose second number is smaller than the first")
        count = f"{{{least},{'' if most is None else most}}}" + ("?" if self._take("?") else "")
        if self._bounds() is not None:
            raise _refused("has two counts in a row; put brackets around the first, or write \\+ for the character")
        times = max(1, least + 1 if most is None else most)
        return _Piece(f"(?:{atom.python}){count}", f"(?:{atom.rust}){count}", atom.size * times + 1)

    def _bounds(self) -> tuple[int, int | None] | None:
        """The count at this position, if there is one."""
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return bounds
        count = _COUNT.match(self._text, self._place)
        if count is None:
            return None
        self._place = count.end()
        if count[4] is not None:
            return 0, int(count[4])
        least = int(count[1])
        if count[2] is None:
            return least, least
        return least, int(count[3]) if count[3] else None

    def _atom(self) -> _Piece:
        character = self._text[self._place]
        if character in "*+?" or (character == "{" and _COUNT.match(self._text, self._place)):
            raise _refused(f'has "{character}" with nothing before it; write \\{character} for the character')
        self._place += 1
        match character:
            case ".":
                return _ANY
            case "^":
                return _START
            case "$":
                return _END
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case _:
                return self._character(ord(character))

    def _group(self) -> _Piece:
        if self._text.startswith("?:", self._place):
            self._place += 2
        elif name := _NAME.match(self._text, self._place):
            self._place = name.end()
        elif self._text.startswith("?", self._place):
            raise _refused("uses lookaround or options, which are not supported; leave them out")
        inner = self._alternatives()
        if not self._take(")"):
            raise _refused('has a "(" without a ")"; write \\( for the character')
        return inner._replace(python=f"(?:{inner.python})", rust=f"(?:{inner.rust})")

    def _escape(self) -> _Piece:
        character = self._text[self._place : self._place + 1]
        if character == "b":
            self._place += 1
            return _BOUNDARY
        return _written(self._folded(self._escaped()))

    def _escaped(self) -> Ranges:
        """The characters that an escape stands for, inside or outside a class."""
        if code := _CODE.match(self._text, self._place):
            self._place = code.end()
            return (self._scalar(int(code[code.lastindex or 0], 16)),)
        character = self._text[self._place : self._place + 1]
        self._place += 1
        if character == "n":
            raise _refused("has a line break, but the search is line by line; leave \\n out")
        if character.lower() in _SHORT and character:
            ranges = _SHORT[character.lower()]
            return ranges if character.islower() else _complement(ranges)
        if character in _CONTROLS and character:
            return ((_CONTROLS[character], _CONTROLS[character]),)
        if not character:
            raise _refused("ends with a backslash; write \\\\ for the character")
        if character.isalnum() and character.isascii():
            raise _refused(f"has \\{character}, which is not supported; leave it out")
        return ((ord(character), ord(character)),)

    def _class(self) -> _Piece:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self._take("]"):
            first = False
            low = self._member()
            # A hyphen at the end, or after a set, is an ordinary character.
            following = self._text[self._place : self._place + 2]
            if len(low) == 1 and low[0][0] == low[0][1] and following[:1] == "-" and following[1:] not in ("", "]"):
                self._place += 1
                high = self._member()
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise _refused("has a range in [ ] whose end is not a character after its start")
                low = ((low[0][0], high[0][0]),)
            ranges += low
        members = self._folded(ranges)
        return _written(_complement(members) if negated else members)

    def _member(self) -> Ranges:
        if self._place >= len(self._text):
            raise _refused('has a "[" without a "]"; write \\[ for the character')
        if self._text.startswith("[:", self._place) and (end := self._text.find(":]", self._place)) > 0:
            name = self._text[self._place + 2 : end]
            ranges = _NAMED.get(name.removeprefix("^"))
            if ranges is None:
                raise _refused(f"has the class [:{name[:20]}:], which is unknown; use one of {', '.join(_NAMED)}")
            self._place = end + 2
            return _complement(ranges) if name.startswith("^") else ranges
        character = self._text[self._place]
        self._place += 1
        if character == "\\":
            if self._take("b"):
                return ((0x08, 0x08),)
            return self._escaped()
        return (self._scalar(ord(character)),)

    # -- characters --

    def _character(self, code: int) -> _Piece:
        return _written(self._folded([self._scalar(code)]))

    def _scalar(self, code: int) -> tuple[int, int]:
        if code > _LAST or _SURROGATES[0] <= code <= _SURROGATES[1]:
            raise _refused("names a character that does not exist")
        if code == _BREAK[0]:
            raise _refused("has a line break, but the search is line by line; search for one of the lines")
        return code, code

    def _folded(self, ranges: Iterable[tuple[int, int]]) -> Ranges:
        """Returns the ranges; if case is ignored, with both cases of every letter."""
        unfolded = _normal(ranges)
        if not self._ignore_case:
            return unfolded
        small = [range(low, high + 1) for low, high in unfolded if high - low < LARGE_RANGE]
        self._foldable -= sum(map(len, small))
        if self._foldable < 0:
            raise _refused("has too many characters in its [ ] for the case to be ignored; use smaller ranges")
        letters = (chr(code) for codes in small for code in codes)
        others = {other for letter in letters for other in (letter.lower(), letter.upper(), letter.title())}
        return _normal([*unfolded, *((ord(other), ord(other)) for other in others if len(other) == 1)])

    def _take(self, mark: str) -> bool:
        taken = self._text.startswith(mark, self._place)
        self._place += len(mark) * taken
        return taken


def _written(ranges: Ranges) -> _Piece:
    if not ranges:
        raise _refused("has a [ ] that matches no character")
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _Piece(_python(ranges[0][0]), _rust(ranges[0][0]), 1)
    return _Piece(
        "[" + "".join(_range(low, high, _python) for low, high in ranges) + "]",
        "[" + "".join(_range(low, high, _rust) for low, high in ranges) + "]",
        len(ranges),
    )


def _joined(pieces: Sequence[_Piece]) -> _Piece:
    if not pieces:
        return _NOTHING
    if any(piece.start for piece in pieces[1:]) or any(piece.end for piece in pieces[:-1]):
        # Such a pattern matches only at the edge of a line, where the rest matches nothing; engines disagree about it.
        raise _refused("has ^ after something or $ before something; write \\^ or \\$ for the character")
    return _Piece(
        "".join(piece.python for piece in pieces),
        "".join(piece.rust for piece in pieces),
        sum(piece.size for piece in pieces),
        pieces[0].start,
        pieces[-1].end,
    )


def _normal(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Returns the ranges sorted, disjoint, and without characters that no line contains."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return tuple(part for low, high in joined for part in _without(low, high, (_BREAK, _SURROGATES)))


def _without(low: int, high: int, holes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    parts: list[tuple[int, int]] = []
    for start, end in holes:
        if low <= end and start <= high:
            if low < start:
                parts.append((low, start - 1))
            low = end + 1
    return [*parts, (low, high)] if low <= high else parts


def _complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    parts: list[tuple[int, int]] = []
    start = 0
    for low, high in _normal(ranges):
        if start < low:
            parts.append((start, low - 1))
        start = high + 1
    return _normal([*parts, (start, _LAST)] if start <= _LAST else parts)


def _python(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\U{code:08x}"


def _rust(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"


def _range(low: int, high: int, written: Callable[[int], str]) -> str:
    return written(low) if low == high else f"{written(low)}-{written(high)}"


def _refused(what: str) -> ToolFailed:
    return ToolFailed(f"The pattern {what}.")
