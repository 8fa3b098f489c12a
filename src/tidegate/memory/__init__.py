"""Memory: notes about users and about agents' work that outlive conversations.

`Memory` provides notes for prompts, for tools and for the API. `NoteExtractor` writes notes when a session ends. Only
the views are imported with the package, so a gateway whose agents use no memory does not load the rest.
"""

from typing import TYPE_CHECKING, Any

from tidegate.memory.views import Notebook, NoteView

if TYPE_CHECKING:
    from tidegate.memory.extraction import NoteExtractor
    from tidegate.memory.memory import Memory, NoteSubject

__all__ = ["Memory", "NoteExtractor", "NoteSubject", "NoteView", "Notebook"]


def __getattr__(name: str) -> Any:
    if name in ("Memory", "NoteSubject"):
        from tidegate.memory import memory

        return getattr(memory, name)
    if name == "NoteExtractor":
        from tidegate.memory.extraction import NoteExtractor

        return NoteExtractor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
