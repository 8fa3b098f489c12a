"""A model behind an HTTP endpoint, whichever format that speaks.

Guarantee: every wait has a deadline (connect, first byte, silence within a stream); what the endpoint does wrong ends
as ModelFailed; a failed attempt is tried again while nothing was shown, and once after something was; what came of it,
shown or not, is then declared void; another key is tried at once where there is one, each key once; a cancelled ask
closes its connection before it returns. Between asks nothing is kept but which keys rest and how often what went wrong.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from tidegate.errors import ModelFailed, ModelKind
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.answer import AnswerError, BrokenAnswer, IncomingAnswer, distinct_calls
from tidegate.models.formats.stop_sequences import StopCutter
from tidegate.models.formats.token_estimate import TokenEstimate
from tidegate.models.http.address import EndpointAddress
from tidegate.models.http.clients import Lease
from tidegate.models.http.connection import WHOLE_BYTES, ConnectionFailed, Timeouts
from tidegate.models.http.endpoint_failures import ERROR_BODY_BYTES, FailureMapper
from tidegate.models.http.error_body import uncompressed
from tidegate.models.http.keyring import KeyRing
from tidegate.models.http.refused_field import caller_field
from tidegate.models.http.retry import RetryPolicy
from tidegate.models.http.transport import IncomingResponse, Transport
from tidegate.models.interface import EncodedPrefix, Wire
from tidegate.values import Call, Message

# The slowest upload that is waited for, on top of the connect and first-byte timeouts.
UPLOAD_BYTES_PER_SECOND = 64 * 1024
# After the end mark, the rest of the response usually is there already; to wait a little for it saves a connection.
DRAIN_SECONDS = 0.25
_USER_AGENT = "tidegate"


class Settings(Protocol):
    """What this file needs of a model's settings."""

    @property
    def base_url(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def connect_timeout(self) -> float: ...
    @property
    def first_byte_timeout(self) -> float: ...
    @property
    def idle_timeout(self) -> float: ...
    @property
    def retries(self) -> int: ...


class Format(Protocol):
    """How one API is spoken: what is sent, and how the answer is read."""

    @property
    def api(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def path(self) -> str:
        """Of its endpoint, below `base_url`."""
        ...

    @property
    def wire(self) -> Wire: ...

    @property
    def facts(self) -> Facts:
        """Of the model that it is made for."""
        ...

    def headers(self, key: str | None) -> Mapping[str, str]:
        """By which it knows who asks, and whatever else it insists on."""
        ...

    def answer(self, limit: int, on_text: Callable[[str], None]) -> IncomingAnswer:
        """An answer that is about to arrive, of at most so many bytes."""
        ...


class HttpModel:
    """One configured model. Its keys and the values of `headers` are revealed: this is the edge where they are sent."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        format: Format,
        *,
        keys: KeyRing,
        headers: Mapping[str, str],
        redact: Callable[[str], str],
        traffic: Transport,
        answer_bytes: int,
        patience: RetryPolicy,
    ) -> None:
        self.name = name
        self._format = format
        self._address = EndpointAddress(settings.base_url.rstrip("/") + format.path)
        self.wire = format.wire
        self.facts = format.facts
        self.token_estimate = TokenEstimate()
        self.provided = settings.model
        self.signature = signature(
            format.api, settings.base_url, settings.model, headers, [key.secret for key in keys.keys], format.facts
        )
        self._traffic = traffic
        self._endpoint = settings.base_url
        self.keys = keys
        self.failures: Counter[ModelKind] = Counter()  # lint: allow one for each kind
        """Requests that failed, by what was wrong, also those that were tried again."""
        self._heads = {
            key: self._address.head("POST", _headers(format.headers(key.secret), headers)) for key in keys.keys
        }
        self._waits = Timeouts(
            connect=settings.connect_timeout, first_byte=settings.first_byte_timeout, idle=settings.idle_timeout
        )
        self._before_answer = settings.connect_timeout + settings.first_byte_timeout
        self._retries = settings.retries
        self._answer_bytes = answer_bytes
        self._patience = patience
        self._complain = FailureMapper(name, self._address.shown, redact)

    def __repr__(self) -> str:
        return f"HttpModel({self.name!r})"

    def lease(self) -> Lease:
        return self._traffic.lease(self._endpoint)

    async def ask(
        self,
        prefix: EncodedPrefix,
        history: Sequence[bytes],
        call: Call,
        *,
        on_text: Callable[[str], None],
        on_reset: Callable[[str, int], None],
    ) -> Message:
        body = self.wire.body(prefix, history, call)
        history = ()  # it may hold media that was loaded for this request alone
        stops = self.wire.unsent_stops(call.stop) if call.stop else ()
        attempt = rotations = 0
        restarted = False
        while True:
            cutter = StopCutter(stops, on_text) if stops else None
            answer = self._format.answer(self._answer_bytes, cutter or on_text)
            key = self.keys.key()
            try:
                await self._attempt(body, answer, self._heads[key], prefix, call)
                self.keys.worked(key)
                message = self._finished(answer.message(self.provided))
                return message if cutter is None else cutter.finish(message)
            except ModelFailed as failure:
                self.failures[failure.kind] += 1
                failure.shown, failure.heard = answer.shown, answer.heard
                # Keys may come back while others are tried, so it is counted that each has had its turn.
                rotates = self.keys.failed(key, failure) and rotations < len(self.keys.keys) - 1
                pause = 0.0 if rotates else self._patience.pause(failure, attempt)
                if pause is None or not (rotates or attempt < self._retries) or (restarted and answer.shown):
                    failure.retried = attempt > 0
                    raise
                restarted = restarted or answer.shown
                if answer.heard:
                    on_reset(failure.message, answer.heard)
            if rotates:
                rotations += 1
                continue
            attempt += 1
            await self._patience.sleep(pause)

    def _finished(self, message: Message) -> Message:
        """With its price, and with calls that no other in the conversation is named like."""
        if message.calls:
            message = msgspec.structs.replace(message, calls=distinct_calls(message.calls))
        if message.usage is None:
            return message
        return msgspec.structs.replace(message, usage=self.facts.priced(message.usage))

    async def _attempt(
        self, body: Sequence[bytes], answer: IncomingAnswer, head: bytes, prefix: EncodedPrefix, call: Call
    ) -> None:
        try:
            response = await self._send(head, body)
        except ConnectionFailed as error:
            raise self._complain.of_link(error, begun=False) from error
        begun = False
        try:
            if response.status != 200:
                complaint = await _read_bounded(response, ERROR_BODY_BYTES)
                complaint = uncompressed(complaint, response.headers.get("content-encoding", ""), ERROR_BODY_BYTES)
                raise self._complain.of_status(
                    response.status,
                    complaint,
                    response.headers,
                    self._patience.clock(),
                    partial(caller_field, prefix=prefix, call=call),
                )
            if response.content_type == "application/json":
                answer.whole(await self._read_whole(response))
                return
            while not answer.done:
                received = await response.read()
                if not received:
                    answer.end()
                    break
                begun = True
                answer.feed(received)
                received = b""  # it may be large, and the next one may be long in coming
            if not answer.complete:
                raise self._cut(response)
            if not response.complete:
                await _drain(response)
        except BrokenAnswer as error:
            raise self._broken(error) from error
        except AnswerError as error:
            raise self._complain.of_stream_error(error.complaint) from error
        except ConnectionFailed as error:
            if answer.complete:
                return
            raise self._complain.of_link(error, begun=begun) from error
        finally:
            # Gives a fully read connection back to the pool and closes any other, without waiting.
            response.close()

    async def _send(self, head: bytes, body: Sequence[bytes]) -> IncomingResponse:
        size = sum(map(len, body))
        head += b"%d\r\n\r\n" % size
        if size <= WHOLE_BYTES:
            return await self._traffic.request(self._address.origin, head, body, self._waits)
        # A large request may have to wait for the other side to read, for which there is no silence to go by.
        try:
            async with asyncio.timeout(self._before_answer + size / UPLOAD_BYTES_PER_SECOND):
                return await self._traffic.request(self._address.origin, head, body, self._waits)
        except TimeoutError:
            raise ConnectionFailed("silent") from None

    async def _read_whole(self, response: IncomingResponse) -> bytes:
        limit = 2 * self._answer_bytes + ERROR_BODY_BYTES
        body = await _read_bounded(response, limit + 1)
        if len(body) > limit:
            raise BrokenAnswer(f"the answer is longer than {self._answer_bytes} bytes", limit="answer_bytes")
        return body

    def _cut(self, response: IncomingResponse) -> ModelFailed:
        if response.content_type != "text/event-stream":
            what = f"the endpoint answered with {response.content_type}, not a completion; check base_url."
            return self._complain.failed(what, kind="protocol", retryable=False, status=response.status)
        what = "the answer ended in the middle; try again."
        return self._complain.failed(what, kind="network", retryable=True)

    def _broken(self, error: BrokenAnswer) -> ModelFailed:
        advice = "raise limits.answer_bytes or ask for less" if error.limit == "answer_bytes" else "check the endpoint"
        return self._complain.failed(f"{error}; {advice}.", kind="protocol", retryable=False)


def _headers(own: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """What is configured comes last, and may be spelt in any case."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        # A compressed stream costs more than it saves between machines that pay for tokens.
        "Accept-Encoding": "identity",
        "User-Agent": _USER_AGENT,
        **own,
    }
    named = {name.lower(): name for name in headers}
    for name, value in configured.items():
        headers.pop(named.get(name.lower(), ""), None)
        headers[name] = value
    return headers


def signature(
    api: str, base_url: str, model: str, headers: Mapping[str, str], keys: Sequence[str | None], facts: Facts
) -> bytes:
    """A digest in which each part is framed by its length, so that no two settings run into each other. Of the facts,
    those are in it by which messages are encoded."""
    digest = hashlib.sha256()
    parts = [api, base_url, model, f"{facts.vision:d}{facts.audio:d}"]
    parts += ("" if key is None else "key " + key for key in keys)
    for name, value in sorted(headers.items()):
        parts += (name, value)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()


async def _read_bounded(response: IncomingResponse, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size < limit and (part := await response.read()):
        parts.append(part)
        size += len(part)
    return b"".join(parts)[:limit]


async def _drain(response: IncomingResponse) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.read():
                pass
    except TimeoutError:
        return
