"""Cut points: determines where a long conversation may be cut, and how much of it is kept.

Guarantee: all functions are pure. A cut is made only where every call has its result, so no call is separated from its
result. The newest messages are kept, and always at least the last unit that cannot be cut. Sizes are given in estimated
bytes of text, and the marks in tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from tidegate.config import ContextSettings
from tidegate.models import Facts
from tidegate.values import Frozen, Message

MOST_ANSWER = 2
"""The divisor for the largest share of the window that is reserved for the answer, whatever the model's output limit: 2
means at most half."""

Rows = Sequence[tuple[int, Message]]
"""Messages with their positions in the transcript."""

Weigh = Callable[[Message], int]


class WindowMarks(Frozen, frozen=True):
    """Thresholds in tokens. From `soft` on, a summary is prepared. Above `hard`, the conversation must shrink before
    the model is called. The newest messages, up to `keep`, are never changed."""

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
        """Returns the marks for the messages, when the prompt and the tools already use `fixed` tokens."""
        share = max(0.0, self.hard - fixed) / max(1, self.hard)
        return WindowMarks(
            soft=self.soft, hard=self.hard, keep=int(self.keep * share), window=max(1, int(self.window * share))
        )


def window_marks(facts: Facts, settings: ContextSettings) -> WindowMarks:
    """Returns the marks for a model. Because the answer also has to fit into the window, the request may get less than
    the settings allow."""
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
    """Returns the index of the first row of the last unit that cannot be cut."""
    return max(boundaries(rows), default=0)


def tail_start(rows: Rows, keep: int, weigh: Weigh) -> int:
    """Returns the index of the first row to keep. As many of the newest rows are kept as fit into `keep`, and at least
    the last unit."""
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
    """Splits the rows at allowed cut points into chunks of at most `most`. A larger unit becomes a chunk by itself."""
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
