"""What the process's memory is made of, so that growth can be named by its owner.

Guarantee: every figure is read from the kernel, the allocators or the rooms at the moment of asking, and nothing is
kept but the base. The private memory (RssAnon + VmSwap) is told in parts that add up: the kinds of the ledger, of which
the base and what the allocators keep free are two, and `unexplained`, the rest, which is below zero where the books say
more than there is. `explained` is the share that is right: what is missing and what is too much both lower it. Asking
takes some milliseconds.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tidegate.gateway.memory.allocator import interpreter_free, native_free
from tidegate.lifetimes import Holding, Ledger, Scope
from tidegate.models import Clients, ClientStats
from tidegate.store import Store, StoreStats

PROCESS = "process"
_KIB = 1024
_OWNERS_SHOWN = 20
_THREAD_BYTES = 48 * 1024  # touched pages of an idle thread's stack and its descriptor, measured


def kernel_figures() -> dict[str, int]:
    """Bytes as the kernel counts them for this process."""
    wanted = {"VmRSS": "rss", "RssAnon": "anonymous", "RssFile": "file", "VmSwap": "swap", "VmHWM": "peak"}
    figures = dict.fromkeys(wanted.values(), 0)
    text = Path("/proc/self/status").read_text()  # lint: allow (the kernel's own memory, no disk)
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in wanted:
            figures[wanted[name]] = int(rest.split()[0]) * _KIB
    return figures


def private_bytes() -> int:
    """RssAnon + VmSwap: what the process itself holds, also when part of it was swapped out."""
    figures = kernel_figures()
    return figures["anonymous"] + figures["swap"]


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class MemoryReport:
    """Explains the process's memory. `settle` notes the base once the house stands: what the interpreter, the modules
    and the rooms take when nothing has been asked of them, less what is on the books as something else then."""

    def __init__(self, ledger: Ledger, process: Scope) -> None:
        self._ledger = ledger
        self._process = process
        self._settled = 0
        ledger.view("thread", _threads)
        ledger.view("free (C library)", lambda: ((PROCESS, Holding(0, native_free())),))
        ledger.view("free (interpreter)", lambda: ((PROCESS, Holding(0, interpreter_free())),))

    def watch_store(self, store: Store) -> None:
        self._ledger.view("store", lambda: (_of_store(store.stats()),))

    def watch_clients(self, clients: Clients) -> None:
        self._ledger.view("model connection", lambda: (_of_clients(clients.stats()),))

    def settle(self) -> None:
        self.read()  # so that what a first reading takes in is part of the base
        held = sum(self._ledger.totals().values(), Holding())
        self._settled = private_bytes()
        self._process.hold("base", bytes=self._settled - held.bytes, fds=max(0, _descriptors() - held.fds))

    def read(self) -> dict[str, Any]:
        books = self._ledger.read()
        figures = kernel_figures()
        private = figures["anonymous"] + figures["swap"]
        accounted = sum(holding.bytes for holding in books.kinds.values())
        return {
            **figures,
            "private": private,
            "explained": _share(accounted, private),
            "unexplained": private - accounted,
            "growth": private - self._settled,
            "growth_explained": _share(accounted - self._settled, private - self._settled),
            "threads": threading.active_count(),
            "descriptors": _descriptors(),
            "kinds": msgspec.to_builtins(books.kinds),
            "owners": [
                {"owner": owner, **msgspec.to_builtins(held), "kinds": msgspec.to_builtins(kinds)}
                for owner, held, kinds in books.largest(_OWNERS_SHOWN)
            ],
        }


def _share(accounted: int, whole: int) -> float:
    """How much of the whole is told rightly, between 0 and 1."""
    return max(0.0, round(1 - abs(whole - accounted) / whole, 4)) if whole > 0 else 1.0


def _of_store(stats: StoreStats) -> tuple[str, Holding]:
    fds = 2 * stats.connections + (stats.connections > 0)  # each has the file and its log; they share one index
    return PROCESS, Holding(stats.connections, stats.memory, fds=fds)


def _of_clients(stats: ClientStats) -> tuple[str, Holding]:
    return PROCESS, Holding(stats.open, stats.bytes, fds=stats.open)


def _threads() -> Iterator[tuple[str, Holding]]:
    count = threading.active_count()
    yield PROCESS, Holding(count, count * _THREAD_BYTES)
