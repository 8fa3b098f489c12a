"""The parts of a message: text, and of a user's message also pictures and sounds, as OpenAI's clients send them.

Guarantee: what is taken is what it says it is, by its first bytes; everything else is refused with the path of the
part. Nothing is fetched that a caller names: a picture comes as a data URL.
"""

import binascii
import re
from typing import Literal

import msgspec

from tidegate.errors import Refused, TooLarge
from tidegate.spool import SOUND_BYTES, media_type_of
from tidegate.values import Brought

MEDIA_PARTS = ("image_url", "input_audio")
FORMATS = {"wav": "audio/wav", "mp3": "audio/mpeg"}

_DATA_URL = re.compile(r"data:image/(png|jpe?g|gif|webp);base64,", re.IGNORECASE)


class InputAudio(msgspec.Struct):
    data: str
    format: Literal["wav", "mp3"]


class ImageUrl(msgspec.Struct):
    url: str


class Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    input_audio: InputAudio | None = None
    image_url: ImageUrl | str | None = None


def brought_by(part: Part, where: str, message: int) -> Brought:
    """The picture or sound of a part, of one of `MEDIA_PARTS`, of a user's message."""
    if part.type == "input_audio":
        data = _sound(part.input_audio, f"{where}.input_audio")
    else:
        data = _picture(part.image_url, f"{where}.image_url")
    return Brought(message=message, name=where, data=data)


def _sound(given: InputAudio | None, where: str) -> bytes:
    if given is None:
        raise Refused(f"`{where}` is missing.", param=where)
    where = f"{where}.data"
    if len(given.data) // 4 * 3 - given.data[-2:].count("=") > SOUND_BYTES:
        raise TooLarge(
            f"`{where}` is larger than the {SOUND_BYTES} bytes that a model can be given.",
            limit="a sound's bytes",
            value=SOUND_BYTES,
            param=where,
        )
    data = _decoded(given.data, where)
    if media_type_of(data) != FORMATS[given.format]:
        raise Refused(f"`{where}` is no {given.format.upper()}, as its `format` says that it is.", param=where)
    return data


def _picture(given: ImageUrl | str | None, where: str) -> bytes:
    if given is None:
        raise Refused(f"`{where}` is missing.", param=where)
    if isinstance(given, ImageUrl):
        given, where = given.url, f"{where}.url"
    found = _DATA_URL.match(given)
    if found is None:
        raise Refused(
            f"`{where}` must be a data URL (data:image/png;base64,…) of a PNG, JPEG, GIF or WebP picture: nothing is "
            "fetched from addresses.",
            param=where,
        )
    data = _decoded(given[found.end() :], where)
    kind = "jpeg" if found[1].lower() == "jpg" else found[1].lower()
    if media_type_of(data) != f"image/{kind}":
        raise Refused(f"`{where}` is no {kind.upper()}, as it says that it is.", param=where)
    return data


def _decoded(text: str, where: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # of binascii, and what is not ASCII
        raise Refused(f"`{where}` is not valid base64.", param=where) from None
