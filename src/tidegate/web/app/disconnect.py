"""Working for a caller only as long as he is there."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

Receive = Callable[[], Awaitable[Any]]


async def unless_gone(
    receive: Receive, work: Callable[[], Awaitable[None]], *, stopping: anyio.Event | None = None
) -> bool:
    """Do the work, or leave it as soon as the caller has gone (or `stopping` is set); whether it was left."""
    left = True
    failure: Exception | None = None
    async with anyio.create_task_group() as group:

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async def stop(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        group.start_soon(gone)
        if stopping is not None:
            group.start_soon(stop, stopping)
        try:
            await work()
        except Exception as error:  # raised again below: out of the group it would come wrapped in another
            failure = error
        left = False
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return left
