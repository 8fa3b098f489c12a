"""The web application: one ASGI callable for the APIs, the chat page, health checks and metrics.

Every request gets a response in the gateway's own format, whatever happens: an unknown path, a wrong method, a refusal,
a failure, an unexpected exception or the end of the process. Chat completions are dispatched before any routing. The
application owns no task; its server must run `background`.
"""

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from tidegate.config import Config
from tidegate.errors import NotFound, Refused, Stopping, TooManyConnections
from tidegate.lifetimes import CacheStats, Descriptors, Holding
from tidegate.log import Log
from tidegate.security import Principal, Redactor
from tidegate.sessions import Sessions
from tidegate.slash_commands import Commands
from tidegate.status_report import SessionsStatus, StatusReport
from tidegate.store import Store
from tidegate.web.api.approvals import ApprovalsApi
from tidegate.web.api.audit import AuditApi
from tidegate.web.api.browsers import BrowsersApi
from tidegate.web.api.conversations import ConversationsApi
from tidegate.web.api.event_stream import EventStream
from tidegate.web.api.keys import KeysApi
from tidegate.web.api.memory import MemoryApi
from tidegate.web.api.models import ModelsApi
from tidegate.web.api.page import PageApi
from tidegate.web.api.projects import ProjectsApi
from tidegate.web.api.session_settings import SessionSettingsApi
from tidegate.web.api.status import StatusApi
from tidegate.web.api.usage import UsageApi
from tidegate.web.app.auth import Credentials
from tidegate.web.app.cors import Cors
from tidegate.web.app.endpoint import Endpoint, PathApp, Request, Routes
from tidegate.web.app.health import Health
from tidegate.web.app.http_request import ClientDisconnected, RequestBodies
from tidegate.web.app.http_response import (
    ErrorResponses,
    Headers,
    HttpResponse,
    json_response,
    request_id,
    send_response,
)
from tidegate.web.app.metrics import Metrics
from tidegate.web.app.page_files import PageFiles
from tidegate.web.app.sse import KEEP_ALIVE_SECONDS, OpenStreams
from tidegate.web.chat.completions import CHAT, ChatCompletions
from tidegate.web.http1.protocol import ABORT, EXTRA

FINAL_RESPONSE_SECONDS = 0.5
"""Seconds allowed for sending the error response to a request that is cut off because the process is stopping."""

HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/api/status"})
"""Paths that are served even when all connections are in use and no file descriptors are left."""

_API_HEADERS: Headers = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
"""Headers of every response from the two APIs, the health checks and the metrics, including error responses. The page's
files have different headers."""
_ROUTE = "tidegate.route"
"""The scope key for the path declared by the request's endpoint."""
OTHER = "other"
"""The route for requests to unknown paths."""

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Status = Callable[[], Awaitable[StatusReport | SessionsStatus]]

log = Log(__name__)


class _NoMethod(Refused):
    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method[:20]} is not allowed here; use {allowed}.")
        self.allowed = allowed


class _RecordedSend:
    """A wrapper around a request's `send` that adds common headers and records the status and the end of the
    response."""

    __slots__ = ("_headers", "_send", "done", "status")

    def __init__(self, send: Send, headers: Headers) -> None:
        self._send = send
        self._headers = headers
        self.status = 0
        self.done = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *self._headers, (b"x-request-id", request_id())]}
            self.status = message["status"]
        elif not message.get("more_body"):
            self.done = True
        await self._send(message)


class HttpCounters:
    """Counts requests by route and status, and measures the durations of chat requests."""

    BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
    """The histogram's upper bounds in seconds. They range from the demo model's durations to those of long turns."""

    __slots__ = ("buckets", "requests", "seconds")

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # lint: allow routes are known, any other is OTHER
        self.buckets = [0] * (len(self.BOUNDS) + 1)
        self.seconds = 0.0

    def count_response(self, route: str, status: int) -> None:
        self.requests[route, status] += 1

    def count_chat(self, seconds: float) -> None:
        self.buckets[bisect_left(self.BOUNDS, seconds)] += 1
        self.seconds += seconds


