"""One endpoint of a configured model: its address, keys, deadlines, retries and failures.

Every wait has a deadline (for the connection, the first byte, and pauses within a response). Every endpoint failure
becomes a ModelFailed. A failed attempt is retried according to the policy. If another key is available, it is tried
immediately; each key is tried at most once. A cancelled call closes its connection before it returns.

Between calls, an endpoint holds only its keys' cooldowns and its failure counts.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from tidegate.errors import ModelFailed, ModelKind
from tidegate.http_client import ConnectionFailed, IncomingResponse, Lease, Target, Timeouts, Transport
from tidegate.models.http.endpoint_failures import ERROR_BODY_BYTES, FailureMapper
from tidegate.models.http.keyring import KeyRing
from tidegate.models.http.retry import RetryPolicy
from tidegate.security import Secret

T = TypeVar("T")

# After the end mark, the rest of the response has usually arrived already. Waiting briefly for it saves a connection.
DRAIN_SECONDS = 0.25
USER_AGENT = "tidegate"


def _no_field(_param: str, _said: str) -> None:
    return None


class EndpointSettings(Protocol):
    """The settings in `ModelSettings` that an endpoint needs."""

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


class ModelEndpoint:
    """Keys and header values are kept in plain text because they are sent from here."""

    def __init__(
        self,
        name: str,
        settings: EndpointSettings,
        path: str,
        *,
        keys: KeyRing,
        headers_for: Callable[[str | None], Mapping[str, str]],
        headers: Mapping[str, str],
        redact: Callable[[str], str],
        transport: Transport,
        retry_policy: RetryPolicy,
        proxy: Secret | None = None,
    ) -> None:
        """`headers_for` returns the headers that a request with this key has; `headers` are the configured ones, which
        replace them."""
        url = settings.base_url.rstrip("/") + path
        self.keys = keys
        self.failed_requests: Counter[ModelKind] = Counter()  # lint: allow one for each kind
        """The number of failed requests by kind, including those that were retried."""
        self.failures = FailureMapper(name, url, redact)
        self.retry_policy = retry_policy
        self._address = settings.base_url
        self._transport = transport
        self._targets = {
            key: Target("POST", url, merged(headers_for(key.secret), headers), proxy, settings.ca_file or "")
            for key in keys.keys
        }
        self.waits = Timeouts(
            connect=settings.connect_timeout, first_byte=settings.first_byte_timeout, idle=settings.idle_timeout
        )
        self._retries = settings.retries

    def lease(self) -> Lease:
        return self._transport.lease(self._address)

    async def call(
        self,
        attempt: Callable[[Target], Awaitable[T]],
        *,
        may_retry: Callable[[ModelFailed], bool] | None = None,
        before_retry: Callable[[ModelFailed], None] | None = None,
    ) -> T:
        """Returns the result of the first attempt that succeeds. `may_retry` is called after each failed attempt, and
        `before_retry` if another one follows."""
        attempts = rotations = 0
        while True:
            key = self.keys.key()
            try:
                result = await attempt(self._targets[key])
                self.keys.worked(key)
                return result
            except ModelFailed as failure:
                self.failed_requests[failure.kind] += 1
                allowed = may_retry is None or may_retry(failure)
                # Count rotations, because a key may become available again while other keys are tried.
                rotates = self.keys.failed(key, failure) and rotations < len(self.keys.keys) - 1
                pause = 0.0 if rotates else self.retry_policy.pause(failure, attempts)
                if pause is None or not (rotates or attempts < self._retries) or not allowed:
                    failure.retried = attempts > 0
                    raise
                if before_retry is not None:
                    before_retry(failure)
            if rotates:
                rotations += 1
                continue
            attempts += 1
            await self.retry_policy.sleep(pause)

    async def request(self, target: Target, body: Sequence[bytes]) -> IncomingResponse:
        """Sends a request and returns the response, which the caller must close. Raises ModelFailed."""
        try:
            return await self._transport.request(target, body, self.waits)
        except ConnectionFailed as error:
            raise self.failures.of_connection(error, begun=False) from error

    async def fetch(
        self,
        target: Target,
        body: Sequence[bytes],
        limit: int,
        take: Callable[[str, bytes], Awaitable[None]] | None = None,
    ) -> tuple[str, bytes]:
        """Sends a request and returns the media type and the complete body of the response. With `take`, each piece of
        the body is passed on with the media type instead, and the returned body is empty. Raises ModelFailed; its
        `received_bytes` are those of the incomplete body."""
        response = await self.request(target, body)
        parts: list[bytes] = []
        size = 0
        try:
            if response.status != 200:
                raise await self.refused(response)
            while part := await response.read():
                size += len(part)
                if size > limit:
                    what = f"the answer is longer than {limit} bytes; check the endpoint."
                    raise self.failures.failed(what, kind="protocol", retryable=False)
                if take is None:
                    parts.append(part)
                else:
                    await take(response.content_type, part)
            return response.content_type, b"".join(parts)
        except ConnectionFailed as error:
            failure = self.failures.of_connection(error, begun=size > 0)
            failure.received_bytes = size
            raise failure from error
        finally:
            response.close()

    async def refused(
        self, response: IncomingResponse, field_of: Callable[[str, str], str | None] = _no_field
    ) -> ModelFailed:
        """Returns the failure of a response whose status is not 200. For `field_of`, see `FailureMapper.of_status`."""
        return self.failures.of_status(
            response.status, await complaint(response), response.headers, self.retry_policy.clock(), field_of
        )


def json_headers(own: Mapping[str, str], accept: str = "application/json") -> dict[str, str]:
    """Returns the headers of a request with a JSON body."""
    return {
        "Content-Type": "application/json",
        "Accept": accept,
        # Compressing a token stream costs more than it saves.
        "Accept-Encoding": "identity",
        "User-Agent": USER_AGENT,
        **own,
    }


def merged(own: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """Returns a request's headers. A configured header replaces the built-in header of the same name, regardless of
    case."""
    headers = dict(own)
    named = {name.lower(): name for name in headers}
    for name, value in configured.items():
        headers.pop(named.get(name.lower(), ""), None)
        headers[name] = value
    return headers


async def read_bounded(response: IncomingResponse, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size < limit and (part := await response.read()):
        parts.append(part)
        size += len(part)
    return b"".join(parts)[:limit]


async def complaint(response: IncomingResponse) -> bytes:
    """Returns an error's body, or an empty one if it cannot be decoded; the error is then classified by its status."""
    try:
        return await read_bounded(response, ERROR_BODY_BYTES)
    except ConnectionFailed as failure:
        if failure.trouble != "foreign":
            raise
        return b""


async def drain(response: IncomingResponse) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.read():
                pass
    except TimeoutError:
        return
