"""The ledger: which owner holds how many bytes, descriptors and children, by kind.

Guarantee: the sum over the owners is the sum over the kinds, at any time, and every change costs O(1). An account is
known to the ledger exactly while it holds something, so an owner that has let go of everything leaves no entry, and one
that has not can be named. A hold is let go once, however often that is asked for. The ledger owns nothing but numbers.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holding:
    """How much is held: things, and their bytes, file descriptors and child processes."""

    count: int = 0
    bytes: int = 0
    fds: int = 0
    children: int = 0

    def __add__(self, other: "Holding") -> "Holding":
        return Holding(
            self.count + other.count, self.bytes + other.bytes, self.fds + other.fds, self.children + other.children
        )


class _Sum:
    """A holding that changes in place."""

    __slots__ = ("bytes", "children", "count", "fds")

    def __init__(self) -> None:
        self.count = self.bytes = self.fds = self.children = 0

    def change(self, count: int, bytes: int, fds: int, children: int) -> None:
        self.count += count
        self.bytes += bytes
        self.fds += fds
        self.children += children

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """What makes one owner larger than another: bytes first."""
        return (self.bytes, self.children, self.fds, self.count)

    def frozen(self) -> Holding:
        return Holding(self.count, self.bytes, self.fds, self.children)


class Ledger:
    """Totals by kind and the accounts that hold something now."""

    __slots__ = ("_holders", "_kinds")

    def __init__(self) -> None:
        self._kinds: dict[str, _Sum] = {}
        self._holders: set[Account] = set()

    def account(self, owner: str, *, parent: "Account | None" = None) -> "Account":
        """An account for `owner`, e.g. "process" or "turn t_…"; with a parent its name is a path below the parent's."""
        return Account(self, owner, parent)

    def totals(self) -> dict[str, Holding]:
        """What is held, by kind. A kind that was ever held stays listed, with zeros: its metric does not vanish."""
        return {kind: total.frozen() for kind, total in sorted(self._kinds.items())}

    def owners(self, *, top: int = 20) -> list[tuple[str, Holding]]:
        """Who holds something of his own, largest first; what accounts below him hold is listed under their names."""
        largest = sorted(self._holders, key=lambda account: account._own.weight, reverse=True)
        return [(account.path, account._own.frozen()) for account in largest[:top]]


class Account:
    """What one owner holds. Made by `Ledger.account`."""

    __slots__ = ("__weakref__", "_holds", "_own", "ledger", "owner", "parent")

    def __init__(self, ledger: Ledger, owner: str, parent: "Account | None") -> None:
        self.ledger = ledger
        self.owner = owner
        self.parent = parent
        self._own = _Sum()
        self._holds: set[Hold] = set()

    @property
    def path(self) -> str:
        return self.owner if self.parent is None else f"{self.parent.path} / {self.owner}"

    @property
    def holding(self) -> Holding:
        return self._own.frozen()

    def add(self, kind: str, *, bytes: int = 0, fds: int = 0, children: int = 0, count: int = 1) -> "Hold":
        """Write down that the owner holds this, until the returned hold is released."""
        hold = Hold(self, kind, count, bytes, fds, children)
        if not self._holds:
            self.ledger._holders.add(self)
        self._holds.add(hold)
        self._change(kind, count, bytes, fds, children)
        return hold

    def close(self) -> list[tuple[str, Holding]]:
        """Release what is still held, and tell what it was."""
        left = [(hold.kind, hold.holding) for hold in self._holds]
        for hold in list(self._holds):
            hold.release()
        return sorted(left, key=lambda item: item[0])

    def _change(self, kind: str, count: int, bytes: int, fds: int, children: int) -> None:
        self._own.change(count, bytes, fds, children)
        total = self.ledger._kinds.get(kind)
        if total is None:
            total = self.ledger._kinds[kind] = _Sum()
        total.change(count, bytes, fds, children)

    def _forget(self, hold: "Hold") -> None:
        self._holds.discard(hold)
        if not self._holds:
            self.ledger._holders.discard(self)


class Hold:
    """One thing that is held. `resize` when it grows or shrinks, `release` when it is gone."""

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

    def resize(self, bytes: int) -> None:
        """It holds so many bytes now. Without effect once released."""
        if self._account is not None:
            self._account._change(self.kind, 0, bytes - self.bytes, 0, 0)
            self.bytes = bytes

    def release(self) -> None:
        """It is gone. A second release changes nothing."""
        account, self._account = self._account, None
        if account is not None:
            account._change(self.kind, -self.count, -self.bytes, -self.fds, -self.children)
            account._forget(self)
