"""A thread with a connection, and the queue that feeds it."""

import asyncio
import threading

import anyio
import apsw
import pytest

from tests.logs import capture_logs
from tidegate.errors import StoreFailed
from tidegate.store.sqlite.worker import Backlog, Job, Worker

pytestmark = pytest.mark.anyio

WAIT = 20


def job() -> Job:
    return Job(lambda db: None, (), {}, asyncio.get_running_loop().create_future())


def memory() -> apsw.Connection:
    return apsw.Connection(":memory:")


async def test_a_worker_that_dies_reports_why_and_closes_its_connection() -> None:
    """L09: however a thread ends, it leaves nothing open and nobody waiting."""
    told: list[str | None] = []
    held: list[apsw.Connection] = []

    def work(db: apsw.Connection) -> None:
        held.append(db)
        raise MemoryError("no more")

    worker = Worker("one", open=memory, work=work, over=told.append)
    with anyio.fail_after(WAIT), capture_logs() as logged:
        await worker.start()
        assert await Worker.stop([worker], WAIT)
    assert len(told) == 1 and told[0] is not None and "MemoryError: no more" in told[0]
    assert ["MemoryError: no more" in line["event"] for line in logged] == [True]
    assert not worker.alive and not worker.connected
    with pytest.raises(apsw.ConnectionClosedError):
        held[0].execute("SELECT 1")


async def test_a_worker_that_cannot_open_reports_why() -> None:
    def fail() -> apsw.Connection:
        raise PermissionError("not yours")

    told: list[str | None] = []
    worker = Worker("one", open=fail, work=lambda db: None, over=told.append)
    with anyio.fail_after(WAIT):
        with pytest.raises(StoreFailed, match="not yours"):
            await worker.start()
        assert await Worker.stop([worker], WAIT)
    assert told == [None]


async def test_stopping_waits_for_a_thread_no_longer_than_it_may() -> None:
    """L09: and a worker that was never started counts as stopped."""
    release = threading.Event()

    def work(db: apsw.Connection) -> None:
        release.wait(WAIT)

    busy = Worker("busy", open=memory, work=work, over=lambda dead: None)
    idle = Worker("idle", open=memory, work=lambda db: None, over=lambda dead: None)
    with anyio.fail_after(WAIT):
        await busy.start()
        assert not await Worker.stop([busy, idle], 0.01)
        release.set()
        assert await Worker.stop([busy, idle], WAIT)


async def test_a_backlog_refuses_jobs_beyond_its_bound_and_after_it_is_closed() -> None:
    """L21: the refusal gives the reason; jobs accepted before are completed."""
    backlog: Backlog[Job] = Backlog(2, "writes")
    with pytest.raises(StoreFailed, match="not open"):
        backlog.add(job())
    backlog.open()
    first, second = job(), job()
    backlog.add(first)
    backlog.add(second)
    with pytest.raises(StoreFailed, match="2 writes waiting"):
        backlog.add(job())
    assert (backlog.waiting, backlog.refused, backlog.peek()) == (2, 1, 2)
    backlog.waiting -= 1
    backlog.close(workers=1)
    with pytest.raises(StoreFailed, match="closed"):
        backlog.add(job())
    assert [backlog.take(), backlog.take(), backlog.take()] == [first, second, None]


async def test_a_backlog_without_workers_returns_its_waiting_jobs() -> None:
    backlog: Backlog[Job] = Backlog(2, "reads")
    backlog.open()
    waiting = job()
    backlog.add(waiting)
    backlog.close(workers=2)
    assert backlog.abandon("They have died.") == [waiting]
    with pytest.raises(StoreFailed, match="They have died"):
        backlog.add(job())
