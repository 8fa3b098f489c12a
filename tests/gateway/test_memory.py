"""What the memory is made of."""

from tidegate.gateway.memory import MemoryReport, kernel_figures, private_bytes
from tidegate.lifetimes import Ledger

MANY = 40 << 20


def test_growth_is_named_by_its_owner_and_explained() -> None:
    """L99, L22: memory that grew is accounted for by kind and by owner, at least nine tenths of it."""
    ledger = Ledger()
    report = MemoryReport(ledger)
    report.settle()
    account = ledger.account("session s_1")
    grown = bytearray(b"x" * MANY)
    hold = account.add("history", bytes=len(grown))
    figures = report.read()
    assert figures["private"] - figures["base"] > MANY // 2
    assert figures["explained"] >= 0.9
    assert figures["kinds"]["history"]["bytes"] == MANY
    assert figures["owners"][0]["owner"] == "session s_1"
    hold.release()
    assert report.read()["owners"] == []
    del grown


def test_growth_that_nobody_wrote_down_lowers_what_is_explained() -> None:
    """L99: the figure is no decoration."""
    report = MemoryReport(Ledger())
    report.settle()
    grown = bytearray(b"x" * (4 * private_bytes()))
    assert report.read()["explained"] < 0.9
    del grown


def test_private_memory_is_what_the_kernel_says() -> None:
    """L22: anonymous and swapped pages together."""
    figures = kernel_figures()
    assert figures["rss"] > figures["anonymous"] > 1 << 20
    assert figures["peak"] >= figures["anonymous"]
