"""Compressed bodies: decoded in pieces of bounded size, wherever the network splits them."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.http_client.decoding import PIECE_BYTES, BrokenEncoding, Decoder


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


Pack = Callable[[bytes], bytes]
Case = tuple[str, Pack]
PACKERS: dict[str, list[Pack]] = {
    "gzip": [gzip.compress, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])],
    "x-gzip": [gzip.compress],
    "deflate": [zlib.compress, raw_deflate],
}
CASES = [(encoding, pack) for encoding, packers in PACKERS.items() for pack in packers]


def decoded(decoder: Decoder, pieces: list[bytes]) -> bytes:
    found = bytearray()
    for piece in pieces:
        decoder.feed(piece)
        while part := decoder.take():
            assert len(part) <= PIECE_BYTES
            found += part
    decoder.finish()
    return bytes(found)


@given(
    data=st.binary(max_size=3000),
    factor=st.sampled_from([1, 100]),
    size=st.integers(1, 500),
    case=st.sampled_from(CASES),
)
def test_a_body_is_the_same_wherever_it_is_split(data: bytes, factor: int, size: int, case: tuple) -> None:
    encoding, pack = case
    packed = pack(data * factor)
    pieces = [packed[start : start + size] for start in range(0, len(packed), size)]
    assert decoded(Decoder(encoding), pieces) == data * factor


@pytest.mark.parametrize(("encoding", "pack"), CASES)
def test_a_body_that_ends_early_is_refused(encoding: str, pack: Pack) -> None:
    packed = pack(b"the tide comes in " * 40)
    with pytest.raises(BrokenEncoding, match="too early"):
        decoded(Decoder(encoding), [packed[:-9]])


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "nonsense"])
def test_invalid_bytes_are_refused(encoding: str) -> None:
    with pytest.raises(BrokenEncoding):
        decoded(Decoder(encoding), [b"\xff\xff\xff\xff nonsense"])


def test_a_decompression_bomb_costs_no_memory() -> None:
    """A1: its reader stops when it has seen enough."""
    bomb = gzip.compress(bytes(200 * 1024 * 1024), 1)
    decoder = Decoder("gzip")
    tracemalloc.start()
    try:
        decoder.feed(bomb)
        for _ in range(20):
            assert len(decoder.take()) <= PIECE_BYTES
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(bomb) + 8 * PIECE_BYTES
