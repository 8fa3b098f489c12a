"""The type and duration of audio files, read from the header without decoding the audio.

Only a few reads are needed, whatever the file contains. `UnknownAudio` is raised if the file is neither WAV nor MP3, or
if its header is invalid. The duration never exceeds what the file size allows. This module also runs in a child
process, so it uses only the standard library.
"""

from collections.abc import Callable
from typing import NamedTuple

Read = Callable[[int, int], bytes]
"""Reads data from a file. The arguments are the number of bytes and the offset."""

HEAD_BYTES = 12
"""Number of bytes needed to recognise audio."""

CHUNKS = 64
"""Maximum number of chunks before the audio data in a WAV. Recorders and editors write only a few."""

TAGS = 4
"""Maximum number of tags before an MP3's audio. Some programs insert a tag in front of an existing one."""

SEARCHED_BYTES = 4096
"""The first frame of an MP3 must begin within this many bytes after the tags, which may be padded with zeros."""

_FRAME_BYTES = 1441
"""Maximum size of a layer III frame in bytes."""

_PCM = {1: "PCM", 3: "floating point", 0xFFFE: "PCM"}
_CODECS = {2: "ADPCM", 6: "A-law", 7: "mu-law", 0x11: "ADPCM", 0x31: "GSM", 0x50: "MPEG", 0x55: "MP3"}
_WIDTHS = (8, 16, 24, 32, 64)
_BITRATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
"""Bit rates of layer III in kilobits per second, for MPEG 1 and for MPEG 2 and 2.5."""
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_SLOWEST, _FASTEST = 8_000, 320_000
"""The lowest and highest bit rates of layer III, in bits per second."""

# Each is long enough that no ordinary text starts with it.
_OTHERS = (
    (0, b"OggS\0", "Ogg (Vorbis or Opus)"),
    (0, b"fLaC\0\0\0\x22", "FLAC"),
    (0, b"fLaC\x80\0\0\x22", "FLAC"),
    (4, b"ftypM4A", "MPEG-4 audio (M4A)"),
    (4, b"ftypM4B", "MPEG-4 audio (M4B)"),
    (0, b"\xff\xf1", "AAC"),
    (0, b"\xff\xf9", "AAC"),
    (0, b"#!AMR\n", "AMR"),
    (0, b"caff\0\1", "Core Audio (CAF)"),
    (0, b".snd\0", "Sun audio (AU)"),
    (0, b"RF64\xff\xff\xff\xffWAVE", "a WAV of more than 4 GiB (RF64)"),
    (0, b"MThd\0\0\0\x06", "MIDI"),
)


class AudioHeader(NamedTuple):
    media_type: str
    seconds: float


class UnknownAudio(Exception):
    """The audio is not accepted. The message completes a sentence that begins with "it"."""


class _Frame(NamedTuple):
    version: int
    bits: int
    """Bits per second."""
    rate: int
    samples: int
    length: int
    mono: bool


def kind(head: bytes) -> str:
    """Returns the type of a file that starts with `head`: `audio/wav`, `audio/mpeg`, the name of an unsupported audio
    format, or an empty string if the file is not audio."""
    if head[8:12] == b"WAVE" and head[:4] in (b"RIFF", b"RIFX"):
        return "audio/wav"
    if _is_tag(head) or _frame(head) is not None:
        return "audio/mpeg"
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "AIFF"
    return next((name for place, mark, name in _OTHERS if head.startswith(mark, place)), "")


def sniff(read: Read, size: int) -> AudioHeader:
    """Reads the header of a file that is `size` bytes long. Raises `UnknownAudio`."""
    found = kind(read(HEAD_BYTES, 0))
    if found == "audio/wav":
        seconds = _wav(read, size)
    elif found == "audio/mpeg":
        seconds = _mp3(read, size)
    else:
        raise UnknownAudio(f"is {found}, and only WAV and MP3 are accepted" if found else "is not a WAV or MP3 file")
    if seconds <= 0:
        raise UnknownAudio("contains no audio")
    return AudioHeader(found, seconds)


# -- WAV ---------------------------------------------------------------------------------------------------------------


