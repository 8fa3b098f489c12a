"""A job for a child process: checks that a file is a sound that a model can be given.

The output is the unchanged WAV or MP3, if it is within the bounds of size and duration; otherwise the result gives the
reason. Nothing is decoded.
"""

import importlib
import os
from typing import Any

_INPUT, _OUTPUT = 0, 1
_COPIED = 1024 * 1024


def work(order: dict[str, Any]) -> dict[str, Any]:
    """Runs the job. The order has the limits `bytes` and `seconds`. The sound is read from descriptor 0 and written to
    descriptor 1."""
    # By its bare name: in the child process the module is in no package.
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
