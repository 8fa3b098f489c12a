"""A job for a child process: converts a file to an image that can be sent to a model.

The output is a PNG, JPEG, GIF or WebP within the limits on dimensions and size. If that is impossible, the result
contains the reason. The dimensions are read from the header and checked before anything is decoded. If Pillow is
available, every image is decoded once to detect damage, because a provider that detected it would refuse every later
request in the conversation as well. An image that is upright and within the limits is then passed on unchanged.
Without Pillow, images within the limits are passed on unchanged, and all others are refused.
"""

import importlib
import io
import os
import sys
from typing import Any

_INPUT, _OUTPUT = 0, 1
_QUALITIES = (85, 70, 55)
_SMALLER = 0.7
_LEAST_SIDE = 16
_PLAIN_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_COPIED = 1024 * 1024
_ORIENTATION = 0x0112


class ImageRefused(Exception):
    """The image cannot be sent. The message completes a sentence that begins with "it"."""


def work(order: dict[str, Any]) -> dict[str, Any]:
    """Runs the job. The order contains the limits `side`, `bytes` and `pixels`. `pillow` in it is the folder that
    contains Pillow, or an empty string. The image is read from descriptor 0 and written to descriptor 1."""
    try:
        return _work(order)
    except ImageRefused as why:
        return {"refused": str(why)}


def _work(order: dict[str, Any]) -> dict[str, Any]:
    side, most, pixels = order["side"], order["bytes"], order["pixels"]
    # Imported by its bare name, since the child process does not import the package.
    found = importlib.import_module("image_header").sniff(lambda count, place: os.pread(_INPUT, count, place))
    if found is None:
        raise ImageRefused("is not a PNG, JPEG, GIF or WebP image")
    kind, width, height = found
    size = os.fstat(_INPUT).st_size
    if width * height > pixels:
        raise ImageRefused(f"has {width} x {height} pixels, and at most {pixels} are decoded")
    fits = width <= side and height <= side and size <= most
    if not order["pillow"]:
        if not fits:
            raise ImageRefused(
                f"has {width} x {height} pixels and {size} bytes, which is over the limit of {side} pixels per side or "
                f"{most} bytes; to scale large images down, the operator can install tidegate[images]"
            )
        _copy()
        return {"media_type": kind, "width": width, "height": height, "note": ""}
    sys.path.append(order["pillow"])
    return _with_pillow(kind, (width, height), fits, side, most, pixels)


def _with_pillow(kind: str, stated: tuple[int, int], fits: bool, side: int, most: int, pixels: int) -> dict[str, Any]:
    from PIL import Image, ImageOps

    Image.MAX_IMAGE_PIXELS = pixels
    try:
        with Image.open(io.FileIO(_INPUT, closefd=False), formats=_FORMATS) as image:
            moves = kind != "image/jpeg" and getattr(image, "is_animated", False)
            upright = image.getexif().get(_ORIENTATION, 1) == 1
            if not fits:
                image.draft(None, (side, side))  # a JPEG can be decoded at a smaller size
            image.load()
            if fits and upright and not moves and image.mode in _PLAIN_MODES:
                _copy()
                return {"media_type": kind, "width": stated[0], "height": stated[1], "note": ""}
            small = _convert_mode(image)
            small.thumbnail((side, side), reducing_gap=2.0)
            lossless = kind in ("image/png", "image/gif")
            kind, (width, height), data = _encode(ImageOps.exif_transpose(small), most, lossless=lossless)
    except MemoryError:
        raise ImageRefused(f"has {stated[0]} x {stated[1]} pixels and takes too much memory to decode") from None
    except (OSError, ValueError, SyntaxError, TypeError, Image.DecompressionBombError) as error:
        raise ImageRefused(f"is damaged or not an image ({type(error).__name__})") from None
    _write(data)
    notes = ["the first frame of an animation"] if moves else []
    if sorted((width, height)) != sorted(stated):
        notes.append(f"scaled from {stated[0]} x {stated[1]}")
    return {"media_type": kind, "width": width, "height": height, "note": ", ".join(notes)}


def _convert_mode(image: Any) -> Any:
    """Converts the image to a mode that can be scaled and saved. An image already in such a mode is returned unchanged,
    so that a large image is not in memory twice."""
    if "transparency" in image.info or image.mode in ("LA", "PA", "RGBa"):
        return image.convert("RGBA")
    if image.mode in ("L", "RGB", "RGBA"):
        return image
    return image.convert("L" if image.mode in ("1", "I", "F", "I;16") else "RGB")


def _encode(image: Any, most: int, *, lossless: bool) -> tuple[str, tuple[int, int], bytes]:
    """Encodes the image at decreasing dimensions until it is within the size limit. A lossless source becomes a PNG if
    that is small enough. Otherwise, the result is a JPEG."""
    side = max(image.size)
    while side >= _LEAST_SIDE:
        image.thumbnail((side, side), reducing_gap=2.0)
        if lossless and len(data := _encode_as(image, "PNG")) <= most:
            return "image/png", image.size, data
        flat = _flatten(image) if image.mode == "RGBA" else image
        for quality in _QUALITIES:
            if len(data := _encode_as(flat, "JPEG", quality=quality)) <= most:
                return "image/jpeg", image.size, data
        side = int(side * _SMALLER)
    raise ImageRefused(f"is larger than {most} bytes even when scaled down")


def _flatten(image: Any) -> Any:
    """Puts the image on a white background, since a JPEG has no transparency."""
    from PIL import Image

    background = Image.new("RGB", image.size, "white")
    background.paste(image, mask=image.getchannel("A"))
    return background


def _encode_as(image: Any, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def _copy() -> None:
    place = 0
    while piece := os.pread(_INPUT, _COPIED, place):
        _write(piece)
        place += len(piece)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_OUTPUT, view) :]
