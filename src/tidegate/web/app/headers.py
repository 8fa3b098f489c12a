"""The request headers that the gateway reads, and the parsing of their values.

A known header that is repeated or has an invalid value is refused by name. All other headers are dropped.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from tidegate.errors import Refused
from tidegate.values import BusyMode, OnDisconnect

NAME_LENGTH = 200
"""Characters of a client's name for a conversation."""
KEY_LENGTH = 255
"""Characters of an idempotency key, as in other APIs."""

_KNOWN = frozenset(
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


def parse_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The known headers by name; repeated cookies are joined."""
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
    """The attempt that an official client reports: its first one, a retry, or `none` for other clients."""
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
