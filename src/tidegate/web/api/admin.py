"""The gateway itself over HTTP: signing in, keys, models, status, health, metrics, its description and its page.

Guarantee: what concerns everybody takes a right that few roles have; without a key one learns only that the process
lives, and gets the page; a code or a key never stands in an address.
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
from tidegate.web.app.endpoint import Ask, Endpoint
from tidegate.web.app.error_responses import HttpResponse, json_answer
from tidegate.web.app.health import Health
from tidegate.web.app.page_files import PageFiles

LOGIN_BYTES = 4096
"""Of the body of a sign-in, which anybody may send."""
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Alive(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


class ModelView(msgspec.Struct, frozen=True):
    """An agent, as OpenAI lists models."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tidegate"


class ModelsAnswer(msgspec.Struct, frozen=True):
    data: list[ModelView]
    object: Literal["list"] = "list"


class LoginIn(msgspec.Struct):
    """`browser` is the name under which it is listed."""

    code: Annotated[str, Meta(min_length=1, max_length=500)]
    browser: Name = "Browser"


class SignedIn(msgspec.Struct, frozen=True):
    """The page token is the part of a sign-in that the page keeps and sends in `X-Page-Token`."""

    signed_in: bool
    page_token: str | None = None


class KeyIn(msgspec.Struct):
    """A key for the principal `name`. It is made if there is none; then `agents` are those it may use (null: all) and
    `role` says what it may do (`member` unless given). For one that exists leave both out: others than it has are
    refused. Keys of owner and admin are the owner's to make."""

    name: Name
    label: Annotated[str, Meta(max_length=200)] = ""
    agents: list[Name] | None = None
    role: UserRole | None = None


class KeyMade(msgspec.Struct, frozen=True):
    """The only time that the key is shown."""

    key: str
    id: str
    principal: str


class KeysAnswer(msgspec.Struct, frozen=True):
    keys: list[KeyView]


class Admin:
    def __init__(
        self,
        keyring: Credentials,
        health: Health,
        load_metrics: Callable[[], Callable[[], HttpResponse]],
        pages: PageFiles,
        status: Callable[[], Awaitable[StatusReport | SessionsStatus]],
        agents: frozenset[str],
    ) -> None:
        self._keyring = keyring
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
                answers={200: ModelsAnswer},
            ),
            Endpoint(
                method="GET", path="/v1/models/{id}", handler=self.model, summary="Show an agent",
                answers={200: ModelView}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path="/healthz", handler=self.alive, summary="Whether the process lives", who="anyone",
                answers={200: Alive},
            ),
            Endpoint(
                method="GET", path="/readyz", handler=self.ready,
                summary="Whether it works, end to end: loop, store, timers", answers={200: Readiness, 503: Readiness},
            ),
            Endpoint(
                method="GET", path="/metrics", handler=self.metrics, summary="Metrics for Prometheus", who="see_usage",
                answers={200: "text/plain"},
            ),
            Endpoint(
                method="GET", path="/api/status", handler=self.status, summary="What the gateway holds and does",
                who="see_usage", answers={200: dict[str, Any]},
            ),
            Endpoint(
                method="POST", path="/api/login", handler=self.login, who="page", body=LoginIn, body_bytes=LOGIN_BYTES,
                summary="Exchange a one-time code for a cookie and a page token", answers={200: SignedIn},
                refusals=(401, 403, 413),
            ),
            Endpoint(
                method="POST", path="/api/logout", handler=self.logout, summary="Sign out",
                answers={200: SignedIn},
            ),
            Endpoint(
                method="GET", path="/api/keys", handler=self.keys, who="pair", summary="List keys",
                answers={200: KeysAnswer},
            ),
            Endpoint(
                method="POST", path="/api/keys", handler=self.add_key, who="pair", summary="Make a key", body=KeyIn,
                answers={201: KeyMade}, refusals=(409,),
            ),
            Endpoint(
                method="DELETE", path="/api/keys/{id}", handler=self.revoke_key, who="pair", summary="Revoke a key",
                answers={204: None}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path="/", handler=self.page, who="anyone", summary="The chat page",
                answers={200: "text/html"}, refusals=(403, 404),
            ),
            Endpoint(
                method="GET", path="/static/{name:path}", handler=self.page, who="anyone", summary="Files of the page",
                answers={200: "application/octet-stream"}, refusals=(403, 404),
            ),
        ]  # fmt: skip

    async def models(self, ask: Ask) -> HttpResponse:
        return json_answer(ModelsAnswer([ModelView(id=name) for name in ask.caller.agents]))

    async def model(self, ask: Ask) -> HttpResponse:
        name = ask.path["id"]
        if name not in ask.caller.agents:
            raise NotFound(
                f"There is no model {name[:100]!r}; this key may use: {_named(ask.caller)}.",
                code="model_not_found",
                param="model",
            )
        return json_answer(ModelView(id=name))

    async def alive(self, ask: Ask) -> HttpResponse:
        return json_answer(Alive())

    async def ready(self, ask: Ask) -> HttpResponse:
        found = await self._health.check()
        return json_answer(found, status=200 if found.ready else 503)

    async def metrics(self, ask: Ask) -> HttpResponse:
        # The library is loaded at the first scrape, off the loop; what it reads belongs to the loop and is read there.
        if self._scrape is None:
            self._scrape = await to_thread.run_sync(self._load_metrics)
        return self._scrape()

    async def status(self, ask: Ask) -> HttpResponse:
        return json_answer(await self._status())

    async def login(self, ask: Ask) -> HttpResponse:
        said: LoginIn = ask.body
        made = await self._keyring.sign_in(said.code, said.browser, ask.headers)
        return json_answer(SignedIn(True, made.page_token), headers=[(b"set-cookie", made.cookie)])

    async def logout(self, ask: Ask) -> HttpResponse:
        cookie = await self._keyring.sign_out(ask.caller, ask.headers)
        return json_answer(SignedIn(False), headers=[(b"set-cookie", cookie)])

    async def keys(self, ask: Ask) -> HttpResponse:
        return json_answer(KeysAnswer(await self._keyring.keys()))

    async def add_key(self, ask: Ask) -> HttpResponse:
        said: KeyIn = ask.body
        for index, agent in enumerate(said.agents or ()):
            if agent not in self._agents:
                raise Refused(
                    f"agents[{index}]: there is no agent {agent!r}; there are: {', '.join(sorted(self._agents))}.",
                    param=f"agents[{index}]",
                )
        allowed = tuple(said.agents) if said.agents is not None else None
        key, id, principal = await self._keyring.add_key(
            ask.caller.principal, said.name, said.label, allowed, said.role
        )
        return json_answer(KeyMade(key, id, principal), status=201)

    async def revoke_key(self, ask: Ask) -> HttpResponse:
        await self._keyring.revoke(ask.caller.principal, ask.path["id"])
        return HttpResponse(204, [], b"")

    async def page(self, ask: Ask) -> HttpResponse:
        self._keyring.check_host(ask.headers)
        return await self._pages.get(ask.path.get("name", "index.html"), ask.headers.get(b"if-none-match"))


def _named(caller: Caller) -> str:
    return ", ".join(caller.agents) or "none"
