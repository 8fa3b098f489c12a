"""Sounds are recognised by their headers and passed unchanged, inline or spooled, within the limits for models."""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spool.pictures import plain, saved
from tests.spool.sounds import RATE, chunk, form, frame, mp3, riff, tag, vbri, wav, xing
from tests.spool.spools import SESSION, files, spool_of
from tidegate.errors import MediaLeftOut, ToolFailed
from tidegate.spool import SessionSpool, Spool
from tidegate.spool.entry import UNSPOOLED_BYTES
from tidegate.spool.jobs.audio_header import AudioHeader, UnknownAudio, kind, sniff
from tidegate.spool.media import seems_media
from tidegate.store import Store, spooled
from tidegate.values import Media

pytestmark = pytest.mark.anyio

INLINE_BYTES, SOUND_BYTES, SOUND_SECONDS = 256 * 1024, 20_000_000, 3600
"""What is promised, in numbers of our own: held with a message, given to a model, and how long it may last."""

FRAME_SECONDS = 1152 / 44100


@pytest.fixture
def spool(store: Store, tmp_path: Path) -> Spool:
    return spool_of(tmp_path / "spool", store, quota=50_000_000)


class Reads:
    """A file that counts reads and bytes read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.count = self.bytes = 0

    def __call__(self, count: int, place: int) -> bytes:
        assert 0 <= count <= 16 * 1024 and place >= 0
        found = self.data[place : place + count]
        self.count += 1
        self.bytes += len(found)
        return found


def read_header(data: bytes) -> AudioHeader:
    reads = Reads(data)
    try:
        return sniff(reads, len(data))
    finally:
        assert reads.count <= 140 and reads.bytes <= 32 * 1024


# -- headers -----------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 3000),
    st.sampled_from([8000, 16_000, 44_100, 48_000]),
    st.integers(1, 6),
    st.sampled_from([1, 2, 3, 4]),
)
def test_the_duration_of_a_wav_is_read_from_its_header(frames: int, rate: int, channels: int, width: int) -> None:
    """D3: as written by Python's standard library."""
    data = wav(frames / rate, rate=rate, channels=channels, width=width)
    if frames == 0:
        with pytest.raises(UnknownAudio, match="contains no audio"):
            read_header(data)
    else:
        found = read_header(data)
        assert found.media_type == "audio/wav" and found.seconds == pytest.approx(frames / rate)


def test_a_wav_may_have_other_chunks_and_an_unknown_length() -> None:
    """D3: as written by recorders, editors and pipes."""
    pcm = bytes(RATE * 2)
    assert read_header(riff(chunk(b"LIST", b"odd"), form(), chunk(b"fact", bytes(4)), chunk(b"data", pcm))).seconds == 1
    for unknown in (0, 0xFFFFFFFF):
        assert read_header(riff(form(), chunk(b"data", pcm, unknown))).seconds == 1
    assert read_header(riff(form(), chunk(b"data", pcm, 10 * len(pcm)))).seconds == 1, "no more than there is"
    assert read_header(riff(form(tag=3, bits=32), chunk(b"data", pcm))).seconds == 0.5
    assert read_header(riff(form(tag=0xFFFE, channels=2), chunk(b"data", pcm))).seconds == 0.5


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (riff(), "ends before its audio data"),
        (riff(form()), "ends before its audio data"),
        (riff(form())[:24], "ends within its header"),
        (riff(chunk(b"data", bytes(100)), form()), "does not describe its sample format"),
        (riff(form(), chunk(b"data", b"")), "contains no audio"),
        (riff(*[chunk(b"junk", b"")] * 100, form(), chunk(b"data", bytes(100))), "has more than 64 chunks"),
        (riff(form(tag=6, bits=8), chunk(b"data", bytes(100))), "contains A-law, and only PCM is accepted"),
        (riff(form(tag=4711), chunk(b"data", bytes(100))), "sound of format 4711"),
        (riff(form(block=7), chunk(b"data", bytes(100))), "it has an invalid header"),
        (riff(form(rate=0), chunk(b"data", bytes(100))), "it has an invalid header"),
        (riff(form(channels=0, block=0), chunk(b"data", bytes(100))), "it has an invalid header"),
        (riff(chunk(b"junk", b"", 0xFFFFFFFE), form()), "ends before its audio data"),
        (b"RIFX" + riff(form(), chunk(b"data", bytes(100)))[4:], "big-endian"),
        (tag(100), "it has no frame"),
        (tag(2**28 - 1)[:10], "it has no frame"),
        (frame()[:-1], "it has no frame"),
        (frame() + b"something else", "it has no frame"),
        (b"\xff\xfb\x90\x00" * 4000, "it has no frame"),
        (b"", "is not a WAV or MP3 file"),
        (b"hello, I am a text", "is not a WAV or MP3 file"),
    ],
)
def test_invalid_headers_are_refused_with_the_reason(data: bytes, why: str) -> None:
    """D3: malicious files are refused with one sentence."""
    with pytest.raises(UnknownAudio, match=why):
        read_header(data)


