"""Reading the type and size of a picture from its header."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spool.pictures import bomb, plain, saved
from tidegate.spool.jobs.image_header import ImageHeader, Read, sniff


def reading(data: bytes) -> Read:
    return lambda count, place: data[place : place + count]


MADE = [
    ("image/png", saved(plain(301, 17), "PNG")),
    ("image/gif", saved(plain(301, 17), "GIF")),
    ("image/jpeg", saved(plain(301, 17), "JPEG")),
    ("image/jpeg", saved(plain(301, 17), "JPEG", progressive=True, exif=b"Exif\x00\x00" + bytes(60_000))),
    ("image/jpeg", saved(plain(301, 17), "JPEG", icc_profile=bytes(500_000), comment=b"x" * 10_000)),
    ("image/webp", saved(plain(301, 17), "WEBP", lossless=False)),
    ("image/webp", saved(plain(301, 17), "WEBP", lossless=True)),
    ("image/webp", saved(plain(301, 17, mode="RGBA"), "WEBP", exif=b"Exif\x00\x00" + bytes(100))),
]


@pytest.mark.parametrize(("kind", "data"), MADE)
def test_kind_and_size_are_read_from_the_header(kind: str, data: bytes) -> None:
    """D2, D8: without decoding, and after the metadata that cameras write."""
    assert sniff(reading(data)) == ImageHeader(kind, 301, 17)


def test_the_stated_size_is_returned_however_large() -> None:
    """D7: so that a decompression bomb is recognised."""
    assert sniff(reading(bomb(30_000, 30_000))) == ImageHeader("image/png", 30_000, 30_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
        b"BM" + bytes(60),
        b"II*\x00" + bytes(60),
        b"\xff\xd8\xff\xe0",
        b"\xff\xd8\xff" + b"\xff" * 100_000,
        b"\xff\xd8\xff\xda" + bytes(100),
        b"RIFF\x00\x00\x00\x00WEBPVP8 " + bytes(20),
        b"GIF89a\x00\x00\x00\x00",
    ],
)
def test_other_formats_are_not_recognised(data: bytes) -> None:
    assert sniff(reading(data)) is None


@given(
    st.sampled_from([data for _, data in MADE]),
    st.integers(0, 400),
    st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), max_size=8),
)
def test_any_bytes_are_a_picture_or_nothing(data: bytes, length: int, changes: list[tuple[int, int]]) -> None:
    """D7: cut or modified in any way, with a bounded number of reads."""
    changed = bytearray(data[:length])
    for place, value in changes:
        if place < len(changed):
            changed[place] = value
    reads = io.BytesIO(bytes(changed))
    count = 0

    def read(size: int, place: int) -> bytes:
        nonlocal count
        count += 1
        reads.seek(place)
        return reads.read(size)

    found = sniff(read)
    assert found is None or (found.width > 0 and found.height > 0)
    assert count <= 5000
