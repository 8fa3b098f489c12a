"""The web application: one ASGI callable in front of everything that HTTP can reach.

Guarantee: every request gets an answer of our shape, whatever happens in it: unknown paths, wrong methods, refusals,
failures, the unforeseen, and the end of the process. The hot path is found by one look into a table. The application
owns no task; `background` is what its server must run.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from tidegate.commands import Commands
from tidegate.config import Config
from tidegate.errors import NotFound, Refused, Stopping, TooManyConnections
from tidegate.lifetimes import CacheStats, Descriptors, Holding
from tidegate.log import Log
from tidegate.models import Models
from tidegate.security import Principal, Redactor
from tidegate.sessions import Sessions
from tidegate.store import Store
from tidegate.web.api.admin import Admin
from tidegate.web.api.approvals import ApprovalsApi
from tidegate.web.api.audit import AuditApi
from tidegate.web.api.browsers import BrowsersApi
from tidegate.web.api.conversations import ConversationsApi
from tidegate.web.api.event_stream import EventStream
from tidegate.web.api.memory import MemoryApi
from tidegate.web.api.projects import ProjectsApi
from tidegate.web.api.session_settings import SessionSettingsApi
from tidegate.web.api.usage import UsageApi
from tidegate.web.app.auth import Credentials
from tidegate.web.app.cors import Cors
from tidegate.web.app.endpoint import Ask, Endpoint, PathApp
from tidegate.web.app.error_responses import ErrorResponses, Headers, HttpResponse, json_answer, request_id, send_answer
from tidegate.web.app.health import Health
from tidegate.web.app.page_files import PageFiles
from tidegate.web.app.request_body import Gone, RequestBodies
from tidegate.web.app.routes import Routes
from tidegate.web.app.sse import KEEP_ALIVE_SECONDS, Pulse
from tidegate.web.app.traffic import OTHER, HttpCounters
from tidegate.web.chat.completions import CHAT, ChatCompletions
from tidegate.web.http1.protocol import ABORT, EXTRA

LAST_WORDS_SECONDS = 0.5
"""How long a request that is cut off at the end of the process may take to say so."""

ABOUT_ITSELF = frozenset({"/healthz", "/readyz", "/metrics", "/api/status"})
"""What is answered also when all connections are in use and no descriptor is left."""

_PRIVATE: Headers = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
"""On every response of the two APIs, refusals and failures too. Files of the page have headers of their own."""
_ROUTE = "tidegate.route"
"""Where a request's scope names the path as it was declared."""

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Status = Callable[[], Awaitable[Mapping[str, Any]]]

log = Log(__name__)


class _NoMethod(Refused):
    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method[:20]} is not possible here; use {allowed}.")
        self.allowed = allowed


class _Watched:
    """A request's `send` that remembers what was answered."""

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


class App:
    def __init__(
        self,
        *,
        chat: ChatCompletions,
        endpoints: list[Endpoint],
        keyring: Credentials,
        bodies: RequestBodies,
        events: EventStream,
        pulse: Pulse,
        errors: ErrorResponses,
        traffic: HttpCounters,
        health: Health,
        cors: Cors,
        descriptors: Descriptors,
    ) -> None:
        self._chat = chat
        self.bodies = bodies
        self._events = events
        self.pulse = pulse
        self._errors = errors
        self._traffic = traffic
        self._health = health
        self._cors = cors
        self._descriptors = descriptors
        self._stopping = False
        self._description: bytes | None = None
        self.endpoints = [*endpoints, self._described()]
        self._routes = _routes(self.endpoints, keyring, bodies)
        self.keyring = keyring

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        shared = self._cors.headers(scope)
        is_api = scope["path"].startswith(("/api", "/v1"))
        watched = _Watched(send, [*shared, *_PRIVATE] if is_api else shared)
        is_chat = scope["path"] == CHAT.path
        try:
            if shared and (permission := self._cors.preflight(scope, shared)) is not None:
                await send_answer(watched, permission)
                return
            if self._stopping:
                raise Stopping("The gateway is stopping; send this again when it is back.", retry_after=5)
            if EXTRA in scope and scope["path"] not in ABOUT_ITSELF:
                raise TooManyConnections("All connections of the gateway are in use; try again soon.", retry_after=1)
            if is_chat:
                scope[_ROUTE] = CHAT.path
                if scope["method"] != CHAT.method:
                    raise _NoMethod(scope["method"], CHAT.method)
                await self._chat(scope, receive, watched)
            elif scope["path"] in ABOUT_ITSELF:
                with self._descriptors.reserve():
                    await self._route(scope, receive, watched)
            else:
                await self._route(scope, receive, watched)
        except Gone:
            watched.status = 499
        except asyncio.CancelledError:
            await self._cut_off(watched, scope)
        except Exception as error:
            await self._fail(error, watched, scope)
        self._traffic.answered(scope.get(_ROUTE, OTHER), watched.status)
        if is_chat:
            self._traffic.chatted(time.perf_counter() - began)

    async def background(self) -> None:
        """Keeps quiet streams alive and measures the loop, for as long as it runs."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.pulse.run)
            group.start_soon(self._health.watch_loop)

    def stop(self) -> None:
        """Take no new request and let the event streams go; answers that run go on."""
        self._stopping = True
        self._events.stop()

    # -- routing --

    async def _route(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        route = self._routes.find(scope["path"])
        if route is None and scope["path"].startswith("/v1/"):
            raise NotFound(
                f"This gateway does not offer {scope['method'][:20]} {scope['path'][:200]}; of OpenAI's API it has "
                "POST /v1/chat/completions and GET /v1/models.",
                code="unknown_url",
            )
        if route is None:
            raise NotFound(f"There is nothing at {scope['path'][:200]!r}; see /openapi.json.")
        scope[_ROUTE] = route.path
        if scope["method"] not in route.app.methods:
            raise _NoMethod(scope["method"], ", ".join(route.app.methods))
        await route.app(scope, route.values, receive, send)

    def _described(self) -> Endpoint:
        return Endpoint(
            method="GET", path="/openapi.json", handler=self._describe, summary="This description", who="anyone",
            answers={200: dict[str, Any]},
        )  # fmt: skip

    async def _describe(self, ask: Ask) -> HttpResponse:
        if self._description is None:
            from tidegate.web.app.openapi import describe_api  # asked for rarely, and kept

            self._description = json_answer(describe_api([CHAT, *self.endpoints])).body
        body = self._description
        return HttpResponse(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body)

    # -- failures --

    async def _fail(self, error: Exception, send: _Watched, scope: dict[str, Any]) -> None:
        answer = self._errors.of(error)
        if send.status:
            # The response has begun: it can only be broken off, which every client notices.
            log.warning("a response was broken off", path=scope.get(_ROUTE, OTHER), error=str(error))
            scope.get(ABORT, _nothing)()
            return
        if isinstance(error, _NoMethod):
            answer.headers.append((b"allow", error.allowed.encode()))
        if self._stopping:
            answer.headers.append((b"connection", b"close"))
        await send_answer(send, answer)

    async def _cut_off(self, send: _Watched, scope: dict[str, Any]) -> None:
        """The deadline of the gateway's stop has passed. This task is at its end: nothing above waits for it."""
        if send.done:
            return
        if send.status:
            scope.get(ABORT, _nothing)()
            return
        stopping = Stopping(
            "The gateway is stopping; a turn of a named session, or one with an Idempotency-Key, goes on after its "
            "next start.",
            retry_after=5,
        )
        answer = self._errors.of(stopping)
        answer.headers.append((b"connection", b"close"))
        with anyio.move_on_after(LAST_WORDS_SECONDS, shield=True):
            await send_answer(send, answer)


