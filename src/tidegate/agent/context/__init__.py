"""How a long conversation fits into its model's window: what is shown of it, where it may be cut, how it is summarised.

Guarantee: everything here is a pure function of the rows that it is given: the same rows are shown by the same messages
before and after a restart. Who reads and writes the rows, and asks a model, is `turns/compaction/compaction.py`.
"""

from tidegate.agent.context.cut_points import WindowMarks, chunks, last_unit, tail_from, window_marks
from tidegate.agent.context.summaries import (
    INSTRUCTIONS,
    NO_SMALLER,
    TOO_LONG,
    Material,
    cut_messages,
    cut_summaries,
    given_bytes,
    groups,
    of_messages,
    of_summaries,
    read_summary,
)
from tidegate.agent.context.view import View, elided

__all__ = [
    "INSTRUCTIONS",
    "NO_SMALLER",
    "TOO_LONG",
    "Material",
    "View",
    "WindowMarks",
    "chunks",
    "cut_messages",
    "cut_summaries",
    "elided",
    "given_bytes",
    "groups",
    "last_unit",
    "of_messages",
    "of_summaries",
    "read_summary",
    "tail_from",
    "window_marks",
]
