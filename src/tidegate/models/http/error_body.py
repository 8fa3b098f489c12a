"""Parsing of error bodies from endpoints, in any of the shapes in use.

All functions are pure. Arbitrary bytes can be parsed. The resulting EndpointError contains the message for people, the
marks that are used to classify the error (types, codes and reasons, including those from a provider behind the
endpoint), and the requested wait, if any.
"""

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import msgspec

MARKS_CHARACTERS = 2000
"""Maximum number of characters of marks that are kept: several times more than any provider sends. It bounds the time
that the classification takes."""

LISTED = 8
"""Maximum number of validation errors to quote, and of steps in the path to each of them."""

PARAM_CHARACTERS = 200
"""Maximum number of characters of a refused field's name that are kept. None of our fields has a longer name."""

LONGEST_WAIT = 31 * 24 * 3600.0
"""Longest accepted wait in seconds: the time until a monthly quota is renewed. Longer waits are treated as mistakes."""

_MARKING = ("type", "code", "status", "param")
_WORDING = ("message", "detail", "msg", "error_description")
_WAIT = re.compile(r"(?i)\b(?:try again|retry) (?:in|after) (\d{1,9}(?:\.\d{1,9})?) ?(ms|s|m|seconds?|minutes?)\b")
_UNITS = {"ms": 0.001, "m": 60.0, "minute": 60.0, "minutes": 60.0}


class EndpointError(NamedTuple):
    message: str = ""
    marks: str = ""
    after: float | None = None
    param: str = ""
    """The endpoint's name for the refused field in the request; empty if there is none."""


def read(body: bytes) -> EndpointError:
    """Parses an error body. The formats of OpenAI, Anthropic, Gemini, OpenRouter and Azure are supported, as are the
    simpler ones used by local servers. Web pages are not quoted."""
    try:
        decoded: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body.decode("utf-8", "replace")
        return EndpointError("" if text.lstrip().startswith("<") else text)
    if isinstance(decoded, list) and decoded:
        decoded = decoded[0]
    if isinstance(decoded, str):
        return EndpointError(decoded, after=_wait_in(decoded))
    if not isinstance(decoded, dict):
        return EndpointError()
    inner = decoded.get("error") or decoded
    if isinstance(inner, str):
        return EndpointError(inner, _marks(decoded), _wait_in(inner))
    if not isinstance(inner, dict):
        return EndpointError("", _marks(decoded))
    message = next((inner[key] for key in _WORDING if isinstance(inner.get(key), str)), "") or _listed(
        inner.get("detail")
    )
    marks = [_marks(inner)] if inner is decoded else [_marks(inner), _marks(decoded)]
    behind = inner.get("innererror")
    if isinstance(behind, dict):
        marks.append(_marks(behind))
    metadata = inner.get("metadata")
    if isinstance(metadata, dict):  # from the provider behind the endpoint
        marks += (str(metadata.get(key) or "") for key in ("raw", "reasons", "error_type"))
    after = _wait_in(message)
    for detail in inner["details"] if isinstance(inner.get("details"), list) else ():
        if isinstance(detail, dict):
            after = _delay(detail.get("retryDelay")) or after
            marks += (str(detail.get(key) or "") for key in ("reason", "violations"))
    return EndpointError(message, " ".join(filter(None, marks))[:MARKS_CHARACTERS], after, _param(inner))


def _param(inner: dict[Any, Any]) -> str:
    """Returns OpenAI's `param`, or the location in FastAPI's first validation error."""
    param, details = inner.get("param"), inner.get("detail")
    if isinstance(param, str):
        return param[:PARAM_CHARACTERS]
    first = details[0] if isinstance(details, list) and details else details
    place = first.get("loc") if isinstance(first, dict) else None
    steps = place[:LISTED] if isinstance(place, list) else []
    return ".".join(map(str, steps[1:] if steps[:1] == ["body"] else steps))[:PARAM_CHARACTERS]


def _listed(details: object) -> str:
    """Returns the location and the message of each of FastAPI's validation errors. `details` is a single error or a
    list."""
    found: list[str] = []
    for detail in details[:LISTED] if isinstance(details, list) else (details,):
        if isinstance(detail, str):
            found.append(detail)
        elif isinstance(detail, dict):
            message = next((detail[key] for key in _WORDING if isinstance(detail.get(key), str)), "")
            place = detail.get("loc")
            where = ".".join(map(str, place[:LISTED])) if isinstance(place, list) else ""
            found.append(f"{where}: {message}" if where and message else message)
    return "; ".join(filter(None, found))


def retry_after_of(headers: Mapping[str, str], now: float) -> float | None:
    """Returns the seconds that the endpoint asks the client to wait, from any of the headers in use. Returns None if
    there is no such header."""
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
    return min(max(0.0, seconds), LONGEST_WAIT) if math.isfinite(seconds) else None


def _marks(fields: dict[Any, Any]) -> str:
    return " ".join(str(fields[key]) for key in _MARKING if isinstance(fields.get(key), str | int))


def _wait_in(text: str) -> float | None:
    found = _WAIT.search(text)
    return None if found is None else float(found.group(1)) * _UNITS.get(found.group(2).lower(), 1.0)


def _delay(value: object) -> float | None:
    """Returns the number of seconds in a delay written as `34.5s`."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)s", value) if isinstance(value, str) else None
    return None if found is None else float(found.group(1))
