"""Cached histories of unloaded conversations: found once, byte for byte, while nothing has changed."""

import errno
import os
import random
import tempfile
import threading
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import anyio
import pytest

from tests.core import WAIT
from tests.effects import until
from tests.logs import capture_logs
from tidegate.agent import HistoryCache, HistoryState
from tidegate.agent.history_cache import LEAST_BYTES

pytestmark = pytest.mark.anyio

STATE = HistoryState(signature=b"one", version=7, era=0, mark="", carries=False, estimated=100, counted=(25, 100))
FILE_BYTES = 8 * LEAST_BYTES


class Files:
    """Opens unnamed files, and remembers the last one."""

    def __init__(self) -> None:
        self.last: BinaryIO | None = None

    def __call__(self) -> BinaryIO:
        self.last = nameless()
        return self.last


def nameless() -> BinaryIO:
    return tempfile.TemporaryFile(buffering=0)


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
async def cache(files: Files) -> AsyncIterator[HistoryCache]:
    cache = HistoryCache(files, file_bytes=FILE_BYTES)
    yield cache
    await cache.close()


def history(number: int, size: int = LEAST_BYTES) -> list[bytes]:
    """Pieces of `size` bytes in total."""
    data = random.Random(number).randbytes(size)
    return [data[: size // 2], data[size // 2 : -10], data[-10:]]


async def test_a_cached_history_is_found_once_and_byte_for_byte(cache: HistoryCache) -> None:
    """B4, S03: with its state, in the same pieces."""
    await cache.keep("s_1", STATE, history(1))
    assert await cache.find("s_1", b"one", 7) == (STATE, history(1))
    assert await cache.find("s_1", b"one", 7) is None


@pytest.mark.parametrize(("signature", "version"), [(b"two", 7), (b"one", 8)])
async def test_another_configuration_or_version_finds_nothing(
    cache: HistoryCache, signature: bytes, version: int
) -> None:
    """A2, S34: and the entry is forgotten."""
    await cache.keep("s_1", STATE, history(1))
    assert await cache.find("s_1", signature, version) is None
    assert await cache.find("s_1", b"one", 7) is None


async def test_the_newest_overwrite_the_oldest_and_the_file_stays_within_its_bound(
    cache: HistoryCache, files: Files
) -> None:
    """L21, B4: whatever their sizes, a found history is the cached one; the newest is always found."""
    sizes = random.Random(0)
    kept: dict[str, list[bytes]] = {}
    lost = 0
    for number in range(200):
        kept[f"s_{number}"] = history(number, sizes.randrange(LEAST_BYTES, FILE_BYTES // 3))
        await cache.keep(f"s_{number}", STATE, kept[f"s_{number}"])
        asked = f"s_{max(0, number - sizes.randrange(6))}"
        found = await cache.find(asked, b"one", 7)
        assert found is None or found == (STATE, kept[asked])
        assert found is not None or asked != f"s_{number}"
        lost += found is None
    assert 0 < lost < 200
    assert files.last is not None and os.fstat(files.last.fileno()).st_size <= FILE_BYTES


async def test_an_entry_overwritten_during_a_read_is_not_found(cache: HistoryCache) -> None:
    """B4: a reader never gets the bytes of another entry."""
    found: list[Any] = []

    async def find() -> None:
        found.append(await cache.find("s_1", b"one", 7))

    for number in range(50):
        await cache.keep("s_1", STATE, history(number))
        async with anyio.create_task_group() as group:
            group.start_soon(find)
            for other in range(9):
                group.start_soon(cache.keep, f"s_o{other}", STATE, history(1000 + other))
        assert found[-1] is None or found[-1] == (STATE, history(number))


async def test_histories_unloaded_during_a_write_are_written_together_next(
    cache: HistoryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A10, L03: so unloading keeps up with any number of turns; histories beyond the bound do not wait."""
    writes: list[int] = []
    write, begun, goes_on = os.pwrite, threading.Event(), threading.Event()

    def slow(fd: int, data: bytes, offset: int) -> int:
        writes.append(len(data))
        begun.set()
        goes_on.wait(WAIT)
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", slow)
    async with anyio.create_task_group() as group:
        group.start_soon(cache.keep, "s_first", STATE, history(10))
        await until(begun.is_set)
        for number in range(8):
            group.start_soon(cache.keep, f"s_{number}", STATE, history(number))
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(WAIT):
            await cache.keep("s_late", STATE, history(9))
        goes_on.set()
    assert writes == [sum(map(len, history(10))), sum(len(piece) for number in range(8) for piece in history(number))]
    assert [await cache.find(f"s_{number}", b"one", 7) for number in range(8)] == [
        (STATE, history(number)) for number in range(8)
    ]
    assert await cache.find("s_late", b"one", 7) is None


async def test_short_and_huge_histories_are_not_cached(cache: HistoryCache, files: Files) -> None:
    """L03: a short one is encoded again as quickly, a huge one would push out all the rest."""
    await cache.keep("s_1", STATE, [b"x" * (LEAST_BYTES - 1)])
    await cache.keep("s_2", STATE, [b"x" * (FILE_BYTES + 1)])
    assert files.last is None and cache.stats().size == 0


async def test_if_the_disk_refuses_nothing_is_cached_and_nothing_fails() -> None:
    """D5: the conversation is then read from the store."""

    def full() -> BinaryIO:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = HistoryCache(full)
    with capture_logs() as lines:
        await cache.keep("s_1", STATE, history(1))
        await cache.keep("s_1", STATE, history(1))
    assert await cache.find("s_1", b"one", 7) is None
    assert [line["event"] for line in lines] == ["cannot cache a conversation's history"]


async def test_a_closed_cache_keeps_and_finds_nothing(cache: HistoryCache, files: Files) -> None:
    """L09: its file is closed and so deleted."""
    await cache.keep("s_1", STATE, history(1))
    await cache.close()
    assert files.last is not None and files.last.closed
    await cache.keep("s_2", STATE, history(2))
    assert await cache.find("s_1", b"one", 7) is None and await cache.find("s_2", b"one", 7) is None
