"""The order of residents by last use, with their weights, and the oldest ones that exceed the caps.

Every operation except `window` and iteration is O(1), and none allocates. The order is a ring linked through the
records, so there is no second container keyed by session; a record that has left the ring refers to nothing in it. The
order owns neither records nor residents.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar, cast


class OrderLink:
    """A position in the ring. `weight` is its share of the ring's bytes."""

    __slots__ = ("newer", "older", "weight")

    def __init__(self) -> None:
        self.newer: OrderLink | None = None
        self.older: OrderLink | None = None
        self.weight = 0

    @property
    def linked(self) -> bool:
        return self.newer is not None


L = TypeVar("L", bound=OrderLink)


class ResidentOrder(Generic[L]):
    """Links from the least to the most recently used."""

    __slots__ = ("_anchor", "bytes", "size")

    def __init__(self) -> None:
        self._anchor = OrderLink()
        self._anchor.newer = self._anchor.older = self._anchor
        self.size = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[L]:
        """From the oldest. The link just yielded may be removed during the iteration."""
        link = self._anchor.newer
        while link is not None and link is not self._anchor:
            following = link.newer
            yield cast(L, link)
            link = following

    def add(self, link: L, weight: int) -> None:
        """Add as the most recently used."""
        assert not link.linked
        link.weight = weight
        self._append(link)
        self.size += 1
        self.bytes += weight

    def remove(self, link: L) -> None:
        self._detach(link)
        self.size -= 1
        self.bytes -= link.weight
        link.weight = 0

    def touch(self, link: L) -> None:
        """Make it the most recently used."""
        if link.newer is not self._anchor:
            self._detach(link)
            self._append(link)

    def resize(self, link: L, weight: int) -> None:
        self.bytes += weight - link.weight
        link.weight = weight

    def window(self, cap: int, budget: int) -> list[L]:
        """The oldest links that must be removed for both caps to hold. Newer ones are not examined."""
        too_many = self.size - cap
        too_heavy = self.bytes - budget
        if too_many <= 0 and too_heavy <= 0:
            return []
        found: list[L] = []
        freed = 0
        for link in self:
            if len(found) >= too_many and freed >= too_heavy:
                break
            found.append(link)
            freed += link.weight
        return found

    def _append(self, link: OrderLink) -> None:
        newest = self._anchor.older
        assert newest is not None
        link.older, link.newer = newest, self._anchor
        newest.newer = self._anchor.older = link

    def _detach(self, link: OrderLink) -> None:
        older, newer = link.older, link.newer
        assert older is not None and newer is not None
        older.newer, newer.older = newer, older
        link.older = link.newer = None
