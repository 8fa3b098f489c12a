"""Notes as users see them."""

from typing import Literal

from tidegate.values import Frozen


class NoteView(Frozen, frozen=True, omit_defaults=False):
    """One note. `author` is its author's id and `by` their name. `source` is `person` if they wrote it themselves,
    `tool` if it was noted in the conversation `session`, and `end` if it was extracted after that conversation had
    ended."""

    id: int
    text: str
    author: str
    by: str
    source: Literal["tool", "person", "end"]
    at: float
    session: str | None


class Notebook(Frozen, frozen=True, omit_defaults=False):
    """All notes about one person or one agent's work, in the same order as in the prompt. `whose` is the person's or
    agent's name. `text` has one note per line, each with its number, ready to be edited. An edited text that replaces
    the notes must be sent together with `version`."""

    about: Literal["person", "agent"]
    whose: str
    notes: tuple[NoteView, ...]
    bytes: int
    most: int
    version: str
    text: str
