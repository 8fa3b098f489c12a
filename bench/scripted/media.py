"""Pictures, sounds and PDF files in a request: their data must start with the right signature.

`checked` returns the bytes, or raises Refusal with one sentence. Nothing is fetched.
"""

import base64
import binascii
import re

from bench.scripted.interface import Refusal

IMAGE_BYTES = 5 * 1024 * 1024
AUDIO_BYTES = 25 * 1024 * 1024
FILE_BYTES = 32 * 1024 * 1024
# The cost of one, in characters, by which tokens are counted.
IMAGE_CHARACTERS = 6400
AUDIO_CHARACTERS = 1600
IMAGES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
SOUNDS = {
    "wav": re.compile(rb"RIFF....WAVE", re.DOTALL),
    "mp3": re.compile(rb"ID3|\xff[\xe0-\xff]"),
}
FILE = re.compile(rb"%PDF-")
_PDF_URL = re.compile(r"data:application/pdf;base64,")
_DATA_URL = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,")


def check_image(media_type: str, data: str, where: str) -> None:
    _checked(data, IMAGES.get(media_type), IMAGE_BYTES, f"image: it is not what it says, {media_type}", where)


def check_data_url(url: str, where: str) -> None:
    """Check that a picture is inside the request; a web address is refused."""
    found = _DATA_URL.match(url)
    if found is None:
        raise Refusal("Invalid image: a base64 data URL of a PNG, JPEG, GIF or WebP is needed.", param=where)
    check_image(found[1], url[found.end() :], where)


def check_audio(form: str, data: str, where: str) -> None:
    _checked(data, SOUNDS.get(form), AUDIO_BYTES, f"audio: it is not what it says, {form}", where)


def check_file(data: str | None, name: str | None, identity: str | None, where: str) -> None:
    """Check that a PDF is inside the request as a data URL; uploaded files do not exist here."""
    if identity is not None:
        raise Refusal(f"No such File object: {identity}.", param=where, status=404)
    found = _PDF_URL.match(data or "")
    if found is None or not name:
        raise Refusal("Invalid file: a 'filename' and a base64 data URL of a PDF are needed.", param=where)
    check_pdf((data or "")[found.end() :], where)


def check_pdf(data: str, where: str) -> None:
    _checked(data, FILE, FILE_BYTES, "file: it is no PDF", where)


def _checked(data: str, begins: re.Pattern[bytes] | None, most: int, wrong: str, where: str) -> None:
    try:
        found = base64.b64decode(data.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise Refusal(f"Invalid {wrong.partition(':')[0]}: its base64 is broken.", param=where) from None
    if begins is None or not begins.match(found):
        raise Refusal(f"Invalid {wrong}.", param=where)
    if len(found) > most:
        raise Refusal(f"Invalid {wrong.partition(':')[0]}: it is larger than {most} bytes.", param=where)
