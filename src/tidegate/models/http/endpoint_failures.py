"""Failures of model endpoints, mapped to ModelFailed.

Every failure is of one of ten kinds, which determines how it is handled. Every message explains in one or two sentences
what happened and what to do. The endpoint's own message is quoted on one line, shortened and without credentials. All
functions are pure.
"""

import re
from collections.abc import Callable, Mapping

from tidegate.errors import ModelFailed, ModelKind
from tidegate.http_client import ConnectionFailed
from tidegate.models.http import error_body
from tidegate.models.http.refused_field import REFUSED_STATUS

# Enough to recognise a provider's error message, yet short enough for a chat message.
QUOTE_CHARACTERS = 300
# Maximum number of bytes read from an error body.
ERROR_BODY_BYTES = 65536
# How long to wait for a free connection in our own pool.
CROWDED_SECONDS = 1.0
# The length of the part of an error message that is matched against patterns. If the message quotes the conversation,
# the error itself comes first.
JUDGED_CHARACTERS = 600

_CONTEXT = re.compile(
    r"(?i)context[ _](length|window|limit)|maximum context|too many (input )?tokens|(prompt|input) is too long"
    r"|exceeds? the (available )?context|exceed_context_size|reduce the length|input token count \S* ?exceeds"
)
_CONTENT = re.compile(
    r"(?i)content[ _](policy|filter|filtering|management)|safety system|flagged|moderation|ResponsibleAIPolicyViolation"
    r"|usage policies"
)
_QUOTA = re.compile(
    r"(?i)insufficient[ _](quota|credits?|balance|funds)|billing[ _](error|hard|not|limit)|exceeded your current quota"
    r"|credit balance|(out of|any|all available) credits|spending limit|usage limits"
)
_MINUTE = re.compile(r"RESOURCE_EXHAUSTED(?s:.)*Per(Minute|Second)")
_KEY = re.compile(
    r"(?i)authentication_error|invalid[ _]api[ _]key|incorrect api key|api[ _]key[ _](not[ _]valid|invalid|expired)"
    r"|(organization|account) has been (disabled|deactivated)|account_deactivated"
)
_LARGE = re.compile(
    r"(?i)request[ _]too[ _]large|image[ _](exceeds|too[ _]large|dimensions)|image is too large"
    r"|exceeds? (the )?(maximum|max)( allowed)? size|(payload|entity|body|file) (is )?too large|exceed max allowed size"
)
_REASONING = re.compile(
    r"(?i)invalid_encrypted_content|encrypted content|invalid `?(signature|data)`? in|signature: field required"
    r"|thinking`? blocks? .{0,60}modified"
)
_UNSHOWN = re.compile(
    r"(?i)support (for )?(image|audio|vision)|(image|audio|vision) input|does not support images|image_url is only"
)
_UNREAD = re.compile(
    r"(?i)\bPDF\b|\bfile_data\b|content\[\]\.type|support (for )?(file|document)"
    r"|(part type|value|tag|variant):? ['\"`]?(file|input_file|document)\b"
)
"""Matches errors about documents that are damaged, locked or too long, and errors from endpoints that do not accept
documents."""
# Clients recognise the second sentence, which begins like that of OpenAI's own message.
_TOO_LONG = (
    "the prompt is too long for the model's context length{status}. Input tokens exceed the configured limit; start a "
    "new conversation or shorten it."
)
_REFUSED = "the endpoint refused the request{status}; check the model's settings."
_TIMEOUT_STATUS = frozenset({408, 504, 522, 524})
_OVERLOADED_STATUS = frozenset({409, 425, 498})
_UNKNOWN_PATH_STATUS = frozenset({404, 405, 410})
_NEVER_STATUS = frozenset({501, 505})

_STATUS_OF = (
    (_KEY, 401),
    (re.compile(r"(?i)permission"), 403),
    (_QUOTA, 402),
    (re.compile(r"(?i)rate_limit|too_many_requests|RESOURCE_EXHAUSTED"), 429),
    (re.compile(r"(?i)not_found"), 404),
    (re.compile(r"(?i)request_too_large"), 413),
    (re.compile(r"(?i)timeout"), 504),
    (re.compile(r"(?i)overloaded|server_error|api_error|unavailable|internal"), 503),
    (re.compile(r"(?i)invalid|bad_?request|context_length|content_(filter|policy)|unsupported"), 400),
)
"""Patterns for the type or code of an error inside a stream, with the corresponding HTTP status. Unknown errors are
treated as a server failure (503)."""


