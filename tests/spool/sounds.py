"""Sounds for tests, generated on the fly."""

import io
import math
import struct
import wave

RATE = 16_000


def wav(seconds: float, *, rate: int = RATE, channels: int = 1, width: int = 2, hertz: float = 440.0) -> bytes:
    """A tone, as Python's own library writes it."""
    buffer = io.BytesIO()
    frames = round(seconds * rate)
    period = max(1, round(rate / hertz))
    one = b"".join(
        struct.pack("<h", round(12_000 * math.sin(2 * math.pi * place / period)))[-width:] * channels
        if width <= 2
        else bytes(width * channels)
        for place in range(period)
    )
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes((one * (frames // period + 1))[: frames * width * channels])
    return buffer.getvalue()


def chunk(name: bytes, data: bytes, length: int | None = None) -> bytes:
    return name + struct.pack("<I", len(data) if length is None else length) + data + b"\0" * (len(data) % 2)


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def form(*, tag: int = 1, channels: int = 1, rate: int = RATE, bits: int = 16, block: int | None = None) -> bytes:
    block = channels * bits // 8 if block is None else block
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits))


def frame(payload: bytes = b"", *, bitrate: int = 9, rate: int = 0, version: int = 3, mono: bool = False) -> bytes:
    """A silent frame of layer III: bitrate 9 of MPEG 1 is 128 kbit/s, rate 0 is 44,100 a second."""
    kilobits = (
        (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
        (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    )[version != 3][bitrate - 1]
    hertz = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}[version][rate]
    length = (144 if version == 3 else 72) * kilobits * 1000 // hertz
    head = bytes((0xFF, 0xE3 | version << 3, bitrate << 4 | rate << 2, 0xC0 if mono else 0))
    return (head + payload).ljust(length, b"\0")[:length]


def xing(frames: int, *, name: bytes = b"Xing", mono: bool = False) -> bytes:
    """The payload of a first MPEG 1 frame that states the number of frames."""
    return bytes(17 if mono else 32) + name + struct.pack(">II", 1, frames)


def vbri(frames: int) -> bytes:
    return bytes(32) + b"VBRI" + struct.pack(">HHHII", 1, 0, 75, 0, frames)


def tag(length: int, *, version: int = 4) -> bytes:
    size = bytes(length >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3" + bytes((version, 0, 0)) + size + bytes(length)


def mp3(frames: int) -> bytes:
    return frame() * frames
