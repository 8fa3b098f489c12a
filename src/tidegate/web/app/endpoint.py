"""An endpoint: what it takes, who may call it, what it answers; described once, for routing and for OpenAPI.

Guarantee: a handler sees a request only after its caller is known and allowed and its query and body have the declared
types; whatever it raises becomes an answer. The caller is checked before the body is read, and again after that, since
a body may take a while.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec

from tidegate.errors import Refused
from tidegate.security import Right
from tidegate.web.app.auth import Caller, Credentials
from tidegate.web.app.error_responses import HttpResponse, send_answer
from tidegate.web.app.headers import headers_of
from tidegate.web.app.request_body import RequestBodies, decode, refuse, refuse_duplicates

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

MOST_QUERY_FIELDS = 20


class Ask(msgspec.Struct, frozen=True):
    """One request, as its handler sees it."""

    method: str
    path: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    query: Any
    body: Any
    who: Caller | None
    receive: Receive
    send: Send

    @property
    def caller(self) -> Caller:
        if self.who is None:
            raise RuntimeError("an open endpoint asked who calls")
        return self.who


Handler = Callable[[Ask], Awaitable[HttpResponse | None]]
"""Returns the answer, or None when it has sent one itself."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    summary: str
    handler: Handler | None = None
    """None for what is described here and served elsewhere."""
    who: Right | Literal["anyone", "page"] = "talk"
    """The right that it takes. `page`: anyone, but no foreign page."""
    query: Any = None
    body: Any = None
    body_bytes: int | None = None
    """The largest body, where that is less than limits.body_bytes."""
    answers: Mapping[int, Any] = {}
    """Type of the body by status; a string is a content type without a schema."""
    refusals: tuple[int, ...] = ()
    """Statuses of errors besides those that every such endpoint has."""
    headers: tuple[str, ...] = ()
    """Request headers that mean something here."""

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return self.who in ("anyone", "page")


class PathApp:
    """The endpoints of one path."""

    def __init__(self, endpoints: list[Endpoint], keyring: Credentials, bodies: RequestBodies) -> None:
        self._by_method = {endpoint.method: endpoint for endpoint in endpoints}
        self._decoders = {
            endpoint.method: msgspec.json.Decoder(endpoint.body) for endpoint in endpoints if endpoint.body is not None
        }
        self._keyring = keyring
        self._bodies = bodies

        self.methods: list[str] = list(self._by_method)
        if "GET" in self.methods:
            self.methods.append("HEAD")

    async def __call__(self, scope: dict[str, Any], path: Mapping[str, str], receive: Receive, send: Send) -> None:
        method = scope["method"]
        endpoint = self._by_method["GET" if method == "HEAD" else method]
        headers = headers_of(scope["headers"])
        who = await self._who(endpoint, method, headers)
        query = _query(scope["query_string"], endpoint.query)
        decoder = self._decoders.get(endpoint.method)
        length = headers.get(b"content-length")
        raw = b"" if decoder is None else await self._bodies.read(length, receive, endpoint.body_bytes)
        size = len(raw)
        try:
            if decoder is not None:  # it may have been revoked while the body was awaited
                who = await self._who(endpoint, method, headers)
            body = None if decoder is None else _decoded(raw, decoder)
            del raw
            ask = Ask(
                method=method,
                path=path,
                headers=headers,
                query=query,
                body=body,
                who=who,
                receive=receive,
                send=send,
            )
            assert endpoint.handler is not None
            answer = await endpoint.handler(ask)
        finally:
            self._bodies.release(size)
        if answer is not None:
            await send_answer(send, answer)

    async def _who(self, endpoint: Endpoint, method: str, headers: Mapping[bytes, bytes]) -> Caller | None:
        if endpoint.who == "page":
            self._keyring.check_page(headers)
            return None
        if endpoint.who == "anyone":
            return None
        caller = await self._keyring.caller(method, headers)
        caller.principal.require(endpoint.who)
        return caller


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
        raise Refused("The query is not valid: it must be UTF-8, percent-encoded, with few fields.") from None
    try:
        return msgspec.convert(fields, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise refuse(str(error), kind, texts_only=True) from None
