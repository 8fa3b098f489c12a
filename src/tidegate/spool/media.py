"""Pictures for a model: within what every provider takes, small ones inline, larger ones in the spool.

Guarantee: whoever brings a picture, a local file or a server, it obeys the same bounds. The gateway never decodes one
and never holds more of it than a piece: a child reads it from a descriptor and leaves what a model may be shown in
memory that is the kernel's. What is refused is a sentence for the model.
"""

import contextlib
import importlib.util
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
from anyio import lowlevel, to_thread

from tidegate.errors import ToolFailed
from tidegate.spool.entry import Entry, Place
from tidegate.spool.workers import Workers
from tidegate.values import Media

SIDE = 2000
"""Pixels of a side: what every provider takes without scaling by itself."""

SHOWN_BYTES = 4_500_000
"""Of a picture as it is sent: the strictest provider takes 5 MB."""

INLINE_BYTES = 256 * 1024
"""Of a picture that is stored in its message, and held in memory with it."""

PIXELS = 50_000_000
"""That are decoded: the largest cameras; more is a mistake or an attack."""

SOURCE_BYTES = 256 * 1024 * 1024
"""Of a file that is looked at."""

MEMORY_BYTES = 768 * 1024 * 1024
"""Of the child: as many pixels, decoded, and a second time while they are converted."""

SECONDS = 30.0
"""For one picture, on a slow machine too."""

PIECE = 256 * 1024
"""That is copied at once."""

NAME_CHARACTERS = 200
"""Of the name of a picture in a message about it."""


class Pictures:
    """Makes what a model may be shown."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def media(self, name: str, source: bytes | int, place: Place) -> Media:
        """`source` is the picture, or a descriptor of its file, which stays the caller's; `place` is where a large one
        goes."""
        shown = f'The picture "{name[:NAME_CHARACTERS]}" cannot be shown'
        async with _described(source) as input:
            with _anonymous() as output:
                made = await self._made(input, output, SHOWN_BYTES, shown)
                size = os.fstat(output).st_size
                if size <= INLINE_BYTES:
                    return msgspec.structs.replace(made, data=os.pread(output, size, 0))
                entry = await _spooled(output, size, made.media_type, place)
            if entry.id:
                return msgspec.structs.replace(made, spooled=entry.id)
            # What cannot be kept on disk can still be shown, if it is made small enough to go with its message.
            with _anonymous() as output:
                made = await self._made(input, output, INLINE_BYTES, f"{shown} ({entry.lost})")
                note = f"{made.note}; small, since {entry.lost}".removeprefix("; ")
                return msgspec.structs.replace(made, note=note, data=os.pread(output, INLINE_BYTES, 0))

    async def _made(self, input: int, output: int, most: int, shown: str) -> Media:
        if os.fstat(input).st_size > SOURCE_BYTES:
            raise ToolFailed(f"{shown}: its file is larger than {SOURCE_BYTES} bytes.")
        order = {"side": SIDE, "bytes": most, "pixels": PIXELS, "pillow": await to_thread.run_sync(_pillow)}
        try:
            made = await self._workers.run(
                "scaling", order, within=SECONDS, memory=MEMORY_BYTES, written=most, input=input, output=output
            )
        except TimeoutError:
            raise ToolFailed(f"{shown}: it takes longer than {SECONDS:g} s to read.") from None
        if why := made.get("refused"):
            raise ToolFailed(f"{shown}: it {why}.")
        return msgspec.convert(made, Media)


async def _spooled(output: int, size: int, media_type: str, place: Place) -> Entry:
    """Written in pieces, each read here: a thread that is left behind by a cancelled caller must not hold a descriptor
    that is closed meanwhile."""
    entry = Entry(place)
    try:
        await entry.begin()
        for start in range(0, size, PIECE):
            await entry.put(os.pread(output, PIECE, start))
        await entry.keep(bytes=size, media_type=media_type)
    finally:
        await entry.drop()
    return entry


@contextlib.asynccontextmanager
async def _described(source: bytes | int) -> AsyncIterator[int]:
    if isinstance(source, int):
        yield source
        return
    with _anonymous() as fd:
        view = memoryview(source)
        for start in range(0, len(view), PIECE):
            os.write(fd, view[start : start + PIECE])
            await lowlevel.checkpoint()
        yield fd


@contextlib.contextmanager
def _anonymous() -> Iterator[int]:
    """A file without a name, in memory that counts as the kernel's and is gone when it is closed."""
    fd = os.memfd_create("picture")
    try:
        yield fd
    finally:
        os.close(fd)


def _pillow() -> str:
    """The folder that Pillow is imported from, or nothing."""
    found = importlib.util.find_spec("PIL")
    return "" if found is None or found.origin is None else str(Path(found.origin).parent.parent)
