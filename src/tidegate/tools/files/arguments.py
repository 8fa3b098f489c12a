"""Arguments that several of these tools take, as a model is told of them."""

from typing import Annotated

from msgspec import Meta

FilePath = Annotated[str, Meta(description="Path of the file: relative to the workspace, or as commands see it.")]
FolderPath = Annotated[str, Meta(description="Path of the folder, relative to the workspace; by default all of it.")]
GlobText = Annotated[
    str,
    Meta(
        description="Only paths that fit, such as *.py (at any depth), src/**/*.{ts,tsx} (from the folder on); "
        "empty for all."
    ),
]
Hidden = Annotated[
    bool,
    Meta(description="Also names that begin with a dot, and folders named node_modules or __pycache__."),
]
