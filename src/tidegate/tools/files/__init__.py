"""The toolset `files`: reading, writing, editing, listing and searching the files of a session's workspace.

Guarantee: what can be reached is decided by `Files` alone, which every tool is given; here are the words for a model.
"""

from tidegate.tools.files.edit import edit_file
from tidegate.tools.files.listing import list_files
from tidegate.tools.files.read import read_file
from tidegate.tools.files.search import search_files
from tidegate.tools.files.write import write_file

__all__ = ["edit_file", "list_files", "read_file", "search_files", "write_file"]
