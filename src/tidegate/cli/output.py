"""What commands print: tables for people, JSON for programs, and text that cannot play tricks on a terminal."""

import json
import re
import sys
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

# Everything that a terminal could take for an order: C0 but tab and newline, DEL, C1.
_ORDERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLUMN = 48  # longer cells are cut in tables; JSON has them whole


def at_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def plain(text: str) -> str:
    """The text without control characters: what a model or a stranger wrote must not move the cursor."""
    return _ORDERS.sub("", text)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str, numbers: Collection[int] = ()
) -> None:
    """A table, or the sentence `empty` when there is nothing in it. The columns of `numbers` end at their right."""
    if not rows:
        print(empty)
        return
    cells = [list(heads), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    for row in cells:
        placed = (
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(placed).rstrip())


def _cell(value: Any) -> str:
    text = "" if value is None else plain(str(value)).replace("\n", " ")
    return text if len(text) <= _COLUMN else text[: _COLUMN - 1] + "…"


def when(seconds: float | None) -> str:
    """A point in time in the reader's own zone."""
    return "" if not seconds else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def bar(share: float, width: int) -> str:
    """A share of one as a bar of at most so many characters; what is not nothing is seen."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def counted(count: int, noun: str) -> str:
    """`1 conversation`, `2 conversations`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def span(seconds: float) -> str:
    """A length of time as people read it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
