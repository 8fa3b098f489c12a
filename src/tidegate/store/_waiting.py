"""Waiting on the loop for what threads do.

Guarantee: `outlast` returns or raises only when the futures are done or the time is over; a cancellation that comes
meanwhile is passed on afterwards, so that who closes a thing leaves no half-closed thing behind.
"""

import asyncio
from collections.abc import Sequence


async def outlast(futures: "Sequence[asyncio.Future[None]]", seconds: float) -> bool:
    """Whether all are done within the time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    cancelled: asyncio.CancelledError | None = None
    while (waiting := [future for future in futures if not future.done()]) and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait(waiting, timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return not waiting


def tell(future: "asyncio.Future[None]", error: BaseException | None) -> None:
    """Resolves the future, unless who waited for it has gone."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
