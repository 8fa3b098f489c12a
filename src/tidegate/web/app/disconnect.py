"""Work that stops when its client disconnects."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

Receive = Callable[[], Awaitable[Any]]


async def run_until_disconnect(
    receive: Receive, work: Callable[[], Awaitable[None]], *, stopping: anyio.Event | None = None
) -> bool:
    """Does the work, but cancels it when the client disconnects or `stopping` is set. Returns True if it was
    cancelled."""
    cancelled = True
    failure: Exception | None = None
    async with anyio.create_task_group() as group:

        async def watch_client() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async def watch_event(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        group.start_soon(watch_client)
        if stopping is not None:
            group.start_soon(watch_event, stopping)
        try:
            await work()
        except Exception as error:  # raised again below, since the task group would wrap it in an exception group
            failure = error
        cancelled = False
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return cancelled
