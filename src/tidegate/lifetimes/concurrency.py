"""Small concurrency primitives: single flight, gather, and a check for the cause of a cancellation.

With `SingleFlight`, one caller leads a construction and others join it. Followers get the leader's value or exception,
so a construction that fails is tried once, not once per caller. If the leader is cancelled, the followers are notified
and one of them leads a new flight. The cancellation of one caller does not affect the others. The leader owns the
construction and its deadline.

`gather` runs coroutines concurrently on behalf of the calling task. All of them have ended when it returns or raises.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import anyio

V = TypeVar("V")


def is_cancelled() -> bool:
    """True if the running task is being cancelled. A `CancelledError` raised while this is False comes from something
    that the task was waiting for, and is an ordinary failure."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def gather(jobs: Sequence[Coroutine[Any, Any, V]]) -> list[V]:
    """Returns the results in the order of the coroutines. If one fails, the others are cancelled and awaited, and its
    exception is raised."""
    results: dict[int, V] = {}

    async def run(index: int, job: Coroutine[Any, Any, V]) -> None:
        results[index] = await job

    try:
        async with anyio.create_task_group() as group:
            for index, job in enumerate(jobs):
                group.start_soon(run, index, job)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[index] for index in range(len(jobs))]


class SingleFlight(Generic[V]):
    """One construction in progress."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end: asyncio.Future[V] = asyncio.get_running_loop().create_future()

    async def lead(self, make: Callable[[], Awaitable[V]]) -> V:
        """Builds the value for this caller and all followers."""
        try:
            value = await make()
        except Exception as error:
            self._end.set_exception(error)
            self._end.exception()  # the leader raises it, so asyncio must not report it as never retrieved
            raise
        except BaseException:
            self._end.cancel()
            raise
        self._end.set_result(value)
        return value

    async def join(self) -> bool:
        """Waits for the leader. Returns False if the leader was cancelled, and raises the leader's exception if it
        failed."""
        await asyncio.wait({self._end})
        if self._end.cancelled():
            return False
        error = self._end.exception()
        if error is not None:
            raise error
        return True

    async def over(self) -> None:
        """Waits until the construction has ended, whatever its outcome."""
        await asyncio.wait({self._end})

    @property
    def value(self) -> V:
        return self._end.result()
