"""Accounting of the process's memory by kind and owner, so that growth can be traced to its owner.

Every figure except the base is read from the kernel, the allocator or the ledger when it is requested. Private memory
(RssAnon + VmSwap) consists of the ledger's kinds, including the base and the allocator's free memory, plus the
remainder, `unexplained`, which is negative if the ledger reports more memory than the process has. `explained` is the
share that is accounted for; both missing and excess bytes lower it. A reading takes a few milliseconds.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidegate.gateway.process_memory.allocator import native_free
from tidegate.http_client import ClientStats, HttpClient
from tidegate.lifetimes import Holding, Ledger, Scope
from tidegate.status_report import MemoryBreakdown, MemoryStatus, OwnerHolding, PressureStatus
from tidegate.store import Store, StoreStats

PROCESS = "process"
NO_PRESSURE = PressureStatus()
_KIB = 1024
_OWNERS_SHOWN = 20
_THREAD_BYTES = 48 * 1024  # measured: touched pages of an idle thread's stack, and its control block


def kernel_figures() -> dict[str, int]:
    """Returns this process's memory in bytes, by kind, as counted by the kernel."""
    wanted = {"VmRSS": "rss", "RssAnon": "anonymous", "RssFile": "file", "VmSwap": "swap", "VmHWM": "peak"}
    figures = dict.fromkeys(wanted.values(), 0)
    text = Path("/proc/self/status").read_text()  # lint: allow (procfs, no disk access)
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in wanted:
            figures[wanted[name]] = int(rest.split()[0]) * _KIB
    return figures


def private_bytes() -> int:
    """Returns RssAnon + VmSwap: the memory that belongs to this process alone, including swapped-out memory."""
    figures = kernel_figures()
    return figures["anonymous"] + figures["swap"]


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class MemoryAccounting:
    """Explains how the process uses its memory. The base is the memory of a started gateway before its first request
    (interpreter, modules, services), except for what the ledger lists under another kind at that time."""

    def __init__(self, ledger: Ledger, process: Scope) -> None:
        self._ledger = ledger
        self._process = process
        self._base = 0
        ledger.view("thread", _threads)
        ledger.view("free (C library)", lambda: ((PROCESS, Holding(0, native_free())),))

    def watch_store(self, store: Store) -> None:
        self._ledger.view("store", lambda: (_of_store(store.stats()),))

    def watch_clients(self, clients: HttpClient) -> None:
        self._ledger.view("model connection", lambda: (_of_clients(clients.stats()),))

    def record_base(self) -> None:
        """Records the started gateway's memory as its base. Called once, before the first request."""
        self.read()  # so that memory allocated by the first reading is part of the base
        total = sum(self._ledger.totals().values(), Holding())
        self._base = private_bytes()
        self._process.hold("base", bytes=self._base - total.bytes, fds=max(0, _descriptors() - total.fds))

    def figures(self, pressure: PressureStatus = NO_PRESSURE) -> MemoryStatus:
        return MemoryStatus(**{**kernel_figures(), **msgspec.structs.asdict(pressure)})

    def read(self, pressure: PressureStatus = NO_PRESSURE) -> MemoryBreakdown:
        reading = self._ledger.read()
        figures = kernel_figures()
        private = figures["anonymous"] + figures["swap"]
        accounted = sum(holding.bytes for holding in reading.kinds.values())
        return MemoryBreakdown(
            **{**figures, **msgspec.structs.asdict(pressure)},
            private=private,
            explained=_share(accounted, private),
            unexplained=private - accounted,
            growth=private - self._base,
            growth_explained=_share(accounted - self._base, private - self._base),
            threads=threading.active_count(),
            descriptors=_descriptors(),
            kinds=reading.kinds,
            owners=[
                OwnerHolding(owner=owner, **msgspec.structs.asdict(total), kinds=kinds)
                for owner, total, kinds in reading.largest(_OWNERS_SHOWN)
            ],
        )


def _share(accounted: int, whole: int) -> float:
    """Returns the share of the whole that is accounted for, between 0 and 1."""
    return max(0.0, round(1 - abs(whole - accounted) / whole, 4)) if whole > 0 else 1.0


def _of_store(stats: StoreStats) -> tuple[str, Holding]:
    fds = 2 * stats.connections + (stats.connections > 0)  # each has the file and its log open; they share one index
    return PROCESS, Holding(stats.connections, stats.memory, fds=fds)


def _of_clients(stats: ClientStats) -> tuple[str, Holding]:
    return PROCESS, Holding(stats.open, stats.bytes, fds=stats.open)


def _threads() -> Iterator[tuple[str, Holding]]:
    count = threading.active_count()
    yield PROCESS, Holding(count, count * _THREAD_BYTES)
