"""The allocators below the program: what they may set aside, what they keep free, how it is given back.

Guarantee: figures are read from the allocators themselves at the moment of asking; on a C library or an interpreter
that does not tell, a figure is 0 and nothing else changes. What is free here is resident memory that nobody holds: it
is used again before the process grows, and `trim` gives the C library's part of it back.
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # glibc's M_…
_ARENAS = 2  # one for the loop, one shared by the store's threads: more only raises the high-water mark
_LARGE = 512 << 10  # bytes: twice what the loop reads at once, for which nothing should be mapped or given back
_ARENA_SPAN = 64 << 20  # address space that glibc sets aside for a heap of any arena but the first, and its alignment
_KIB = 1024
_TRIM_ABOVE = 1 << 20  # free bytes in the allocator that are worth a trim, which takes a millisecond or two


def tune() -> bool:
    """Bound what glibc sets aside for this process; call it before the first thread. Its arenas are few. A large block
    is a mapping of its own, and goes back when it is freed; so does as much at the end of the heap. Left alone, glibc
    takes blocks as large as any that was freed before from the heap, and keeps twice that: the requests of a long
    conversation leave holes of their size there.

    An operator's own choice in the environment stands; on another C library nothing happens. (The environment alone
    would need a second start of the interpreter, which takes longer than this whole module.)"""
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
    """Bytes that the C library keeps free and resident."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _Mallinfo2
    info = ask()
    # What was given back to the system still counts as free there; only what is resident is ours.
    return int(min(info.fordblks, max(0, _heaps_resident() - info.uordblks)))


def interpreter_free() -> int:
    """Bytes that the interpreter keeps free in its own arenas. It tells them only as text, for people."""
    libc, tell = ctypes.CDLL(None), getattr(ctypes.pythonapi, "_PyObject_DebugMallocStats", None)
    if tell is None or not hasattr(libc, "open_memstream"):
        return 0
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    if not stream:
        return 0
    try:
        tell(stream)
    finally:
        libc.fclose(stream)
    told = ctypes.string_at(text, size.value)
    libc.free(text)
    free = 0
    for line in told.splitlines():
        name, _, figure = line.partition(b"=")
        if b"bytes in available blocks" in name or b" unused pools * " in name:
            free += int(figure.replace(b",", b""))
    return free


def _heaps_resident() -> int:
    """Resident bytes of the heap and of the other arenas, which are known by the room that is set aside behind them."""
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
    """First and last address, name and resident bytes of each part of the address space."""
    with Path("/proc/self/smaps").open("rb") as file:  # lint: allow (the kernel's own memory, no disk)
        for line in file:
            first = line.split()
            if b"-" not in first[0] or first[0].endswith(b":"):
                continue
            start, _, end = first[0].partition(b"-")
            resident = next(int(row.split()[1]) * _KIB for row in file if row.startswith(b"Rss:"))
            yield int(start, 16), int(end, 16), first[-1], resident


def trim(least: int = _TRIM_ABOVE) -> bool:
    """Give back to the system what the C library keeps free, when that is worth the walk."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is None or native_free() < least:
        return False
    return bool(release(0))
