"""Pictures, sounds and documents for a model: within what every provider takes, small ones inline, larger ones in the
spool.

Guarantee: whoever brings one, a local file, a server or a caller, it obeys the same bounds, and what it is, its first
bytes say and never its name. The gateway never decodes one and never holds more of it than a piece: a child reads it
from a descriptor and leaves what a model may be given in memory that is the kernel's. Pictures may be made smaller;
sounds and documents go as they are or not at all. Nothing of a document is parsed. What the spool refuses goes into its
message up to UNSPOOLED_BYTES in one turn, and says so. What is refused is a sentence for the model.
"""

import contextlib
import importlib.util
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
from anyio import lowlevel, to_thread

from tidegate.errors import MediaLeftOut, ToolFailed
from tidegate.spool.entry import UNSPOOLED_BYTES, EntryFolder, SpoolEntry
from tidegate.spool.jobs import audio_header, image_header
from tidegate.spool.jobs.runner import JobRunner
from tidegate.values import PDF, Media

SIDE = 2000
"""Pixels of a side: what every provider takes without scaling by itself."""

SHOWN_BYTES = 4_500_000
"""Of a picture as it is sent: the strictest provider takes 5 MB."""

SOUND_BYTES = 20_000_000
"""Of a sound: what providers take, and what one request can hold (agent/conversation.py)."""

SOUND_SECONDS = 3600
"""That a sound may last: most of what the models that hear can hold."""

DOCUMENT_BYTES = 20_000_000
"""Of a document: the strictest provider takes requests of 32 MB, and base64 makes it a third larger. One request can
hold it (agent/conversation.py)."""

INLINE_BYTES = 256 * 1024
"""Of a picture, a sound or a document that is stored in its message, and held in memory with it."""

PIXELS = 50_000_000
"""That are decoded: the largest cameras; more is a mistake or an attack."""

SOURCE_BYTES = 256 * 1024 * 1024
"""Of a file that is looked at."""

MEMORY_BYTES = 768 * 1024 * 1024
"""Of the child: as many pixels, decoded, and a second time while they are converted."""

SECONDS = 30.0
"""For one of them, on a slow machine too."""

PIECE = 256 * 1024
"""That is copied at once."""

NAME_CHARACTERS = 200
"""Of a name in a message about it, and of the name that a document keeps."""

LOADED_BYTES = max(SHOWN_BYTES, SOUND_BYTES, DOCUMENT_BYTES)
"""Of the largest that is ever kept."""

CONVERT = 'a command like "ffmpeg -i IN -ac 1 OUT.mp3" makes a small one that can be'
"""What to do with a sound that is not taken."""


_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
_DOCUMENT = b"%PDF-"


def seems_media(head: bytes) -> bool:
    """Whether a file that begins so should be given as a picture or a sound, and not be read as text. Sounds of kinds
    that no model is given are among them: whoever gives them is told what to do."""
    return (
        bool(audio_header.kind(head)) or head.startswith(_PICTURES) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")
    )


def media_type_of(data: bytes) -> str:
    """What it is by its first bytes; nothing when it is none of the kinds that are given to models."""
    if data.startswith(_DOCUMENT):
        return PDF
    sound = audio_header.kind(data[: audio_header.HEAD_BYTES])
    if sound:
        return sound if sound.startswith("audio/") else ""
    found = image_header.sniff(lambda count, place: data[place : place + count])
    return "" if found is None else found.media_type


