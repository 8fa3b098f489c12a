"""A scope ends everything that was acquired through it, in order, within its deadline, and loses no error."""

import asyncio
import contextlib
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from tests.logs import capture_logs
from tidegate.lifetimes import Ledger, Scope, ScopeClosed

pytestmark = pytest.mark.anyio

PROMPT = 0.05
"""A deadline that a test waits out."""


async def forever() -> None:
    await asyncio.Event().wait()


async def stubborn(end: asyncio.Event) -> None:
    """Ignores every cancellation until it is told to end."""
    while not end.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await end.wait()


async def test_closing_goes_children_first_then_tasks_then_callbacks_in_reverse() -> None:
    """L01, L31: one order of teardown for every caller."""
    order: list[str] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            order.append("task")

    @contextlib.asynccontextmanager
    async def resource(name: str) -> AsyncIterator[str]:
        yield name
        order.append(name)

    async def last() -> None:
        order.append("callback")

    with anyio.fail_after(5):
        async with Scope("house") as house:
            assert await house.enter(resource("first")) == "first"
            await house.enter(resource("second"))
            house.on_close(last, name="callback")
            child_one, child_two = house.child("one"), house.child("two")
            child_one.on_close(lambda: order.append("child one"), name="mark")
            child_two.on_close(lambda: order.append("child two"), name="mark")
            house.start(work, name="work")
            await asyncio.sleep(0)
    assert order == ["child two", "child one", "task", "callback", "second", "first"]
    assert house.closed and child_one.closed and child_two.closed


async def test_every_error_of_closing_arrives_in_one_group_and_names_its_step() -> None:
    """A10, L01: a failure to close one thing keeps nothing else from closing."""
    closed: list[str] = []

    def fail(name: str) -> None:
        closed.append(name)
        raise ValueError(name)

    async def fail_later() -> None:
        await asyncio.sleep(0)
        fail("awaited")

    async def fail_when_cancelled() -> None:
        try:
            await forever()
        finally:
            fail("task")

    house = Scope("house")
    house.on_close(lambda: fail("called"), name="a call")
    house.on_close(fail_later, name="an await")
    house.child("room").on_close(lambda: fail("child"), name="a child's call")
    house.start(fail_when_cancelled, name="worker")
    await asyncio.sleep(0)
    with anyio.fail_after(5), pytest.raises(ExceptionGroup) as caught:
        await house.close()
    assert [str(error) for error in caught.value.exceptions] == ["child", "task", "awaited", "called"] == closed
    notes = [error.__notes__[0] for error in caught.value.exceptions]
    assert "a child's call of scope 'house / room'" in notes[0] and "'worker'" in notes[1] and "an await" in notes[2]
    await house.close()


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError()], ids=["raises", "is cancelled"])
async def test_a_synchronous_closer_that_raises_keeps_nothing_else_open(error: BaseException) -> None:
    """L01, L06: earlier resources, also of the parent, are closed after it, and the failure is reported once."""
    closed: list[str] = []

    def fail() -> None:
        raise error

    @contextlib.contextmanager
    def failing() -> Iterator[None]:
        yield
        raise error

    house = Scope("house")
    house.on_close(lambda: closed.append("house"), name="first")
    room = house.child("room")
    room.on_close(lambda: closed.append("room"), name="first")
    room.on_close(fail, name="a failing call")
    await room.enter(failing())
    room.on_close(lambda: closed.append("last"), name="last")
    with anyio.fail_after(5), pytest.raises(BaseExceptionGroup) as caught:
        await house.close()
    assert closed == ["last", "room", "house"]
    assert caught.value.exceptions == (error, error)
    assert house.closed and room.closed


async def test_concurrent_closers_wait_for_the_same_end_and_one_gets_the_errors() -> None:
    """L01: closing is idempotent, and nobody returns from it too early."""
    begun, release = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    async def slow() -> None:
        begun.set()
        calls.append(1)
        await release.wait()
        raise ValueError("told once")

    house = Scope("house")
    house.on_close(slow, name="slow")
    closers = [asyncio.ensure_future(house.close()) for _ in range(5)]
    with anyio.fail_after(5):
        await begun.wait()
        assert not any(closer.done() for closer in closers)
        release.set()
        ends = await asyncio.gather(*closers, return_exceptions=True)
    assert calls == [1]
    assert [type(end) for end in ends] == [ExceptionGroup, *[type(None)] * 4]


