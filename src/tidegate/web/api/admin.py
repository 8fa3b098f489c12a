"""Endpoints for the gateway as a whole: sign-in, keys, models, status, health, metrics and the chat page.

Endpoints that concern all users require a right that few roles have. Without a key, clients can only load the page and
check that the process is running. Codes and keys never appear in URLs.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from anyio import to_thread
from msgspec import Meta

from tidegate.errors import NotFound, Refused
from tidegate.security import UserRole
from tidegate.status_report import Readiness, SessionsStatus, StatusReport
from tidegate.web.app.auth import Caller, Credentials, KeyView
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.health import Health
from tidegate.web.app.http_response import HttpResponse, json_response
from tidegate.web.app.page_files import PageFiles

LOGIN_BYTES = 4096
"""Maximum size of a sign-in request's body in bytes. Anyone can send such a request, so the limit is low."""
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Alive(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


class ModelView(msgspec.Struct, frozen=True):
    """An agent, in OpenAI's format for models."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tidegate"


class ModelsAnswer(msgspec.Struct, frozen=True):
    data: list[ModelView]
    object: Literal["list"] = "list"


class LoginIn(msgspec.Struct):
    """A request to sign in with a one-time code. `browser` is the name shown in the list of signed-in browsers."""

    code: Annotated[str, Meta(min_length=1, max_length=500)]
    browser: Name = "Browser"


class SignedIn(msgspec.Struct, frozen=True):
    """The result of a sign-in. `page_token` is the part of the sign-in that the page stores and sends in
    `X-Page-Token`."""

    signed_in: bool
    page_token: str | None = None


class KeyIn(msgspec.Struct):
    """A request to create a key for the principal `name`. The principal is created if it does not exist. `agents` lists
    the agents that it may use (null: all), and `role` is its role (default: `member`). Leave both out for an existing
    principal; different values are refused. Only the owner can create keys for the roles owner and admin."""

    name: Name
    label: Annotated[str, Meta(max_length=200)] = ""
    agents: list[Name] | None = None
    role: UserRole | None = None


class KeyMade(msgspec.Struct, frozen=True):
    """The new key. It is shown only once."""

    key: str
    id: str
    principal: str


class KeysAnswer(msgspec.Struct, frozen=True):
    keys: list[KeyView]


class Admin:
    def __init__(
        self,
        credentials: Credentials,
        health: Health,
        load_metrics: Callable[[], Callable[[], HttpResponse]],
        pages: PageFiles,
        status: Callable[[], Awaitable[StatusReport | SessionsStatus]],
        agents: frozenset[str],
    ) -> None:
        self._credentials = credentials
        self._health = health
        self._load_metrics = load_metrics
        self._scrape: Callable[[], HttpResponse] | None = None
        self._pages = pages
        self._status = status
        self._agents = agents

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/v1/models", handler=self.models, summary="List the agents that you may use",
                responses={200: ModelsAnswer},
            ),
            Endpoint(
                method="GET", path="/v1/models/{id:path}", handler=self.model, summary="Show an agent",
                responses={200: ModelView}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path="/healthz", handler=self.alive, access="anyone",
                summary="Check that the process is running", responses={200: Alive},
            ),
            Endpoint(
                method="GET", path="/readyz", handler=self.ready,
                summary="Check that the gateway works end to end: loop, store, timers",
                responses={200: Readiness, 503: Readiness},
            ),
            Endpoint(
                method="GET", path="/metrics", handler=self.metrics, access="see_usage",
                summary="Metrics for Prometheus", responses={200: "text/plain"},
            ),
            Endpoint(
                method="GET", path="/api/status", handler=self.status, summary="Show the state of the gateway",
                access="see_usage", responses={200: dict[str, Any]},
            ),
            Endpoint(
                method="POST", path="/api/login", handler=self.login, access="page", body=LoginIn,
                body_bytes=LOGIN_BYTES, summary="Exchange a one-time code for a cookie and a page token",
                responses={200: SignedIn}, refusals=(401, 403, 413),
            ),
            Endpoint(
                method="POST", path="/api/logout", handler=self.logout, summary="Sign out",
                responses={200: SignedIn},
            ),
            Endpoint(
                method="GET", path="/api/keys", handler=self.keys, access="pair", summary="List keys",
                responses={200: KeysAnswer},
            ),
            Endpoint(
                method="POST", path="/api/keys", handler=self.add_key, access="pair", body=KeyIn,
                summary="Create a key", responses={201: KeyMade}, refusals=(409,),
            ),
            Endpoint(
                method="DELETE", path="/api/keys/{id}", handler=self.revoke_key, access="pair", summary="Revoke a key",
                responses={204: None}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path="/", handler=self.page, access="anyone", summary="The chat page",
                responses={200: "text/html"}, refusals=(403, 404),
            ),
            Endpoint(
                method="GET", path="/static/{name:path}", handler=self.page, access="anyone",
                summary="Files of the chat page", responses={200: "application/octet-stream"}, refusals=(403, 404),
            ),
        ]  # fmt: skip

    async def models(self, request: Request) -> HttpResponse:
        return json_response(ModelsAnswer([ModelView(id=name) for name in request.caller.agents]))

    async def model(self, request: Request) -> HttpResponse:
        name = request.path["id"]
        if name not in request.caller.agents:
            raise NotFound(
                f"There is no model {name[:100]!r}; this key may use: {_agent_names(request.caller)}.",
                code="model_not_found",
                param="model",
            )
        return json_response(ModelView(id=name))

    async def alive(self, request: Request) -> HttpResponse:
        return json_response(Alive())

    async def ready(self, request: Request) -> HttpResponse:
        readiness = await self._health.check()
        return json_response(readiness, status=200 if readiness.ready else 503)

    async def metrics(self, request: Request) -> HttpResponse:
        # The library is imported at the first scrape, in a thread. The metrics belong to the event loop and are read
        # there.
        if self._scrape is None:
            self._scrape = await to_thread.run_sync(self._load_metrics)
        return self._scrape()

    async def status(self, request: Request) -> HttpResponse:
        return json_response(await self._status())

    async def login(self, request: Request) -> HttpResponse:
        body: LoginIn = request.body
        sign_in = await self._credentials.sign_in(body.code, body.browser, request.headers)
        return json_response(SignedIn(True, sign_in.page_token), headers=[(b"set-cookie", sign_in.cookie)])

    async def logout(self, request: Request) -> HttpResponse:
        cookie = await self._credentials.sign_out(request.caller, request.headers)
        return json_response(SignedIn(False), headers=[(b"set-cookie", cookie)])

    async def keys(self, request: Request) -> HttpResponse:
        return json_response(KeysAnswer(await self._credentials.keys()))

    async def add_key(self, request: Request) -> HttpResponse:
        body: KeyIn = request.body
        for index, agent in enumerate(body.agents or ()):
            if agent not in self._agents:
                raise Refused(
                    f"`agents[{index}]`: there is no agent {agent!r}; choose from {', '.join(sorted(self._agents))}.",
                    param=f"agents[{index}]",
                )
        allowed = tuple(body.agents) if body.agents is not None else None
        key, id, principal = await self._credentials.add_key(
            request.caller.principal, body.name, body.label, allowed, body.role
        )
        return json_response(KeyMade(key, id, principal), status=201)

    async def revoke_key(self, request: Request) -> HttpResponse:
        await self._credentials.revoke(request.caller.principal, request.path["id"])
        return HttpResponse(204, [], b"")

    async def page(self, request: Request) -> HttpResponse:
        self._credentials.check_host(request.headers)
        name = request.path.get("name", "index.html")
        known, encodings = request.headers.get(b"if-none-match"), request.headers.get(b"accept-encoding")
        return await self._pages.get(name, known, encodings)


def _agent_names(caller: Caller) -> str:
    return ", ".join(caller.agents) or "none"
