"""CORS: requests from other web pages, allowed only for the origins in `server.origins` and only with a key.

Without listed origins, this module is not used, and browsers do not let other pages call the gateway. A page from a
listed origin may call it with its own key; it can never use the cookie of the gateway's own page.
"""

import re
from collections.abc import Iterable
from typing import Any

from tidegate.web.app.http_response import Headers, HttpResponse

_ALLOWED = (
    b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Busy, X-Events, X-On-Disconnect, X-Page-Token, "
    b"X-Session-Id"
)
"""The headers allowed for a browser that does not request any."""
_PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
    (b"access-control-max-age", b"600"),
]
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:[ \t]*,[ \t]*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_NAMES_BYTES = 4096
"""Maximum length of a list of header names, in bytes. No client sends that many."""


class Cors:
    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.lower().rstrip("/").encode() for origin in origins)

    def headers(self, scope: dict[str, Any]) -> Headers:
        """Returns the headers that let a page from a listed origin read the response."""
        origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
        if origin.lower() not in self._origins:
            return [(b"vary", b"Origin")]
        return [
            (b"access-control-allow-origin", origin),
            (
                b"access-control-expose-headers",
                b"X-Turn-Id, X-Turn-State, X-Caller-Tools, X-Request-Id, X-Should-Retry, Retry-After",
            ),
            (b"vary", b"Origin"),
        ]

    def preflight(self, scope: dict[str, Any], headers: Headers) -> HttpResponse | None:
        """Returns the response to a preflight request, or None for any other request and for origins that are not
        listed."""
        if scope["method"] != "OPTIONS" or len(headers) < 2:
            return None
        requested = next((value for name, value in scope["headers"] if name == b"access-control-request-headers"), b"")
        is_list = len(requested) <= _NAMES_BYTES and _NAMES.fullmatch(requested) is not None
        allowed = (b"access-control-allow-headers", requested if is_list else _ALLOWED)
        return HttpResponse(204, [*_PREFLIGHT, allowed], b"")
