"""Preparation of pictures, audio and documents for models, within all providers' limits.

Small media are stored inline, larger media in the spool. The same limits apply to media from files, servers and
callers. The type is detected from the first bytes, never from the name. The gateway itself never decodes media and has
at most one chunk in memory at a time: a child process reads the media from a descriptor and writes the result to an
anonymous in-memory file. Pictures may be scaled down. Audio and documents are either passed on unchanged or refused,
and documents are not parsed. Media that the spool refuses are stored inside their message with a note, up to
UNSPOOLED_BYTES per turn. Each error is one sentence for the model."""

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
"""Maximum length of each side of a picture in pixels. All providers accept this without scaling."""

SHOWN_BYTES = 4_500_000
"""Maximum size of pictures that are sent. The strictest provider accepts 5 MB."""

SOUND_BYTES = 20_000_000
"""Maximum size of audio that providers accept and that fits into a request (agent/conversation.py)."""

SOUND_SECONDS = 3600
"""Maximum duration of audio. An hour takes up most of the window of a model with audio input."""

DOCUMENT_BYTES = 20_000_000
"""Maximum size of a document. The strictest provider accepts requests of 32 MB, and base64 adds a third. This size also
fits into a request (agent/conversation.py)."""

INLINE_BYTES = 256 * 1024
"""Maximum size of a picture, audio file or document that is stored, and kept in memory, together with its message."""

PIXELS = 50_000_000
"""Maximum number of pixels in a picture that is decoded. The best cameras produce this many; more is a mistake or an
attack."""

SOURCE_BYTES = 256 * 1024 * 1024
"""Maximum size of picture files that are read."""

MEMORY_BYTES = 768 * 1024 * 1024
"""Memory limit of the child process. It is enough for two copies of a picture with the maximum number of pixels, since
conversion needs a second copy."""

SECONDS = 30.0
"""Time limit for one job, sufficient on slow machines."""

CHUNK_BYTES = 256 * 1024
"""Bytes copied at a time."""

NAME_CHARACTERS = 200
"""Maximum length of a name in error messages, and of the name stored with a document."""

LOADED_BYTES = max(SHOWN_BYTES, SOUND_BYTES, DOCUMENT_BYTES)
"""Maximum size of any stored media."""

CONVERT = 'convert it with a command such as "ffmpeg -i IN -ac 1 OUT.mp3"'
"""Advice given in the error for audio that is not accepted."""


_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
_DOCUMENT = b"%PDF-"


def seems_media(head: bytes) -> bool:
    """True if a file that starts with `head` should be treated as a picture or audio and not be read as text. This
    includes unsupported audio formats, for which the error says what to do."""
    return (
        bool(audio_header.kind(head)) or head.startswith(_PICTURES) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")
    )


def media_type_of(data: bytes) -> str:
    """Returns the media type according to the first bytes, or an empty string if the type is not supported."""
    if data.startswith(_DOCUMENT):
        return PDF
    sound = audio_header.kind(data[: audio_header.HEAD_BYTES])
    if sound:
        return sound if sound.startswith("audio/") else ""
    found = image_header.sniff(lambda count, place: data[place : place + count])
    return "" if found is None else found.media_type


