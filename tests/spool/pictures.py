"""Pictures for tests, generated on the fly."""

import io
import struct
import zlib
from typing import Any

from PIL import Image


def noise(width: int, height: int, *, mode: str = "RGB", seed: int = 1) -> Image.Image:
    """A picture that cannot be compressed."""
    import random

    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    return Image.frombytes(mode, (width, height), random.Random(seed).randbytes(width * height * channels))


def plain(width: int, height: int, *, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (width, height))


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes that really has this size: it is black, and compressed as well as possible."""
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes((width + 7) // 8 + 1)) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
