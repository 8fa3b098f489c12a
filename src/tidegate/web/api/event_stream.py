"""A conversation as a resumable stream of server-sent events.

The stream opens immediately. A reader that reconnects with the last id it received misses no row. A reader that
disconnects or stops reading is dropped and may reconnect. The stream ends when the gateway stops or the reader's key or
sign-in is revoked. The number of open streams is limited, in total and per principal, and a share of them is reserved
for the owner.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import aclosing, contextmanager
from functools import partial

import anyio
import msgspec

from tidegate.config import LimitSettings
from tidegate.errors import Busy, Refused
from tidegate.sessions import Sessions
from tidegate.values import Event
from tidegate.web.app import sse
from tidegate.web.app.auth import Caller
from tidegate.web.app.disconnect import run_until_disconnect
from tidegate.web.app.endpoint import Request
from tidegate.web.app.http_response import HttpResponse

RETRY_SECONDS = 5
"""The value of Retry-After, in seconds, when a stream is refused. It is only an estimate, since streams end whenever
users close a page."""
LATEST_PLACE = 2**53
"""An id higher than the id of any row, for readers that want only new events."""


class EventStream:
    def __init__(self, service: Sessions, streams: sse.OpenStreams, limits: LimitSettings) -> None:
        self._service = service
        self._limits = limits
        self._streams = streams
        self._encode = msgspec.json.Encoder().encode
        self._stopping = False
        self._ends: dict[anyio.Event, str] = {}  # one for each open stream, with the id of its reader's key or sign-in
        self._open: Counter[str] = Counter()  # by principal; together at most limits.event_streams

    @property
    def open(self) -> int:
        return self._open.total()

    def stop(self) -> None:
        """Closes all streams because the gateway is stopping."""
        self._stopping = True
        for end in self._ends:
            end.set()

    def end(self, keys: Collection[str]) -> None:
        """Closes the streams of readers with these keys or sign-ins."""
        for end, key in self._ends.items():
            if key in keys:
                end.set()

    async def follow(self, request: Request) -> HttpResponse | None:
        after = _place(request.headers.get(b"last-event-id"))
        # Counted before anything is awaited, so that revoking the key from now on closes this stream, too.
        with self._counted(request.caller) as end:
            # A refusal is raised before the response begins.
            await self._service.session(request.path["id"], request.caller.principal)
            if request.method == "HEAD":
                return HttpResponse(200, sse.HEADERS, b"")
            async with sse.Stream(request.send, self._streams, []) as stream:
                await stream.write(sse.comment("open"))
                cancelled = await run_until_disconnect(
                    request.receive, partial(self._send_events, request, stream, after), stopping=end
                )
                if end.is_set():
                    await stream.finish(sse.comment("the gateway is stopping" if self._stopping else "signed out"))
                elif not cancelled:
                    await stream.finish(sse.comment("the session has ended"))
        return None

    @contextmanager
    def _counted(self, caller: Caller) -> Iterator[anyio.Event]:
        """Counts one more stream for the caller's principal, or raises `Busy`. The yielded event is set when the stream
        must end."""
        who, most, each = caller.principal.id, self._limits.event_streams, self._limits.event_streams_each
        if self._open[who] >= each:
            raise _too_many(f"You have {each} event streams open (limits.event_streams_each)")
        if self.open >= (most if caller.principal.may("configure") else most - min(each, most // 2)):
            raise _too_many(f"{self.open} of at most {most} event streams are open (limits.event_streams)")
        self._open[who] += 1
        end = anyio.Event()
        self._ends[end] = caller.key
        if self._stopping:
            end.set()
        try:
            yield end
        finally:
            del self._ends[end]
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    async def _send_events(self, request: Request, stream: sse.Stream, after: int) -> None:
        watched = self._service.watch(request.path["id"], request.caller.principal, after)
        async with aclosing(watched) as events:
            async for id, event in events:
                await stream.write(self._event(id, event))

    def _event(self, id: int | None, event: Event) -> bytes:
        return sse.event(str(event.__struct_config__.tag), self._encode(event), id=id)


def _too_many(what: str) -> Busy:
    return Busy(f"{what}; close one, or try again later.", retry_after=RETRY_SECONDS, code="too_many_streams")


def _place(value: bytes | None) -> int:
    if value is None or not value.strip():
        return 0
    text = value.strip()
    if not text.isdigit() or len(text) > 16:
        raise Refused("Last-Event-ID must be the id of an event in this stream.", param="Last-Event-ID")
    return min(int(text), LATEST_PLACE)
