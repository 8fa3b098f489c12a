"""What the process's memory is made of, so that growth can be named by its owner.

Guarantee: every figure is read from the kernel, the allocator or the ledger at the moment of asking and nothing is
kept; `explained` is the share of the private memory (RssAnon + VmSwap) that is accounted for: the base measured when
the house stood, what the ledger says is held, and what the allocator keeps for reuse; `unexplained` is the rest, so
that the parts add up. Asking takes a millisecond.
"""

import ctypes
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tidegate.lifetimes import Ledger, Scope

_ARENA_MAX = -8  # glibc's M_ARENA_MAX
_ARENAS = 2  # one for the loop, one shared by the store's threads: more only raises the high-water mark
_KIB = 1024
_OWNERS_SHOWN = 20
_TRIM_ABOVE = 8 << 20  # free bytes in the allocator that are worth a trim


def bound_arenas() -> bool:
    """Bound glibc's arenas for this process; call it before the first thread. An operator's own choice in the
    environment stands; on another C library nothing happens. (The environment variable alone would need a second
    start of the interpreter, which takes longer than this whole module.)"""
    if "MALLOC_ARENA_MAX" in os.environ:
        return True
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_ARENA_MAX, _ARENAS))


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "top",
        )
    )


def allocator() -> dict[str, int]:
    """glibc's own figures: bytes in use, and bytes free but still resident. Empty on another C library."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return {}
    ask.restype = _Mallinfo2
    info = ask()
    # What was given back to the system still counts as free there; only what is resident is ours.
    free = min(info.fordblks, max(0, _heap_resident() - info.uordblks))
    return {"in_use": info.uordblks + info.hblkhd, "free": free}


def _heap_resident() -> int:
    with Path("/proc/self/smaps").open("rb") as file:  # house: allow (the kernel's own memory, no disk)
        for line in file:
            if line.endswith(b"[heap]\n"):
                return next(int(row.split()[1]) * _KIB for row in file if row.startswith(b"Rss:"))
    return 0


def trim() -> bool:
    """Give back to the system what the allocator keeps, when that is worth the walk."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is None or allocator().get("free", 0) < _TRIM_ABOVE:
        return False
    return bool(release(0))


def kernel_figures() -> dict[str, int]:
    """Bytes as the kernel counts them for this process."""
    wanted = {"VmRSS": "rss", "RssAnon": "anonymous", "RssFile": "file", "VmSwap": "swap", "VmHWM": "peak"}
    figures = dict.fromkeys(wanted.values(), 0)
    text = Path("/proc/self/status").read_text()  # house: allow (the kernel's own memory, no disk)
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
    """Explains the process's memory. `settle` notes, as a holding of the process, the base once the house stands:
    interpreter, modules and what the rooms hold at rest."""

    def __init__(self, ledger: Ledger, process: Scope) -> None:
        self._ledger = ledger
        self._process = process
        self._base = 0

    def settle(self) -> None:
        # What the allocator keeps free is a part of its own, now and later.
        self._base = private_bytes() - self._held_bytes() - allocator().get("free", 0)
        self._process.hold("base", bytes=self._base, fds=_descriptors())

    def _held_bytes(self) -> int:
        return sum(holding.bytes for holding in self._ledger.totals().values())

    def read(self) -> dict[str, Any]:
        figures = kernel_figures()
        private = figures["anonymous"] + figures["swap"]
        native = allocator()
        held = self._held_bytes()
        accounted = held + native.get("free", 0)
        return {
            **figures,
            "private": private,
            "base": self._base,
            "held": held,
            "allocator": native,
            # Python takes its arenas from the kernel itself, so they are what the C allocator does not know of.
            "python_heap": max(0, private - native.get("in_use", 0) - native.get("free", 0)),
            "python_blocks": sys.getallocatedblocks(),
            "threads": threading.active_count(),
            "descriptors": _descriptors(),
            "unexplained": private - accounted,
            "explained": round(min(1.0, accounted / private), 4) if private else 1.0,
            "kinds": {kind: asdict(holding) for kind, holding in self._ledger.totals().items()},
            "owners": [{"owner": owner, **asdict(held)} for owner, held in self._ledger.owners(top=_OWNERS_SHOWN)],
        }
