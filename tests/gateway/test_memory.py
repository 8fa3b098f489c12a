"""What the memory is made of."""

from tidegate.gateway.memory import MemoryReport, allocator, kernel_figures, private_bytes, trim
from tidegate.lifetimes import Ledger, Scope

MANY = 40 << 20


def _settled(ledger: Ledger) -> MemoryReport:
    report = MemoryReport(ledger, Scope("process", account=ledger.account("process")))
    report.settle()
    return report


def test_growth_is_named_by_its_owner_and_explained() -> None:
    """L99, L22: memory that grew is accounted for by kind and by owner, at least nine tenths of it."""
    ledger = Ledger()
    report = _settled(ledger)
    account = ledger.account("session s_1")
    grown = bytearray(b"x" * MANY)
    hold = account.add("history", bytes=len(grown))
    figures = report.read()
    assert figures["private"] - figures["base"] > MANY // 2
    assert figures["explained"] >= 0.9
    assert figures["kinds"]["history"]["bytes"] == MANY
    assert "session s_1" in [held["owner"] for held in figures["owners"]]
    hold.release()
    assert [held["owner"] for held in report.read()["owners"]] == ["process"]
    del grown


def test_growth_that_nobody_wrote_down_lowers_what_is_explained() -> None:
    """L99: the figure is no decoration."""
    report = _settled(Ledger())
    grown = bytearray(b"x" * (4 * private_bytes()))
    assert report.read()["explained"] < 0.9
    del grown


def test_private_memory_is_what_the_kernel_says() -> None:
    """L22: anonymous and swapped pages together."""
    figures = kernel_figures()
    assert figures["rss"] > figures["anonymous"] > 1 << 20
    assert figures["peak"] >= figures["anonymous"]


def test_what_a_burst_left_free_is_given_back() -> None:
    """L22: after a burst the allocator's free pages return to the system."""
    burst = [bytearray(2000) for _ in range(40_000)]
    last = bytearray(2000)  # at the end of the heap, where it keeps the rest from being given back by itself
    full = private_bytes()
    burst.clear()
    trim()
    assert private_bytes() < full - MANY
    assert allocator()["free"] < MANY
    assert len(last) == 2000