async def test_closing_continues_if_the_caller_is_cancelled() -> None:
    """L23, L31: cancellation of the closer neither stops the closing nor hides its failures."""
    release, begun = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def slow() -> None:
        begun.set()
        await release.wait()
        done.append("slow")
        raise ValueError("nobody left to raise it to")

    house = Scope("house")
    house.on_close(lambda: done.append("after"), name="after")
    house.on_close(slow, name="slow")
    closer = asyncio.ensure_future(house.close())
    with anyio.fail_after(5), capture_logs() as logged:
        await begun.wait()
        for _ in range(3):
            closer.cancel()
            await asyncio.sleep(0)
        assert not closer.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await closer
    assert done == ["slow", "after"] and house.closed
    assert "nobody left" in str(logged)


async def test_closing_goes_on_inside_a_cancelled_cancel_scope() -> None:
    """L31: a timeout around the closing does not cut it short."""
    done: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.02)
        done.append("slow")

    house = Scope("house")
    house.on_close(slow, name="slow")
    with anyio.fail_after(5), anyio.CancelScope() as cancelled:
        cancelled.cancel()
        await house.close()
    assert done == ["slow"] and house.closed


async def test_one_deadline_holds_for_all_and_what_is_stuck_is_named() -> None:
    """L01, L31: a task and a callback that resist are reported and left behind, the rest is closed."""
    end = asyncio.Event()
    closed: list[str] = []
    house = Scope("house", close_within=PROMPT)
    house.on_close(lambda: closed.append("last"), name="last")
    house.on_close(lambda: stubborn(end), name="stuck callback")
    house.on_close(forever, name="endless callback")
    room = house.child("room", close_within=1000)
    resisting = room.start(stubborn, end, name="stuck task")
    await asyncio.sleep(0)
    with anyio.fail_after(20), pytest.raises(ExceptionGroup) as caught:
        await house.close()
    assert all(isinstance(error, TimeoutError) for error in caught.value.exceptions)
    notes = " ".join(note for error in caught.value.exceptions for note in error.__notes__)
    assert "stuck task" in notes and "stuck callback" in notes and "endless callback" in notes
    assert closed == ["last"] and house.closed and room.closed
    end.set()
    with anyio.fail_after(5):
        await resisting


async def test_a_patient_task_finishes_before_the_scope_is_closed() -> None:
    """A10: a release that is under way is not cut off."""
    done: list[str] = []
    go = asyncio.Event()

    async def finish() -> None:
        await go.wait()
        done.append("finished")

    house = Scope("house")
    house.start(finish, name="finish", at_close="finish")
    closing = asyncio.ensure_future(house.close())
    with anyio.fail_after(5):
        await asyncio.sleep(0)
        go.set()
        await closing
    assert done == ["finished"]


async def test_a_task_that_fails_is_reported_with_its_name() -> None:
    """L31: a failure in the background is never lost."""
    reported: list[tuple[str, str]] = []

    async def fail() -> None:
        raise ValueError("broken")

    with anyio.fail_after(5):
        async with Scope("house", on_error=lambda name, error: reported.append((name, str(error)))) as house:
            room = house.child("room")
            task = room.start(fail, name="worker")
            await asyncio.wait({task})
            await asyncio.sleep(0)
    assert reported == [("house / room / worker", "broken")]


async def test_a_failing_task_is_logged_by_default() -> None:
    """L31: without a listener the log has it."""

    async def fail() -> None:
        raise ValueError("broken")

    with capture_logs() as logged:
        async with Scope("house") as house:
            with anyio.fail_after(5):
                await asyncio.wait({house.start(fail, name="worker")})
                await asyncio.sleep(0)
    assert [(line["level"], "house / worker failed" in line["event"]) for line in logged] == [("error", True)]
    assert "ValueError('broken')" in str(logged)


async def test_a_closed_scope_takes_nothing_more() -> None:
    """L31: nothing can be started, entered, registered, opened or held after the end."""
    house = Scope("house")
    await house.close()
    with pytest.raises(ScopeClosed, match="'house' is closed"):
        house.start(forever, name="late")
    with pytest.raises(ScopeClosed):
        await house.enter(contextlib.nullcontext())
    with pytest.raises(ScopeClosed):
        house.on_close(lambda: None, name="late")
    with pytest.raises(ScopeClosed):
        house.child("late")
    with pytest.raises(ScopeClosed):
        house.hold("late")
    await house.close()