class FailureMapper:
    """Creates the ModelFailed errors for one configured model. `redact` removes its credentials from quoted text."""

    def __init__(self, name: str, address: str, redact: Callable[[str], str]) -> None:
        self._name = name
        self._redact = redact
        self._address = redact(address)

    def quote(self, text: str) -> str:
        line = self._redact(" ".join(text.split()))
        if len(line) > QUOTE_CHARACTERS:
            line = line[: QUOTE_CHARACTERS - 1] + "…"
        return line

    def failed(
        self,
        what: str,
        *,
        kind: ModelKind,
        retryable: bool,
        endpoint_message: str = "",
        status: int | None = None,
        after: float | None = None,
        reasoning: bool = False,
        large: bool = False,
        documents: bool = False,
        param: str | None = None,
    ) -> ModelFailed:
        return ModelFailed(
            f"Model {self._name!r}: {what}",
            kind=kind,
            retryable=retryable,
            retry_after=after,
            upstream_status=status,
            endpoint_message=self.quote(endpoint_message),
            reasoning=reasoning,
            large=large,
            documents=documents,
            param=param,
        )

    def of_status(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str],
        now: float,
        field_of: Callable[[str, str], str | None] = lambda _param, _said: None,
    ) -> ModelFailed:
        """Returns the failure for an HTTP status. `field_of` takes the endpoint's name for the refused field, and the
        endpoint's message, and returns the field's name in the caller's request."""
        error = error_body.read(body)
        retry_after = error_body.retry_after_of(headers, now)
        kind, retryable, what = _judge(status, error)
        if headers.get("x-should-retry") in ("true", "false"):  # more precise than the status
            retryable = headers["x-should-retry"] == "true"
        marks = f"{error.marks} {error.message[:JUDGED_CHARACTERS]}"
        param = None
        if what == _REFUSED and status in REFUSED_STATUS:
            param = field_of(error.param, error.message[:JUDGED_CHARACTERS])
            what = what if param is None else f"the endpoint refused `{param}`{{status}}; correct it or leave it out."
        return self.failed(
            what.format(status=f" ({status})"),
            kind=kind,
            retryable=retryable,
            endpoint_message=error.message,
            status=status,
            after=error.after if retry_after is None else retry_after,
            reasoning=kind == "invalid" and refuses_reasoning(f"{error.marks} {error.message}"),
            large=kind == "invalid" and _is_large(status, marks),
            documents=kind == "invalid" and _UNREAD.search(marks) is not None,
            param=param,
        )

    def of_stream_error(self, body: bytes) -> ModelFailed:
        """Returns the failure for an error object inside a stream that started successfully."""
        error = error_body.read(b'{"error":' + body + b"}")
        found = re.search(r"\b([45]\d\d)\b", error.marks)
        status = int(found.group(1)) if found else _status_of(error.marks)
        kind, retryable, what = _judge(status, error)
        if kind in ("overloaded", "invalid", "timeout"):
            what = "the endpoint reported an error in the middle of its answer; try again, or check its status page."
        return self.failed(
            what.format(status=""),
            kind=kind,
            retryable=retryable,
            endpoint_message=error.message,
            status=int(found.group(1)) if found else None,
            after=error.after,
        )

    def of_connection(self, failure: ConnectionFailed, *, begun: bool) -> ModelFailed:
        """Returns the failure for a connection problem. `begun` is true if part of the answer has already arrived."""
        where = self._address
        if failure.proxy:
            what = f"the proxy could not connect to {where}; check `proxy` and the proxy itself."
            return self.failed(what, kind="network", retryable=True, endpoint_message=failure.said)
        match failure.trouble:
            case "crowded":
                what = (
                    f"all connections to {where} were in use; try again, or raise limits.connections and "
                    "limits.connections_per_host to limits.turns."
                )
                # Our own pool is full, so the model's cooldown must not be longer than this.
                return self.failed(what, kind="overloaded", retryable=True, after=CROWDED_SECONDS)
            case "late":
                what = f"no connection to {where} within the connect timeout; check base_url and the network."
                return self.failed(what, kind="timeout", retryable=True)
            case "silent" if begun:
                what = "the answer stopped arriving for longer than idle_timeout; try again, or raise that setting."
                return self.failed(what, kind="timeout", retryable=True)
            case "silent":
                what = "no answer began within first_byte_timeout; try again, or raise that setting."
                return self.failed(what, kind="timeout", retryable=True)
            case "untrusted":
                what = f"the TLS connection to {where} was refused; check base_url and the server's certificate."
                return self.failed(what, kind="network", retryable=False, endpoint_message=failure.said)
            case "unconnected" | "unknown" | "forbidden":
                what = f"cannot connect to {where}; check base_url and that the server is running."
                return self.failed(what, kind="network", retryable=True, endpoint_message=failure.said)
            case "broken":
                what = f"the connection to {where} broke{' in the middle of the answer' if begun else ''}; try again."
                return self.failed(what, kind="network", retryable=True)
            case "foreign":
                what = f"{where} did not send a valid HTTP response; check base_url."
                return self.failed(what, kind="protocol", retryable=False, endpoint_message=failure.said)