def test_the_duration_of_an_mp3_is_stated_or_computed() -> None:
    """D3: from Xing, Info or VBRI, else from its size and bit rate. Tags of any kind are skipped."""
    steady = pytest.approx(100 * FRAME_SECONDS, rel=0.01)
    assert read_header(mp3(100)).media_type == "audio/mpeg" and read_header(mp3(100)).seconds == steady
    assert read_header(tag(5000) + tag(10, version=3) + bytes(100) + mp3(100)).seconds == steady
    assert read_header(mp3(100) + b"TAG" + bytes(125)).seconds == steady
    assert read_header(mp3(1)).seconds == pytest.approx(FRAME_SECONDS, rel=0.01)
    for payload in (xing(99), xing(99, name=b"Info"), vbri(99)):
        # The frames that follow are of another rate: only the count is right.
        varying = frame(payload) + frame(bitrate=14) * 99
        assert read_header(varying).seconds == pytest.approx(99 * FRAME_SECONDS)
    assert read_header(frame(xing(99, mono=True), mono=True) + frame(mono=True) * 99).seconds == pytest.approx(
        99 * FRAME_SECONDS
    )
    low = frame(version=2, bitrate=4) * 50
    assert read_header(low).seconds == pytest.approx(50 * 576 / 22050, rel=0.02)


@pytest.mark.parametrize("lie", [1, 0xFFFFFFFF])
def test_a_count_that_contradicts_the_size_is_ignored(lie: int) -> None:
    """D3: otherwise the time limit could be evaded, or a small file refused."""
    assert read_header(frame(xing(lie)) + mp3(400)).seconds == pytest.approx(401 * FRAME_SECONDS, rel=0.01)


GOOD = [
    wav(0.02),
    riff(chunk(b"LIST", b"x"), form(tag=0xFFFE), chunk(b"data", bytes(300))),
    mp3(3),
    tag(30) + frame(xing(2)) + mp3(2),
    frame(vbri(2)) + mp3(2) + b"TAG" + bytes(125),
]


@given(
    st.sampled_from(GOOD),
    st.lists(st.tuples(st.integers(0, 120), st.binary(min_size=1, max_size=6)), max_size=6),
    st.integers(0, 2000),
    st.binary(max_size=20),
)
@settings(max_examples=400)
def test_any_header_is_a_sound_or_an_error_of_one_sentence(
    data: bytes, changes: list[tuple[int, bytes]], cut: int, added: bytes
) -> None:
    """D3: mutated, cut and extended, with a bounded number of reads; the duration never exceeds what the bytes
    allow."""
    for place, piece in changes:
        data = data[:place] + piece + data[place + len(piece) :]
    data = data[:cut] + added
    try:
        found = read_header(data)
    except UnknownAudio as why:
        assert str(why)
    else:
        assert found.media_type in ("audio/wav", "audio/mpeg")
        assert 0 < found.seconds <= len(data)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_sound_or_a_sentence(data: bytes) -> None:
    try:
        read_header(data)
    except UnknownAudio as why:
        assert str(why)
    seems_media(data)


@given(st.text(min_size=1))
def test_text_is_not_a_sound(text: str) -> None:
    """D3: neither UTF-8 nor UTF-16, nor a text about ID3."""
    for begun in (text, "ID3 tags are explained here", "RIFF, an introduction", "OggS", "fLaC, lossless", "caff"):
        assert kind(begun.encode("utf-8", "replace")[:32]) == ""
    assert kind(text.encode("utf-16", "replace")[:32]) == ""


# -- into the spool ----------------------------------------------------------------------------------------------------


