"""The spool: long results and media on disk, and the excerpts that stand for them.

Guarantee: what a model is shown is bounded, what was left out can be read for as long as the transcript names it, and
memory never holds more of it than the excerpt.
"""

from tidegate.spool.excerpts import bound_text
from tidegate.spool.jobs.runner import Workers
from tidegate.spool.media import DOCUMENT_BYTES, SOUND_BYTES, media_type_of, seems_media
from tidegate.spool.output_recorder import Recorder
from tidegate.spool.session_folder import Arrivals
from tidegate.spool.spool import SessionSpool, Spool, SpoolStats

__all__ = [
    "DOCUMENT_BYTES",
    "SOUND_BYTES",
    "Arrivals",
    "Recorder",
    "SessionSpool",
    "Spool",
    "SpoolStats",
    "Workers",
    "bound_text",
    "media_type_of",
    "seems_media",
]
