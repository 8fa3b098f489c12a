"""The spool: long results and media on disk, and their excerpts.

Models see bounded excerpts, and can read the rest as long as the transcript refers to it. The gateway never keeps more
than the excerpt of a result in memory.
"""

from tidegate.spool.excerpts import bound_text
from tidegate.spool.jobs.runner import JobRunner
from tidegate.spool.media import DOCUMENT_BYTES, SOUND_BYTES, media_type_of, seems_media
from tidegate.spool.output_recorder import OutputRecorder
from tidegate.spool.session_folder import UploadFolder
from tidegate.spool.spool import SessionSpool, Spool, SpoolStats

__all__ = [
    "DOCUMENT_BYTES",
    "SOUND_BYTES",
    "JobRunner",
    "OutputRecorder",
    "SessionSpool",
    "Spool",
    "SpoolStats",
    "UploadFolder",
    "bound_text",
    "media_type_of",
    "seems_media",
]
