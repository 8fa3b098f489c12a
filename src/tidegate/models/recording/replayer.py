"""A recording in the place of the network.

Guarantee: what a request gets is what was recorded for the same request (method, path and JSON of the body), piece by
piece, failures as failures, without waiting for anything; equal requests get their answers in the order in which they
were recorded, and the last one again when there are no more. A request that was not recorded fails, and is told where
it differs first from the nearest that was. No connection is ever opened. Of the file, only where its lines are is held;
they are read when they are needed.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from anyio import to_thread

from tidegate.errors import Misconfigured, ModelFailed
from tidegate.models.http.clients import Lease, Origin
from tidegate.models.http.connection import ConnectionFailed, Timeouts
from tidegate.models.http.error_body import wait_of
from tidegate.models.http.retry import RetryPolicy
from tidegate.models.http.transport import IncomingResponse
from tidegate.models.recording.difference import Difference, described
from tidegate.models.recording.recording_file import RecordedAnswer, RecordedRequest, digest, event_at, events
from tidegate.models.recording.redaction import stripped_body, stripped_head, stripped_value
from tidegate.security import Redactor
from tidegate.status_report import ReplayerStatus

COMPARED_BYTES = 32 * 1024 * 1024
"""Of recorded requests that are looked through for the nearest one, which takes about a second."""

Place = tuple[int, int]
Request = tuple[str, str, str]
"""Method, path and digest."""


class _Exchange:
    """Where its two lines are. There is no answer if the gateway that recorded it was killed before it ended."""

    __slots__ = ("answered", "asked", "key", "number", "when")

    def __init__(self, number: int, key: Request, when: str, asked: Place) -> None:
        self.number = number
        self.key = key
        self.when = when
        self.asked = asked
        self.answered: Place | None = None


class TransportReplayer:
    def __init__(self, path: Path, redactor: Redactor) -> None:
        self._path = path
        self._redactor = redactor
        self._leases: Counter[str] = Counter()
        self._exchanges: list[_Exchange] = []  # lint: allow what is in the file, whose size is bounded
        self._equal: dict[Request, list[_Exchange]] = {}  # lint: allow the same, by request
        self._given: dict[Request, int] = {}  # lint: allow one entry for each that is in the file
        self._replayed = self._again = self._unknown = 0

    @property
    def patience(self) -> RetryPolicy:
        """For models that are replayed: they try again as often as ever, at once."""
        return RetryPolicy(sleep=_no_pause)

    def open(self) -> None:
        """Read the file through. Blocks."""
        open_ones: dict[int, _Exchange] = {}
        for start, size, event in events(self._path):
            if isinstance(event, RecordedRequest):
                body = event.digest or self._digest(event)
                exchange = _Exchange(event.id, (event.method, event.path, body), event.time, (start, size))
                self._exchanges.append(exchange)
                self._equal.setdefault(exchange.key, []).append(exchange)
                open_ones[event.id] = exchange
            elif isinstance(event, RecordedAnswer) and (asked := open_ones.pop(event.id, None)) is not None:
                asked.answered = (start, size)
        if not self._exchanges:
            raise Misconfigured(f"Nothing was asked while {self._path} was recorded, so there is nothing to replay.")

    def _digest(self, asked: RecordedRequest) -> str:
        try:
            return digest(stripped_value(asked.body, self._redactor))
        except RecursionError:
            raise Misconfigured(
                f"No gateway asks what {self._path} holds as its request {asked.id}; get it anew."
            ) from None

    def lease(self, endpoint: str) -> Lease:
        """Nobody holds anything, since there is nothing to hold."""
        return Lease(endpoint, self._leases)

    def status(self) -> ReplayerStatus:
        return ReplayerStatus(
            file=str(self._path),
            exchanges=len(self._exchanges),
            replayed=self._replayed,
            again=self._again,
            unknown=self._unknown,
        )

    async def request(self, origin: Origin, head: bytes, body: Sequence[bytes], waits: Timeouts) -> IncomingResponse:
        asked, key = await to_thread.run_sync(self._read, head, tuple(body))
        equal = self._equal.get(key)
        if equal is None:
            self._unknown += 1
            raise await to_thread.run_sync(self._not_recorded, key, asked)
        given = self._given[key] = self._given.get(key, 0) + 1
        self._replayed += 1
        self._again += given > len(equal)
        exchange = equal[min(given, len(equal)) - 1]
        if exchange.answered is None:
            raise self._unanswered(exchange, "the gateway that recorded it ended before the answer did")
        answered, pieces = await to_thread.run_sync(self._answer, exchange.answered)
        if not answered.status:
            if answered.end == "left" or answered.end == "complete":
                raise self._unanswered(exchange, "it was stopped before an answer began")
            raise ConnectionFailed(answered.end, answered.said)
        return ReplayedResponse(self._path, answered, pieces, _as_then(answered.headers, exchange.when))

    def _read(self, head: bytes, body: Sequence[bytes]) -> tuple[Any, Request]:
        method, path, _ = stripped_head(head, (), self._redactor)
        content = stripped_body(b"".join(body), self._redactor)
        return content, (method, path, digest(content))

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
        return _failed(f"The recording {self._path} was changed or removed while it was replayed; start again with it.")

    def _unanswered(self, exchange: _Exchange, why: str) -> ModelFailed:
        return _failed(
            f"The recording {self._path} holds no answer to this request, its number {exchange.number}: {why}."
        )

    def _not_recorded(self, key: Request, asked: Any) -> ModelFailed:
        """Says which part differs first. What stands there may be of the conversation, and is told apart."""
        method, path, _ = key
        alike = [exchange for exchange in self._exchanges if exchange.key[:2] == (method, path)]
        if not alike:
            known = ", ".join(sorted({" ".join(exchange.key[:2]) for exchange in self._exchanges}))
            return _failed(
                f"The recording {self._path} holds no request {method} {path}, but: {known}; check base_url."
            )
        nearest = self._nearest(alike, asked)
        if nearest is None:
            return _failed(
                f"The recording {self._path} does not hold this request, and those that it holds are too long to be "
                "compared with it; ask what was asked when it was made."
            )
        number, found = nearest
        return _failed(
            f"The recording {self._path} does not hold this request: from the nearest, its number {number}, it differs "
            f"first in {found.place or 'everything'}.",
            said=f"{found.recorded} then, and {found.asked} is asked now.",
        )

    def _nearest(self, alike: Sequence[_Exchange], asked: Any) -> tuple[int, Difference] | None:
        """The recorded request in which the fewest places differ; of several, the first."""
        best: tuple[int, int, Difference] | None = None
        read = 0
        for exchange in alike:
            read += exchange.asked[1]
            if read > COMPARED_BYTES and best is not None:
                break
            event = self._event(exchange.asked)
            if not isinstance(event, RecordedRequest) or event.left_out:
                continue
            found = described(stripped_value(event.body, self._redactor), asked)
            if found is not None and (best is None or found[1] < best[0]):
                best = found[1], exchange.number, found[0]
        return None if best is None else best[1:]


class ReplayedResponse:
    """A recorded response."""

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
        await asyncio.sleep(0)  # others have their turn between two pieces, as they had then
        if self._pieces:
            return self._pieces.popleft()
        answered = self._answered
        if answered.left_out:
            raise _failed(
                f"The recording {self._path} left out the last {answered.left_out} bytes of this answer, which was too "
                "long for it."
            )
        if answered.end == "complete":
            return b""
        raise ConnectionFailed("broken" if answered.end == "left" else answered.end, answered.said)

    def close(self) -> None:
        """There is nothing to give back."""


def _failed(message: str, said: str = "") -> ModelFailed:
    return ModelFailed(message, kind="invalid", retryable=False, said=said)


def _as_then(headers: Mapping[str, str], when: str) -> Mapping[str, str]:
    """A wish to be asked later may name a time of day, which then was in the future."""
    try:
        wish = wait_of(headers, datetime.fromisoformat(when).timestamp())
    except ValueError:
        wish = None
    if wish is None:
        return headers
    return {**{name: value for name, value in headers.items() if name != "retry-after-ms"}, "retry-after": str(wish)}


async def _no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)
