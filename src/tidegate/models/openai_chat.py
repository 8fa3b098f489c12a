"""A model behind an endpoint that speaks OpenAI's chat completions.

Guarantee: every wait has a deadline (connect, first byte, silence within a stream); what the endpoint does wrong ends
as ModelFailed; a failed attempt is tried again while nothing was shown, and once after something was, which is then
declared void; a cancelled ask closes its connection before it returns. Nothing is kept between asks.
"""

import asyncio
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from tidegate.errors import ModelFailed
from tidegate.models.clients import Clients, Lease
from tidegate.models.failures import ERROR_BODY_BYTES, Complainer
from tidegate.models.interface import Encoded
from tidegate.models.openai_answer import Answer, AnswerBroken, AnswerError
from tidegate.models.openai_wire import OpenAIWire
from tidegate.models.retry import Patience
from tidegate.values import Call, Message

# A request larger than this is written piece by piece, so that it does not hold up the loop.
WHOLE_BODY_BYTES = 256 * 1024
# The slowest upload that is waited for, on top of the connect and first-byte timeouts.
UPLOAD_BYTES_PER_SECOND = 64 * 1024
# After the end mark, the rest of the response usually is there already; to wait a little for it saves a connection.
DRAIN_SECONDS = 0.25
_USER_AGENT = "tidegate"
# OpenAI's own services know the output limit by its newer name only.
_NEWER_HOSTS = ("api.openai.com", ".openai.azure.com")


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