class App:
    def __init__(
        self,
        *,
        chat: ChatCompletions,
        endpoints: list[Endpoint],
        credentials: Credentials,
        bodies: RequestBodies,
        events: EventStream,
        streams: OpenStreams,
        errors: ErrorResponses,
        counters: HttpCounters,
        health: Health,
        cors: Cors | None,
        descriptors: Descriptors,
    ) -> None:
        self._chat = chat
        self.bodies = bodies
        self._events = events
        self.streams = streams
        self._errors = errors
        self._counters = counters
        self._health = health
        self._cors = cors
        self._descriptors = descriptors
        self._stopping = False
        self._description: bytes | None = None
        self.endpoints = [*endpoints, self._openapi_endpoint()]
        self._routes = _routes(self.endpoints, credentials, bodies)
        self.credentials = credentials

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        cors_headers = [] if self._cors is None else self._cors.headers(scope)
        is_api = scope["path"].startswith(("/api", "/v1")) or scope["path"] in HEALTH_PATHS
        recorded = _RecordedSend(send, [*cors_headers, *_API_HEADERS] if is_api else cors_headers)
        is_chat = scope["path"] == CHAT.path
        try:
            if self._cors is not None and (preflight := self._cors.preflight(scope, cors_headers)) is not None:
                await send_response(recorded, preflight)
                return
            if self._stopping:
                raise Stopping("The gateway is stopping; try again when it has restarted.", retry_after=5)
            if EXTRA in scope and scope["path"] not in HEALTH_PATHS:
                raise TooManyConnections("All of the gateway's connections are in use; try again soon.", retry_after=1)
            if is_chat:
                scope[_ROUTE] = CHAT.path
                if scope["method"] != CHAT.method:
                    raise _NoMethod(scope["method"], CHAT.method)
                await self._chat(scope, receive, recorded)
            elif scope["path"] in HEALTH_PATHS:
                with self._descriptors.reserve():
                    await self._route(scope, receive, recorded)
            else:
                await self._route(scope, receive, recorded)
        except ClientDisconnected:
            recorded.status = 499
        except asyncio.CancelledError:
            await self._cut_off(recorded, scope)
        except Exception as error:
            await self._fail(error, recorded, scope)
        self._counters.count_response(scope.get(_ROUTE, OTHER), recorded.status)
        if is_chat:
            self._counters.count_chat(time.perf_counter() - began)

    async def background(self) -> None:
        """Sends keep-alives to idle streams and measures the event loop, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.streams.run)
            group.start_soon(self._health.watch_loop)

    def stop(self) -> None:
        """Refuses new requests and closes the event streams. Running requests continue."""
        self._stopping = True
        self._events.stop()

    # -- routing --

    async def _route(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        route = self._routes.find(scope["path"])
        if route is None and scope["path"].startswith("/v1/"):
            raise NotFound(
                f"This gateway does not support {scope['method'][:20]} {scope['path'][:200]}. From OpenAI's API, it "
                "supports POST /v1/chat/completions and GET /v1/models.",
                code="unknown_url",
            )
        if route is None:
            raise NotFound(
                f"There is nothing at {scope['path'][:200]!r}. OpenAI's API is under /v1; see /openapi.json."
            )
        scope[_ROUTE] = route.path
        if scope["method"] not in route.app.methods:
            raise _NoMethod(scope["method"], ", ".join(route.app.methods))
        await route.app(scope, route.values, receive, send)

    def _openapi_endpoint(self) -> Endpoint:
        return Endpoint(
            method="GET", path="/openapi.json", handler=self._openapi, summary="This description", access="anyone",
            responses={200: dict[str, Any]},
        )  # fmt: skip

    async def _openapi(self, request: Request) -> HttpResponse:
        if self._description is None:
            from tidegate.web.app.openapi import describe_api  # rarely requested, and cached

            self._description = json_response(describe_api([CHAT, *self.endpoints])).body
        body = self._description
        return HttpResponse(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body)

    # -- failures --

    async def _fail(self, error: Exception, send: _RecordedSend, scope: dict[str, Any]) -> None:
        response = self._errors.from_error(error)
        if send.status:
            # The response has begun, so dropping the connection is the only way to report the failure.
            log.warning("a response was aborted", path=scope.get(_ROUTE, OTHER), error=str(error))
            scope.get(ABORT, _nothing)()
            return
        if isinstance(error, _NoMethod):
            response.headers.append((b"allow", error.allowed.encode()))
        if self._stopping:
            response.headers.append((b"connection", b"close"))
        await send_response(send, response)

    async def _cut_off(self, send: _RecordedSend, scope: dict[str, Any]) -> None:
        """Responds to a request that is cancelled because the shutdown deadline has passed."""
        if send.done:
            return
        if send.status:
            scope.get(ABORT, _nothing)()
            return
        stopping = Stopping(
            "The gateway is stopping. A turn of a named session, or one with an Idempotency-Key, continues after the "
            "restart.",
            retry_after=5,
        )
        response = self._errors.from_error(stopping)
        response.headers.append((b"connection", b"close"))
        with anyio.move_on_after(FINAL_RESPONSE_SECONDS, shield=True):
            await send_response(send, response)


def create_app(
    *,
    service: Sessions,
    commands: Commands,
    store: Store,
    config: Config,
    redactor: Redactor,
    health: Health,
    status: Status,
    gauges: Callable[[], Mapping[str, float]] = dict,
    keep_alive: float = KEEP_ALIVE_SECONDS,
    descriptors: Descriptors | None = None,
    terminal: bytes = b"",
) -> App:
    """Builds the application. Nothing is opened or started. `gauges` returns additional metrics by name; `terminal` is
    the digest of the CLI's key."""

    def agents(principal: Principal) -> tuple[str, ...]:
        return tuple(view.name for view in service.agents(principal))

    errors = ErrorResponses(redactor.text)
    bodies = RequestBodies(config.limits.body_bytes)
    streams = OpenStreams(keep_alive)
    events = EventStream(service, streams, config.limits)
    credentials = Credentials(store, config.server, agents, revoked=events.end, terminal=terminal)
    counters = HttpCounters()
    pages = PageFiles()

    def caches() -> tuple[CacheStats, ...]:
        return (credentials.stats(), pages.stats(), *service.caches())

    service.ledger.view("cache", lambda: ((f"cache {stats.name}", stats.holding) for stats in caches()))
    service.ledger.view("request body", lambda: (("process", Holding(0, bodies.held)),))

    def load_metrics() -> Callable[[], HttpResponse]:
        return Metrics(
            counters=counters,
            service=service.status,
            store=store.stats,
            caches=caches,
            gauges=lambda: {
                **gauges(),
                "loop_lag_seconds": health.lag,
                "event_streams": float(events.open),
                "open_streams": float(len(streams.open)),
            },
            limits=config.limits,
            ledger=service.ledger,
        ).response

    return App(
        chat=ChatCompletions(service, credentials, bodies, errors, streams, config),
        endpoints=[
            *ModelsApi().endpoints(),
            *StatusApi(health, load_metrics, status).endpoints(),
            *KeysApi(credentials, frozenset(config.agents)).endpoints(),
            *PageApi(credentials, pages).endpoints(),
            *BrowsersApi(credentials).endpoints(),
            *ConversationsApi(service, commands, events).endpoints(),
            *SessionSettingsApi(service).endpoints(),
            *ApprovalsApi(service).endpoints(),
            *UsageApi(service).endpoints(),
            *AuditApi(service).endpoints(),
            *MemoryApi(service).endpoints(),
            *ProjectsApi(service).endpoints(),
        ],
        credentials=credentials,
        bodies=bodies,
        events=events,
        streams=streams,
        errors=errors,
        counters=counters,
        health=health,
        cors=Cors(config.server.origins) if config.server.origins else None,
        descriptors=descriptors or Descriptors(),
    )


def _routes(endpoints: list[Endpoint], credentials: Credentials, bodies: RequestBodies) -> Routes:
    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, []).append(endpoint)
    return Routes({path: PathApp(group, credentials, bodies) for path, group in by_path.items()})


def _nothing() -> None:
    pass
