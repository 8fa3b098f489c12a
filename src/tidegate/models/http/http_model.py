"""Chat models behind HTTP endpoints, in any format.

The rules of their endpoints apply (`endpoint.py`). A failed attempt is retried if no text has been shown, otherwise
only once; everything received from the failed attempt, shown or not, is withdrawn first.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from tidegate.errors import ModelFailed
from tidegate.http_client import ConnectionFailed, IncomingResponse, Lease, Target
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.answer import AnswerError, BrokenAnswer, IncomingAnswer
from tidegate.models.formats.call_names import distinct_calls
from tidegate.models.formats.format import Format
from tidegate.models.formats.stop_sequences import StopCutter
from tidegate.models.formats.token_counts import TokenEstimate
from tidegate.models.http.endpoint import ModelEndpoint, drain, read_bounded
from tidegate.models.http.endpoint_failures import ERROR_BODY_BYTES
from tidegate.models.http.refused_field import caller_field
from tidegate.models.interface import EncodedPrefix
from tidegate.values import Call, Message


class HttpModel:
    """One configured chat model."""

    def __init__(
        self,
        name: str,
        endpoint: ModelEndpoint,
        format: Format,
        *,
        provider_model: str,
        signature: bytes,
        answer_bytes: int,
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        self._format = format
        self.wire = format.wire
        self.facts = format.facts
        self.token_estimate = TokenEstimate()
        self.provider_model = provider_model
        self.signature = signature
        self._answer_bytes = answer_bytes
        self._failures = endpoint.failures

    def __repr__(self) -> str:
        return f"HttpModel({self.name!r})"

    def lease(self) -> Lease:
        return self.endpoint.lease()

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
        answer: IncomingAnswer
        restarted = False

        async def attempt(target: Target) -> Message:
            nonlocal answer
            cutter = StopCutter(stops, on_text) if stops else None
            answer = self._format.answer(self._answer_bytes, cutter or on_text)
            await self._attempt(body, answer, target, prefix, call)
            message = self._finished(answer.message(self.provider_model))
            return message if cutter is None else cutter.finish(message)

        def may_retry(failure: ModelFailed) -> bool:
            failure.partial_answer, failure.received_bytes = answer.shown, answer.received_bytes
            return not (restarted and answer.shown)

        def before_retry(failure: ModelFailed) -> None:
            nonlocal restarted
            restarted = restarted or answer.shown
            if answer.received_bytes:
                on_reset(failure.message, answer.received_bytes)

        return await self.endpoint.call(attempt, may_retry=may_retry, before_retry=before_retry)

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
        response = await self.endpoint.request(target, body)
        begun = False
        try:
            if response.status != 200:
                raise await self.endpoint.refused(response, partial(caller_field, prefix=prefix, call=call))
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
                await drain(response)
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
        body = await read_bounded(response, limit + 1)
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