class MediaPreparer:
    """Makes what a model may be given."""

    def __init__(self, workers: JobRunner) -> None:
        self._workers = workers

    async def media(self, name: str, source: bytes | int, place: EntryFolder, *, filename: str) -> Media:
        """`source` is all of it, or a descriptor of its file, which stays the caller's. `place` is where a large one
        goes. `name` names it in a refusal, `filename` is the name that a document keeps."""
        named = f'"{name[:NAME_CHARACTERS]}"'
        async with _described(source) as input:
            head = os.pread(input, audio_header.HEAD_BYTES, 0)
            if head.startswith(_DOCUMENT):
                return await self._document(input, f"The document {named} cannot be given", place, filename)
            if audio_header.kind(head):
                return await self._sound(input, f"The sound {named} cannot be heard", place)
            return await self._picture(input, f"The picture {named} cannot be shown", place)

    async def _picture(self, input: int, shown: str, place: EntryFolder) -> Media:
        with _anonymous() as output:
            made = await self._scaled(input, output, SHOWN_BYTES, shown)
            kept, lost = await _kept(made, output, place)
            size = os.fstat(output).st_size
        if not lost:
            return kept
        if not await to_thread.run_sync(_pillow):
            raise _left_out(shown, lost, size)
        # What cannot be kept on disk can still be shown, if it is made small enough to go with its message.
        room = max(place.unspooled.left, INLINE_BYTES)
        with _anonymous() as output:
            made = await self._scaled(input, output, room, f"{shown} ({lost})")
            size = os.fstat(output).st_size
            if size > INLINE_BYTES and not place.unspooled.take(size):
                raise _left_out(shown, lost, size)  # others have taken the room meanwhile
            return _inline(made, output, size, f"small, since {lost}")

    async def _sound(self, input: int, heard: str, place: EntryFolder) -> Media:
        order = {"bytes": SOUND_BYTES, "seconds": SOUND_SECONDS}
        with _anonymous() as output:
            made = await self._made("audio_job", order, input, output, heard, f"; {CONVERT}")
            kept, lost = await _kept(made, output, place)
            size = os.fstat(output).st_size
        if lost:
            raise _left_out(heard, lost, size)
        return kept

    async def _document(self, input: int, given: str, place: EntryFolder, filename: str) -> Media:
        size = os.fstat(input).st_size
        if size > DOCUMENT_BYTES:
            raise ToolFailed(f"{given}: it has {size} bytes, more than the {DOCUMENT_BYTES} that a model can be given.")
        with _anonymous() as output:
            # A copy, since a file may change while it is kept.
            for start in range(0, size, PIECE):
                os.sendfile(output, input, start, min(PIECE, size - start))
                await lowlevel.checkpoint()
            size = os.fstat(output).st_size
            made = Media(media_type=PDF, name=_printable(filename), size=size)
            kept, lost = await _kept(made, output, place)
        if lost:
            raise _left_out(given, lost, size)
        return kept

    async def _scaled(self, input: int, output: int, most: int, shown: str) -> Media:
        if os.fstat(input).st_size > SOURCE_BYTES:
            raise ToolFailed(f"{shown}: its file is larger than {SOURCE_BYTES} bytes.")
        order = {"side": SIDE, "bytes": most, "pixels": PIXELS, "pillow": await to_thread.run_sync(_pillow)}
        return await self._made("image_job", order, input, output, shown)

    async def _made(
        self, job: str, order: dict[str, Any], input: int, output: int, failed: str, advice: str = ""
    ) -> Media:
        try:
            made = await self._workers.run(
                job, order, within=SECONDS, memory=MEMORY_BYTES, written=order["bytes"], input=input, output=output
            )
        except TimeoutError:
            raise ToolFailed(f"{failed}: it takes longer than {SECONDS:g} s to read.") from None
        if why := made.get("refused"):
            raise ToolFailed(f"{failed}: it {why}{advice}.")
        return msgspec.convert(made, Media)


async def _kept(made: Media, output: int, place: EntryFolder) -> tuple[Media, str]:
    """With its bytes, or with the name that they have in the spool; or why they could not be kept."""
    size = os.fstat(output).st_size
    if size <= INLINE_BYTES:
        return _inline(made, output, size), ""
    entry = await _spooled(output, size, made.media_type, place)
    if entry.lost and place.unspooled.take(size):
        return _inline(made, output, size, f"kept in its message, since {entry.lost}"), ""
    return msgspec.structs.replace(made, spooled=entry.id), entry.lost


def _inline(made: Media, output: int, size: int, note: str = "") -> Media:
    note = "; ".join(filter(None, (made.note, note)))
    return msgspec.structs.replace(made, data=os.pread(output, size, 0), note=note)


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name[:NAME_CHARACTERS])


def _left_out(what: str, lost: str, size: int) -> MediaLeftOut:
    return MediaLeftOut(
        f"{what}: {lost}, and its {size} bytes are more than may go with the messages of one turn instead "
        f"({UNSPOOLED_BYTES} bytes in all); make it smaller, or make room."
    )


async def _spooled(output: int, size: int, media_type: str, place: EntryFolder) -> SpoolEntry:
    """Written in pieces, each read here: a thread that is left behind by a cancelled caller must not hold a descriptor
    that is closed meanwhile."""
    entry = SpoolEntry(place)
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
    fd = os.memfd_create("media")
    try:
        yield fd
    finally:
        os.close(fd)


def _pillow() -> str:
    """The folder that Pillow is imported from, or nothing."""
    found = importlib.util.find_spec("PIL")
    return "" if found is None or found.origin is None else str(Path(found.origin).parent.parent)
