"""The toolset `files`: reading, writing, editing, listing and searching the files in a session's workspace.

`Files`, which every tool receives, decides which paths can be accessed. The modules in this package format the results
for a model.
"""

from tidegate.tools.builtin.files.edit import edit_file
from tidegate.tools.builtin.files.listing import list_files
from tidegate.tools.builtin.files.read import read_file
from tidegate.tools.builtin.files.search import search_files
from tidegate.tools.builtin.files.write import write_file

__all__ = ["edit_file", "list_files", "read_file", "search_files", "write_file"]
