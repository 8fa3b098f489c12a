"""A transport that replays a recording in place of the network.

A request gets the answer recorded for the same request (method, path and JSON body): the same pieces or the same
failure, without delays. Equal requests get their answers in the recorded order; after that, the last answer is
repeated. A request that was not recorded fails with an error that describes the first difference from the nearest
recorded one. No connection is ever opened. Only the positions of lines are kept in memory; the lines are read when
needed.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from anyio import to_thread

from tidegate.errors import Misconfigured, ModelFailed
from tidegate.http_client import ConnectionFailed, DeliveryByReading, IncomingResponse, Lease, Target, Timeouts
from tidegate.models.http.error_body import retry_after_of
from tidegate.models.http.retry import RetryPolicy
from tidegate.models.recording.difference import Difference, described
from tidegate.models.recording.recording_file import RecordedAnswer, RecordedRequest, digest, event_at, events
from tidegate.models.recording.redaction import redacted_body, redacted_head, redacted_value
from tidegate.security import Redactor
from tidegate.status_report import ReplayerStatus

COMPARED_BYTES = 32 * 1024 * 1024
"""Maximum number of bytes of recorded requests that are compared to find the nearest one. Comparing them takes about a
second."""

Place = tuple[int, int]
Request = tuple[str, str, str]
"""The method, the path and the body's digest."""


class _Exchange:
    """The positions of an exchange's two lines. There is no answer if the gateway was killed before the exchange
    ended."""

    __slots__ = ("answer", "key", "number", "request", "when")

    def __init__(self, number: int, key: Request, when: str, request: Place) -> None:
        self.number = number
        self.key = key
        self.when = when
        self.request = request
        self.answer: Place | None = None


