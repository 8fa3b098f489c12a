"""Endpoints for keys and signing in.

Only a few roles can list, create and revoke keys, since a key lets its holder act as its principal. Codes and keys
never appear in URLs.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from tidegate.errors import Refused
from tidegate.security import UserRole
from tidegate.web.app.auth import Credentials, KeyView
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_response import HttpResponse, json_response

LOGIN_BYTES = 4096
"""Maximum size of a sign-in request's body in bytes. Anyone can send such a request, so the limit is low."""
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]


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


class KeysApi:
    def __init__(self, credentials: Credentials, agents: frozenset[str]) -> None:
        self._credentials = credentials
        self._agents = agents

    def endpoints(self) -> list[Endpoint]:
        return [
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
        ]  # fmt: skip

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
