"""Foreign failures of a model's endpoint, mapped to ModelFailed.

Guarantee: every message is one sentence or two that say what happened and what to do; what the endpoint said is
quoted short, on one line, and never with a credential in it. Pure functions; nothing is held.
"""

import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime

import msgspec

from tidegate.errors import ModelFailed, ModelKind
from tidegate.models.connection import LinkFailed

# Enough to recognise a provider's complaint, short enough for a chat line.
QUOTE_CHARACTERS = 300
# An error body is read no further than this.
ERROR_BODY_BYTES = 65536

_CONTEXT = re.compile(
    r"(?i)context[ _](length|window)|maximum context|too many tokens|prompt is too long|input is too long"
    r"|exceeds? the (available )?context|reduce the length"
)
_CONTENT = re.compile(r"(?i)content[ _](policy|filter|management)|safety system|flagged|moderation")
_QUOTA = re.compile(r"(?i)insufficient[ _](quota|credits?|balance|funds)|billing|exceeded your current quota")
_OVERLOADED_STATUS = frozenset({409, 500, 502, 503, 529})


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait as the endpoint asks, from any of the three forms in use; None when it does not say."""
    milliseconds = headers.get("retry-after-ms")
    seconds = headers.get("retry-after")
    try:
        if milliseconds is not None:
            return _waiting(float(milliseconds) / 1000)
        if seconds is not None:
            return _waiting(float(seconds))
    except ValueError:
        pass
    if seconds is None:
        return None
    try:
        return _waiting(parsedate_to_datetime(seconds).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def _waiting(seconds: float) -> float | None:
    return None if seconds != seconds else max(0.0, seconds)


class Complainer:
    """Words for one configured model. `redact` takes its credentials out of whatever is quoted."""

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
        said: str = "",
        status: int | None = None,
        after: float | None = None,
    ) -> ModelFailed:
        return ModelFailed(
            f"Model {self._name!r}: {what}",
            kind=kind,
            retryable=retryable,
            retry_after=after,
            upstream_status=status,
            said=self.quote(said),
        )

    def of_status(self, status: int, body: bytes, headers: Mapping[str, str], now: float) -> ModelFailed:
        said, marks = _read_complaint(body)
        after = retry_after(headers, now)
        kind, retryable, what = _judge(status, marks + " " + said)
        return self.failed(
            what.format(status=status), kind=kind, retryable=retryable, said=said, status=status, after=after
        )

    def of_stream_error(self, complaint: bytes) -> ModelFailed:
        """An error object inside a stream that had begun well."""
        said, marks = _read_complaint(b'{"error":' + complaint + b"}")
        found = re.search(r"\b([45]\d\d)\b", marks)
        lowered = marks.lower()
        status = int(found.group(1)) if found else 429 if "rate_limit" in lowered else 503
        if not found and "invalid_request" in lowered:
            status = 400
        kind, retryable, _ = _judge(status, marks + " " + said)
        what = "the endpoint reported an error in the middle of its answer; try again, or look at its status page."
        return self.failed(
            what, kind=kind, retryable=retryable, said=said, status=int(found.group(1)) if found else None
        )

    def of_link(self, failure: LinkFailed, *, begun: bool) -> ModelFailed:
        """`begun` says that the answer had begun to arrive."""
        where = self._address
        match failure.trouble:
            case "crowded":
                what = (
                    f"all connections to {where} were in use; try again, or raise limits.connections and "
                    "limits.connections_per_host to limits.turns."
                )
                return self.failed(what, kind="overloaded", retryable=True)
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
                return self.failed(what, kind="network", retryable=False, said=failure.said)
            case "unconnected":
                what = f"cannot connect to {where}; check base_url and that the server runs."
                return self.failed(what, kind="network", retryable=True, said=failure.said)
            case "broken":
                what = f"the connection to {where} broke{' in the middle of the answer' if begun else ''}; try again."
                return self.failed(what, kind="network", retryable=True)
            case "foreign":
                what = f"{where} does not speak HTTP as expected; check base_url."
                return self.failed(what, kind="protocol", retryable=False, said=failure.said)


def _judge(status: int, marks: str) -> tuple[ModelKind, bool, str]:
    """Kind, whether trying again may help, and the sentence."""
    if status in (401, 403):
        return "authorisation", False, "the endpoint refused the key ({status}); check the model's `key` setting."
    if status == 402 or (status in (400, 429) and _QUOTA.search(marks)):
        return "quota", False, "the account has no quota left ({status}); top it up or choose another model."
    if status == 429:
        return "rate", True, "the endpoint limits the rate of requests ({status}); wait and try again."
    if status == 413 or (status < 500 and _CONTEXT.search(marks)):
        return "context", False, "the conversation is too long for the model ({status}); start a new one or shorten it."
    if status < 500 and _CONTENT.search(marks):
        return "content", False, "the endpoint's content rules refused the request ({status}); rephrase it."
    if status in (408, 504):
        return "timeout", True, "the endpoint gave up waiting ({status}); try again."
    if status in _OVERLOADED_STATUS or status >= 500:
        return "overloaded", True, "the endpoint is overloaded or failing ({status}); try again in a while."
    if 300 <= status < 400:
        return "invalid", False, "the address redirects elsewhere ({status}), which is not followed; correct base_url."
    if status == 404:
        return "invalid", False, "the endpoint knows no such model or path ({status}); check `model` and `base_url`."
    return "invalid", False, "the endpoint refused the request ({status}); check the model's settings."


def _read_complaint(body: bytes) -> tuple[str, str]:
    """What an error body says, and its type and code, whatever shape it has."""
    try:
        whole = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode("utf-8", "replace")
        return ("" if text.lstrip().startswith("<") else text), ""
    if isinstance(whole, list) and whole:
        whole = whole[0]
    inner = whole.get("error", whole) if isinstance(whole, dict) else whole
    if isinstance(inner, str):
        return inner, ""
    if not isinstance(inner, dict):
        return "", ""
    said = next((inner[key] for key in ("message", "detail", "msg") if isinstance(inner.get(key), str)), "")
    return said, f"{inner.get('type') or ''} {inner.get('code') or ''}"