class TransportReplayer:
    def __init__(self, path: Path, redactor: Redactor) -> None:
        self._path = path
        self._redactor = redactor
        self._leases: Counter[str] = Counter()
        self._exchanges: list[_Exchange] = []  # lint: allow bounded by the size of the file
        self._equal: dict[Request, list[_Exchange]] = {}  # lint: allow the same, by request
        self._answers: dict[Request, int] = {}  # lint: allow one entry for each exchange in the file
        self._replayed = self._again = self._unknown = 0

    @property
    def retry_policy(self) -> RetryPolicy:
        """The policy for replayed models: the usual number of retries, without pauses."""
        return RetryPolicy(sleep=_no_pause)

    def open(self) -> None:
        """Opens the recording and indexes its lines. Blocks the calling thread."""
        unanswered: dict[int, _Exchange] = {}
        for start, size, event in events(self._path):
            if isinstance(event, RecordedRequest):
                body = event.digest or self._digest(event)
                exchange = _Exchange(event.id, (event.method, event.path, body), event.time, (start, size))
                self._exchanges.append(exchange)
                self._equal.setdefault(exchange.key, []).append(exchange)
                unanswered[event.id] = exchange
            elif isinstance(event, RecordedAnswer) and (open_exchange := unanswered.pop(event.id, None)) is not None:
                open_exchange.answer = (start, size)
        if not self._exchanges:
            raise Misconfigured(f"{self._path} contains no requests to replay; name another recording.")

    def _digest(self, asked: RecordedRequest) -> str:
        try:
            return digest(redacted_value(asked.body, self._redactor))
        except RecursionError:
            raise Misconfigured(
                f"{self._path} is damaged: its request {asked.id} cannot be read; get a new copy of the file."
            ) from None

    def lease(self, endpoint: str) -> Lease:
        """Returns a lease that counts nothing, since there are no connections."""
        return Lease(endpoint, self._leases)

    def status(self) -> ReplayerStatus:
        return ReplayerStatus(
            file=str(self._path),
            exchanges=len(self._exchanges),
            replayed=self._replayed,
            again=self._again,
            unknown=self._unknown,
        )

    async def request(self, target: Target, body: Sequence[bytes], waits: Timeouts) -> IncomingResponse:
        asked, key = await to_thread.run_sync(self._read, target, tuple(body))
        equal = self._equal.get(key)
        if equal is None:
            self._unknown += 1
            raise await to_thread.run_sync(self._not_recorded, key, asked)
        count = self._answers[key] = self._answers.get(key, 0) + 1
        self._replayed += 1
        self._again += count > len(equal)
        exchange = equal[min(count, len(equal)) - 1]
        if exchange.answer is None:
            raise self._unanswered(exchange, "the gateway that was recording exited before the answer ended")
        answered, pieces = await to_thread.run_sync(self._answer, exchange.answer)
        if not answered.status:
            if answered.end == "left" or answered.end == "complete":
                raise self._unanswered(exchange, "the request was cancelled before an answer started")
            raise ConnectionFailed(answered.end, answered.said)
        return ReplayedResponse(self._path, answered, pieces, _as_then(answered.headers, exchange.when))

    def _read(self, target: Target, body: Sequence[bytes]) -> tuple[Any, Request]:
        _, path, _ = redacted_head(target, (), self._redactor)
        content = redacted_body(b"".join(body), self._redactor)
        return content, (target.method, path, digest(content))

    def _answer(self, place: Place) -> tuple[RecordedAnswer, list[bytes]]:
        event = self._event(place)
        if not isinstance(event, RecordedAnswer):
            raise self._changed()
        try:
            return event, [data for piece in event.pieces if (data := piece.bytes)]
        except ValueError:
            raise self._changed() from None

    def _event(self, place: Place) -> Any:
        try:
            return event_at(self._path, *place)
        except Misconfigured:
            raise self._changed() from None

    def _changed(self) -> ModelFailed:
        return _failed(f"The recording {self._path} was changed or removed during the replay; restart the gateway.")

    def _unanswered(self, exchange: _Exchange, why: str) -> ModelFailed:
        return _failed(f"The recording {self._path} has no answer to this request (number {exchange.number}): {why}.")

    def _not_recorded(self, key: Request, asked: Any) -> ModelFailed:
        """Returns the error for an unknown request, with the first difference. The values that differ may quote the
        conversation, so they are included only in `endpoint_message`."""
        method, path, _ = key
        alike = [exchange for exchange in self._exchanges if exchange.key[:2] == (method, path)]
        if not alike:
            known = ", ".join(sorted({" ".join(exchange.key[:2]) for exchange in self._exchanges}))
            return _failed(
                f"The recording {self._path} contains no request {method} {path}, only {known}; check base_url."
            )
        nearest = self._nearest(alike, asked)
        if nearest is None:
            return _failed(
                f"The recording {self._path} does not contain this request, and its requests are too long to compare; "
                "repeat the recorded conversation."
            )
        number, found = nearest
        return _failed(
            f"The recording {self._path} does not contain this request. The first difference from the nearest one "
            f"(number {number}) is in {found.place or 'the whole body'}.",
            endpoint_message=f"recorded: {found.recorded}; now: {found.asked}",
        )

    def _nearest(self, alike: Sequence[_Exchange], asked: Any) -> tuple[int, Difference] | None:
        """Returns the recorded request with the fewest differences. If there are several, returns the first one."""
        best: tuple[int, int, Difference] | None = None
        read = 0
        for exchange in alike:
            read += exchange.request[1]
            if read > COMPARED_BYTES and best is not None:
                break
            event = self._event(exchange.request)
            if not isinstance(event, RecordedRequest) or event.left_out:
                continue
            found = described(redacted_value(event.body, self._redactor), asked)
            if found is not None and (best is None or found[1] < best[0]):
                best = found[1], exchange.number, found[0]
        return None if best is None else best[1:]


class ReplayedResponse(DeliveryByReading):
    def __init__(
        self, path: Path, answered: RecordedAnswer, pieces: Sequence[bytes], headers: Mapping[str, str]
    ) -> None:
        self._path = path
        self._answered = answered
        self._pieces = deque(pieces, maxlen=len(pieces))
        self.status = answered.status
        self.headers = headers

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def complete(self) -> bool:
        answered = self._answered
        return answered.end == "complete" and not answered.left_out and not self._pieces

    async def read(self) -> bytes:
        await asyncio.sleep(0)  # let other tasks run between two pieces
        if self._pieces:
            return self._pieces.popleft()
        answered = self._answered
        if answered.left_out:
            raise _failed(
                f"The recording {self._path} lacks the last {answered.left_out} bytes of this answer because it was "
                f"too long to record."
            )
        if answered.end == "complete":
            return b""
        raise ConnectionFailed("broken" if answered.end == "left" else answered.end, answered.said)

    def close(self) -> None:
        """Does nothing, since there is nothing to close."""


def _failed(message: str, endpoint_message: str = "") -> ModelFailed:
    return ModelFailed(message, kind="invalid", retryable=False, endpoint_message=endpoint_message)


def _as_then(headers: Mapping[str, str], when: str) -> Mapping[str, str]:
    """Returns the headers with Retry-After in seconds, since a recorded date may be in the past by now."""
    try:
        seconds = retry_after_of(headers, datetime.fromisoformat(when).timestamp())
    except ValueError:
        seconds = None
    if seconds is None:
        return headers
    return {**{name: value for name, value in headers.items() if name != "retry-after-ms"}, "retry-after": str(seconds)}


async def _no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)
