"""The writer: groups, failures inside them, cancellation, closing, bounds."""

import asyncio
import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.logs import capture_logs
from tests.store.rows import get_meta, new_session, put_meta
from tidegate.errors import Conflict, Refused, StoreFailed
from tidegate.store import Db, Store, maintenance, sessions

pytestmark = pytest.mark.anyio


class Hold:
    """Keeps the writer inside a function until it is let go, so that other writes queue up behind it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()

    def __call__(self, db: Db) -> str:
        self.entered.set()
        assert self.release.wait(10)
        return "held"

    __name__ = "hold"

    async def until_entered(self) -> None:
        with anyio.fail_after(10):
            while not self.entered.is_set():
                await anyio.lowlevel.checkpoint()


def fail(db: Db, key: str, error: Exception) -> None:
    put_meta(db, key, 1)
    raise error


async def test_one_function_that_fails_undoes_its_own_writes_and_the_rest_of_its_group_commits(store: Store) -> None:
    hold = Hold()
    with anyio.fail_after(10):
        first = asyncio.ensure_future(store.write(hold))
        await hold.until_entered()
        others = [
            asyncio.ensure_future(store.write(put_meta, "a", 1)),
            asyncio.ensure_future(store.write(fail, "b", ValueError("no"))),
            asyncio.ensure_future(store.write(fail, "b", Conflict("no"))),
            asyncio.ensure_future(store.write(put_meta, "c", 3)),
        ]
        await anyio.lowlevel.checkpoint()
        hold.release.set()
        assert await first == "held"
        results = await asyncio.gather(*others, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), ValueError, Conflict, type(None)]
    assert [await store.read(get_meta, key) for key in "abc"] == [1, None, 3]
    assert store.stats().largest_group == 4


async def test_a_write_is_acknowledged_when_it_is_committed_and_not_before(path: Path) -> None:
    """P01, L20: its caller still waits at the last moment before the commit."""
    loop, commit = asyncio.get_running_loop(), threading.Event()
    reached = asyncio.Event()

    def fault(point: str, names: tuple[str, ...]) -> None:
        if (point, names) == ("before-commit", ("put_meta",)):
            loop.call_soon_threadsafe(reached.set)  # behind whatever the writer has told the loop by now
            assert commit.wait(10)

    with anyio.fail_after(10):
        async with Store.open(path, fault=fault) as store:
            write = asyncio.ensure_future(store.write(put_meta, "a", 1))
            try:
                await reached.wait()
                await anyio.lowlevel.checkpoint()
                assert not write.done()
                assert await store.read(get_meta, "a") is None
            finally:
                commit.set()
            await write
            assert await store.read(get_meta, "a") == 1


async def test_a_single_function_that_fails_leaves_nothing_and_the_next_one_works(store: Store) -> None:
    with pytest.raises(ValueError, match="no"):
        await store.write(fail, "a", ValueError("no"))
    await store.write(put_meta, "b", 2)
    assert [await store.read(get_meta, key) for key in "ab"] == [None, 2]


async def test_a_write_is_completed_though_its_caller_was_cancelled(store: Store) -> None:
    """F4: a submitted write does not depend on its caller."""
    hold = Hold()
    with anyio.fail_after(10):
        first = asyncio.ensure_future(store.write(hold))
        await hold.until_entered()
        with anyio.move_on_after(0) as scope:
            await store.write(put_meta, "a", 1)
        assert scope.cancelled_caught
        hold.release.set()
        await first
        await store.write(put_meta, "b", 1)
    assert await store.read(get_meta, "a") == 1


async def test_a_failure_whose_caller_was_cancelled_is_logged(store: Store) -> None:
    hold = Hold()
    with anyio.fail_after(10), capture_logs() as logged:
        first = asyncio.ensure_future(store.write(hold))
        await hold.until_entered()
        with anyio.move_on_after(0):
            await store.write(fail, "a", ValueError("quietly lost"))
        hold.release.set()
        await first
        await store.write(put_meta, "b", 1)
    assert [line["error"] for line in logged] == ["quietly lost"]


async def test_closing_completes_queued_writes_and_refuses_later_ones(path: Path) -> None:
    """F1, F2: the store completes the writes it has accepted before it closes."""
    hold = Hold()
    with anyio.fail_after(20):
        async with Store.open(path) as store:
            first = asyncio.ensure_future(store.write(hold))
            await hold.until_entered()
            queued = [asyncio.ensure_future(store.write(put_meta, f"k{n}", n)) for n in range(50)]
            await anyio.lowlevel.checkpoint()
            closing = asyncio.ensure_future(store.close())
            await anyio.lowlevel.checkpoint()
            with pytest.raises(StoreFailed, match="closed"):
                await store.read(get_meta, "k0")
            while store.alive:  # the readers go first
                await anyio.lowlevel.checkpoint()
            hold.release.set()
            await closing
            await asyncio.gather(first, *queued)
            with pytest.raises(StoreFailed, match="closed"):
                await store.write(put_meta, "late", 1)
            assert not store.alive
        async with Store.open(path) as store:
            assert [await store.read(get_meta, f"k{n}") for n in range(50)] == list(range(50))
            assert await store.read(get_meta, "late") is None


async def test_closing_twice_and_at_once_is_one_closing(path: Path) -> None:
    with anyio.fail_after(10):
        async with Store.open(path) as store:
            await asyncio.gather(store.close(), store.close(), store.close())
        assert not path.with_name("tidegate.db-wal").exists()


async def test_the_queue_is_bounded_and_says_so(path: Path) -> None:
    """L21: with a slow disk, writes are refused and memory stays bounded."""
    hold = Hold()
    with anyio.fail_after(10):
        async with Store.open(path, queue=5) as store:
            first = asyncio.ensure_future(store.write(hold))
            await hold.until_entered()
            queued = [asyncio.ensure_future(store.write(put_meta, f"k{n}", n)) for n in range(20)]
            await anyio.lowlevel.checkpoint()
            assert store.stats().writes_waiting == 5
            hold.release.set()
            await first
            results = await asyncio.gather(*queued, return_exceptions=True)
            refused = [result for result in results if isinstance(result, StoreFailed)]
            assert len(refused) == 16 and "5 writes waiting" in refused[0].message
            assert store.stats().writes_refused == 16
            assert store.stats().writes_waiting == 0
            await store.write(put_meta, "again", 1)


async def test_a_dead_writer_is_seen_and_keeps_nobody_waiting(path: Path) -> None:
    class Killed(BaseException):
        pass

    def fault(point: str, names: tuple[str, ...]) -> None:
        if point == "before-commit" and "put_meta" in names:
            raise Killed("by the test")

    hold = Hold()
    with anyio.fail_after(10):
        async with Store.open(path, fault=fault) as store:
            await store.write(new_session, "s_1")
            assert store.alive
            first = asyncio.ensure_future(store.write(hold))
            await hold.until_entered()
            waiting = [asyncio.ensure_future(store.write(put_meta, f"k{n}", n)) for n in range(3)]
            await anyio.lowlevel.checkpoint()
            hold.release.set()
            await first
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(result, StoreFailed) and "died" in result.message for result in results)
            assert not store.alive
            with pytest.raises(StoreFailed, match="died"):
                await store.write(put_meta, "k", 1)
            assert (await store.read(sessions.get, "s_1")) is not None


async def test_a_group_whose_commit_fails_is_tried_again_one_by_one(path: Path) -> None:
    """L18: a write that cannot be committed does not fail the others of its group."""
    seen: list[tuple[str, ...]] = []

    def fault(point: str, names: tuple[str, ...]) -> None:
        if point == "before-commit" and "fail" in names:
            seen.append(names)
            raise StoreFailed("not this one")

    def fail(db: Db) -> None:
        put_meta(db, "bad", 1)

    hold = Hold()
    with anyio.fail_after(10):
        async with Store.open(path, fault=fault) as store:
            first = asyncio.ensure_future(store.write(hold))
            await hold.until_entered()
            group = [
                asyncio.ensure_future(store.write(put_meta, "a", 1)),
                asyncio.ensure_future(store.write(fail)),
                asyncio.ensure_future(store.write(put_meta, "c", 1)),
            ]
            await anyio.lowlevel.checkpoint()
            hold.release.set()
            await first
            results = await asyncio.gather(*group, return_exceptions=True)
            assert [type(result) for result in results] == [type(None), StoreFailed, type(None)]
            assert seen == [("put_meta", "fail", "put_meta"), ("fail",)]
            assert [await store.read(get_meta, key) for key in ("a", "bad", "c")] == [1, None, 1]


async def test_a_group_is_what_was_queued_and_a_lone_write_waits_for_nobody(path: Path) -> None:
    """P22: writes that arrive during a commit form the next group; a single write is committed at once."""
    groups: list[int] = []

    def note(point: str, names: tuple[str, ...]) -> None:
        if point == "before-commit":
            groups.append(len(names))

    async with Store.open(path, fault=note) as store:
        await store.write(put_meta, "alone", 1)
        hold = Hold()
        with anyio.fail_after(10):
            first = asyncio.ensure_future(store.write(hold))
            await hold.until_entered()
            rest = [asyncio.ensure_future(store.write(put_meta, f"k{number}", 1)) for number in range(20)]
            await anyio.lowlevel.checkpoint()
            hold.release.set()
            await asyncio.gather(first, *rest)
    assert groups == [1, 1, 20]


async def test_the_fault_hook_sees_each_point_with_the_names_of_the_group(path: Path) -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []
    async with Store.open(path, fault=lambda point, names: seen.append((point, names))) as store:
        await store.write(put_meta, "a", 1)
    assert seen == [(point, ("put_meta",)) for point in ("before-write", "before-commit", "after-commit")]


async def test_a_checkpoint_runs_between_transactions_even_when_queued_among_writes(store: Store) -> None:
    hold = Hold()
    with anyio.fail_after(10):
        first = asyncio.ensure_future(store.write(hold))
        await hold.until_entered()
        jobs = [
            asyncio.ensure_future(store.write(put_meta, "a", 1)),
            asyncio.ensure_future(store.write(maintenance.checkpoint)),
            asyncio.ensure_future(store.write(put_meta, "b", 1)),
        ]
        await anyio.lowlevel.checkpoint()
        hold.release.set()
        await asyncio.gather(first, *jobs)
    assert [await store.read(get_meta, key) for key in "ab"] == [1, 1]


async def test_text_that_is_not_unicode_is_refused(store: Store) -> None:
    await store.write(new_session, "s_1")
    with pytest.raises(Refused, match="surrogate"):
        await store.write(sessions.set_title, "s_1", "half a pair: \ud800")


async def test_a_cancelled_opening_leaves_nothing_behind(path: Path) -> None:
    """L09: a store whose opening was cancelled is closed."""
    with anyio.fail_after(20):
        for _ in range(5):
            with anyio.move_on_after(0):
                async with Store.open(path):
                    pytest.fail("not reached")
        async with Store.open(path) as store:
            await store.write(put_meta, "a", 1)
            assert await store.read(get_meta, "a") == 1


async def test_fifty_openings_and_closings_leave_no_descriptor(path: Path) -> None:
    """L06: descriptors before and after are the same."""
    with anyio.fail_after(60):
        async with Store.open(path) as store:
            await store.write(put_meta, "a", 0)
        before = len(list(Path("/proc/self/fd").iterdir()))
        threads = threading.active_count()
        for number in range(50):
            async with Store.open(path) as store:
                await store.write(put_meta, "a", number)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert threading.active_count() == threads


async def test_power_durability_is_asked_of_sqlite(path: Path) -> None:
    def synchronous(db: Db) -> int:
        return int(db.execute("PRAGMA synchronous").get)

    async with Store.open(path) as store:
        assert await store.write(synchronous) == 1
    async with Store.open(path, durability="power") as store:
        assert await store.write(synchronous) == 2


async def test_a_new_file_is_readable_by_its_owner_only(store: Store) -> None:
    """X15: conversations are private to the account that runs the gateway."""
    await store.write(put_meta, "a", 1)
    for name in ("tidegate.db", "tidegate.db-wal"):
        assert store.path.with_name(name).stat().st_mode & 0o777 == 0o600


async def test_a_cancellation_while_closing_waits_for_the_end_of_it(path: Path) -> None:
    """F2: the store is closed completely even if its owner is cancelled meanwhile."""
    hold = Hold()
    with anyio.fail_after(20):
        async with Store.open(path) as store:
            first = asyncio.ensure_future(store.write(hold))
            await hold.until_entered()
            closing = asyncio.ensure_future(store.close())
            await anyio.lowlevel.checkpoint()
            for _ in range(3):
                closing.cancel()
                await anyio.lowlevel.checkpoint()
            assert not closing.done()
            hold.release.set()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert await first == "held"
            assert not path.with_name("tidegate.db-wal").exists()
