"""Single flight: one caller makes a thing, the others who want the same wait for it.

Guarantee: whoever joins gets the very value, or the very failure, of the one who leads; so a failing construction is
tried once, not once per caller. A leader that is cancelled lands nothing: those who joined are told so, and one of them
leads a new flight. Nobody's cancellation reaches anybody else. The leader owns the construction and its deadline; a
joined flight ends with it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class SingleFlight(Generic[V]):
    """One construction under way."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end: asyncio.Future[V] = asyncio.get_running_loop().create_future()

    async def lead(self, make: Callable[[], Awaitable[V]]) -> V:
        """Make the value, for the caller and for all who join."""
        try:
            value = await make()
        except Exception as error:
            self._end.set_exception(error)
            self._end.exception()  # the leader raises it: without followers it must not count as never retrieved
            raise
        except BaseException:
            self._end.cancel()
            raise
        self._end.set_result(value)
        return value

    async def join(self) -> bool:
        """Wait for the end; False if the leader was cancelled. A failure of the leader is raised."""
        await asyncio.wait({self._end})
        if self._end.cancelled():
            return False
        error = self._end.exception()
        if error is not None:
            raise error
        return True

    async def over(self) -> None:
        """Wait for the end, whichever it is."""
        await asyncio.wait({self._end})

    @property
    def value(self) -> V:
        return self._end.result()
