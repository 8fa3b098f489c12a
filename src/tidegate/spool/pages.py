"""Reading a spooled result page by page.

Every byte of the file is on some page. Each page says how to request the next one: by line or, within a line that is
longer than a page, by byte. Pages are limited in bytes and lines. Finding a page needs at most one chunk of memory."""

import os
from pathlib import Path

from anyio import from_thread

from tidegate.errors import ToolFailed
from tidegate.spool.excerpts import clean
from tidegate.text_parts import after_lines, page_end
from tidegate.values import Frozen

CHUNK = 256 * 1024


class PageRequest(Frozen, frozen=True):
    """The requested part of a result: up to `lines` lines and `max_bytes` bytes. The part starts after `offset` lines,
    or at `byte` if that is set."""

    offset: int
    lines: int
    byte: int | None
    max_bytes: int


def read_page(path: Path, total_lines: int, wanted: PageRequest) -> str:
    """Reads a page. This call blocks, so run it in an anyio worker thread. Raises FileNotFoundError if the file no
    longer exists."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if wanted.byte is None:
            start = _seek(file.fileno(), wanted.offset, total_lines)
        elif wanted.byte < size:
            start = wanted.byte
        else:
            raise ToolFailed(f"Byte {wanted.byte} is past the end: the result has {size} bytes.")
        # Read one byte more than fits, to see whether anything follows.
        data = os.pread(file.fileno(), wanted.max_bytes + 1, start)
    end, lines = page_end(data, wanted.lines, wanted.max_bytes)
    text = clean(data[:end]).decode()
    place = _position(wanted, start, start + end, size, lines, total_lines, whole=data[:end].endswith(b"\n"))
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}[{place}]"


def _seek(fd: int, offset: int, total_lines: int) -> int:
    """Returns the byte position after `offset` lines."""
    if offset == 0:
        return 0
    if offset >= total_lines:
        raise ToolFailed(f"Offset {offset} is past the end: the result has {total_lines} lines.")
    passed = place = 0
    while chunk := os.pread(fd, CHUNK, place):
        from_thread.check_cancelled()
        breaks = chunk.count(b"\n")
        if passed + breaks >= offset:
            return place + after_lines(chunk, offset - passed)
        passed += breaks
        place += len(chunk)
    raise ToolFailed(f"Offset {offset} is past the end.")


def _position(
    wanted: PageRequest, start: int, end: int, size: int, lines: int, total_lines: int, *, whole: bool
) -> str:
    if wanted.byte is not None:
        where = f"bytes {start} to {end} of {size}"
    else:
        first, last = wanted.offset + 1, wanted.offset + lines
        where = f"line {first} of {total_lines}" if lines == 1 else f"lines {first} to {last} of {total_lines}"
    if end >= size:
        return f"{where}; the result ends here"
    if wanted.byte is not None:
        return f"{where}; continue with byte={end}"
    if not whole:
        return f"{where}, which is longer than a page; continue in it with byte={end}"
    return f"{where}; continue with offset={wanted.offset + lines}"
