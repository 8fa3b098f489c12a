"""Excerpts of long texts: the beginning, a line about the omission, and the end.

Text within both limits is returned unchanged. Longer text is cut to fit both limits, including the line that says how
much was left out and how to read it. Characters are never split. Invalid bytes are replaced with question marks, so the
text's length does not change and the counts are correct.
"""

from tidegate.text_parts import char_start

HOW_TO_GET = "ask for a smaller part to see it"
HEAD_SHARE = 0.6
"""The share of an excerpt taken from the beginning of the text, which shows what the text is about. The end often
contains the result or the error."""


def clean(data: bytes) -> bytes:
    """Returns the data as valid UTF-8, without changing its length."""
    return data.decode("utf-8", "surrogateescape").encode("utf-8", "replace")


def count_lines(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def bound_text(text: str, max_bytes: int, max_lines: int, *, hint: str = HOW_TO_GET) -> str:
    """Cuts `text` to `max_bytes` of UTF-8 and `max_lines` lines. If even the line about the omission does not fit, only
    that line is returned."""
    # A lone surrogate cannot be encoded as UTF-8. It is replaced, so that the text can be sent to a model.
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
    """Returns the excerpt of a text that exceeds the limits. `beginning` and `end` are either the whole text or at
    least `max_bytes` long. Both must be valid UTF-8 except where they have been cut."""
    space = max_bytes - len(_notice(total, total_lines, total, total_lines, hint).encode())
    lines = max(0, max_lines - 1)
    head_lines = min(lines, int(lines * HEAD_SHARE) + 1)
    head = _head(beginning, int(space * HEAD_SHARE), head_lines)
    # `end` may overlap with the part of the beginning that is already in the excerpt.
    overlap = max(0, len(head) - (total - len(end)))
    tail = _tail(end[overlap:], space - len(head), lines - head_lines)
    left = max(1, total - len(head) - len(tail))
    left_lines = max(1, total_lines - count_lines(head) - count_lines(tail))
    before = "" if not head or head.endswith(b"\n") else "\n"
    notice = _notice(left, left_lines, total, total_lines, hint).strip("\n")
    return f"{head.decode()}{before}{notice}{chr(10) if tail else ''}{tail.decode()}"


def _notice(left: int, left_lines: int, total: int, total_lines: int, hint: str) -> str:
    return f"\n[… {left} of {total} bytes left out, {left_lines} of {total_lines} lines; {hint} …]\n"


def _head(data: bytes, space: int, lines: int) -> bytes:
    """Returns the longest beginning within both limits. The result ends with a complete line unless that would leave
    more than half of the space unused."""
    if space <= 0 or lines <= 0:
        return b""
    end = 0
    for _ in range(lines):
        following = data.find(b"\n", end) + 1
        if following == 0 or following > space:
            break
        end = following
    else:
        return data[:end]
    if end >= space // 2:
        return data[:end]
    return data[: char_start(data, space)]


def _tail(data: bytes, space: int, lines: int) -> bytes:
    """Returns the longest end within both limits. The result begins with a complete line unless that would leave more
    than half of the space unused."""
    if space <= 0 or lines <= 0:
        return b""
    start = len(data)
    for _ in range(lines):
        # Each line includes its final line break, so the search starts before it.
        preceding = data.rfind(b"\n", 0, max(0, start - 1)) + 1
        if len(data) - preceding > space:
            break
        start = preceding
        if start == 0:
            break
    else:
        return data[start:]
    if len(data) - start >= space // 2:
        return data[start:]
    start = max(0, len(data) - space)
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
