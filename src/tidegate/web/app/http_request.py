"""HTTP requests: headers and bodies, read within limits and decoded to typed values.

If a known header is repeated or invalid, the request is refused with an error that names the header. All other headers
are dropped.

An invalid body is refused with 400 and the path of its first error (`messages[2].content`). A body is invalid if it is
not JSON or not UTF-8, is nested too deeply, repeats a name, has a number out of range, or has too many values. Nothing
is guessed. Bodies are never read beyond the limit, and large bodies count towards a shared limit until they are
released.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import msgspec

from tidegate.config import Duration, InvalidValue
from tidegate.errors import Busy, Refused, TooLarge
from tidegate.models import repair_json
from tidegate.values import BusyMode, OnDisconnect

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]
Headers = Mapping[bytes, bytes]

NAME_LENGTH = 200
"""Maximum length of a client's name for a conversation, in characters."""
KEY_LENGTH = 255
"""Maximum length of an idempotency key in characters, as in other APIs."""

BODY_SECONDS = 60.0
"""Time limit for receiving a body, in seconds. With the default size limit, this requires 280 KB/s."""
SMALL_BODY = 64 * 1024
"""Bodies up to this size, in bytes, do not count towards the shared limit."""
BODIES_AT_ONCE = 4
"""Number of bodies of the maximum size that may be in memory at the same time, before they are decoded to messages."""

MOST_VALUES = 250_000
"""Maximum number of JSON values in a body: several times as many as in the longest conversations. Decoding millions of
empty lists would block all other requests for seconds."""

_KNOWN = frozenset(
    {
        b"accept-encoding",
        b"authorization",
        b"content-length",
        b"content-type",
        b"cookie",
        b"host",
        b"idempotency-key",
        b"if-none-match",
        b"last-event-id",
        b"origin",
        b"range",
        b"sec-fetch-site",
        b"x-busy",
        b"x-events",
        b"x-on-disconnect",
        b"x-page-token",
        b"x-session-id",
        b"x-stainless-lang",
        b"x-stainless-retry-count",
    }
)

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_DIVIDERS = (b",", b"[", b"{")


# -- headers -----------------------------------------------------------------------------------------------------------


