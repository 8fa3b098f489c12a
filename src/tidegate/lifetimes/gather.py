"""Several coroutines side by side, inside the task that waits for them.

Guarantee: all have ended when `gather` returns or raises; if one fails, the others are cancelled and awaited first and
its own error is raised; results come in the order of the coroutines.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def gather(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    results: dict[int, T] = {}

    async def keep(index: int, job: Coroutine[Any, Any, T]) -> None:
        results[index] = await job

    try:
        async with anyio.create_task_group() as group:
            for index, job in enumerate(jobs):
                group.start_soon(keep, index, job)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[index] for index in range(len(jobs))]
