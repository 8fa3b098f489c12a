"""The ledger: an account of the bytes, descriptors and child processes that each owner holds, by kind.

In every reading, the sum over all owners equals the sum over all kinds. There are two ways to account for a resource. A
hold is recorded when the resource is acquired; it costs O(1) and is meant for resources that cannot be measured later.
A view is a function that measures all resources of one kind when the ledger is read; it costs nothing in between. An
owner is listed by name until it has released everything. Releasing a hold is idempotent. The ledger itself owns only
numbers.
"""

from collections.abc import Callable, Iterable

import msgspec

from tidegate.status_report import Holding

NOTHING = Holding()

Measure = Callable[[], Iterable[tuple[str, Holding]]]
"""Returns everything of one kind that is currently held, by owner. An owner may occur more than once."""


class LedgerReading(msgspec.Struct, frozen=True):
    """One reading of the ledger: holdings by kind, and by owner and kind."""

    kinds: dict[str, Holding]
    owners: dict[str, dict[str, Holding]]

    def largest(self, top: int) -> list[tuple[str, Holding, dict[str, Holding]]]:
        """Returns the largest owners, each with its total holdings and its holdings by kind. Sub-accounts are listed
        separately."""
        sums = [(owner, sum(kinds.values(), NOTHING), kinds) for owner, kinds in self.owners.items()]
        return sorted(sums, key=lambda held: held[1].weight, reverse=True)[:top]


class Ledger:
    """The accounts that currently have holdings, and the views. A view is registered once, for the ledger's
    lifetime."""

    __slots__ = ("_holders", "_known", "_views")

    def __init__(self) -> None:
        self._known: dict[str, None] = {}  # lint: allow kinds are named in the code
        self._holders: set[Account] = set()
        self._views: list[tuple[str, Measure]] = []  # lint: allow one entry for each package that holds resources

    def account(self, owner: str, *, parent: "Account | None" = None) -> "Account":
        """Returns an account for `owner`, e.g. "process" or "turn t_…". If there is a parent, the account's name is a
        path that starts with the parent's name."""
        return Account(self, owner, parent)

    def view(self, kind: str, measure: Measure) -> None:
        """Registers `measure` as the function that measures this kind in every reading."""
        self._known[kind] = None
        self._views.append((kind, measure))

    def read(self) -> LedgerReading:
        """Returns the current holdings. A known kind stays listed even if nothing of that kind is held, so that its
        metric does not disappear."""
        kinds = dict.fromkeys(sorted(self._known), NOTHING)
        owners: dict[str, dict[str, Holding]] = {}
        for owner, kind, holding in self._entries():
            kinds[kind] += holding
            own = owners.setdefault(owner, {})
            own[kind] = own.get(kind, NOTHING) + holding
        return LedgerReading(kinds, owners)

    def totals(self) -> dict[str, Holding]:
        """Returns the holdings by kind."""
        return self.read().kinds

    def owners(self, *, top: int = 20) -> list[tuple[str, Holding]]:
        """Returns the owners that have holdings of their own, largest first."""
        return [(owner, held) for owner, held, _ in self.read().largest(top)]

    def _entries(self) -> Iterable[tuple[str, str, Holding]]:
        for account in self._holders:
            path = account.path
            for hold in account._holds:
                yield path, hold.kind, hold.holding
        for kind, measure in self._views:
            for owner, holding in measure():
                yield owner, kind, holding


class Account:
    """One owner's holdings. Created by `Ledger.account`."""

    __slots__ = ("__weakref__", "_holds", "ledger", "owner", "parent")

    def __init__(self, ledger: Ledger, owner: str, parent: "Account | None") -> None:
        self.ledger = ledger
        self.owner = owner
        self.parent = parent
        self._holds: set[Hold] = set()

    @property
    def path(self) -> str:
        return self.owner if self.parent is None else f"{self.parent.path} / {self.owner}"

    @property
    def holding(self) -> Holding:
        return sum((hold.holding for hold in self._holds), NOTHING)

    def add(self, kind: str, *, bytes: int = 0, fds: int = 0, children: int = 0, count: int = 1) -> "Hold":
        """Records a holding until the returned hold is released."""
        hold = Hold(self, kind, count, bytes, fds, children)
        if not self._holds:
            self.ledger._holders.add(self)
        self._holds.add(hold)
        self.ledger._known[kind] = None
        return hold

    def close(self) -> list[tuple[str, Holding]]:
        """Releases everything that is still held, and returns the released holdings by kind."""
        left = [(hold.kind, hold.holding) for hold in self._holds]
        for hold in list(self._holds):
            hold.release()
        return sorted(left, key=lambda item: item[0])

    def _forget(self, hold: "Hold") -> None:
        self._holds.discard(hold)
        if not self._holds:
            self.ledger._holders.discard(self)


class Hold:
    """One resource, held until `release` is called. Resources that grow or shrink are measured with `view`."""

    __slots__ = ("_account", "bytes", "children", "count", "fds", "kind")

    def __init__(self, account: Account, kind: str, count: int, bytes: int, fds: int, children: int) -> None:
        self._account: Account | None = account
        self.kind = kind
        self.count = count
        self.bytes = bytes
        self.fds = fds
        self.children = children

    @property
    def held(self) -> bool:
        return self._account is not None

    @property
    def holding(self) -> Holding:
        return Holding(self.count, self.bytes, self.fds, self.children)

    def release(self) -> None:
        """Releases the holding. Idempotent."""
        account, self._account = self._account, None
        if account is not None:
            account._forget(self)
