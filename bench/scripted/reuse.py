"""Counts whether each conversation's request starts with its previous one.

Requests are compared by content, independent of formatting, in bounded memory. `Ledger` treats the whole previous
request as cached, like providers with automatic caching; `Breakpoints` only the part before a mark of the previous
request.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Any

# Conversations whose last request is kept, as a hash and a length.
CONVERSATIONS = 50_000
VIOLATIONS = 20
CHARACTERS_PER_TOKEN = 4
# Blocks before a mark, including its own, in which an older mark is looked for.
LOOK_BACK = 20


class Ledger:
    def __init__(self) -> None:
        self.by_prompt = False
        """Whether requests with the same system prompt are one conversation, whatever their first message."""
        self.clear()

    def clear(self) -> None:
        self._last: OrderedDict[int, tuple[int, int, int, int]] = OrderedDict()
        self.seen = 0
        self.followups = 0
        self.whole = 0
        self.repeats = 0
        self.violations: deque[dict[str, Any]] = deque(maxlen=VIOLATIONS)
        self.came = "first"
        """The last request: the `first` of its conversation, one that starts with the `whole` previous one, the
        previous one `repeated`, or `changed`."""

    def note(self, tag: str, units: tuple[Hashable, ...], prefix: int, tokens: int) -> tuple[int, int]:
        """Record a request: its conversation, its messages, a hash of what precedes them. Returns the conversation's
        key and the number of tokens that a provider would have cached."""
        key = hash(tag)
        last = self._last.get(key)
        cached = 0
        if last is None:
            self._begin()
        else:
            self._last.move_to_end(key)
            count, digest, old_prefix, old_tokens = last
            same = count <= len(units) and hash(units[:count]) == digest
            if same and old_prefix == prefix:
                cached = min(old_tokens, tokens)
                self._came_again(repeated=count == len(units))
            else:
                reason = "messages changed" if not same else "tools changed"
                if count > len(units):
                    reason = "messages went missing"
                self._violated(tag, reason, count, len(units))
        self._last[key] = (len(units), hash(units), prefix, tokens)
        return key, cached

    @property
    def remembered(self) -> int:
        """The number of conversations whose last request is kept."""
        return len(self._last)

    def view(self) -> dict[str, Any]:
        return {
            "conversations": self.seen,
            "followups": self.followups,
            "repeats": self.repeats,
            "whole_prefix": self.whole,
            "reuse": self.whole / self.followups if self.followups else 1.0,
            "violations": list(self.violations),
        }

    def _begin(self) -> None:
        self.seen += 1
        self.came = "first"
        if len(self._last) >= CONVERSATIONS:
            self._last.popitem(last=False)

    def _came_again(self, *, repeated: bool) -> None:
        self.came = "repeated" if repeated else "whole"
        if repeated:
            self.repeats += 1
        else:
            self.followups += 1
            self.whole += 1

    def _violated(self, tag: str, reason: str, before: int, now: int) -> None:
        self.came = "changed"
        self.followups += 1
        self.violations.append({"conversation": tag[:80], "reason": reason, "before": before, "now": now})


class Breakpoints(Ledger):
    """For a provider that caches up to the marks in a request, and finds them again within a look-back."""

    def clear(self) -> None:
        super().clear()
        self._entries: OrderedDict[int, None] = OrderedDict()

    @property
    def remembered_marks(self) -> int:
        return len(self._entries)

    def note_marked(
        self, tag: str, chain: Sequence[int], entries: Sequence[int], sizes: Sequence[int], marks: Sequence[int]
    ) -> tuple[int, int, int]:
        """Record a request, block by block: `chain[n]` is a hash of all content up to block n, `entries[n]` the same
        with the other parts of a cache key, `sizes[n]` the characters up to there, `marks` the marked blocks.
        Returns the conversation's key, and the tokens read from the cache and written to it."""
        key = hash(tag)
        last = self._last.get(key)
        if last is None:
            self._begin()
        else:
            self._last.move_to_end(key)
            self._compare(tag, last, chain)
        marked = marks[-1] + 1 if marks else 0
        self._last[key] = (marked, chain[marked - 1] if marked else 0, len(chain), chain[-1])
        hit = self._longest(entries, marks)
        for mark in marks:
            self._entries[entries[mark]] = None
            self._entries.move_to_end(entries[mark])
        while len(self._entries) > CONVERSATIONS:
            self._entries.popitem(last=False)
        read = sizes[hit] // CHARACTERS_PER_TOKEN if hit >= 0 else 0
        return key, read, (sizes[marked - 1] // CHARACTERS_PER_TOKEN - read if marked else 0)

    def _compare(self, tag: str, last: tuple[int, int, int, int], chain: Sequence[int]) -> None:
        marked, digest, count, all_of_it = last
        if marked == 0:
            self._violated(tag, "nothing was marked", 0, len(chain))
        elif marked > len(chain):
            self._violated(tag, "messages went missing", marked, len(chain))
        elif chain[marked - 1] != digest:
            self._violated(tag, "messages changed", marked, len(chain))
        else:
            self._came_again(repeated=count == len(chain) and all_of_it == chain[-1])

    def _longest(self, entries: Sequence[int], marks: Sequence[int]) -> int:
        for mark in reversed(marks):
            for place in range(mark, max(mark - LOOK_BACK, -1), -1):
                if entries[place] in self._entries:
                    self._entries.move_to_end(entries[place])
                    return place
        return -1
