"""Parts of UTF-8 text, measured in bytes: pages of lines, and excerpts that never split a character.

Bytes that are not UTF-8 are accepted everywhere. All functions are pure, and take time proportional to the length of
the part. This module is also sent to other machines.
"""


def char_start(data: bytes | bytearray, place: int) -> int:
    """Returns `place` or, if it is within a character, the position where that character begins."""
    for back in range(4):
        if place - back <= 0 or place - back >= len(data) or data[place - back] & 0xC0 != 0x80:
            return place - back
    return place


def after_lines(data: bytes, count: int) -> int:
    """Returns the offset after `count` lines, all of which are complete in `data`."""
    place = 0
    for _ in range(count):
        place = data.index(b"\n", place) + 1
    return place


def page_end(data: bytes | bytearray, lines: int, max_bytes: int) -> tuple[int, int]:
    """Returns the end of the page at the beginning of `data`, and its number of lines. A page consists of complete
    lines, the last of which may end with the text, or of the beginning of one line that is longer than a page."""
    end = count = 0
    while count < lines and end < len(data):
        following = data.find(b"\n", end) + 1 or len(data)
        if following > max_bytes:
            break
        end, count = following, count + 1
    return (end, count) if end or not data else (char_start(data, max_bytes) or max_bytes, 1)
