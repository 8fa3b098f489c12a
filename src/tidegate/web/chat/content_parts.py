"""The content parts of a message: text, and in user messages and tool results also pictures, audio and files.

A part's type is detected from its first bytes; a mismatch is refused with the path to the part. Text files become text;
pictures, audio and PDFs become attachments, whatever type of part contains them. Nothing is fetched from URLs.
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
"""Maximum length of a file name shown to a model, in characters."""
FORMATS = {"wav": "audio/wav", "mp3": "audio/mpeg"}

_DATA_URL = re.compile(r"data:image/(png|jpe?g|gif|webp);base64,", re.IGNORECASE)


class InputAudio(msgspec.Struct):
    data: str
    format: Literal["wav", "mp3"]


class ImageUrl(msgspec.Struct):
    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


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


def attachment_of(part: ContentPart, where: str, message: int) -> Attachment | None:
    """Returns the attachment of a part whose type is in `MEDIA_PARTS`. Returns None for a text file."""
    filename = detail = ""
    if part.type == "input_audio":
        data = _sound(part.input_audio, f"{where}.input_audio")
    elif part.type == "image_url":
        data = _picture(part.image_url, f"{where}.image_url")
        detail = (part.image_url.detail if isinstance(part.image_url, ImageUrl) else None) or ""
    else:
        data = _file(part.file, f"{where}.file")
        kind = media_type_of(data)
        if not kind:
            return None
        if kind == PDF:
            _bound(len(data), DOCUMENT_BYTES, "a document's bytes", f"{where}.file.file_data")
        filename = (part.file.filename if part.file is not None else None) or ""
    return Attachment(message=message, name=where, data=data, filename=filename, detail=detail)


def text_of_file(part: ContentPart, where: str) -> str:
    """Returns a file's text below a line with the file's name, or an empty string for media."""
    data = _file(part.file, f"{where}.file")
    if media_type_of(data):
        return ""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(
            f"`{where}.file` is not UTF-8 text, a PDF, a picture or a sound; other files are not supported.",
            param=f"{where}.file.file_data",
        ) from None
    name = (part.file.filename if part.file is not None else None) or "without a name"
    return f"File {name[:NAME_CHARACTERS]!r}:\n{text}\n"


def _file(file: File | None, where: str) -> bytes:
    if file is None:
        raise Refused(f"`{where}` is missing.", param=where)
    if file.file_data is None:
        raise Refused(
            f"`{where}.file_data` is missing; send the file's data in the message, since file ids are not supported.",
            param=f"{where}.file_data",
        )
    # Some clients send only the encoded bytes, others send a data URL.
    encoded = file.file_data
    if encoded.startswith("data:"):
        _, mark, encoded = encoded.partition(";base64,")
        if not mark:
            raise Refused(
                f"`{where}.file_data` is a data URL without `;base64,`; send the file's bytes in base64.",
                param=f"{where}.file_data",
            )
    return _decoded(encoded, f"{where}.file_data")


def _sound(audio: InputAudio | None, where: str) -> bytes:
    if audio is None:
        raise Refused(f"`{where}` is missing.", param=where)
    where = f"{where}.data"
    _bound(len(audio.data) // 4 * 3 - audio.data[-2:].count("="), SOUND_BYTES, "a sound's bytes", where)
    data = _decoded(audio.data, where)
    if media_type_of(data) != FORMATS[audio.format]:
        raise Refused(f"`{where}` is not {audio.format.upper()} data, although its `format` says so.", param=where)
    return data


def _picture(image: ImageUrl | str | None, where: str) -> bytes:
    if image is None:
        raise Refused(f"`{where}` is missing.", param=where)
    if isinstance(image, ImageUrl):
        image, where = image.url, f"{where}.url"
    found = _DATA_URL.match(image)
    if found is None:
        raise Refused(
            f"`{where}` must be a data URL (data:image/png;base64,…) of a PNG, JPEG, GIF or WebP picture; pictures are "
            "not fetched from URLs.",
            param=where,
        )
    data = _decoded(image[found.end() :], where)
    kind = "jpeg" if found[1].lower() == "jpg" else found[1].lower()
    if media_type_of(data) != f"image/{kind}":
        raise Refused(f"`{where}` is not {kind.upper()} data, although its type says so.", param=where)
    return data


def _bound(size: int, most: int, limit: str, where: str) -> None:
    if size > most:
        raise TooLarge(
            f"`{where}` is larger than {most} bytes, the most that can be sent to a model.",
            limit=limit,
            value=most,
            param=where,
        )


def _decoded(text: str, where: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # from binascii, and for text that is not ASCII
        raise Refused(f"`{where}` is not valid base64.", param=where) from None