def refuses_reasoning(text: str) -> bool:
    """True if the error says that the endpoint does not accept the request's reasoning blocks."""
    return _REASONING.search(text) is not None


def _judge(status: int, error: error_body.EndpointError) -> tuple[ModelKind, bool, str]:
    """Returns the failure's kind, whether a retry may help, and the message. The endpoint's own wording takes
    precedence over the status, because providers use different statuses for the same error."""
    if status < 500:
        marks = f"{error.marks} {error.message[:JUDGED_CHARACTERS]}"
        if (judged := _judge_marks(status, marks)) is not None:
            return judged
    if status in _TIMEOUT_STATUS:
        return "timeout", True, "the endpoint timed out{status}; try again."
    if status in _NEVER_STATUS:
        return "invalid", False, "the endpoint does not support this request{status}; check `api` and `base_url`."
    if status >= 500 or status in _OVERLOADED_STATUS:
        return "overloaded", True, "the endpoint is overloaded or failing{status}; try again later."
    if 300 <= status < 400:
        return "invalid", False, "the address redirects elsewhere{status}, which is not followed; correct base_url."
    if status in _UNKNOWN_PATH_STATUS:
        return "invalid", False, "the endpoint has no such model or path{status}; check `model` and `base_url`."
    return "invalid", False, _REFUSED


def _judge_marks(status: int, marks: str) -> tuple[ModelKind, bool, str] | None:
    """Returns the same as `_judge` for errors caused by the request or the account, and None for all other errors."""
    if status in (400, 403, 422) and _CONTENT.search(marks):
        return "content", False, "the endpoint's content policy refused the request{status}; rephrase it."
    if status == 402 or (status in (400, 403, 429) and _QUOTA.search(marks) and not _is_of_a_minute(marks)):
        return "quota", False, "the account has no quota left{status}; top it up or choose another model."
    if status in (401, 403) or _KEY.search(marks):
        return "authorisation", False, "the endpoint rejected the key{status}; check the model's `key` setting."
    if status != 429 and _CONTEXT.search(marks):
        return (
            "context",
            False,
            _TOO_LONG,
        )
    if _is_large(status, marks):
        return (
            "invalid",
            False,
            (
                "the request is too large for the endpoint{status}; send smaller pictures and files, or start a "
                "new conversation."
            ),
        )
    if status == 429:
        return "rate", True, "the endpoint is limiting the request rate{status}; wait and try again."
    if refuses_reasoning(marks):
        return (
            "invalid",
            False,
            (
                "the endpoint cannot read the reasoning blocks that were sent back to it{status}, which happens when "
                "another account's key is used; the request is retried without them."
            ),
        )
    if _UNSHOWN.search(marks):
        return (
            "invalid",
            False,
            (
                "the model does not accept these pictures, sounds or documents{status}; set `vision` or `audio` to "
                "false in its settings."
            ),
        )
    return None


def _is_large(status: int, marks: str) -> bool:
    return status == 413 or _LARGE.search(marks) is not None


def _is_of_a_minute(marks: str) -> bool:
    """True if the exhausted quota applies per minute or per second, which makes it a rate limit."""
    return _MINUTE.search(marks) is not None and "PerDay" not in marks


def _status_of(marks: str) -> int:
    return next((status for pattern, status in _STATUS_OF if pattern.search(marks)), 503)
