"""The output of commands: tables for people, JSON for programs, and text that is safe for a terminal.

On a terminal, text wraps between words, in tables as well. In a pipe or file, each row of a table is one line of any
length. Text sent to a terminal contains no control characters except newline and tab, and no characters that change the
direction of text; `guard_terminal` ensures this for the whole process.
"""

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from datetime import datetime
from io import TextIOWrapper
from itertools import zip_longest
from typing import Any

from tidegate.safe_text import escape_json
from tidegate.safe_text import strip_controls as strip_controls

_CELL_CHARACTERS = 48  # longer cells are truncated in tables, but not in JSON
_GAP = "  "  # between columns
_SECOND_COLUMN = re.compile(r" *(?:\S+ )*\S* {2,}(?=\S)")


def at_terminal() -> bool:
    """True if standard input is a terminal, so the user can answer questions."""
    return sys.stdin is not None and sys.stdin.isatty()


class TerminalStream(TextIOWrapper):
    """Standard output or error on a terminal; everything written to it is cleaned with `strip_controls`."""

    def write(self, text: str, /) -> int:
        super().write(strip_controls(text))
        return len(text)


def guard_terminal() -> None:
    """Ensures that nothing printed by this process can control the terminal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character that cannot be shown must not be an error
            if stream.isatty():
                options: dict[str, Any] = {"encoding": stream.encoding, "errors": stream.errors}
                guarded = TerminalStream(stream.detach(), line_buffering=True, **options)
                setattr(sys, name, guarded)
                setattr(sys, f"__{name}__", guarded)  # used to find the terminal's size


def write_faint(text: str) -> None:
    """Writes faint text, the only kind of control sequence ever sent to the terminal."""
    assert isinstance(sys.stdout, TextIOWrapper)
    TextIOWrapper.write(sys.stdout, f"\x1b[2m{strip_controls(text)}\x1b[0m")


def print_json(value: Any) -> None:
    sys.stdout.write(escape_json(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


def print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    empty: str,
    numbers: Collection[int] = (),
    uncut: Collection[int] = (),
) -> None:
    """Prints a table, or the sentence `empty` if there are no rows. Columns listed in `numbers` are right-aligned, and
    cells in columns listed in `uncut` are never truncated. On a narrow terminal, cells wrap. On a very narrow one, each
    row becomes a list."""
    if not rows:
        print(empty)
        return
    cells = [list(heads), *([_cell(value, column in uncut) for column, value in enumerate(row)] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    if (room := terminal_width()) is not None:
        narrowed = _fit_widths(cells, widths, room)
        if narrowed is None:
            _print_lists(cells, room)
            return
        widths = narrowed
    for row in cells:
        folded = (_wrap_cell(cell, width) for cell, width in zip(row, widths, strict=True))
        for line in zip_longest(*folded, fillvalue=""):
            placed = (
                cell.rjust(width) if column in numbers else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            print(_GAP.join(placed).rstrip())


def terminal_width() -> int | None:
    """Returns the terminal's width in columns, or None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def wrap_text(text: str) -> str:
    """Wraps long lines between words to fit the terminal. If spaces divide a line into two columns, continuation lines
    are indented to the second column."""
    room = terminal_width()
    if room is None:
        return text
    return "\n".join(_wrap_line(line, room) if len(line) > room else line for line in text.split("\n"))


def _wrap_line(line: str, room: int) -> str:
    column = _SECOND_COLUMN.match(line)
    indent = column.end() if column is not None and column.end() <= room // 2 else 0
    return textwrap.fill(
        line, room, subsequent_indent=" " * indent, expand_tabs=False, replace_whitespace=False,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _fit_widths(cells: Sequence[Sequence[str]], widths: list[int], room: int) -> list[int] | None:
    """Returns column widths that fit into `room` characters, with the widest columns reduced first, or None if a word
    would have to be broken."""
    least = [max(len(word) for row in cells for word in row[column].split() or [""]) for column in range(len(widths))]
    room -= len(_GAP) * (len(widths) - 1)
    if sum(least) > room:
        return None
    widths = list(widths)
    while sum(widths) > room:
        foldable = (column for column in range(len(widths)) if widths[column] > least[column])
        widest = max(foldable, key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _wrap_cell(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)


def _print_lists(cells: Sequence[Sequence[str]], room: int) -> None:
    heads, *rows = cells
    width = max(map(len, heads))
    for number, row in enumerate(rows):
        if number:
            print()
        for head, cell in zip(heads, row, strict=True):
            if cell:
                print(_wrap_line(f"{head.ljust(width)}{_GAP}{cell}", room))


def _cell(value: Any, uncut: bool) -> str:
    text = "" if value is None else strip_controls(str(value)).replace("\n", " ")
    return text if uncut or len(text) <= _CELL_CHARACTERS else text[: _CELL_CHARACTERS - 1] + "…"


def local_time(seconds: float | None) -> str:
    """Formats a date and time in the local time zone."""
    return "" if not seconds else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def size(count: float) -> str:
    """Formats a number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def bar(share: float, width: int) -> str:
    """Draws a bar of at most `width` characters for a share between 0 and 1. Any share above 0 is visible."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def plural(count: int, noun: str) -> str:
    """Joins a number and a noun: `1 conversation`, `2 conversations`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def join_words(things: Sequence[str]) -> str:
    """Joins words into text: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(things[:-1]), things[-1])))


def span(seconds: float) -> str:
    """Formats a duration for people."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
