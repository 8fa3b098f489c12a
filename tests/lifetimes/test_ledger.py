"""The ledger explains what is held, by owner and by kind, and the two sums agree at any time."""

import gc
import weakref

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tidegate.lifetimes import Account, Hold, Holding, Ledger


def test_an_owner_that_has_let_go_of_everything_is_not_kept() -> None:
    """L07, L31: thousands of turns come and go, and the ledger lives as long as the process."""
    ledger = Ledger()
    released, closed = ledger.account("turn t_1"), ledger.account("turn t_2")
    released.add("buffer", bytes=10).release()
    closed.add("buffer", bytes=10)
    closed.close()
    left = [weakref.ref(released), weakref.ref(closed)]
    del released, closed
    gc.collect()
    assert [ref() for ref in left] == [None, None]


def test_holds_are_counted_by_kind_and_by_owner() -> None:
    """L31: the largest owner comes first, and an owner below another is named by its path."""
    ledger = Ledger()
    process = ledger.account("process")
    session = ledger.account("session s_1", parent=process)
    process.add("connection", fds=2)
    session.add("history", bytes=1000)
    session.add("shell", children=1, fds=3)
    assert ledger.totals() == {
        "connection": Holding(count=1, fds=2),
        "history": Holding(count=1, bytes=1000),
        "shell": Holding(count=1, fds=3, children=1),
    }
    assert ledger.owners() == [
        ("process / session s_1", Holding(count=2, bytes=1000, fds=3, children=1)),
        ("process", Holding(count=1, fds=2)),
    ]
    assert len(ledger.owners(top=1)) == 1


def test_a_release_counts_once() -> None:
    """B7: releasing twice changes nothing."""
    ledger = Ledger()
    hold = ledger.account("turn t_1").add("stream", bytes=5)
    hold.release()
    hold.release()
    assert not hold.held and ledger.totals() == {"stream": Holding()} and ledger.owners() == []


def test_closing_an_account_tells_what_was_still_held() -> None:
    """L01: nothing stays on the books of an owner that is gone."""
    ledger = Ledger()
    account = ledger.account("session s_1")
    account.add("b", bytes=2)
    account.add("a", fds=1)
    account.add("c").release()
    assert account.close() == [("a", Holding(count=1, fds=1)), ("b", Holding(count=1, bytes=2))]
    assert account.close() == [] and ledger.owners() == [] and account.holding == Holding()


def test_an_owner_that_holds_nothing_leaves_no_entry() -> None:
    """L02, L04: accounts that come and go do not accumulate."""
    ledger = Ledger()
    for number in range(1000):
        ledger.account(f"session s_{number}").add("history", bytes=1).release()
    assert ledger.owners(top=10_000) == [] and list(ledger.totals()) == ["history"]


def test_a_view_is_measured_when_somebody_asks() -> None:
    """L99: views are in the ledger without a record, beside recorded holds."""
    ledger = Ledger()
    sizes = {"session s_1": 10, "process": 5}
    ledger.view("history", lambda: [(owner, Holding(1, size)) for owner, size in sizes.items()])
    ledger.account("session s_1").add("shell", children=1)
    books = ledger.read()
    assert books.kinds == {"history": Holding(2, 15), "shell": Holding(1, children=1)}
    assert books.owners["session s_1"] == {"history": Holding(1, 10), "shell": Holding(1, children=1)}
    sizes["process"] = 500
    (largest, held, kinds), *_ = ledger.read().largest(1)
    assert (largest, held, kinds) == ("process", Holding(1, 500), {"history": Holding(1, 500)})
    sizes.clear()
    assert ledger.totals()["history"] == Holding(), "a kind stays listed"


class LedgerMachine(RuleBasedStateMachine):
    """L31: after any sequence of operations, the sum over owners equals the sum over kinds."""

    accounts = Bundle("accounts")
    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.held: dict[Hold, int] = {}
        self.viewed: dict[int, int] = {}
        self.ledger.view("b", lambda: [(f"owner {owner}", Holding(1, size)) for owner, size in self.viewed.items()])

    @rule(number=st.integers(0, 99), size=st.integers(0, 1000))
    def measure(self, number: int, size: int) -> None:
        self.viewed[number] = size

    @rule(number=st.integers(0, 99))
    def forget(self, number: int) -> None:
        self.viewed.pop(number, None)

    @rule(target=accounts, number=st.integers(0, 99))
    def open_account(self, number: int) -> Account:
        return self.ledger.account(f"owner {number}")

    @rule(target=holds, account=accounts, kind=st.sampled_from("abc"), size=st.integers(0, 1000))
    def add(self, account: Account, kind: str, size: int) -> Hold:
        hold = account.add(kind, bytes=size, fds=1)
        self.held[hold] = size
        return hold

    @rule(hold=holds)
    def release(self, hold: Hold) -> None:
        hold.release()
        self.held.pop(hold, None)

    @rule(account=consumes(accounts))
    def close(self, account: Account) -> None:
        account.close()
        self.held = {hold: size for hold, size in self.held.items() if hold.held}

    @invariant()
    def the_books_agree(self) -> None:
        by_kind = sum(self.ledger.totals().values(), Holding())
        by_owner = sum((holding for _, holding in self.ledger.owners(top=1000)), Holding())
        count, size = len(self.held) + len(self.viewed), sum(self.held.values()) + sum(self.viewed.values())
        expected = Holding(count=count, bytes=size, fds=len(self.held))
        assert by_kind == by_owner == expected


TestLedger = LedgerMachine.TestCase
