"""HTTP responses: JSON, and errors in OpenAI's format.

Every exception becomes `{"error": {message, type, param, code}}` with all four members. For an unexpected exception,
the message contains an incident id, and the log contains the details. Secrets are redacted from the message. Statuses:
4xx as specified by the error; 502, 503 or 504 for model failures (400 if the conversation is too long or its content
was refused); 507 for a full disk and 503 for any other store failure; 500 for damaged data and unexpected exceptions.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.error_mapping import failure_of
from tidegate.errors import Busy, Refused, StoreFailed
from tidegate.log import Log
from tidegate.safe_text import strip_controls
from tidegate.values import Failure

Send = Callable[[Any], Any]
Headers = list[tuple[bytes, bytes]]

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_NO_RETRY = (b"x-should-retry", b"false")
"""Official clients retry after 408, 409, 429 and 5xx unless the response tells them not to."""
RETRY_SECONDS = 1
"""The value of `Retry-After`, in seconds, for a temporary failure of unknown duration."""

log = Log(__name__)


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of all error responses."""

    error: ErrorBody


class HttpResponse(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    headers: Headers
    body: bytes


class ErrorResponses:
    """Converts errors to responses. `redact` removes secrets from text."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact

    def from_error(self, error: Exception) -> HttpResponse:
        if isinstance(error, Refused):
            retry_after = error.retry_after if isinstance(error, Busy) else None
            kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
            return self._response(error.status, error.message, kind, error.param, error.code, retry_after)
        failure = failure_of(error)
        if failure.code == "internal":
            log.exception("a request raised an unexpected exception", response=failure.message, exc_info=error)
        elif isinstance(error, StoreFailed):
            log.warning("a request failed", code=failure.code, error=error.message)
        return self.from_failure(failure)

    def from_failure(self, failure: Failure) -> HttpResponse:
        """Returns the response for a failed turn, live or replayed."""
        retry_after = failure.retry_after
        if retry_after is None and failure.retry:
            retry_after = RETRY_SECONDS
        response = self._response(
            failure.status, failure.message, failure.type, failure.param, failure.code, retry_after
        )
        if failure.final and failure.status >= 409 and _NO_RETRY not in response.headers:
            response.headers.append(_NO_RETRY)
        return response

    def failure_event(self, failure: Failure) -> bytes:
        """Returns a failed turn as an event for a stream that has already begun."""
        return b"data: " + self.from_failure(failure).body + b"\n\n"

    def error_event(self, error: Exception) -> bytes:
        """Returns an exception as an event for a stream that has already begun."""
        return b"data: " + self.from_error(error).body + b"\n\n"

    def _response(
        self, status: int, message: str, kind: str, param: str | None, code: str | None, retry_after: float | None
    ) -> HttpResponse:
        body = ErrorBody(message=self._redact(strip_controls(message)), type=kind, param=param, code=code)
        headers: Headers = []
        if retry_after is not None:
            headers.append((b"retry-after", str(max(1, math.ceil(retry_after))).encode()))
        elif status in (409, 429):
            headers.append(_NO_RETRY)
        if status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="tidegate"'))
        return json_response(ErrorAnswer(error=body), status=status, headers=headers)


def request_id() -> bytes:
    """Returns a new value for `x-request-id`."""
    return b"req_" + os.urandom(12).hex().encode()


def json_response(value: Any, *, status: int = 200, headers: Headers | None = None) -> HttpResponse:
    body = msgspec.json.encode(value)
    plain: Headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return HttpResponse(status, plain + headers if headers else plain, body)


async def send_response(send: Send, response: HttpResponse) -> None:
    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
    await send({"type": "http.response.body", "body": response.body})
