"""Where a long conversation is cut, and how much of it stays.

Guarantee: pure. A cut falls only where every call that was made has its result, so that none is torn from it; what is
kept is the newest, at least the last thing that was said with all that belongs to it. Sizes are bytes of text, as the
conversation estimates them; the marks are tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from tidegate.config import ContextSettings
from tidegate.models import Facts
from tidegate.values import Frozen, Message

MOST_ANSWER = 2
"""An answer is given no more than one part in so many of the window, whatever the model may say at most."""

Rows = Sequence[tuple[int, Message]]
"""Messages with their places."""

Weigh = Callable[[Message], int]


class WindowMarks(Frozen, frozen=True):
    """In tokens: from `soft` on a summary is prepared, above `hard` it must be smaller before the model is asked; the
    newest messages within `keep` stay as they are."""

    soft: int
    hard: int
    keep: int
    window: int

    def within(self, most: int) -> "WindowMarks":
        """The same in proportion, if no more than `most` tokens are taken."""
        if most >= self.hard:
            return self
        share = most / self.hard
        return WindowMarks(
            soft=int(self.soft * share), hard=most, keep=int(self.keep * share), window=int(self.window * share)
        )

    def beside(self, fixed: int) -> "WindowMarks":
        """The same where so many tokens are prompt and tools: what may be said shares the rest."""
        share = max(0.0, self.hard - fixed) / max(1, self.hard)
        return WindowMarks(
            soft=self.soft, hard=self.hard, keep=int(self.keep * share), window=max(1, int(self.window * share))
        )


def window_marks(facts: Facts, settings: ContextSettings) -> WindowMarks:
    """The window holds the answer too: what is left for the request may be less than the settings' shares of it."""
    window = facts.window
    room = window - min(facts.output, window // MOST_ANSWER)
    hard = min(int(settings.hard * window), room)
    return WindowMarks(
        soft=int(hard * settings.soft / settings.hard),
        hard=hard,
        keep=int(hard * settings.keep / settings.hard),
        window=window,
    )


def boundaries(rows: Rows) -> Iterator[int]:
    """Numbers of rows before which a cut may fall, in rising order; 0 is one."""
    owed: set[str] = set()
    for number, (_, message) in enumerate(rows):
        if message.role == "tool":
            owed.discard(message.call_id)
            continue
        if not owed:
            yield number
        owed |= {call.id for call in message.calls}


def last_unit_start(rows: Rows) -> int:
    """Where the last thing begins that cannot be cut."""
    return max(boundaries(rows), default=0)


def tail_start(rows: Rows, keep: int, weigh: Weigh) -> int:
    """The number of the first row that stays: as many of the newest as weigh no more than `keep`, and at least the last
    unit."""
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
    """The rows in pieces of at most `most`, cut where they may be; a unit that is larger by itself is a piece."""
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