def create_app(
    *,
    service: Sessions,
    commands: Commands,
    store: Store,
    config: Config,
    models: Models,
    redactor: Redactor,
    health: Health,
    status: Status,
    gauges: Callable[[], Mapping[str, float]] = dict,
    keep_alive: float = KEEP_ALIVE_SECONDS,
    descriptors: Descriptors | None = None,
    terminal: bytes = b"",
) -> App:
    """Builds the application; nothing is opened or started. `gauges` are further metrics, by name; `terminal` is
    the digest of the key that the command line uses."""

    def agents(principal: Principal) -> tuple[str, ...]:
        return tuple(view.name for view in service.agents(principal))

    errors = ErrorResponses(redactor.text)
    bodies = RequestBodies(config.limits.body_bytes)
    pulse = Pulse(keep_alive)
    events = EventStream(service, pulse, config.limits)
    keyring = Credentials(store, config.server, agents, revoked=events.end, terminal=terminal)
    traffic = HttpCounters()
    pages = PageFiles()

    def caches() -> tuple[CacheStats, ...]:
        return (keyring.stats(), pages.stats(), *service.caches())

    service.ledger.view("cache", lambda: ((f"cache {stats.name}", stats.holding) for stats in caches()))
    service.ledger.view("request body", lambda: (("process", Holding(0, bodies.held)),))

    def load_metrics() -> Callable[[], HttpResponse]:
        from tidegate.web.app.metrics import Metrics

        return Metrics(
            traffic=traffic,
            service=service.status,
            store=store.stats,
            caches=caches,
            gauges=lambda: {
                **gauges(),
                "loop_lag_seconds": health.lag,
                "event_streams": float(events.open),
                "open_streams": float(len(pulse.open)),
            },
            limits=config.limits,
            ledger=service.ledger,
        ).answer

    admin = Admin(keyring, health, load_metrics, pages, status, frozenset(config.agents))
    return App(
        chat=ChatCompletions(service, keyring, bodies, errors, pulse, config),
        endpoints=[
            *admin.endpoints(),
            *BrowsersApi(keyring).endpoints(),
            *ConversationsApi(service, commands, events).endpoints(),
            *SessionSettingsApi(service).endpoints(),
            *ApprovalsApi(service).endpoints(),
            *UsageApi(service).endpoints(),
            *AuditApi(service).endpoints(),
            *MemoryApi(service).endpoints(),
            *ProjectsApi(service).endpoints(),
        ],
        keyring=keyring,
        bodies=bodies,
        events=events,
        pulse=pulse,
        errors=errors,
        traffic=traffic,
        health=health,
        cors=Cors(config.server.origins),
        descriptors=descriptors or Descriptors(),
    )


def _routes(endpoints: list[Endpoint], keyring: Credentials, bodies: RequestBodies) -> Routes:
    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, []).append(endpoint)
    return Routes({path: PathApp(group, keyring, bodies) for path, group in by_path.items()})


def _nothing() -> None:
    pass