class MediaPreparer:
    """Prepares media for models."""

    def __init__(self, workers: JobRunner, *, seconds: float = SECONDS) -> None:
        self._workers = workers
        self._seconds = seconds

    async def media(self, name: str, source: bytes | int, place: EntryFolder, *, filename: str) -> Media:
        """Checks, converts and stores media. `source` is the content, or a file descriptor that the caller still owns.
        `place` is the destination for large media. `name` is used in error messages; `filename` is stored with a
        document."""
        named = f'"{name[:NAME_CHARACTERS]}"'
        async with _open_source(source) as input:
            head = os.pread(input, audio_header.HEAD_BYTES, 0)
            if head.startswith(_DOCUMENT):
                return await self._document(input, f"The document {named} cannot be sent", place, filename)
            if audio_header.kind(head):
                return await self._sound(input, f"The sound {named} cannot be sent", place)
            return await self._picture(input, f"The picture {named} cannot be shown", place)

    async def _picture(self, input: int, shown: str, place: EntryFolder) -> Media:
        with _memory_file() as output:
            made = await self._scale(input, output, SHOWN_BYTES, shown)
            kept, lost = await _store(made, output, place)
            size = os.fstat(output).st_size
        if not lost:
            return kept
        if not await to_thread.run_sync(_pillow):
            raise _left_out_error(shown, lost, size)
        # A picture that cannot be stored on disk can still be shown if it is small enough to be stored in its message.
        space = max(place.unspooled.left, INLINE_BYTES)
        with _memory_file() as output:
            made = await self._scale(input, output, space, f"{shown} ({lost})")
            size = os.fstat(output).st_size
            if size > INLINE_BYTES and not place.unspooled.take(size):
                raise _left_out_error(shown, lost, size)  # other media used up the space in the meantime
            return _inline(made, output, size, f"small, since {lost}")

    async def _sound(self, input: int, heard: str, place: EntryFolder) -> Media:
        order = {"bytes": SOUND_BYTES, "seconds": SOUND_SECONDS}
        with _memory_file() as output:
            made = await self._run_job("audio_job", order, input, output, heard, f"; {CONVERT}")
            kept, lost = await _store(made, output, place)
            size = os.fstat(output).st_size
        if lost:
            raise _left_out_error(heard, lost, size)
        return kept

    async def _document(self, input: int, given: str, place: EntryFolder, filename: str) -> Media:
        size = os.fstat(input).st_size
        if size > DOCUMENT_BYTES:
            raise ToolFailed(f"{given}: it has {size} bytes, and at most {DOCUMENT_BYTES} can be sent to a model.")
        with _memory_file() as output:
            # Make a copy, since the file may change while it is being stored.
            for start in range(0, size, CHUNK_BYTES):
                os.sendfile(output, input, start, min(CHUNK_BYTES, size - start))
                await lowlevel.checkpoint()
            size = os.fstat(output).st_size
            made = Media(media_type=PDF, name=_printable(filename), size=size)
            kept, lost = await _store(made, output, place)
        if lost:
            raise _left_out_error(given, lost, size)
        return kept

    async def _scale(self, input: int, output: int, most: int, shown: str) -> Media:
        if os.fstat(input).st_size > SOURCE_BYTES:
            raise ToolFailed(f"{shown}: its file is larger than {SOURCE_BYTES} bytes.")
        order = {"side": SIDE, "bytes": most, "pixels": PIXELS, "pillow": await to_thread.run_sync(_pillow)}
        return await self._run_job("image_job", order, input, output, shown)

    async def _run_job(
        self, job: str, order: dict[str, Any], input: int, output: int, failed: str, advice: str = ""
    ) -> Media:
        try:
            made = await self._workers.run(
                job,
                order,
                within=self._seconds,
                memory=MEMORY_BYTES,
                written=order["bytes"],
                input=input,
                output=output,
            )
        except TimeoutError:
            raise ToolFailed(f"{failed}: reading it takes longer than {self._seconds:g} s.") from None
        if why := made.get("refused"):
            raise ToolFailed(f"{failed}: it {why}{advice}.")
        return msgspec.convert(made, Media)


async def _store(made: Media, output: int, place: EntryFolder) -> tuple[Media, str]:
    """Stores a job's result. Returns the media with their bytes or spool id, and the reason if they could not be
    stored."""
    size = os.fstat(output).st_size
    if size <= INLINE_BYTES:
        return _inline(made, output, size), ""
    entry = await _store_in_spool(output, size, made.media_type, place)
    if entry.lost and place.unspooled.take(size):
        return _inline(made, output, size, f"stored in its message, since {entry.lost}"), ""
    return msgspec.structs.replace(made, spooled=entry.id), entry.lost


def _inline(made: Media, output: int, size: int, note: str = "") -> Media:
    note = "; ".join(filter(None, (made.note, note)))
    return msgspec.structs.replace(made, data=os.pread(output, size, 0), note=note)


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name[:NAME_CHARACTERS])


def _left_out_error(what: str, lost: str, size: int) -> MediaLeftOut:
    return MediaLeftOut(
        f"{what}: {lost}, and it is too large ({size} bytes) to be stored in its message instead ({UNSPOOLED_BYTES} "
        "bytes per turn in total); make it smaller, or free some space."
    )


async def _store_in_spool(output: int, size: int, media_type: str, place: EntryFolder) -> SpoolEntry:
    """Writes an entry in chunks. The chunks are read here and not in the thread, because a cancelled caller may leave
    the thread behind, and it must not use a descriptor that has been closed."""
    entry = SpoolEntry(place)
    try:
        await entry.begin()
        for start in range(0, size, CHUNK_BYTES):
            await entry.put(os.pread(output, CHUNK_BYTES, start))
        await entry.keep(bytes=size, media_type=media_type)
    finally:
        await entry.drop()
    return entry


@contextlib.asynccontextmanager
async def _open_source(source: bytes | int) -> AsyncIterator[int]:
    if isinstance(source, int):
        yield source
        return
    with _memory_file() as fd:
        view = memoryview(source)
        for start in range(0, len(view), CHUNK_BYTES):
            os.write(fd, view[start : start + CHUNK_BYTES])
            await lowlevel.checkpoint()
        yield fd


@contextlib.contextmanager
def _memory_file() -> Iterator[int]:
    """Creates an anonymous in-memory file, which disappears when it is closed."""
    fd = os.memfd_create("media")
    try:
        yield fd
    finally:
        os.close(fd)


def _pillow() -> str:
    """Returns the folder from which Pillow can be imported, or an empty string."""
    found = importlib.util.find_spec("PIL")
    return "" if found is None or found.origin is None else str(Path(found.origin).parent.parent)
