"""The C library's memory allocator: tuning, free memory and trimming.

Figures are read from the allocator when they are requested. A figure that the C library does not provide is 0, without
further consequences. Free memory here means resident memory that is not in use. It is reused before the process grows,
and `trim` returns it to the system.
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # glibc's M_…
_ARENAS = 2  # one for the event loop, one shared by the store's threads; more would only raise the high-water mark
_LARGE = 512 << 10  # bytes: twice the size of one read by the event loop, which should cause no mapping and no trim
_ARENA_SPAN = 64 << 20  # address space that glibc reserves for a heap of any arena but the first, and its alignment
_KIB = 1024
_TRIM_ABOVE = 1 << 20  # free bytes that are worth trimming, which takes a millisecond or two


def tune() -> bool:
    """Limits the memory that glibc reserves for this process. Call this before the first thread starts. The number of
    arenas is limited. Each large block gets a separate mapping, which is returned to the system when the block is
    freed. Free memory at the end of the heap is returned once it exceeds the size of a large block. By default, glibc
    raises its threshold for large blocks to the largest block freed so far, takes smaller ones from the heap, and
    retains twice that much free memory. The requests of a long conversation would then leave holes of the same size in
    the heap.

    Values set in the environment by the operator take precedence. With another C library, nothing happens. (Setting the
    environment ourselves would require starting the interpreter again, which takes longer than these calls.)"""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = (
        ("MALLOC_ARENA_MAX", _ARENA_MAX, _ARENAS),
        ("MALLOC_MMAP_THRESHOLD_", _MMAP_THRESHOLD, _LARGE),
        ("MALLOC_TRIM_THRESHOLD_", _TRIM_THRESHOLD, _LARGE),
    )
    return all([name in os.environ or bool(mallopt(option, value)) for name, option, value in wanted])


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


def native_free() -> int:
    """Returns the number of free, resident bytes in the C library's heaps."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _Mallinfo2
    info = ask()
    # Memory returned to the system still counts as free there; only resident memory is ours.
    return int(min(info.fordblks, max(0, _heaps_resident() - info.uordblks)))


def _heaps_resident() -> int:
    """Returns the resident bytes of the heap and of the other arenas. An arena is recognised by the address space
    reserved after it."""
    total = 0
    last_start = last_end = last_resident = 0
    for start, end, name, resident in _mappings():
        if name == b"[heap]":
            total += resident
        elif start == last_end and end == last_start + _ARENA_SPAN and last_start % _ARENA_SPAN == 0:
            total += last_resident
        last_start, last_end, last_resident = start, end, resident
    return total


def _mappings() -> Iterator[tuple[int, int, bytes, int]]:
    """Yields the start address, end address, name and resident bytes of each mapping."""
    with Path("/proc/self/smaps").open("rb") as file:  # lint: allow (procfs, no disk access)
        for line in file:
            first = line.split()
            if b"-" not in first[0] or first[0].endswith(b":"):
                continue
            start, _, end = first[0].partition(b"-")
            resident = next(int(row.split()[1]) * _KIB for row in file if row.startswith(b"Rss:"))
            yield int(start, 16), int(end, 16), first[-1], resident


def trim(least: int = _TRIM_ABOVE) -> bool:
    """Returns the C library's free memory to the system if there are at least `least` bytes of it. Returns whether any
    was released."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is None or native_free() < least:
        return False
    return bool(release(0))
