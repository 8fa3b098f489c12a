"""Notes as users see them."""

from typing import Literal

from tidegate.values import Frozen


class NoteView(Frozen, frozen=True, omit_defaults=False):
    """One note. `author` is the id of who wrote it and `by` his name; `source` says how: `person` himself, `tool` in
    the conversation `session`, or `end`, when that had ended."""

    id: int
    text: str
    author: str
    by: str
    source: Literal["tool", "person", "end"]
    at: float
    session: str | None


class Notebook(Frozen, frozen=True, omit_defaults=False):
    """All notes about one person or one agent's work, in the order in which conversations begin with them. `whose` is
    his name or the agent's; `text` has one a line, each with its number, as it can be edited; `version` is to be given
    with a text that is to take their place."""

    about: Literal["person", "agent"]
    whose: str
    notes: tuple[NoteView, ...]
    bytes: int
    most: int
    version: str
    text: str
