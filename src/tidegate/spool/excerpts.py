"""Long text shown in part: its beginning, its end, and between them one line that says what was left out.

Guarantee: text within both bounds comes back as it is. Longer text comes back within both bounds, together with the
line about the rest, which says how much was left out and how to get it; no character is cut in two. A byte that is no
UTF-8 is shown as a question mark, so that what is shown is as long as what it stands for, and the counts are true.
"""

HOW_TO_GET = "ask for a smaller part to see it"
HEAD_SHARE = 0.6
"""The beginning says what a text is; the end often holds the result or the error."""


def clean(data: bytes) -> bytes:
    """The same as valid UTF-8, byte for byte."""
    return data.decode("utf-8", "surrogateescape").encode("utf-8", "replace")


def count_lines(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def bound_text(text: str, max_bytes: int, max_lines: int, *, hint: str = HOW_TO_GET) -> str:
    """`text` in at most `max_bytes` of UTF-8 and `max_lines` lines. If even the line about the rest does not fit, that
    line alone is returned."""
    # A lone surrogate has no UTF-8 form; it is replaced rather than refused, and so can be sent to a model.
    data = text.encode("utf-8", "replace")
    total = count_lines(data)
    if len(data) <= max_bytes and total <= max_lines:
        return data.decode()
    return excerpt(data, data, len(data), total, max_bytes, max_lines, hint=hint)


def excerpt(
    beginning: bytes,
    end: bytes,
    total: int,
    total_lines: int,
    max_bytes: int,
    max_lines: int,
    *,
    hint: str = HOW_TO_GET,
) -> str:
    """The excerpt of a text of which `beginning` and `end` are at hand, each of them all of it or at least `max_bytes`
    long, and which is longer than the bounds. Both are valid UTF-8, except where they were cut off."""
    room = max_bytes - len(_notice(total, total_lines, total, total_lines, hint).encode())
    lines = max(0, max_lines - 1)
    head_lines = min(lines, int(lines * HEAD_SHARE) + 1)
    head = _head(beginning, int(room * HEAD_SHARE), head_lines)
    # What is at hand of the end may overlap the beginning that is shown already.
    overlap = max(0, len(head) - (total - len(end)))
    tail = _tail(end[overlap:], room - len(head), lines - head_lines)
    left = max(1, total - len(head) - len(tail))
    left_lines = max(1, total_lines - count_lines(head) - count_lines(tail))
    before = "" if not head or head.endswith(b"\n") else "\n"
    notice = _notice(left, left_lines, total, total_lines, hint).strip("\n")
    return f"{head.decode()}{before}{notice}{chr(10) if tail else ''}{tail.decode()}"


def _notice(left: int, left_lines: int, total: int, total_lines: int, hint: str) -> str:
    return f"\n[… {left} of {total} bytes left out, {left_lines} of {total_lines} lines; {hint} …]\n"


def _head(data: bytes, room: int, lines: int) -> bytes:
    """The longest beginning within both bounds; whole lines if that loses less than half of it."""
    if room <= 0 or lines <= 0:
        return b""
    end = 0
    for _ in range(lines):
        following = data.find(b"\n", end) + 1
        if following == 0 or following > room:
            break
        end = following
    else:
        return data[:end]
    if end >= room // 2:
        return data[:end]
    end = min(room, len(data))
    while end > 0 and end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]


def _tail(data: bytes, room: int, lines: int) -> bytes:
    """The longest end within both bounds; whole lines if that loses less than half of it."""
    if room <= 0 or lines <= 0:
        return b""
    start = len(data)
    for _ in range(lines):
        # A line's own final line break belongs to it; the search starts before it.
        preceding = data.rfind(b"\n", 0, max(0, start - 1)) + 1
        if len(data) - preceding > room:
            break
        start = preceding
        if start == 0:
            break
    else:
        return data[start:]
    if len(data) - start >= room // 2:
        return data[start:]
    start = max(0, len(data) - room)
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
