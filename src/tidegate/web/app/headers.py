"""The headers that mean something to us, and their values.

Guarantee: a header of ours that is given twice, or has a value that it cannot have, is refused with its name; nothing
else of a request's headers is kept.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from tidegate.errors import Refused
from tidegate.values import BusyMode, OnDisconnect

NAME_LENGTH = 200
"""Characters of a caller's own name for a conversation."""
KEY_LENGTH = 255
"""Characters of an idempotency key, as other APIs allow."""

_OURS = frozenset(
    {
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

Headers = Mapping[bytes, bytes]


def headers_of(given: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in given:
        if name in _OURS:
            if name in found:
                if name == b"cookie":
                    value = found[name] + b"; " + value
                else:
                    raise Refused(f"The header {name.decode()} is given twice.", param=name.decode())
            found[name] = value
    return found


def session_name(headers: Headers) -> str | None:
    value = headers.get(b"x-session-id")
    return None if value is None else _text(value, "X-Session-Id", NAME_LENGTH)


def idempotency_key(headers: Headers) -> str | None:
    value = headers.get(b"idempotency-key")
    return None if value is None else _text(value, "Idempotency-Key", KEY_LENGTH)


def busy(headers: Headers) -> BusyMode:
    value = headers.get(b"x-busy", b"queue").strip().lower()
    match value:
        case b"queue":
            return "queue"
        case b"steer":
            return "steer"
        case b"interrupt":
            return "interrupt"
    raise Refused("X-Busy must be queue, steer or interrupt.", param="X-Busy")


def on_disconnect(headers: Headers) -> OnDisconnect | None:
    match headers.get(b"x-on-disconnect", b"").strip().lower():
        case b"":
            return None
        case b"cancel":
            return "cancel"
        case b"continue":
            return "continue"
    raise Refused("X-On-Disconnect must be cancel or continue.", param="X-On-Disconnect")


def all_events(headers: Headers) -> bool:
    value = headers.get(b"x-events", b"").strip().lower()
    if value not in (b"", b"full"):
        raise Refused("X-Events must be full, or left out.", param="X-Events")
    return value == b"full"


def retries(headers: Headers) -> Literal["none", "first", "again"]:
    """What an official client says about its own retrying: nothing, its first attempt, or a later one."""
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
