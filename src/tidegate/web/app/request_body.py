"""From the bytes of a request to typed values.

Guarantee: a body that is not what it should be is refused with 400 and the path of the first wrong thing
(`messages[2].content`), whatever it is: no JSON, nested too deeply, not UTF-8, a name given twice, a number out of
range, more values than anybody sends. Nothing of it is guessed, nothing larger than the limit is read, and what is
large is counted until its reader releases it.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from tidegate.config import Duration, InvalidValue
from tidegate.errors import Busy, Refused, TooLarge
from tidegate.models import repair_json

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]

BODY_SECONDS = 60.0
"""A client that takes longer to send its body is refused; at the default limit that is 280 KB/s."""
SMALL_BODY = 64 * 1024
"""Bodies up to this size are not counted against what may be in memory at once."""
BODIES_AT_ONCE = 4
"""Bodies of the largest size that may be in memory at the same time, before they have become messages."""

MOST_VALUES = 250_000
"""In one body: several times those of the longest conversations. Millions of empty lists would be read for seconds, in
which nobody else is answered."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_DIVIDERS = (b",", b"[", b"{")


class Gone(Exception):
    """The caller went away before its request was complete; there is nobody to answer."""


class RequestBodies:
    """Reads bodies, each at most `limit` bytes, together at most `BODIES_AT_ONCE` times that; a body counts from its
    first bytes until `release`."""

    def __init__(self, limit: int, *, seconds: float = BODY_SECONDS) -> None:
        self._limit = limit
        self._budget = limit * BODIES_AT_ONCE
        self.seconds = seconds
        self.held = 0

    async def read(self, length: bytes | None, receive: Receive, most: int | None = None) -> bytes:
        """The whole body, to be released when it has become something else. `length` is what Content-Length says;
        `most` is a limit below the general one."""
        limit = self._limit if most is None else min(most, self._limit)
        if length is not None and length.isdigit() and int(length[:20]) > limit:
            raise self._too_large(limit)
        try:
            async with asyncio.timeout(self.seconds):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
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
        """A body of this size that was read is in memory no more, or belongs to somebody else."""
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
                    raise Gone
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
                f"Requests of {self._budget} bytes together are being taken in ({BODIES_AT_ONCE} times "
                "limits.body_bytes); send this one again.",
                code="bodies_busy",
            )
        self.held += size

    def _too_large(self, limit: int) -> TooLarge:
        name = "limits.body_bytes" if limit == self._limit else "what is read here"
        return TooLarge(f"The body is larger than {name} ({limit} bytes).", limit=name, value=limit)


class _Slow(Refused):
    status = 408
    code = "body_timeout"


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """The typed value of a body, or `Refused` with where it is wrong."""
    if _is_crowded(body):
        raise Refused(f"The body holds more than {MOST_VALUES} values; send fewer.", code="too_many_values")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise refuse(str(error), decoder.type) from None
    except msgspec.DecodeError as error:
        text = str(error).removeprefix("JSON is malformed: ")
        if repair_json(body) != body:  # what the decoder says of it depends on what follows
            text = "it holds a lone surrogate or bytes that are not UTF-8; send valid Unicode"
        raise Refused(f"The body is not valid JSON: {text[:1].lower()}{text[1:]}.", code="invalid_json") from None
    except UnicodeDecodeError:
        raise Refused("The body is not valid JSON: it is not UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise Refused("The body is nested too deeply.", code="invalid_json") from None


def _is_crowded(body: bytes) -> bool:
    """Whether a body holds more than `MOST_VALUES`, found without reading it. Texts are looked through only when there
    are commas and brackets enough in them."""
    if len(body) <= MOST_VALUES or sum(map(body.count, _DIVIDERS)) <= MOST_VALUES:
        return False
    most = 2 * MOST_VALUES  # a value and its name
    rest, strings = _STRING.subn(b"", body, most)
    return strings == most or sum(map(rest.count, _DIVIDERS)) > MOST_VALUES


def refuse_duplicates(body: bytes) -> None:
    """Refuse an object that gives one name twice: which of the two was meant cannot be known."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Refused(f"The body gives {name[:100]!r} twice in one object.", param=name[:100])
            seen.add(name)

    try:
        json.loads(body, object_pairs_hook=once, parse_int=str, parse_float=str)  # numbers of any length
    except RecursionError:
        raise Refused("The body is nested too deeply.", code="invalid_json") from None
    except ValueError as error:
        raise Refused(f"The body is not valid JSON: {error}.", code="invalid_json") from None


def refuse(text: str, kind: Any, *, root: str = "", texts_only: bool = False) -> Refused:
    """What a validation error means to a caller; see `wording`."""
    from tidegate.web.app.validation_errors import refusal  # only mistakes need it

    return refusal(text, kind, root=root, texts_only=texts_only)


def moment(param: str, text: str, now: float) -> float:
    """A time that a caller named: a time span up to now, or a date or time of UTC."""
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
