"""The type and dimensions of pictures, read from the header without decoding the picture.

Only a few reads are needed, whatever the file contains. The result is None if the file is not a PNG, JPEG, GIF or WebP,
or ends within its header. This module also runs in a child process, so it uses only the standard library.
"""

from collections.abc import Callable
from typing import NamedTuple

SEGMENTS = 4096
"""Maximum number of segments in a JPEG before the one with the dimensions. Profiles and thumbnails are stored in
segments of up to 64 KiB."""

Read = Callable[[int, int], bytes]
"""Reads data from a file. The arguments are the number of bytes and the offset."""


class ImageHeader(NamedTuple):
    media_type: str
    width: int
    height: int


def sniff(read: Read) -> ImageHeader | None:
    head = read(32, 0)
    found: ImageHeader | None = None
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        if head[12:16] == b"IHDR":
            found = ImageHeader("image/png", _big(head[16:20]), _big(head[20:24]))
    elif head.startswith((b"GIF87a", b"GIF89a")):
        found = ImageHeader("image/gif", _little(head[6:8]), _little(head[8:10]))
    elif head.startswith(b"\xff\xd8\xff"):
        found = _jpeg(read)
    elif head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        found = _webp(head)
    return found if found is not None and found.width > 0 and found.height > 0 else None


def _jpeg(read: Read) -> ImageHeader | None:
    place = 2
    for _ in range(SEGMENTS):
        head = read(9, place)
        if len(head) < 4 or head[0] != 0xFF:
            return None
        marker = head[1]
        if marker == 0xFF:  # padding
            place += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:  # without a length
            place += 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return ImageHeader("image/jpeg", _big(head[7:9]), _big(head[5:7])) if len(head) == 9 else None
        elif marker in (0xD9, 0xDA):  # the end or the content; the dimensions must come before either
            return None
        else:
            place += 2 + max(2, _big(head[2:4]))
    return None


def _webp(head: bytes) -> ImageHeader | None:
    kind = head[12:16]
    if kind == b"VP8X" and len(head) >= 30:
        return ImageHeader("image/webp", 1 + _little(head[24:27]), 1 + _little(head[27:30]))
    if kind == b"VP8L" and len(head) >= 25 and head[20] == 0x2F:
        bits = _little(head[21:25])
        return ImageHeader("image/webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 " and len(head) >= 30 and head[23:26] == b"\x9d\x01\x2a":
        return ImageHeader("image/webp", _little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF)
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
