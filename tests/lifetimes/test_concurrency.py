"""Side by side: one flight for many, and several jobs in one wait."""

import asyncio

import anyio
import pytest

from tidegate.lifetimes import SingleFlight, gather

pytestmark = pytest.mark.anyio


async def test_joining_a_flight_gives_the_leaders_value() -> None:
    """L25: the very same object."""
    flight: SingleFlight[list[str]] = SingleFlight()
    value = ["made"]

    async def make() -> list[str]:
        await asyncio.sleep(0)
        return value

    with anyio.fail_after(5):
        leader, joined, other = await asyncio.gather(flight.lead(make), flight.join(), flight.over())
    assert leader is value and joined and other is None and flight.value is value


async def test_joining_a_flight_that_fails_raises_the_leaders_failure() -> None:
    """L25: followers do not try again."""
    flight: SingleFlight[None] = SingleFlight()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with anyio.fail_after(5):
        ends = await asyncio.gather(flight.lead(fail), flight.join(), flight.join(), return_exceptions=True)
    assert [str(end) for end in ends] == ["no", "no", "no"]


async def test_a_failure_without_followers_is_not_an_orphan() -> None:
    """L25: the leader's exception is not reported again as never retrieved."""
    flight: SingleFlight[None] = SingleFlight()

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await flight.lead(fail)


async def test_jobs_side_by_side_keep_their_order() -> None:
    """L31: all of them have ended when the wait is over."""

    async def job(number: int) -> int:
        for _ in range(5 - number):
            await asyncio.sleep(0)
        return number

    with anyio.fail_after(5):
        assert await gather([job(number) for number in range(5)]) == [0, 1, 2, 3, 4]
        assert await gather([job(0) for _ in range(0)]) == []


async def test_a_failing_job_ends_the_others_first() -> None:
    """L31: its own error arrives, when nothing runs any more."""
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("no")

    with anyio.fail_after(5), pytest.raises(KeyError):
        await gather([endless(), fail()])
    assert ended == ["endless"]
