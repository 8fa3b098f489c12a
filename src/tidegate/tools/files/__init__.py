"""The toolset `files`: reading, writing, editing, listing and searching the files of a session's workspace.

Guarantee: what can be reached is decided by `Files` alone, which every tool is given; here are the words for a model.
"""

from tidegate.tools.files.editing import edit_file
from tidegate.tools.files.listing import list_files
from tidegate.tools.files.reading import read_file
from tidegate.tools.files.searching import search_files
from tidegate.tools.files.writing import write_file

__all__ = ["edit_file", "list_files", "read_file", "search_files", "write_file"]