async def test_what_is_opened_while_the_scope_closes_is_closed_at_once() -> None:
    """L09, L31: a resource that arrives too late still has an owner."""
    opening, go = asyncio.Event(), asyncio.Event()
    closed: list[str] = []

    @contextlib.asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        opening.set()
        await go.wait()
        yield
        closed.append("slow")

    house = Scope("house")
    entering = asyncio.ensure_future(house.enter(slow()))
    with anyio.fail_after(5):
        await opening.wait()
        await house.close()
        go.set()
        with pytest.raises(ScopeClosed):
            await entering
    assert closed == ["slow"]


async def test_synchronous_context_managers_are_entered_too() -> None:
    """L06: every handle comes from a scope that closes it."""
    seen: list[str] = []

    @contextlib.contextmanager
    def plain() -> Iterator[str]:
        yield "value"
        seen.append("left")

    async with Scope("house") as house:
        assert await house.enter(plain()) == "value"
    assert seen == ["left"]


async def test_the_bodys_error_is_not_masked_by_an_error_of_closing() -> None:
    """L23: the body's failure or cancellation propagates."""
    reported: list[str] = []

    def fail() -> None:
        raise ValueError("closing")

    with pytest.raises(KeyError):
        async with Scope("turn", on_error=lambda _, error: reported.append(str(error))) as turn:
            turn.on_close(fail, name="fail")
            raise KeyError("body")
    assert reported == ["closing"]


async def test_a_task_cannot_close_the_scope_that_it_runs_in() -> None:
    """L31: a task that would wait for its own end is refused at once."""
    async with Scope("house") as house:
        room = house.child("room")
        task = room.start(house.close, name="suicide")
        with anyio.fail_after(5), pytest.raises(RuntimeError, match="its own end"):
            await task


async def test_a_closed_scope_is_not_kept_alive_by_anything() -> None:
    """L07: weak references to a scope, its task's data and its callbacks die without the garbage collector."""

    class Payload:
        def touch(self) -> None: ...

    async def use(payload: Payload) -> None:
        payload.touch()
        await forever()

    house = Scope("house")
    room: Scope | None = house.child("session s_1")
    payload: Payload | None = Payload()
    assert room is not None and payload is not None
    remembered: list[weakref.ref[Any]] = [weakref.ref(room), weakref.ref(payload)]
    room.start(use, payload, name="user")
    room.on_close(payload.touch, name="touch")
    await asyncio.sleep(0)
    await room.close()
    room = payload = None
    await asyncio.sleep(0)
    gc.collect()
    assert [ref() for ref in remembered] == [None, None]
    await house.close()


async def test_after_close_no_task_mentions_the_session() -> None:
    """L31: tasks end with their scope."""
    async with Scope("house") as house:
        room = house.child("session s_42")
        for number in range(20):
            room.start(forever, name=f"work {number} of s_42")
        await asyncio.sleep(0)
        with anyio.fail_after(5):
            await room.close()
        assert not [task for task in asyncio.all_tasks() if "s_42" in repr(task)]


async def test_a_task_starts_with_an_empty_context() -> None:
    """L07, L26: nothing ambient of the starter reaches the task, nor is pinned by it."""
    ambient: contextvars.ContextVar[str] = contextvars.ContextVar("ambient", default="nothing")
    ambient.set("the starter's")

    async def look() -> str:
        return ambient.get()

    async with Scope("house") as house:
        with anyio.fail_after(5):
            assert await house.start(look, name="look") == "nothing"


async def test_what_a_scope_holds_is_in_the_ledger_until_it_closes() -> None:
    """L06, L31: the account ends with the lifetime."""
    ledger = Ledger()
    async with Scope("process", account=ledger.account("process")) as process:
        async with process.child("session s_1") as session:
            session.hold("buffer", bytes=100)
            hold = session.child("turn t_1").hold("socket", fds=1)
            assert ledger.totals()["buffer"].bytes == 100
            assert [name for name, _ in ledger.owners()] == [
                "process / session s_1",
                "process / session s_1 / turn t_1",
            ]
        assert not ledger.owners() and not hold.held
        assert ledger.totals()["socket"].fds == 0


async def test_an_empty_scope_needs_no_task_to_close() -> None:
    """A13: a lifetime per turn costs next to nothing, since there is nothing to wait for."""
    house = Scope("house")
    before = asyncio.all_tasks()
    closing = house.child("turn").close()
    with pytest.raises(StopIteration):
        closing.send(None)
    assert asyncio.all_tasks() == before
    await house.close()
