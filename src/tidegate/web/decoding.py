"""From the bytes of a request to typed values.

Guarantee: a body that is not what it should be is refused with 400 and the path of the first wrong thing
(`messages[2].content`), whatever it is: no JSON, nested too deeply, not UTF-8, a name given twice, a number out of
range. Nothing of it is guessed, and nothing larger than the limit is read.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from tidegate.errors import Busy, Refused, TooLarge

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]

BODY_SECONDS = 60.0
"""A client that takes longer to send its body is refused; at the default limit that is 280 KB/s."""
SMALL_BODY = 64 * 1024
"""Bodies up to this size are not counted against what may be in memory at once."""
BODIES_AT_ONCE = 4
"""Bodies of the largest size that may be in memory at the same time, before they have become messages."""

_AT = re.compile(r" - at `(?:key` in `)?(\$[^`]*)`$")
_REQUIRED = re.compile(r"Object missing required field `([^`]+)`")


class Gone(Exception):
    """The caller went away before its request was complete; there is nobody to answer."""


class Bodies:
    """Reads bodies, each at most `limit` bytes, together at most `BODIES_AT_ONCE` times that."""

    def __init__(self, limit: int, *, seconds: float = BODY_SECONDS) -> None:
        self._limit = limit
        self._budget = limit * BODIES_AT_ONCE
        self._seconds = seconds
        self.held = 0

    async def read(self, length: bytes | None, receive: Receive) -> bytes:
        """The whole body. `length` is what Content-Length says."""
        if length is not None and length.isdigit() and int(length[:20]) > self._limit:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._seconds):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                if not message.get("more_body"):
                    body: bytes = message.get("body", b"")
                    if len(body) > self._limit:
                        raise self._too_large()
                    return body
                return await self._rest(message["body"], receive)
        except TimeoutError:
            raise _Slow(f"The body did not arrive within {self._seconds:g} s; send it again.") from None

    async def _rest(self, first: bytes, receive: Receive) -> bytes:
        pieces = [first]
        size = len(first)
        counted = 0
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                piece = message.get("body", b"")
                pieces.append(piece)
                size += len(piece)
                more = message.get("more_body", False)
                if size > self._limit:
                    raise self._too_large()
                if size > SMALL_BODY:
                    self.held += size - counted
                    counted = size
                    if self.held > self._budget:
                        raise Busy("Too many large requests arrive at once; send this one again.", code="bodies_busy")
            return b"".join(pieces)
        finally:
            self.held -= counted

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"The body is larger than limits.body_bytes ({self._limit} bytes).",
            limit="limits.body_bytes",
            value=self._limit,
        )


class _Slow(Refused):
    status = 408
    code = "body_timeout"


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """The typed value of a body, or `Refused` with where it is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise refuse(str(error)) from None
    except msgspec.DecodeError as error:
        raise Refused(f"The body is not valid JSON: {_lower(str(error))}.", code="invalid_json") from None
    except UnicodeDecodeError:
        raise Refused("The body is not valid JSON: it is not UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise Refused("The body is nested too deeply.", code="invalid_json") from None


def refuse_duplicates(body: bytes) -> None:
    """Refuse an object that gives one name twice: which of the two was meant cannot be known."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Refused(f"The body gives {name[:100]!r} twice in one object.", param=name[:100])
            seen.add(name)

    try:
        json.loads(body, object_pairs_hook=once)
    except RecursionError:
        raise Refused("The body is nested too deeply.", code="invalid_json") from None
    except ValueError as error:
        raise Refused(f"The body is not valid JSON: {error}.", code="invalid_json") from None


def refuse(text: str) -> Refused:
    """What a validation error means to a caller."""
    path = ""
    if found := _AT.search(text):
        path = found[1].removeprefix("$").removeprefix(".")
        text = text[: found.start()]
    if missing := _REQUIRED.fullmatch(text):
        path = f"{path}.{missing[1]}" if path else missing[1]
        return Refused(f"{path} is missing.", param=path)
    text = text.replace("`", "")
    if not path:
        return Refused(f"The body is wrong: {_lower(text)}.")
    return Refused(f"{path}: {_lower(text)}.", param=path)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
