"""A workspace's files: reading, writing, listing and searching.

Tools use only the `Files` protocol. `local_files.LocalFiles` never leaves its mounts, whatever happens to paths,
folders and links while it is working. It is imported only by backends that need it.
"""

from tidegate.workspaces.files.file_user import User
from tidegate.workspaces.files.file_values import (
    HEAVY,
    FileContents,
    FileEntry,
    FileFilter,
    FileHit,
    FileLines,
    Files,
    FileStamp,
    HitLine,
    Listing,
    SearchQuery,
    SearchResult,
    WriteResult,
    file_stamp,
)
from tidegate.workspaces.files.mounts import Mount, printable, shown

__all__ = [
    "HEAVY",
    "FileContents",
    "FileEntry",
    "FileFilter",
    "FileHit",
    "FileLines",
    "FileStamp",
    "Files",
    "HitLine",
    "Listing",
    "Mount",
    "SearchQuery",
    "SearchResult",
    "User",
    "WriteResult",
    "file_stamp",
    "printable",
    "shown",
]
