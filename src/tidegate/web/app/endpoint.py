"""Declaration and routing of endpoints, and the requests that they handle.

An `Endpoint` declares its path, parameters, required right and responses once, for routing and for OpenAPI. A handler
is called only if its caller is authenticated and authorised, and the query and body have the declared types. The caller
is checked both before and after the body is read, since a body may take a while to arrive. Exceptions from handlers
become error responses (`app.py`).

Each path leads to at most one `PathApp`. In a template, `{name}` matches one segment of a path and `{name:path}`
matches the rest of it. Literal paths have priority over templates, and earlier templates over later ones. The routing
table is built once and holds no resources.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec

from tidegate.errors import Refused
from tidegate.security import Right
from tidegate.web.app.auth import Caller, Credentials
from tidegate.web.app.http_request import RequestBodies, decode, parse_headers, refuse, refuse_duplicates
from tidegate.web.app.http_response import HttpResponse, send_response
from tidegate.web.http1.protocol import ABORT

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

MOST_QUERY_FIELDS = 20
EVENT_STREAM = "text/event-stream"
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


class Request(msgspec.Struct, frozen=True):
    """A request as seen by its handler."""

    method: str
    path: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    query: Any
    body: Any
    known_caller: Caller | None
    """The authenticated caller; None on open endpoints."""
    receive: Receive
    send: Send

    @property
    def caller(self) -> Caller:
        if self.known_caller is None:
            raise RuntimeError("an open endpoint has no caller")
        return self.known_caller


Handler = Callable[[Request], Awaitable[HttpResponse | None]]
"""Handles a request. Returns the response, or None if the handler has already sent it."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    summary: str
    handler: Handler | None = None
    """The handler; None if the endpoint is only described here and served elsewhere."""
    access: Right | Literal["anyone", "page"] = "talk"
    """The right that the endpoint requires. With `page`, anyone may use the endpoint, except pages of other origins."""
    query: Any = None
    body: Any = None
    body_bytes: int | None = None
    """Maximum size of the body in bytes, if lower than limits.body_bytes."""
    responses: Mapping[int, Any] = {}
    """The response body's type by status; a string is a content type without a schema."""
    refusals: tuple[int, ...] = ()
    """This endpoint's error statuses, in addition to those common to all such endpoints."""
    headers: tuple[str, ...] = ()
    """The request headers that affect this endpoint."""

    @property
    def is_open(self) -> bool:
        """True if no key is needed."""
        return self.access in ("anyone", "page")


class PathApp:
    """One path's endpoints."""

    def __init__(self, endpoints: list[Endpoint], credentials: Credentials, bodies: RequestBodies) -> None:
        self._by_method = {endpoint.method: endpoint for endpoint in endpoints}
        self._decoders = {
            endpoint.method: msgspec.json.Decoder(endpoint.body) for endpoint in endpoints if endpoint.body is not None
        }
        self._credentials = credentials
        self._bodies = bodies

        self.methods: list[str] = list(self._by_method)
        if "GET" in self.methods:
            self.methods.append("HEAD")

    async def __call__(self, scope: dict[str, Any], path: Mapping[str, str], receive: Receive, send: Send) -> None:
        method = scope["method"]
        endpoint = self._by_method["GET" if method == "HEAD" else method]
        headers = parse_headers(scope["headers"])
        caller = await self._authenticate(endpoint, method, headers)
        query = _query(scope["query_string"], endpoint.query)
        decoder = self._decoders.get(endpoint.method)
        length = headers.get(b"content-length")
        raw = b"" if decoder is None else await self._bodies.read(length, receive, endpoint.body_bytes)
        size = len(raw)
        with self._dropped_when_revoked(endpoint, caller, scope):
            try:
                if decoder is not None:  # the key may have been revoked while the body arrived
                    caller = await self._authenticate(endpoint, method, headers)
                body = None if decoder is None else _decoded(raw, decoder)
                del raw
                request = Request(
                    method=method,
                    path=path,
                    headers=headers,
                    query=query,
                    body=body,
                    known_caller=caller,
                    receive=receive,
                    send=send,
                )
                assert endpoint.handler is not None
                response = await endpoint.handler(request)
            finally:
                self._bodies.release(size)
            if response is not None:
                await send_response(send, response)

    def _dropped_when_revoked(
        self, endpoint: Endpoint, caller: Caller | None, scope: Mapping[str, Any]
    ) -> AbstractContextManager[None]:
        """Returns a context that drops the connection if the caller's credential is revoked during a GET request. Event
        streams end by themselves, and requests with other methods continue, since one of them may be the revocation."""
        drop = scope.get(ABORT)
        if caller is None or drop is None or endpoint.method != "GET" or endpoint.responses.get(200) == EVENT_STREAM:
            return nullcontext()
        return self._credentials.dropped_when_revoked(caller, drop)

    async def _authenticate(self, endpoint: Endpoint, method: str, headers: Mapping[bytes, bytes]) -> Caller | None:
        if endpoint.access == "page":
            self._credentials.check_page(headers)
            return None
        if endpoint.access == "anyone":
            return None
        caller = await self._credentials.caller(method, headers)
        caller.principal.require(endpoint.access)
        return caller


class Route:
    __slots__ = ("app", "path", "values")

    def __init__(self, path: str, app: PathApp, values: Mapping[str, str]) -> None:
        self.path = path
        """The declared path: one of a fixed set, whatever path was requested."""
        self.app = app
        self.values = values


class Routes:
    def __init__(self, apps: Mapping[str, PathApp]) -> None:
        self._literals = {path: Route(path, app, {}) for path, app in apps.items() if "{" not in path}
        self._templates = [(_pattern(path), path, app) for path, app in apps.items() if "{" in path]

    def find(self, path: str) -> Route | None:
        literal = self._literals.get(path)
        if literal is not None:
            return literal
        for pattern, template, app in self._templates:
            match = pattern.fullmatch(path)
            if match is not None:
                return Route(template, app, match.groupdict())
        return None


def _pattern(template: str) -> re.Pattern[str]:
    pattern, end = "", 0
    for part in _PARAMETER.finditer(template):
        rest = r"(?s:.*)" if part[2] else "[^/]+"
        pattern += re.escape(template[end : part.start()]) + f"(?P<{part[1]}>{rest})"
        end = part.end()
    return re.compile(pattern + re.escape(template[end:]))


def _decoded(body: bytes, decoder: "msgspec.json.Decoder[Any]") -> Any:
    value = decode(body, decoder)
    refuse_duplicates(body)
    return value


def _query(raw: bytes, kind: Any) -> Any:
    if kind is None:
        return None
    try:
        fields = dict(parse_qsl(raw.decode("ascii"), errors="strict", max_num_fields=MOST_QUERY_FIELDS))
    except ValueError:
        raise Refused(
            f"The query is not valid: it must be percent-encoded UTF-8 with at most {MOST_QUERY_FIELDS} fields."
        ) from None
    try:
        return msgspec.convert(fields, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise refuse(str(error), kind, texts_only=True) from None
