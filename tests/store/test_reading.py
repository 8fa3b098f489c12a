"""The readers: a bounded pool, one snapshot per read, an age that no snapshot outlives."""

import asyncio
import contextlib
import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import apsw
import pytest

from tests.store.rows import bulk, get_meta, new_session, new_turn, put_meta, spin
from tidegate.errors import StoreBusy, StoreFailed
from tidegate.store import Db, Store, maintenance, migrations
from tidegate.store.sqlite.connections import connect
from tidegate.store.sqlite.readers import LEEWAYS

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


class Peek:
    """A read that looks twice at the same value, with a pause in between that the test controls."""

    __name__ = "peek"

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()

    def __call__(self, db: Db) -> tuple[int | None, int | None]:
        first = get_meta(db, "a")
        self.entered.set()
        assert self.release.wait(10)
        return first, get_meta(db, "a")


async def test_a_thousand_concurrent_reads_use_no_more_connections_than_the_pool_has(path: Path) -> None:
    """L08: connections are bounded by the pool, however many coroutines or threads read."""
    with anyio.fail_after(60):
        async with Store.open(path, readers=3) as store:
            await store.write(put_meta, "a", 1)
            loop = asyncio.get_running_loop()
            most = 0

            async def read() -> None:
                nonlocal most
                assert await store.read(get_meta, "a") == 1
                most = max(most, store.stats().connections)

            def from_a_thread() -> None:
                asyncio.run_coroutine_threadsafe(read(), loop).result(30)

            await asyncio.gather(*(read() for _ in range(1000)))
            threads = [threading.Thread(target=from_a_thread) for _ in range(100)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                await anyio.sleep(0.001)
            assert most == 4
            assert store.stats().reads == 1100


async def test_a_read_sees_one_snapshot_and_the_next_sees_what_was_acknowledged(store: Store) -> None:
    peek = Peek()
    with anyio.fail_after(10):
        await store.write(put_meta, "a", 1)
        reading = asyncio.ensure_future(store.read(peek))
        while not peek.entered.is_set():
            await anyio.lowlevel.checkpoint()
        await store.write(put_meta, "a", 2)
        peek.release.set()
        assert await reading == (1, 1)
        assert await store.read(get_meta, "a") == 2


async def test_a_read_that_outlives_its_snapshot_is_interrupted_and_told_so(path: Path) -> None:
    """L17: no snapshot lives longer than its age."""
    with anyio.fail_after(20):
        async with Store.open(path, readers=1, snapshot_seconds=0.05) as store:
            with pytest.raises(StoreFailed, match=r"interrupted.*limits\.snapshot_seconds"):
                await store.read(spin)
            assert await store.read(get_meta, "indexed") == 0
            assert store.stats().reads_interrupted == 1


async def test_many_short_statements_do_not_outlive_the_snapshot_either(path: Path) -> None:
    """L17: the age counts for the whole function, not for each of its statements."""

    def busy(db: Db) -> None:
        while True:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchall()

    with anyio.fail_after(20):
        async with Store.open(path, readers=1, snapshot_seconds=0.05) as store:
            with pytest.raises(StoreFailed, match="interrupted"):
                await store.read(busy)


async def test_a_read_whose_caller_was_cancelled_is_stopped(path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(path, readers=1, snapshot_seconds=3600) as store:
            with anyio.move_on_after(0.05):
                await store.read(spin)
            assert await store.read(get_meta, "indexed") == 0
            assert store.stats().reads_interrupted == 1


async def test_closing_interrupts_a_running_read(path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(path, snapshot_seconds=3600) as store:
            reading = asyncio.ensure_future(store.read(spin))
            await anyio.lowlevel.checkpoint()
            await store.close()
            with pytest.raises(StoreFailed, match="closed"):
                await reading


async def test_a_reader_that_holds_its_snapshot_under_writes_is_cancelled_before_the_log_outgrows_its_bound(
    path: Path,
) -> None:
    """L17: the log is bounded: a read that blocks it in every attempt is ended."""
    limit = MIB
    with anyio.fail_after(60):
        async with Store.open(path, readers=1, snapshot_seconds=3600, wal_bytes=limit) as store:
            await store.write(new_session, "s_1")
            await store.write(new_turn, "s_1", "t_1")
            reading = asyncio.ensure_future(store.read(spin))
            number = 0
            while not reading.done():
                await store.write(bulk, "s_1", "t_1", number, 40_000)
                number += 1
            with pytest.raises(StoreBusy, match=r"limits\.wal_bytes"):
                await reading
            stats = store.stats()
            assert stats.wal_overruns == 1 + stats.reads_repeated == len(LEEWAYS)
            assert stats.wal_peak < 2 * limit
            for further in range(number, number + 40):
                await store.write(bulk, "s_1", "t_1", further, 40_000)
            assert path.with_name("tidegate.db-wal").stat().st_size < 2 * limit


class InTheWay:
    """A read that holds its snapshot for ever in its first attempts; in the next it tells what it sees."""

    __name__ = "in_the_way"

    def __init__(self, attempts: int) -> None:
        self.left = attempts

    def __call__(self, db: Db) -> int | None:
        if self.left:
            self.left -= 1
            spin(db)
        return get_meta(db, "a")


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_read_that_blocks_the_log_is_repeated_without_its_caller_noticing(path: Path, attempts: int) -> None:
    """L17: the log stays within its bound, and the read continues with a fresh snapshot."""
    limit = 64 * 1024
    with anyio.fail_after(60):
        async with Store.open(path, readers=1, snapshot_seconds=3600, wal_bytes=limit) as store:
            await store.write(new_session, "s_1")
            await store.write(new_turn, "s_1", "t_1")
            reading = asyncio.ensure_future(store.read(InTheWay(attempts)))
            written = 0
            while not reading.done():
                await store.write(bulk, "s_1", "t_1", written, 20_000)
                written += 1
                await store.write(put_meta, "a", written)
            assert 0 < (await reading or 0) <= written
            stats = store.stats()
            assert (stats.reads_repeated, stats.wal_overruns) == (attempts, attempts)
            assert stats.wal_peak < 2 * limit


async def test_writes_beside_long_reads_wait_instead_of_ending_them(path: Path) -> None:
    """L17: all reads are answered, even with the smallest log."""
    limit = 64 * 1024

    def read(db: Db) -> int:
        get_meta(db, "indexed")
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
        return int(db.execute(f"{numbers} SELECT count(*) FROM n").get)

    with anyio.fail_after(60):
        async with Store.open(path, wal_bytes=limit) as store:
            await store.write(new_session, "s_1")
            await store.write(new_turn, "s_1", "t_1")
            reads = [asyncio.ensure_future(store.read(read)) for _ in range(30)]
            number = 0
            while not all(each.done() for each in reads):
                await store.write(bulk, "s_1", "t_1", number, 20_000)
                number += 1
            assert [each.result() for each in reads] == [100_000] * 30
            assert store.stats().wal_peak < 2 * limit


async def test_short_reads_under_writes_keep_the_log_small(path: Path) -> None:
    """L17: the log is emptied continuously, without a timer."""
    limit = MIB
    with anyio.fail_after(60):
        async with Store.open(path, wal_bytes=limit) as store:
            await store.write(new_session, "s_1")
            await store.write(new_turn, "s_1", "t_1")
            for number in range(100):
                await store.write(bulk, "s_1", "t_1", number, 40_000)
                await store.read(get_meta, "indexed")
            assert store.stats().wal_peak < limit
            assert store.stats().checkpoints > 3
            assert store.stats().bytes > 2 * MIB


async def test_a_reader_cannot_write(store: Store) -> None:
    with pytest.raises(StoreFailed):
        await store.read(put_meta, "a", 1)
    assert await store.read(get_meta, "a") is None


async def test_a_function_that_breaks_in_a_reader_leaves_no_snapshot_behind(path: Path) -> None:
    """L17: an error during a read does not keep the log from being emptied."""

    def broken(db: Db) -> None:
        for _ in db.execute("SELECT * FROM sqlite_schema"):
            raise ValueError("half-way")

    def log_pages(db: Db) -> tuple[int, int]:
        return db.wal_checkpoint(mode=2)

    with anyio.fail_after(20):
        async with Store.open(path, readers=1) as store:
            with pytest.raises(ValueError, match="half-way"):
                await store.read(broken)
            await store.write(put_meta, "a", 1)
            assert await store.read(get_meta, "a") == 1


async def test_reads_beyond_the_queue_are_refused(path: Path) -> None:
    """L21: waiting reads are bounded too."""
    with anyio.fail_after(20):
        async with Store.open(path, readers=1, queue=3, snapshot_seconds=3600) as store:
            reads = [asyncio.ensure_future(store.read(spin)) for _ in range(5)]
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            refused = [read for read in reads if read.done()]
            assert len(refused) == 2
            assert all("3 reads waiting" in str(read.exception()) for read in refused)
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
            assert store.stats().reads_refused == 2


def test_moving_the_log_on_the_timer_waits_for_no_reader(path: Path) -> None:
    """L17, L20: the writer is not delayed; pages that a reader still needs are moved later."""
    waited: list[int] = []
    with (
        contextlib.closing(connect(path, "process", 1 << 20)) as db,
        contextlib.closing(apsw.Connection(str(path))) as reader,
    ):
        migrations.migrate(db)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM meta").fetchall()
        put_meta(db, "a", 1)

        def busy(times: int) -> bool:
            waited.append(times)
            return False

        db.set_busy_handler(busy)
        pages, moved = maintenance.checkpoint(db)
        assert waited == []
        assert moved < pages
