"""Cut points: where a long conversation may be cut, and how much of it is kept.

Guarantee: all functions are pure. A conversation is cut only at points where every call has its result, so a call is
never separated from its result. The newest messages are kept, and at least the last indivisible unit. Sizes are
estimated bytes of text; marks are tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from tidegate.config import ContextSettings
from tidegate.models import Facts
from tidegate.values import Frozen, Message

MOST_ANSWER = 2
"""Limits the part of the window that is reserved for the answer, whatever the model's output limit: 2 means at most
half."""

Rows = Sequence[tuple[int, Message]]
"""Messages with their positions in the transcript."""

Weigh = Callable[[Message], int]


class WindowMarks(Frozen, frozen=True):
    """Thresholds in tokens. A summary is prepared once the conversation reaches `soft`. Above `hard`, the conversation
    must be shortened before the model is called. The newest messages, up to `keep` tokens, are never changed."""

    soft: int
    hard: int
    keep: int
    window: int

    def within(self, most: int) -> "WindowMarks":
        """Returns the marks, scaled down for requests of at most `most` tokens."""
        if most >= self.hard:
            return self
        share = most / self.hard
        return WindowMarks(
            soft=int(self.soft * share), hard=most, keep=int(self.keep * share), window=int(self.window * share)
        )

    def beside(self, fixed: int) -> "WindowMarks":
        """Returns the marks for the messages alone, given that the prompt and the tools already take `fixed` tokens."""
        share = max(0.0, self.hard - fixed) / max(1, self.hard)
        return WindowMarks(
            soft=self.soft, hard=self.hard, keep=int(self.keep * share), window=max(1, int(self.window * share))
        )


def window_marks(facts: Facts, settings: ContextSettings) -> WindowMarks:
    """Returns the marks for a model. The answer must fit into the window too, so the request may get less room than the
    settings allow."""
    window = facts.window
    available = window - min(facts.output, window // MOST_ANSWER)
    hard = min(int(settings.hard * window), available)
    return WindowMarks(
        soft=int(hard * settings.soft / settings.hard),
        hard=hard,
        keep=int(hard * settings.keep / settings.hard),
        window=window,
    )


def boundaries(rows: Rows) -> Iterator[int]:
    """Returns the indexes of the rows before which a cut is allowed, in ascending order. 0 is always included."""
    open_calls: set[str] = set()
    for number, (_, message) in enumerate(rows):
        if message.role == "tool":
            open_calls.discard(message.call_id)
            continue
        if not open_calls:
            yield number
        open_calls |= {call.id for call in message.calls}


def last_unit_start(rows: Rows) -> int:
    """Returns the index of the first row of the last indivisible unit."""
    return max(boundaries(rows), default=0)


def tail_start(rows: Rows, keep: int, weigh: Weigh) -> int:
    """Returns the index of the first row to keep. The newest rows are kept, as many as fit into `keep` but at least the
    last unit."""
    weight = 0
    sizes = [weigh(message) for _, message in rows]
    cuts = list(boundaries(rows))
    first = cuts[-1] if cuts else 0
    end = len(rows)
    for cut in reversed(cuts):
        weight += sum(sizes[cut:end])
        end = cut
        if weight > keep:
            break
        first = cut
    return first


def chunks(rows: Rows, most: int, weigh: Weigh) -> list[Rows]:
    """Splits the rows at allowed cut points into chunks of at most `most` each. A unit that is larger becomes a chunk
    of its own."""
    cuts = [*boundaries(rows), len(rows)]
    found: list[Rows] = []
    begin = end = 0
    weight = 0
    for cut, following in pairwise(cuts):
        size = sum(weigh(message) for _, message in rows[cut:following])
        if cut > begin and weight + size > most:
            found.append(rows[begin:cut])
            begin, weight = cut, 0
        weight += size
        end = following
    if end > begin:
        found.append(rows[begin:end])
    return found
