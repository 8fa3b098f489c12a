"""A job for a child process: checks whether a file contains audio that can be sent to a model.

The WAV or MP3 is written unchanged if its size and duration are within the limits. Otherwise, the result contains the
reason. Nothing is decoded.
"""

import importlib
import os
from typing import Any

_INPUT, _OUTPUT = 0, 1
_COPIED = 1024 * 1024


def work(order: dict[str, Any]) -> dict[str, Any]:
    """Runs the job. The order contains the limits `bytes` and `seconds`. The audio is read from descriptor 0 and
    written to descriptor 1."""
    # Imported by its bare name, since the child process does not import the package.
    sounds = importlib.import_module("audio_header")
    size, most, longest = os.fstat(_INPUT).st_size, order["bytes"], order["seconds"]
    try:
        found = sounds.sniff(lambda count, place: os.pread(_INPUT, count, place), size)
    except sounds.UnknownAudio as why:
        return {"refused": str(why)}
    if size > most:
        return {"refused": f"has {size} bytes, and at most {most} can be sent to a model"}
    if found.seconds > longest:
        return {"refused": f"lasts {found.seconds:.0f} s, and at most {longest} s can be sent to a model"}
    place = 0
    while place < size and (copied := os.sendfile(_OUTPUT, _INPUT, place, min(_COPIED, size - place))):
        place += copied
    return {"media_type": found.media_type, "seconds": round(found.seconds, 3)}
