"""A transport that records the model traffic passing through it.

Requests and answers are never affected, even if the file cannot be written. Each exchange is recorded when it starts
and again when it ends, successfully or not. Secrets are removed before anything reaches the disk. The recorder owns its
file while it is entered; the underlying transport belongs to the caller.
"""

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anyio import to_thread

from tidegate.http_client import (
    ConnectionFailed,
    DeliveryByReading,
    IncomingResponse,
    Lease,
    Target,
    Timeouts,
    Transport,
)
from tidegate.models.recording.recording_file import (
    BODY_BYTES,
    FILE_BYTES,
    End,
    RecordedAnswer,
    RecordedPiece,
    RecordedRequest,
    digest,
    now,
)
from tidegate.models.recording.redaction import redacted_body, redacted_head, redacted_headers, redacted_pieces
from tidegate.models.recording.writer import RecordingWriter
from tidegate.security import Redactor
from tidegate.status_report import RecorderStatus


class TransportRecorder:
    """Records the traffic of another transport. `referred` contains the lower-case names of headers whose values are
    references to secrets in the settings."""

    def __init__(
        self,
        transport: Transport,
        path: Path,
        redactor: Redactor,
        *,
        referred: Collection[str] = (),
        body_bytes: int = BODY_BYTES,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._transport = transport
        self._redactor = redactor
        self._referred = frozenset(referred)
        self._body_bytes = body_bytes
        self._exchanges = 0
        self.writer = RecordingWriter(path, file_bytes)

    async def __aenter__(self) -> Self:
        await to_thread.run_sync(self.writer.open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_thread.run_sync(self.writer.close)

    def lease(self, endpoint: str) -> Lease:
        return self._transport.lease(endpoint)

    def status(self) -> RecorderStatus:
        return RecorderStatus(
            file=str(self.writer.path),
            exchanges=self._exchanges,
            bytes=self.writer.bytes,
            stopped=self.writer.stopped,
        )

    async def request(self, target: Target, body: Sequence[bytes], waits: Timeouts) -> IncomingResponse:
        if self.writer.stopped is not None:
            return await self._transport.request(target, body, waits)
        self._exchanges += 1
        exchange = _Exchange(self.writer, self._exchanges, self._redactor, self._body_bytes)
        size = sum(map(len, body))
        number, when, sent = self._exchanges, now(), tuple(body)
        self.writer.write(lambda: self._asked(number, when, target, sent, size), size)
        try:
            response = await self._transport.request(target, body, waits)
        except ConnectionFailed as failure:
            exchange.end(failure.trouble, failure.said)
            raise
        except BaseException:
            exchange.end("left")
            raise
        return _Recorded(response, exchange)

    def _asked(self, number: int, when: str, target: Target, body: Sequence[bytes], size: int) -> RecordedRequest:
        """Returns the line for a request. Runs in the writer's thread."""
        origin, path, headers = redacted_head(target, self._referred, self._redactor)
        content = redacted_body(b"".join(body), self._redactor)
        left_out = size if size > self._body_bytes else 0
        return RecordedRequest(
            id=number,
            time=when,
            origin=origin,
            method=target.method,
            path=path,
            headers=headers,
            body=None if left_out else content,
            left_out=left_out,
            digest=digest(content) if left_out else "",
        )


class _Exchange:
    """The response to one request, as it arrives."""

    def __init__(self, writer: RecordingWriter, number: int, redactor: Redactor, most_bytes: int) -> None:
        self._writer = writer
        self._number = number
        self._redactor = redactor
        self._most = most_bytes
        self._began = time.monotonic()
        self._pieces: list[tuple[int, bytes]] = []
        self._held = 0
        self._left_out = 0
        self._ended = False

    @property
    def _after(self) -> int:
        return round(1000 * (time.monotonic() - self._began))

    def take(self, data: bytes) -> None:
        """Records a piece of the body. Once a piece has been left out, all later pieces are left out as well."""
        if self._ended or self._writer.stopped is not None:
            return
        if self._left_out or self._held + len(data) > self._most:
            self._left_out += len(data)
            return
        self._pieces.append((self._after, data))
        self._held += len(data)

    def end(self, end: End, said: str = "", response: IncomingResponse | None = None) -> None:
        """Writes the line for the answer. Only the first call has an effect."""
        if self._ended:
            return
        self._ended = True
        status, headers = (0, {}) if response is None else (response.status, dict(response.headers))
        number, after, pieces, left_out, redactor = (
            self._number, self._after, self._pieces, self._left_out, self._redactor,
        )  # fmt: skip
        self._pieces = []

        def make() -> RecordedAnswer:
            told, missing = pieces, left_out
            try:
                stripped = redacted_pieces([data for _, data in told], redactor, cut=end != "complete" or missing > 0)
            except RecursionError:  # the body cannot be searched for secrets, so it is not written
                told, stripped, missing = [], [], missing + sum(len(data) for _, data in told)
            return RecordedAnswer(
                id=number,
                after=after,
                end=end,
                said=redactor.text(said),
                status=status,
                headers=redacted_headers(headers, redactor),
                pieces=[RecordedPiece.of(when, data) for (when, _), data in zip(told, stripped, strict=True)],
                left_out=missing,
            )

        self._writer.write(make, self._held)


class _Recorded(DeliveryByReading):
    """A wrapper around a response that records what is read from it."""

    def __init__(self, response: IncomingResponse, exchange: _Exchange) -> None:
        self._response = response
        self._exchange = exchange

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Any:
        return self._response.headers

    @property
    def content_type(self) -> str:
        return self._response.content_type

    @property
    def complete(self) -> bool:
        return self._response.complete

    async def read(self) -> bytes:
        try:
            data = await self._response.read()
        except ConnectionFailed as failure:
            self._exchange.end(failure.trouble, failure.said, self._response)
            raise
        self._exchange.take(data) if data else None
        return data

    def close(self) -> None:
        self._exchange.end("complete" if self._response.complete else "left", "", self._response)
        self._response.close()