async def test_a_sound_is_unchanged_and_inline_up_to_the_threshold_and_spooled_above_it(
    mine: SessionSpool, spool: Spool, store: Store
) -> None:
    """D2, D3: byte for byte, with its duration."""
    for data, media_type, seconds in ((wav(1.5), "audio/wav", 1.5), (mp3(100), "audio/mpeg", 2.612)):
        media = await mine.media("a sound", data)
        assert media == Media(media_type=media_type, data=data, seconds=media.seconds)
        assert media.seconds == pytest.approx(seconds, abs=0.01)
        assert media.is_sound
    at = riff(form(), chunk(b"data", bytes(INLINE_BYTES - 44)))
    assert len(at) == INLINE_BYTES
    assert (await mine.media("at", at)).data == at
    assert not spool.root.exists()
    above = riff(form(), chunk(b"data", bytes(INLINE_BYTES - 42)))
    media = await mine.media("above", above)
    assert (media.data, await spool.load(SESSION, media.spooled)) == (b"", above)
    row = await store.read(spooled.get, media.spooled, SESSION)
    assert row is not None
    assert (row.kind, row.media_type, row.bytes, row.name) == ("media", "audio/wav", INLINE_BYTES + 2, "above")
    with pytest.raises(ToolFailed, match=r"is a sound \(audio/wav\)"):
        await mine.page(media.spooled)


async def test_the_type_is_detected_from_the_first_bytes_and_never_the_name(mine: SessionSpool) -> None:
    """D3, D8: with the same interface for all sources."""
    assert (await mine.media("song.png", wav(0.1))).media_type == "audio/wav"
    assert (await mine.media("song.wav", mp3(4))).media_type == "audio/mpeg"
    assert (await mine.media("song.mp3", saved(plain(6, 4), "PNG"))).media_type == "image/png"


async def test_the_largest_sound_is_accepted_and_one_byte_more_is_not(
    mine: SessionSpool, spool: Spool, tmp_path: Path
) -> None:
    """D2, D3: from a file, through a child process; stored sounds can be loaded again."""
    head = riff(form(rate=44_100, channels=2), chunk(b"data", b""))
    path = tmp_path / "large.wav"
    path.write_bytes(head[:-4] + struct.pack("<I", SOUND_BYTES - len(head)))
    os.truncate(path, SOUND_BYTES)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.lseek(fd, 100, os.SEEK_SET)
        media = await mine.media("large.wav", fd)
        assert await spool.load(SESSION, media.spooled) == path.read_bytes()
        assert os.lseek(fd, 0, os.SEEK_CUR) == 100
        os.truncate(path, SOUND_BYTES + 1)
        with pytest.raises(ToolFailed, match=f"has {SOUND_BYTES + 1} bytes, and at most {SOUND_BYTES} .*ffmpeg"):
            await mine.media("large.wav", fd)
    finally:
        os.close(fd)


async def test_a_sound_that_lasts_too_long_is_refused(mine: SessionSpool) -> None:
    """D2: an hour is accepted, and a second more is not."""

    def lasting(seconds: int) -> bytes:
        return riff(form(rate=100, bits=8), chunk(b"data", bytes(100 * seconds)))

    assert (await mine.media("long", lasting(SOUND_SECONDS))).seconds == SOUND_SECONDS
    with pytest.raises(ToolFailed, match="lasts 3601 s, and at most 3600 s"):
        await mine.media("longer", lasting(SOUND_SECONDS + 1))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"OggS\0\2" + bytes(50), "Ogg"),
        (b"fLaC\0\0\0\x22" + bytes(50), "FLAC"),
        (b"\0\0\0\x20ftypM4A " + bytes(50), "M4A"),
        (b"\xff\xf1\x50\x80" + bytes(50), "AAC"),
        (b"FORM\0\0\0\x40AIFF" + bytes(50), "AIFF"),
    ],
)
async def test_other_audio_formats_are_named_with_advice_for_converting_them(
    mine: SessionSpool, data: bytes, name: str
) -> None:
    """D3: in one sentence."""
    with pytest.raises(ToolFailed, match=f'^The sound "x" cannot be sent: it is .*{name}.*ffmpeg -i') as failure:
        await mine.media("x", data)
    assert failure.value.message.endswith(".")


async def test_a_large_sound_that_cannot_be_stored_is_refused_with_the_reason(store: Store, tmp_path: Path) -> None:
    """D4, D5: it cannot be made smaller, and nothing is left behind."""
    full = spool_of(tmp_path / "spool", store, quota=100_000)
    with pytest.raises(
        MediaLeftOut,
        match=rf"limits\.spool_bytes, and it is too large \(\d+ bytes\) .* \({UNSPOOLED_BYTES} bytes per turn in total",
    ):
        await full.of(SESSION, None).media("x", wav(80))
    assert files(full) == {}
    assert (await full.of(SESSION, None).media("x", wav(20))).data == wav(20)
