"""Reduction of requests without a model: measuring the size, the stages, and their order.

Each stage is first tried on a view in memory, and is stored only if it helps. The last stages leave so little of each
message that the messages always fit. All sizes within one compaction are measured in the same way, by its
`RequestSize`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidegate.agent import Conversation, weigh
from tidegate.agent.context import View, WindowMarks, last_unit_start, outline_messages, outline_summaries, tail_start
from tidegate.store import Db, ElisionKind, ElisionRow, SummaryRow, summaries
from tidegate.turns.compaction.summarizer import SUMMARIES_SHARE, length_of

EXCERPT = 400
"""Number of characters kept of an old tool result: enough to see what it was and how it ended."""

EXCERPTS = (8000, 2000, 500, 200)
"""Number of characters kept of each message when nothing else helps. These numbers are tried in order."""


def marks_for(marks: WindowMarks, conversation: Conversation, most: int) -> WindowMarks:
    """Returns the marks for the messages in a request of at most `most` tokens, less the tokens of the prompt and the
    tools."""
    return marks.within(most).beside(conversation.prefix_tokens)


class RequestSize:
    """Measures the size of the request with the current view and with other views."""

    def __init__(self, conversation: Conversation, view: View, least: float, most: int, marks: WindowMarks) -> None:
        self._fixed = conversation.prefix_bytes
        self._least = least
        self._most = most
        self.marks = marks
        self._weighed: list[tuple[View, int]] = []  # lint: allow one for each stage
        self.view = view
        self.rate = conversation.tokens / self._bytes(view)

    def _bytes(self, view: View) -> int:
        """Returns a view's size. Each view is measured only once, since it may have thousands of messages."""
        for known, size in self._weighed:
            if known is view:
                return size
        size = self._fixed + sum(map(weigh, view.messages())) or 1
        self._weighed.append((view, size))
        return size

    def tokens(self, view: View) -> int:
        return int(self.rate * self._bytes(view))

    @property
    def fits(self) -> bool:
        return self.would_fit(self.view)

    def would_fit(self, view: View) -> bool:
        return self.tokens(view) <= self._most

    def saves(self, view: View) -> bool:
        """True if the view reduces the request by the configured share."""
        return self._bytes(view) <= (1 - self._least) * self._bytes(self.view)

    def smaller(self, view: View) -> bool:
        return self._bytes(view) < self._bytes(self.view)

    def is_worth(self, rows: Sequence[SummaryRow]) -> bool:
        """True if these summaries would reduce the request by the configured share."""
        if not rows or rows[-1].last <= self.view.covered:
            return False
        return self.saves(self.view.with_summaries(rows))

    def lists_too_much(self, times: int) -> bool:
        """True if there are several summaries and their total length is more than `times` the limit."""
        size = sum(len(row.text) for row in self.view.summaries)
        return len(self.view.summaries) > 1 and size > times * SUMMARIES_SHARE * self.marks.window / self.rate

    @property
    def could_save(self) -> bool:
        """True if a summary of the old messages, at its normal length, would save enough."""
        old = sum(weigh(message) for _, message in self.view.rows[: self.old])
        return old - length_of(self.marks.window) / self.rate >= self._least * self._bytes(self.view)

    @property
    def old(self) -> int:
        """The number of old messages that could be summarised."""
        return tail_start(self.view.rows, int(self.marks.keep / self.rate), weigh)


class ReductionStage(NamedTuple):
    """One way of reducing a request without a model: a list instead of old messages, or excerpts."""

    view: View
    cut: SummaryRow | None = None
    elision: ElisionRow | None = None
    last_resort: bool = False


def stages(work: RequestSize) -> Iterator[ReductionStage]:
    """Yields the stages in order. Each is applied to the result of the previous stage."""
    if work.old:
        yield _elide(work.view, "payload", work.view.rows[work.old - 1][0], EXCERPT)
        yield cut(work, work.old)
    if last := last_unit_start(work.view.rows):
        yield cut(work, last)
    if work.old:
        yield cut(work, work.old)._replace(last_resort=True)
    if last := last_unit_start(work.view.rows):
        yield cut(work, last)._replace(last_resort=True)
    if work.view.rows:
        place = work.view.rows[-1][0]
        yield _elide(work.view, "payload", place, EXCERPTS[1])._replace(last_resort=True)
        for characters in EXCERPTS:
            yield _elide(work.view, "text", place, characters)._replace(last_resort=True)


def _elide(view: View, kind: ElisionKind, last: int, characters: int) -> ReductionStage:
    elision = ElisionRow(view.covered + 1, last, kind, characters)
    return ReductionStage(view.with_elision(elision), elision=elision)


def cut(work: RequestSize, rows: int) -> ReductionStage:
    """Returns a stage that replaces the first `rows` messages (or, if `rows` is 0, all summaries) with a list."""
    view, size = work.view, int(length_of(work.marks.window) / work.rate)
    if rows:
        first, last, level = view.covered + 1, view.rows[rows - 1][0], 0
        text = outline_messages(view.rows[:rows], size)
    else:
        first, last = view.summaries[0].first, view.covered
        level = max(row.level for row in view.summaries) + 1
        text = outline_summaries(view.summaries, size)
    row = SummaryRow(0, level, first, last, None, "applied", "cut", "", 0.0, text)
    return ReductionStage(view.with_summaries([row]), cut=row)


def write_stage(db: Db, session: str, stage: ReductionStage, now: float) -> None:
    if stage.elision is not None:
        summaries.elide(db, session, stage.elision, now)
    if stage.cut is not None:
        number = summaries.add(db, session, stage.cut, now)
        summaries.apply(db, session, [number])
        summaries.drop_prepared(db, session)
