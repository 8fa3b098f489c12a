"""A page of lines of an open file.

Guarantee: pages meet exactly: a page ends where the one with the next offset begins, and every line is in one of them.
At most a chunk and a page are in memory. It blocks: it is for worker threads.
"""

import os

from anyio import from_thread

from tidegate.errors import ToolFailed
from tidegate.workspaces.files.mounts import shown
from tidegate.workspaces.files.values import HEAD_BYTES, FileLines

CHUNK = 256 * 1024
SCANNED_AT_MOST = 512 * 1024 * 1024
"""To find a line, all before it must be read; beyond this the answer would come too late to be of use."""


def page(fd: int, offset: int, lines: int, max_bytes: int, path: str) -> FileLines:
    """At most so many lines and bytes after the first `offset` lines."""
    size = os.fstat(fd).st_size
    skipped = scanned = 0
    kept = bytearray()
    head = b""
    ended_with_break = True
    while chunk := os.read(fd, CHUNK):
        from_thread.check_cancelled()
        if not scanned:
            head = chunk[:HEAD_BYTES]
        scanned += len(chunk)
        ended_with_break = chunk.endswith(b"\n")
        if skipped < offset:
            breaks = chunk.count(b"\n")
            if skipped + breaks < offset:
                skipped += breaks
                if scanned >= SCANNED_AT_MOST:
                    raise ToolFailed(
                        f"Line {offset} lies more than {SCANNED_AT_MOST} bytes into {shown(path)}, too far to be "
                        "reached; use the terminal."
                    )
                continue
            start = 0
            while skipped < offset:
                start = chunk.index(b"\n", start) + 1
                skipped += 1
            chunk = chunk[start:]
        kept += chunk
        if len(kept) > max_bytes or kept.count(b"\n") > lines:
            break
    if not kept:
        total = skipped + (not ended_with_break)
        return FileLines(b"", total, total, size, head)
    return _cut(bytes(kept), skipped, lines, max_bytes, size, head)


def _cut(kept: bytes, first: int, lines: int, max_bytes: int, size: int, head: bytes) -> FileLines:
    """Whole lines of `kept`, as many as a page may have; at least a part of the first."""
    end, after = 0, first
    while after < first + lines and end < len(kept):
        following = kept.find(b"\n", end) + 1 or len(kept)
        if following > max_bytes:
            break
        end, after = following, after + 1
    if end:
        return FileLines(kept[:end], first, after, size, head, more=end < len(kept))
    end = max_bytes
    while end and kept[end] & 0xC0 == 0x80:
        end -= 1
    return FileLines(kept[:end] or kept[:max_bytes], first, first + 1, size, head, cut=True)
