"""The parts of a message: text, and of a user's message or a tool's result also pictures, sounds and files.

A part is what its first bytes say it is; everything else is refused with the path of the part. A file of text becomes
text; a picture, a sound or a PDF stays one, however it is sent. Nothing is fetched from an address that a caller names.
"""

import binascii
import re
from typing import Literal

import msgspec

from tidegate.errors import Refused, TooLarge
from tidegate.spool import DOCUMENT_BYTES, SOUND_BYTES, media_type_of
from tidegate.values import PDF, Attachment

MEDIA_PARTS = ("image_url", "input_audio", "file")
NAME_CHARACTERS = 200
"""Of a file's name that is told."""
FORMATS = {"wav": "audio/wav", "mp3": "audio/mpeg"}

_DATA_URL = re.compile(r"data:image/(png|jpe?g|gif|webp);base64,", re.IGNORECASE)


class InputAudio(msgspec.Struct):
    data: str
    format: Literal["wav", "mp3"]


class ImageUrl(msgspec.Struct):
    url: str


class File(msgspec.Struct):
    file_data: str | None = None
    filename: str | None = None
    file_id: str | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    input_audio: InputAudio | None = None
    image_url: ImageUrl | str | None = None
    file: File | None = None


def brought_by(part: ContentPart, where: str, message: int) -> Attachment | None:
    """The media of a part of one of `MEDIA_PARTS`; none of a file that is text."""
    filename = ""
    if part.type == "input_audio":
        data = _sound(part.input_audio, f"{where}.input_audio")
    elif part.type == "image_url":
        data = _picture(part.image_url, f"{where}.image_url")
    else:
        data = _file(part.file, f"{where}.file")
        kind = media_type_of(data)
        if not kind:
            return None
        if kind == PDF:
            _bound(len(data), DOCUMENT_BYTES, "a document's bytes", f"{where}.file.file_data")
        filename = (part.file.filename if part.file is not None else None) or ""
    return Attachment(message=message, name=where, data=data, filename=filename)


def text_of_file(part: ContentPart, where: str) -> str:
    """The text of a file with its name above it; empty for media."""
    data = _file(part.file, f"{where}.file")
    if media_type_of(data):
        return ""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(
            f"`{where}.file` is no text in UTF-8, PDF, picture or sound, which are the files that are taken.",
            param=f"{where}.file.file_data",
        ) from None
    name = (part.file.filename if part.file is not None else None) or "without a name"
    return f"File {name[:NAME_CHARACTERS]!r}:\n{text}\n"


def _file(given: File | None, where: str) -> bytes:
    if given is None:
        raise Refused(f"`{where}` is missing.", param=where)
    if given.file_data is None:
        raise Refused(
            f"`{where}.file_data` is missing: files come with their message, none are kept under an id.",
            param=f"{where}.file_data",
        )
    # Some clients send the bytes alone, others a data URL.
    encoded = given.file_data
    if encoded.startswith("data:"):
        _, mark, encoded = encoded.partition(";base64,")
        if not mark:
            raise Refused(
                f"`{where}.file_data` is a data URL without ;base64, in it; send the file's bytes in base64.",
                param=f"{where}.file_data",
            )
    return _decoded(encoded, f"{where}.file_data")


def _sound(given: InputAudio | None, where: str) -> bytes:
    if given is None:
        raise Refused(f"`{where}` is missing.", param=where)
    where = f"{where}.data"
    _bound(len(given.data) // 4 * 3 - given.data[-2:].count("="), SOUND_BYTES, "a sound's bytes", where)
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


def _bound(size: int, most: int, limit: str, where: str) -> None:
    if size > most:
        raise TooLarge(
            f"`{where}` is larger than the {most} bytes that a model can be given.",
            limit=limit,
            value=most,
            param=where,
        )


def _decoded(text: str, where: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # of binascii, and what is not ASCII
        raise Refused(f"`{where}` is not valid base64.", param=where) from None
