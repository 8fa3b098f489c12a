"""A conversation as a stream of events that can be left and taken up again.

Guarantee: the stream opens at once; a reader that comes back with the last id it saw misses no row; one that leaves, or
takes nothing, is let go and can come back; when the gateway stops, the stream ends and the reader comes back to the
next one. The number of open streams is bounded.
"""

from contextlib import aclosing
from functools import partial

import anyio
import msgspec

from tidegate.errors import Busy, Refused
from tidegate.sessions import Sessions
from tidegate.values import Event
from tidegate.web import sse
from tidegate.web.connection import unless_gone
from tidegate.web.endpoint import Ask
from tidegate.web.errors import Answer

MOST_STREAMS = 512
"""Open streams: each is a connection, and descriptors are for conversations too."""
LATEST_PLACE = 2**53
"""An id above every row's, for who wants only what happens from now on."""


class Events:
    def __init__(self, door: Sessions, pulse: sse.Pulse) -> None:
        self._door = door
        self._pulse = pulse
        self._encode = msgspec.json.Encoder().encode
        self._stopping = anyio.Event()
        self.open = 0

    def stop(self) -> None:
        """Let every reader go: the gateway is stopping."""
        self._stopping.set()

    async def follow(self, ask: Ask) -> Answer | None:
        after = _place(ask.headers.get(b"last-event-id"))
        await self._door.session(ask.path["id"], ask.caller.principal)  # a refusal comes before the response begins
        if ask.method == "HEAD":
            return Answer(200, sse.HEADERS, b"")
        if self.open >= MOST_STREAMS:
            raise Busy(f"{MOST_STREAMS} event streams are open already; close some.", code="too_many_streams")
        self.open += 1
        try:
            async with sse.Stream(ask.send, self._pulse, []) as stream:
                await stream.write(sse.comment("open"))
                left = await unless_gone(ask.receive, partial(self._tell, ask, stream, after), stopping=self._stopping)
                if self._stopping.is_set():
                    await stream.finish(sse.comment("the gateway is stopping"))
                elif not left:
                    await stream.finish(sse.comment("the session has ended"))
        finally:
            self.open -= 1
        return None

    async def _tell(self, ask: Ask, stream: sse.Stream, after: int) -> None:
        watched = self._door.watch(ask.path["id"], ask.caller.principal, after)
        async with aclosing(watched) as events:
            async for id, event in events:
                await stream.write(self._event(id, event))

    def _event(self, id: int | None, event: Event) -> bytes:
        return sse.event(str(event.__struct_config__.tag), self._encode(event), id=id)


def _place(value: bytes | None) -> int:
    if value is None or not value.strip():
        return 0
    text = value.strip()
    if not text.isdigit() or len(text) > 16:
        raise Refused("Last-Event-ID must be the id of an event of this stream.", param="Last-Event-ID")
    return min(int(text), LATEST_PLACE)
