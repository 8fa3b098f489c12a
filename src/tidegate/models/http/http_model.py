"""Models behind HTTP endpoints, in any format.

Every wait has a deadline (for the connection, the first byte, and pauses within a stream). Every endpoint failure
becomes a ModelFailed. A failed attempt is retried according to the policy if no text has been shown, otherwise only
once; everything received from the failed attempt, shown or not, is withdrawn first. If another key is available, it is
tried immediately; each key is tried at most once. A cancelled `ask` closes its connection before it returns.

Between calls, a model holds only its keys' cooldowns and its failure counts.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from tidegate.errors import ModelFailed, ModelKind
from tidegate.http_client import ConnectionFailed, IncomingResponse, Lease, Target, Timeouts, Transport
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.answer import AnswerError, BrokenAnswer, IncomingAnswer
from tidegate.models.formats.call_names import distinct_calls
from tidegate.models.formats.format import Format
from tidegate.models.formats.stop_sequences import StopCutter
from tidegate.models.formats.token_counts import TokenEstimate
from tidegate.models.http.endpoint_failures import ERROR_BODY_BYTES, FailureMapper
from tidegate.models.http.keyring import KeyRing
from tidegate.models.http.refused_field import caller_field
from tidegate.models.http.retry import RetryPolicy
from tidegate.models.interface import EncodedPrefix
from tidegate.security import Secret
from tidegate.values import Call, Message

# After the end mark, the rest of the response has usually arrived already. Waiting briefly for it saves a connection.
DRAIN_SECONDS = 0.25
_USER_AGENT = "tidegate"


class HttpModelSettings(Protocol):
    """The settings in `ModelSettings` that an HTTP model needs."""

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
    @property
    def ca_file(self) -> str | None: ...


class HttpModel:
    """One configured model. Keys and header values are kept in plain text because they are sent from here."""

    def __init__(
        self,
        name: str,
        settings: HttpModelSettings,
        format: Format,
        *,
        keys: KeyRing,
        headers: Mapping[str, str],
        redact: Callable[[str], str],
        transport: Transport,
        answer_bytes: int,
        retry_policy: RetryPolicy,
        proxy: Secret | None = None,
    ) -> None:
        self.name = name
        self._format = format
        url = settings.base_url.rstrip("/") + format.path
        self.wire = format.wire
        self.facts = format.facts
        self.token_estimate = TokenEstimate()
        self.provider_model = settings.model
        self.signature = signature(
            format.api, settings.base_url, settings.model, headers, [key.secret for key in keys.keys], format.facts
        )
        self._transport = transport
        self._endpoint = settings.base_url
        self.keys = keys
        self.failures: Counter[ModelKind] = Counter()  # lint: allow one for each kind
        """The number of failed requests by kind, including those that were retried."""
        self._targets = {
            key: Target("POST", url, _headers(format.headers(key.secret), headers), proxy, settings.ca_file or "")
            for key in keys.keys
        }
        self._waits = Timeouts(
            connect=settings.connect_timeout, first_byte=settings.first_byte_timeout, idle=settings.idle_timeout
        )
        self._retries = settings.retries
        self._answer_bytes = answer_bytes
        self._retry_policy = retry_policy
        self._failures = FailureMapper(name, url, redact)

    def __repr__(self) -> str:
        return f"HttpModel({self.name!r})"

    def lease(self) -> Lease:
        return self._transport.lease(self._endpoint)

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
        history = ()  # drop the reference: it may hold media loaded only for this request
        stops = self.wire.unsent_stops(call.stop) if call.stop else ()
        attempt = rotations = 0
        restarted = False
        while True:
            cutter = StopCutter(stops, on_text) if stops else None
            answer = self._format.answer(self._answer_bytes, cutter or on_text)
            key = self.keys.key()
            try:
                await self._attempt(body, answer, self._targets[key], prefix, call)
                self.keys.worked(key)
                message = self._finished(answer.message(self.provider_model))
                return message if cutter is None else cutter.finish(message)
            except ModelFailed as failure:
                self.failures[failure.kind] += 1
                failure.partial_answer, failure.received_bytes = answer.shown, answer.received_bytes
                # Count rotations, because a key may become available again while other keys are tried.
                rotates = self.keys.failed(key, failure) and rotations < len(self.keys.keys) - 1
                pause = 0.0 if rotates else self._retry_policy.pause(failure, attempt)
                if pause is None or not (rotates or attempt < self._retries) or (restarted and answer.shown):
                    failure.retried = attempt > 0
                    raise
                restarted = restarted or answer.shown
                if answer.received_bytes:
                    on_reset(failure.message, answer.received_bytes)
            if rotates:
                rotations += 1
                continue
            attempt += 1
            await self._retry_policy.sleep(pause)

    def _finished(self, message: Message) -> Message:
        """Returns the message with its price and with call ids that are unique in the conversation."""
        if message.calls:
            message = msgspec.structs.replace(message, calls=distinct_calls(message.calls))
        if message.usage is None:
            return message
        return msgspec.structs.replace(message, usage=self.facts.priced(message.usage))

    async def _attempt(
        self, body: Sequence[bytes], answer: IncomingAnswer, target: Target, prefix: EncodedPrefix, call: Call
    ) -> None:
        try:
            response = await self._transport.request(target, body, self._waits)
        except ConnectionFailed as error:
            raise self._failures.of_connection(error, begun=False) from error
        begun = False
        try:
            if response.status != 200:
                raise self._failures.of_status(
                    response.status,
                    await _complaint(response),
                    response.headers,
                    self._retry_policy.clock(),
                    partial(caller_field, prefix=prefix, call=call),
                )
            if response.content_type == "application/json":
                answer.whole(await self._read_whole(response))
                return

            def consume(received: bytes) -> bool:
                nonlocal begun
                begun = True
                answer.feed(received)
                return answer.done

            await response.deliver(consume)
            if not answer.done:
                answer.end()
            if not answer.complete:
                raise self._cut(response)
            if not response.complete:
                await _drain(response)
        except BrokenAnswer as error:
            raise self._broken(error) from error
        except AnswerError as error:
            raise self._failures.of_stream_error(error.complaint) from error
        except ConnectionFailed as error:
            if answer.complete:
                return
            raise self._failures.of_connection(error, begun=begun) from error
        finally:
            # Returns the connection to the pool if the response was read completely; otherwise closes it. Does not
            # wait.
            response.close()

    async def _read_whole(self, response: IncomingResponse) -> bytes:
        limit = 2 * self._answer_bytes + ERROR_BODY_BYTES
        body = await _read_bounded(response, limit + 1)
        if len(body) > limit:
            raise BrokenAnswer(f"the answer is longer than {self._answer_bytes} bytes", limit="answer_bytes")
        return body

    def _cut(self, response: IncomingResponse) -> ModelFailed:
        if response.content_type != "text/event-stream":
            what = f"the endpoint answered with {response.content_type}, not a completion; check base_url."
            return self._failures.failed(what, kind="protocol", retryable=False, status=response.status)
        what = "the answer was cut off in the middle; try again."
        return self._failures.failed(what, kind="network", retryable=True)

    def _broken(self, error: BrokenAnswer) -> ModelFailed:
        advice = "raise limits.answer_bytes or ask for less" if error.limit == "answer_bytes" else "check the endpoint"
        return self._failures.failed(f"{error}; {advice}.", kind="protocol", retryable=False)


def _headers(own: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """Returns a request's headers. A configured header replaces the built-in header of the same name, regardless of
    case."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        # Compressing a token stream costs more than it saves.
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
    """Returns a digest of the settings. The length of each part is included, so that different settings never result in
    the same input. Facts are included only if they affect how messages are encoded."""
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


async def _complaint(response: IncomingResponse) -> bytes:
    """Returns an error's body, or an empty one if it cannot be decoded; the error is then classified by its status."""
    try:
        return await _read_bounded(response, ERROR_BODY_BYTES)
    except ConnectionFailed as failure:
        if failure.trouble != "foreign":
            raise
        return b""


async def _drain(response: IncomingResponse) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.read():
                pass
    except TimeoutError:
        return
