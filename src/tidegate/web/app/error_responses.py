"""How an error leaves the gateway: OpenAI's shape, the right status, one sentence.

Guarantee: whatever was raised becomes `{"error": {message, type, param, code}}` with all four members; nobody gets a
bare 500, and what nobody foresaw carries the id of an incident that the log explains. Secrets are taken out of the
sentence before it leaves. Statuses: 4xx as the error says; a model's failure 502, 503 or 504 (400 when the
conversation is too long or its content was refused); a full disk 507, any other failure of the store 503; damaged data
and anything unforeseen 500.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.engine import failure_of
from tidegate.errors import Busy, Refused, StoreFailed
from tidegate.log import Log
from tidegate.values import Failure

Send = Callable[[Any], Any]
Headers = list[tuple[bytes, bytes]]

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_NO_RETRY = (b"x-should-retry", b"false")
"""Official clients try again by themselves after 408, 409, 429 and 5xx, unless they are told not to."""
RETRY_SECONDS = 1
"""What a caller is told to wait when a failure may pass and nothing says when."""

log = Log(__name__)


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """What every path answers when it refuses or fails."""

    error: ErrorBody


class HttpResponse(msgspec.Struct, frozen=True):
    """A complete answer, ready to be sent."""

    status: int
    headers: Headers
    body: bytes


class ErrorResponses:
    """Turns errors into answers. `clean` takes secrets out of text."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean

    def of(self, error: Exception) -> HttpResponse:
        if isinstance(error, Refused):
            retry_after = error.retry_after if isinstance(error, Busy) else None
            kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
            return self._answer(error.status, error.message, kind, error.param, error.code, retry_after)
        failure = failure_of(error)
        if failure.code == "internal":
            log.exception("a request broke", told=failure.message, exc_info=error)
        elif isinstance(error, StoreFailed):
            log.warning("a request failed", code=failure.code, error=error.message)
        return self.of_failure(failure)

    def of_failure(self, failure: Failure) -> HttpResponse:
        """The answer for a turn that failed, live or replayed."""
        retry_after = failure.retry_after
        if retry_after is None and failure.retry:
            retry_after = RETRY_SECONDS
        answer = self._answer(failure.status, failure.message, failure.type, failure.param, failure.code, retry_after)
        if failure.final and failure.status >= 409 and _NO_RETRY not in answer.headers:
            answer.headers.append(_NO_RETRY)
        return answer

    def event(self, failure: Failure) -> bytes:
        """The same error inside a stream that has already begun."""
        return b"data: " + self.of_failure(failure).body + b"\n\n"

    def event_of(self, error: Exception) -> bytes:
        """Whatever was raised while a stream was told."""
        return b"data: " + self.of(error).body + b"\n\n"

    def _answer(
        self, status: int, message: str, kind: str, param: str | None, code: str | None, retry_after: float | None
    ) -> HttpResponse:
        body = ErrorBody(message=self._clean(message), type=kind, param=param, code=code)
        headers: Headers = []
        if retry_after is not None:
            headers.append((b"retry-after", str(max(1, math.ceil(retry_after))).encode()))
        elif status in (409, 429):
            headers.append(_NO_RETRY)
        if status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="tidegate"'))
        return json_answer(ErrorAnswer(error=body), status=status, headers=headers)


def request_id() -> bytes:
    """The `x-request-id` of a response."""
    return b"req_" + os.urandom(12).hex().encode()


def json_answer(value: Any, *, status: int = 200, headers: Headers | None = None) -> HttpResponse:
    body = msgspec.json.encode(value)
    plain: Headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return HttpResponse(status, plain + headers if headers else plain, body)


async def send_answer(send: Send, answer: HttpResponse) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})
