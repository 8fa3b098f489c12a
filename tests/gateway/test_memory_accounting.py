"""What the memory is made of."""

import os
import subprocess
import sys

import pytest

from tidegate.gateway.process_memory.accounting import MemoryAccounting, kernel_figures, private_bytes
from tidegate.lifetimes import Holding, Ledger, Scope

MANY = 40 << 20


def _settled(ledger: Ledger) -> MemoryAccounting:
    report = MemoryAccounting(ledger, Scope("process", account=ledger.account("process")))
    report.record_base()
    return report


def test_growth_is_named_by_its_owner_and_explained() -> None:
    """L99, L22: memory that grew is accounted for by kind and by owner, at least nine tenths of it."""
    ledger = Ledger()
    held: list[bytearray] = []
    ledger.view("history", lambda: (("session s_1", Holding(1, len(each))) for each in held))
    report = _settled(ledger)
    held.append(bytearray(b"x" * MANY))
    figures = report.read()
    assert figures.growth > MANY // 2
    assert figures.explained >= 0.9
    assert figures.growth_explained >= 0.9
    assert figures.kinds["history"] == Holding(count=1, bytes=MANY)
    (session,) = (owner for owner in figures.owners if owner.owner == "session s_1")
    assert session.bytes == MANY
    assert list(session.kinds) == ["history"]
    held.clear()
    assert [owner.owner for owner in report.read().owners] == ["process"]


@pytest.mark.parametrize("said", [0, 8])
def test_growth_that_the_ledger_reports_wrongly_lowers_the_explained_share(said: int) -> None:
    """L99: missing bytes lower the figure, and so do excess bytes."""
    ledger = Ledger()
    report = _settled(ledger)
    before = private_bytes()
    grown = bytearray(b"x" * (4 * before))
    ledger.account("process").add("history", bytes=said * before)
    figures = report.read()
    assert figures.explained < 0.9
    assert figures.growth_explained < 0.9
    assert sum(kind.bytes for kind in figures.kinds.values()) + figures.unexplained == figures.private
    del grown


def test_the_base_excludes_memory_that_the_ledger_names_at_the_start() -> None:
    """L99: nothing is counted twice."""
    ledger = Ledger()
    grown = bytearray(b"x" * MANY)
    ledger.account("process").add("history", bytes=MANY, fds=2)
    kinds = _settled(ledger).read().kinds
    ledger = Ledger()
    without = _settled(ledger).read().kinds
    assert abs(without["base"].bytes - kinds["base"].bytes - MANY) < MANY // 10
    assert without["base"].fds == kinds["base"].fds + 2
    assert len(grown) == MANY


def test_private_memory_is_the_kernels_figure() -> None:
    """L22: anonymous and swapped pages together."""
    figures = kernel_figures()
    assert figures["rss"] > figures["anonymous"] > 1 << 20
    assert figures["peak"] >= figures["anonymous"]


BURST = """
from tidegate.gateway.process_memory.allocator import native_free, trim
from tidegate.gateway.process_memory.accounting import private_bytes

before = native_free()
burst = [bytearray(2000) for _ in range(40_000)]
last = bytearray(2000)  # at the end of the heap, where it keeps the rest from being given back by itself
full = private_bytes()
burst.clear()
freed = native_free() - before
trim()
print(freed, full - private_bytes(), native_free())
"""


def test_memory_that_a_burst_left_free_is_reported_and_returned() -> None:
    """L22: after a burst the allocator's free pages are a part of their own, and return to the system."""
    told = subprocess.run([sys.executable, "-c", BURST], capture_output=True, check=True, timeout=60)
    freed, returned, left = map(int, told.stdout.split())
    assert freed > MANY < returned
    assert left < MANY


HOLES = """
import sys
from tidegate.gateway.process_memory.allocator import native_free, tune

if "tuned" in sys.argv:
    assert tune()
kept = []
for request in range(16):  # of a long conversation, each a little longer than before; something of each turn stays
    body = b"x" * (4_000_000 + request // 2 * 4000)
    kept.append(b"x" * 100_000)
    body = None
print(native_free())
"""


def _free_after_requests(*arguments: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    told = subprocess.run(
        [sys.executable, "-c", HOLES, *arguments], capture_output=True, check=True, timeout=60, env=environment
    )
    return int(told.stdout)


def test_requests_that_grow_leave_no_holes_of_their_size() -> None:
    """L22: a large block goes back to the system when it is freed, whatever was freed before it."""
    assert _free_after_requests("tuned") < 3 << 20 < _free_after_requests()
