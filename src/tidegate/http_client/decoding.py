"""Bounded decompression of response bodies.

At most one piece of decoded bytes is held, whatever the input: a decompression bomb takes no memory, and the reader of
the body decides when it is too long. The compressions are those of the standard library: gzip and deflate (with or
without a zlib header).
"""

import zlib

PIECE_BYTES = 64 * 1024
"""The most decoded bytes that are held. Decoding them takes less than a millisecond."""

ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP = zlib.MAX_WBITS | 16
_ZLIB_METHOD = 8


class BrokenEncoding(Exception):
    """The compressed data is invalid, or ends too early."""


class Decoder:
    """Decodes one body. `feed` takes compressed bytes, `take` returns decoded ones until there are none left, and
    `finish` checks that the body was complete."""

    def __init__(self, encoding: str) -> None:
        self._known = encoding in ENCODINGS
        self._gzip = encoding != "deflate"
        self._stream = zlib.decompressobj(_GZIP) if self._gzip else None
        self._input = b""
        self._started = False

    def feed(self, data: bytes) -> None:
        if not self._known:
            raise BrokenEncoding("the response uses a compression that was not requested")
        self._input += data
        self._started = True

    def take(self) -> bytes:
        """Returns up to PIECE_BYTES decoded bytes, or b"" if more input is needed."""
        while self._input:
            if self._stream is None:
                raw = self._input[0] & 0x0F != _ZLIB_METHOD
                self._stream = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS)
            elif self._stream.eof:
                if not self._gzip:
                    raise BrokenEncoding("bytes after the end of the compressed body")
                self._stream = zlib.decompressobj(_GZIP)  # a further member
            try:
                decoded = self._stream.decompress(self._input, PIECE_BYTES)
            except zlib.error:
                raise BrokenEncoding("the compressed body is invalid") from None
            self._input = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if decoded:
                return decoded
        return b""

    def finish(self) -> None:
        if self._started and (self._stream is None or not self._stream.eof):
            raise BrokenEncoding("the compressed body ends too early")