def _wav(read: Read, size: int) -> float:
    if read(4, 0) != b"RIFF":
        raise UnknownAudio("is a big-endian WAV (RIFX), and only RIFF is accepted")
    place, bytes_a_second = 12, 0
    for _ in range(CHUNKS):
        head = read(8, place)
        if len(head) < 8:
            raise UnknownAudio("ends before its audio data")
        length = int.from_bytes(head[4:], "little")
        place += 8
        if head[:4] == b"fmt ":
            bytes_a_second = _format(read(16, place))
        elif head[:4] == b"data":
            if not bytes_a_second:
                raise UnknownAudio("does not describe its sample format")
            # A program that writes to a pipe cannot fill in the length. The audio data is then the rest of the file.
            stated = length if length not in (0, 0xFFFFFFFF) else size
            return min(stated, max(0, size - place)) / bytes_a_second
        place += length + length % 2
    raise UnknownAudio(f"has more than {CHUNKS} chunks before its audio data")


def _format(data: bytes) -> int:
    """Parses a WAV's sample format and returns its bytes per second."""
    if len(data) < 16:
        raise UnknownAudio("ends within its header")
    tag, channels, rate, _, block, bits = (
        int.from_bytes(data[start:end], "little")
        for start, end in ((0, 2), (2, 4), (4, 8), (8, 12), (12, 14), (14, 16))
    )
    if tag not in _PCM:
        codec = _CODECS.get(tag, f"sound of format {tag}")
        raise UnknownAudio(f"is a WAV that contains {codec}, and only PCM is accepted")
    if bits not in _WIDTHS or not channels or not rate or block != channels * bits // 8:
        raise UnknownAudio("is damaged: it has an invalid header")
    return rate * block


# -- MP3 ---------------------------------------------------------------------------------------------------------------


def _mp3(read: Read, size: int) -> float:
    place = _skip_tags(read)
    data = read(SEARCHED_BYTES + _FRAME_BYTES + 4, place)
    start, frame = _first_frame(data, size - place)
    # There may be an old tag of fixed length at the end.
    end = size - 128 if size >= 128 and read(3, size - 128) == b"TAG" else size
    sound = max(0, end - place - start)
    steady = sound * 8 / frame.bits
    counted = _frame_count(data[start:], frame) * frame.samples / frame.rate
    one = frame.samples / frame.rate
    if sound * 8 / _FASTEST - one <= counted <= sound * 8 / _SLOWEST + one:
        return counted or steady
    return steady  # the stated count contradicts the size


def _skip_tags(read: Read) -> int:
    place = 0
    for _ in range(TAGS):
        head = read(10, place)
        if not _is_tag(head):
            break
        length = 0
        for byte in head[6:10]:
            length = length << 7 | byte
        place += 10 + length + (10 if head[5] & 0x10 else 0)
    return place


def _is_tag(head: bytes) -> bool:
    """True if `head` is the beginning of an ID3 tag. Text never starts with these bytes."""
    return head[:3] == b"ID3" and len(head) >= 10 and head[3] in (2, 3, 4) and all(byte < 0x80 for byte in head[6:10])


def _first_frame(data: bytes, left: int) -> tuple[int, _Frame]:
    """Finds the first frame, which must be followed by another frame of the same kind or by the end of the file."""
    start = data.find(b"\xff")
    while 0 <= start < SEARCHED_BYTES:
        frame = _frame(data[start : start + 4])
        if frame is not None:
            behind = start + frame.length
            following = _frame(data[behind : behind + 4])
            ends = behind == left or data[behind : behind + 3] == b"TAG"
            if ends or (following is not None and following[:1] + following[2:3] == frame[:1] + frame[2:3]):
                return start, frame
        start = data.find(b"\xff", start + 1)
    raise UnknownAudio("is not an MP3 or is damaged: it has no frame where one is expected")


def _frame(head: bytes) -> _Frame | None:
    """Parses the header of a layer III frame. Returns None if the header is invalid."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return None
    version, bitrate, rate = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version not in _RATES or bitrate in (0, 15) or rate == 3:
        return None
    bits = _BITRATES[version != 3][bitrate] * 1000
    hertz = _RATES[version][rate]
    samples = 1152 if version == 3 else 576
    length = samples // 8 * bits // hertz + (head[2] >> 1 & 1)
    return _Frame(version, bits, hertz, samples, length, head[3] >> 6 == 3)


def _frame_count(data: bytes, frame: _Frame) -> int:
    """Returns the number of frames stated in the first frame, or 0 if it states none."""
    side = (17 if frame.mono else 32) if frame.version == 3 else (9 if frame.mono else 17)
    if data[36:40] == b"VBRI":
        return int.from_bytes(data[50:54], "big")
    for place in (4 + side, 6 + side):  # the second position is used after a checksum
        if data[place : place + 4] in (b"Xing", b"Info") and data[place + 7 : place + 8] and data[place + 7] & 1:
            return int.from_bytes(data[place + 8 : place + 12], "big")
    return 0