def parse_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Returns the known headers by name. Repeated cookies are joined."""
    known: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name in _KNOWN:
            if name in known:
                if name == b"cookie":
                    value = known[name] + b"; " + value
                else:
                    raise Refused(f"The header {name.decode()} is repeated; send it once.", param=name.decode())
            known[name] = value
    return known


def session_name(headers: Headers) -> str | None:
    value = headers.get(b"x-session-id")
    return None if value is None else _text(value, "X-Session-Id", NAME_LENGTH)


def idempotency_key(headers: Headers) -> str | None:
    value = headers.get(b"idempotency-key")
    return None if value is None else _text(value, "Idempotency-Key", KEY_LENGTH)


def busy_mode(headers: Headers) -> BusyMode:
    value = headers.get(b"x-busy", b"queue").strip().lower()
    match value:
        case b"queue":
            return "queue"
        case b"steer":
            return "steer"
        case b"interrupt":
            return "interrupt"
    raise Refused("X-Busy must be queue, steer or interrupt.", param="X-Busy")


def disconnect_mode(headers: Headers) -> OnDisconnect | None:
    match headers.get(b"x-on-disconnect", b"").strip().lower():
        case b"":
            return None
        case b"cancel":
            return "cancel"
        case b"continue":
            return "continue"
    raise Refused("X-On-Disconnect must be cancel or continue.", param="X-On-Disconnect")


def wants_all_events(headers: Headers) -> bool:
    value = headers.get(b"x-events", b"").strip().lower()
    if value not in (b"", b"full"):
        raise Refused("X-Events must be full or omitted.", param="X-Events")
    return value == b"full"


def client_attempt(headers: Headers) -> Literal["none", "first", "again"]:
    """Returns the attempt that an official client reports: `first`, or `again` for a retry. For other clients, returns
    `none`."""
    count = headers.get(b"x-stainless-retry-count", b"").strip()
    if count.isdigit() and int(count[:9]) > 0:
        return "again"
    return "first" if b"x-stainless-lang" in headers or count else "none"


def _text(value: bytes, name: str, longest: int) -> str:
    value = value.strip(b" \t")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = value.decode("latin-1")
    if not 1 <= len(text) <= longest or not text.isprintable():
        raise Refused(f"{name} must have 1 to {longest} printable characters.", param=name)
    return text


# -- bodies ------------------------------------------------------------------------------------------------------------


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


class RequestBodies:
    """Reads request bodies of at most `limit` bytes each. Together, they may have at most `BODIES_AT_ONCE` times that
    size. A body counts from its first bytes until `release` is called."""

    def __init__(self, limit: int, *, seconds: float = BODY_SECONDS) -> None:
        self._limit = limit
        self._budget = limit * BODIES_AT_ONCE
        self.seconds = seconds
        self.held = 0

    async def read(self, length: bytes | None, receive: Receive, most: int | None = None) -> bytes:
        """Reads a complete body. The caller must `release` it once it is decoded. `length` is the value of
        Content-Length; `most` is a limit for this body, lower than the general one."""
        limit = self._limit if most is None else min(most, self._limit)
        if length is not None and length.isdigit() and int(length[:20]) > limit:
            raise self._too_large(limit)
        try:
            async with asyncio.timeout(self.seconds):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                if not message.get("more_body"):
                    body: bytes = message.get("body", b"")
                    if len(body) > limit:
                        raise self._too_large(limit)
                    if len(body) > SMALL_BODY:
                        self._count(len(body))
                    return body
                return await self._rest(message["body"], receive, limit)
        except TimeoutError:
            raise _Slow(f"The body did not arrive within {self.seconds:g} s; send it again.") from None

    def release(self, size: int) -> None:
        """Stops counting a body of this size because it is no longer in memory or is counted elsewhere."""
        if size > SMALL_BODY:
            self.held -= size

    async def _rest(self, first: bytes, receive: Receive, limit: int) -> bytes:
        pieces = [first]
        size = len(first)
        counted = 0
        try:
            more = True
            while True:
                if size > limit:
                    raise self._too_large(limit)
                if size > SMALL_BODY:
                    self._count(size - counted)
                    counted = size
                if not more:
                    return b"".join(pieces)
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                piece = message.get("body", b"")
                pieces.append(piece)
                size += len(piece)
                more = message.get("more_body", False)
        except BaseException:
            self.held -= counted
            raise

    def _count(self, size: int) -> None:
        if self.held + size > self._budget:
            raise Busy(
                f"The request bodies being read have reached {self._budget} bytes ({BODIES_AT_ONCE} times "
                "limits.body_bytes); try again.",
                code="bodies_busy",
            )
        self.held += size

    def _too_large(self, limit: int) -> TooLarge:
        name = "limits.body_bytes" if limit == self._limit else "the limit of this endpoint"
        return TooLarge(f"The body is larger than {name} ({limit} bytes).", limit=name, value=limit)


class _Slow(Refused):
    status = 408
    code = "body_timeout"


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Decodes a body to its type. Raises `Refused` with the path to the first error."""
    if _is_crowded(body):
        raise Refused(f"The body contains more than {MOST_VALUES} values; send fewer.", code="too_many_values")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise refuse(str(error), decoder.type) from None
    except msgspec.DecodeError as error:
        text = str(error).removeprefix("JSON is malformed: ")
        if repair_json(body) != body:  # the decoder's own message would depend on the text that follows
            text = "it contains a lone surrogate or bytes that are not UTF-8; send valid Unicode"
        raise Refused(f"The body is not valid JSON: {text[:1].lower()}{text[1:]}.", code="invalid_json") from None
    except UnicodeDecodeError:
        raise Refused("The body is not valid JSON: it is not UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise Refused("The body is nested too deeply.", code="invalid_json") from None


def _is_crowded(body: bytes) -> bool:
    """True if a body contains more than `MOST_VALUES` values. The values are counted without decoding the body. Strings
    are removed first, but only if the body has that many commas and brackets."""
    if len(body) <= MOST_VALUES or sum(map(body.count, _DIVIDERS)) <= MOST_VALUES:
        return False
    most = 2 * MOST_VALUES  # a value and its name
    rest, strings = _STRING.subn(b"", body, most)
    return strings == most or sum(map(rest.count, _DIVIDERS)) > MOST_VALUES


def refuse_duplicates(body: bytes) -> None:
    """Refuses objects that repeat a name, since the intended value is unknown."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Refused(f"The body repeats {name[:100]!r} in one object.", param=name[:100])
            seen.add(name)

    try:
        json.loads(
            body, object_pairs_hook=once, parse_int=str, parse_float=str
        )  # str, since numbers may have any length
    except RecursionError:
        raise Refused("The body is nested too deeply.", code="invalid_json") from None
    except ValueError as error:
        raise Refused(f"The body is not valid JSON: {error}.", code="invalid_json") from None


def refuse(text: str, kind: Any, *, root: str = "", texts_only: bool = False) -> Refused:
    """Returns the refusal for a validation error; see `validation_errors`."""
    from tidegate.web.app.validation_errors import refusal  # imported only when a request is invalid

    return refusal(text, kind, root=root, texts_only=texts_only)


def parse_time(param: str, text: str, now: float) -> float:
    """Parses a time in a query: a duration before now, or a date or time in UTC."""
    try:
        return now - float(Duration().read(text.strip()) or 0.0)
    except InvalidValue:
        pass
    try:
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise Refused(
            f"{param} must be a time span like 7d or 12h, or a date or time like 2026-11-01 or 2026-11-01T12:00.",
            param=param,
        ) from None
