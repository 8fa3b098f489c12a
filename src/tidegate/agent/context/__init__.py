"""Fitting a long conversation into its model's context window: the view, cut points and summaries.

Guarantee: all functions in this package are pure functions of their input rows. The same rows therefore produce the
same messages before and after a restart. `turns/compaction/compaction.py` reads and writes the rows and calls the
model.
"""

from tidegate.agent.context.cut_points import WindowMarks, chunks, last_unit_start, tail_start, window_marks
from tidegate.agent.context.summaries import (
    INSTRUCTIONS,
    SAVES_TOO_LITTLE,
    TOO_LONG,
    SummaryRequest,
    outline_messages,
    outline_summaries,
    read_summary,
    request_bytes_of,
    request_for_messages,
    request_for_summaries,
    summary_groups,
)
from tidegate.agent.context.view import View, elide

__all__ = [
    "INSTRUCTIONS",
    "SAVES_TOO_LITTLE",
    "TOO_LONG",
    "SummaryRequest",
    "View",
    "WindowMarks",
    "chunks",
    "elide",
    "last_unit_start",
    "outline_messages",
    "outline_summaries",
    "read_summary",
    "request_bytes_of",
    "request_for_messages",
    "request_for_summaries",
    "summary_groups",
    "tail_start",
    "window_marks",
]
