"""The `Range` header of requests, which asks for part of a resource.

A single range is supported. With any other header, including multiple ranges, the entire resource is sent, as HTTP
allows. A range that begins after the end gets 416.
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
    """The size of the complete resource."""

    @property
    def header(self) -> bytes:
        return b"bytes %d-%d/%d" % (self.start, self.end - 1, self.size)


def parse_range(header: bytes | None, size: int) -> ByteRange | None:
    """Parses the requested range. Returns None for the complete resource."""
    found = _RANGE.fullmatch(header.strip()) if header is not None else None
    if found is None or found[0] == b"bytes=-":
        return None
    first, last = found.groups()
    if not first:  # a number of bytes from the end
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= size:
        raise OutOfRange(f"The range begins after the end; there are {size} bytes.", param="Range")
    return ByteRange(start, end, size)