class OpenAIChat:
    """One configured model. `key` and the values of `headers` are revealed: this is the edge where they are sent."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        *,
        key: str | None,
        headers: Mapping[str, str],
        redact: Callable[[str], str],
        clients: Clients,
        answer_bytes: int,
        patience: Patience,
    ) -> None:
        self.name = name
        host = urlsplit(settings.base_url).hostname or ""
        self.wire = OpenAIWire(completion_tokens=host.endswith(_NEWER_HOSTS))
        self.signature = signature("openai-chat", settings.base_url, settings.model, headers, key)
        self._model = settings.model
        self._clients = clients
        self._endpoint = settings.base_url
        self._url = URL(settings.base_url.rstrip("/") + "/chat/completions")
        self._headers = CIMultiDictProxy(_headers(headers, key))
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            connect=settings.connect_timeout,
            sock_connect=settings.connect_timeout,
            sock_read=settings.first_byte_timeout,
        )
        self._before_answer = settings.connect_timeout + settings.first_byte_timeout
        self._idle_timeout = settings.idle_timeout
        self._retries = settings.retries
        self._answer_bytes = answer_bytes
        self._patience = patience
        self._complain = Complainer(name, str(self._url.with_user(None).with_query(None)), redact)

    def __repr__(self) -> str:
        return f"OpenAIChat({self.name!r})"

    def lease(self) -> Lease:
        return self._clients.lease(self._endpoint)

    async def ask(
        self,
        prefix: Encoded,
        history: Sequence[bytes],
        call: Call,
        *,
        on_text: Callable[[str], None],
        on_reset: Callable[[str], None],
    ) -> Message:
        body = self.wire.body(self._model, prefix, history, call, stream=True)
        history = ()  # it may hold pictures that were loaded for this request alone
        attempt = 0
        restarted = False
        while True:
            answer = Answer(self._answer_bytes, on_text)
            try:
                await self._attempt(body, answer)
                return answer.message(self._model)
            except ModelFailed as failure:
                failure.shown = answer.shown
                pause = self._patience.pause(failure, attempt)
                if pause is None or attempt >= self._retries or (restarted and answer.shown):
                    raise
                if answer.shown:
                    restarted = True
                    on_reset(failure.message)
            attempt += 1
            await self._patience.sleep(pause)

    async def _attempt(self, body: bytes, answer: Answer) -> None:
        try:
            response = await self._send(body)
        except (aiohttp.ClientError, OSError) as error:
            raise self._complain.of_exception(error, begun=False) from _cause(error)
        begun = False
        try:
            if response.status != 200:
                complaint = await _read_bounded(response, ERROR_BODY_BYTES)
                raise self._complain.of_status(response.status, complaint, response.headers, self._patience.clock())
            if response.content_type == "application/json":
                answer.whole(await self._read_whole(response))
                return
            content = response.content
            while not answer.done:
                received = await content.readany()
                if not received:
                    answer.end()
                    break
                if not begun:
                    begun = True
                    self._expect_more(response)
                answer.feed(received)
                received = b""  # it may be large, and the next one may be long in coming
            if not answer.complete:
                raise self._cut(response)
            if not content.at_eof():
                await _drain(content)
        except AnswerBroken as error:
            raise self._broken(error) from error
        except AnswerError as error:
            raise self._complain.of_stream_error(error.complaint) from error
        except (aiohttp.ClientError, OSError) as error:
            if answer.complete:
                return
            raise self._complain.of_exception(error, begun=begun) from _cause(error)
        finally:
            # Gives a fully read connection back to the pool and closes any other, without waiting.
            response.close()

    async def _send(self, body: bytes) -> aiohttp.ClientResponse:
        if len(body) <= WHOLE_BODY_BYTES:
            return await self._post(body)
        # A large request may have to wait for the other side to read, which aiohttp's own timers do not cover.
        async with asyncio.timeout(self._before_answer + len(body) / UPLOAD_BYTES_PER_SECOND):
            return await self._post(io.BytesIO(body))

    async def _post(self, data: bytes | io.BytesIO) -> aiohttp.ClientResponse:
        return await self._clients.session.request(
            "POST",
            self._url,
            data=data,
            headers=self._headers,
            timeout=self._timeout,
            allow_redirects=False,
        )

    def _expect_more(self, response: aiohttp.ClientResponse) -> None:
        """From the first byte on, the shorter patience holds, beginning now."""
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = self._idle_timeout
            connection.protocol.start_timeout()

    async def _read_whole(self, response: aiohttp.ClientResponse) -> bytes:
        limit = 2 * self._answer_bytes + ERROR_BODY_BYTES
        body = await _read_bounded(response, limit + 1)
        if len(body) > limit:
            raise AnswerBroken(f"the answer is longer than {self._answer_bytes} bytes", limit="answer_bytes")
        return body

    def _cut(self, response: aiohttp.ClientResponse) -> ModelFailed:
        if response.content_type != "text/event-stream":
            what = f"the endpoint answered with {response.content_type}, not a completion; check base_url."
            return self._complain.failed(what, kind="protocol", retryable=False, status=response.status)
        what = "the answer ended in the middle; try again."
        return self._complain.failed(what, kind="network", retryable=True)

    def _broken(self, error: AnswerBroken) -> ModelFailed:
        advice = "raise limits.answer_bytes or ask for less" if error.limit == "answer_bytes" else "check the endpoint"
        return self._complain.failed(f"{error}; {advice}.", kind="protocol", retryable=False)


def _headers(configured: Mapping[str, str], key: str | None) -> CIMultiDict[str]:
    headers: CIMultiDict[str] = CIMultiDict()
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    headers["Content-Type"] = "application/json"
    headers["Accept"] = "text/event-stream"
    # A compressed stream costs more than it saves between machines that pay for tokens.
    headers["Accept-Encoding"] = "identity"
    headers["User-Agent"] = _USER_AGENT
    headers.update(configured)
    return headers


def signature(api: str, base_url: str, model: str, headers: Mapping[str, str], key: str | None) -> bytes:
    """A digest in which each part is framed by its length, so that no two settings run into each other."""
    digest = hashlib.sha256()
    parts = [api, base_url, model, "" if key is None else "key " + key]
    for name, value in sorted(headers.items()):
        parts += (name, value)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()


def _cause(error: BaseException) -> BaseException | None:
    """The foreign error, unless it carries the request's headers and with them the key."""
    return None if isinstance(error, aiohttp.ClientResponseError) else error


async def _read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size < limit and (part := await response.content.readany()):
        parts.append(part)
        size += len(part)
    return b"".join(parts)[:limit]


async def _drain(content: aiohttp.StreamReader) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while await content.readany():
                pass
    except TimeoutError:
        return
