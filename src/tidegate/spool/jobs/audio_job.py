"""A job for a child: look whether a file is a sound that a model can be given.

Guarantee: what comes out is the WAV or MP3 that went in, byte for byte, within the bounds of size and length, or a
sentence why not. Nothing of it is decoded.
"""

import importlib
import os
from typing import Any

_INPUT, _OUTPUT = 0, 1
_COPIED = 1024 * 1024


def work(order: dict[str, Any]) -> dict[str, Any]:
    """The order: `bytes` and `seconds`, each the most there may be. The sound is read from the first descriptor and
    written to the second."""
    # By its name alone: the child has no package around it.
    sounds = importlib.import_module("audio_header")
    size, most, longest = os.fstat(_INPUT).st_size, order["bytes"], order["seconds"]
    try:
        found = sounds.sniff(lambda count, place: os.pread(_INPUT, count, place), size)
    except sounds.UnknownAudio as why:
        return {"refused": str(why)}
    if size > most:
        return {"refused": f"has {size} bytes, more than the {most} that a model can be given"}
    if found.seconds > longest:
        return {"refused": f"lasts {found.seconds:.0f} s, longer than the {longest} s that a model can be given"}
    place = 0
    while place < size and (copied := os.sendfile(_OUTPUT, _INPUT, place, min(_COPIED, size - place))):
        place += copied
    return {"media_type": found.media_type, "seconds": round(found.seconds, 3)}
