"""The part of something that a request asks for (`Range: bytes=…`).

Guarantee: a pure function. One part is given; of anything that is not understood, several parts too, the whole is, as
HTTP allows. A part that begins behind the end is 416.
"""

import re
from typing import NamedTuple

from tidegate.errors import Refused

_RANGE = re.compile(rb"bytes=(\d{0,15})-(\d{0,15})")


class OutOfRange(Refused):
    status = 416
    code = "out_of_range"


class ByteRange(NamedTuple):
    start: int
    end: int
    size: int
    """Of the whole."""

    @property
    def header(self) -> bytes:
        return b"bytes %d-%d/%d" % (self.start, self.end - 1, self.size)


def wanted(header: bytes | None, size: int) -> ByteRange | None:
    """None for the whole."""
    found = _RANGE.fullmatch(header.strip()) if header is not None else None
    if found is None or found[0] == b"bytes=-":
        return None
    first, last = found.groups()
    if not first:  # so many from the end
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= size:
        raise OutOfRange(f"There are only {size} bytes of it.", param="Range")
    return ByteRange(start, end, size)
