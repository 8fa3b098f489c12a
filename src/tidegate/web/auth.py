"""Who is calling: keys, cookies, one-time codes, and where a browser's request comes from.

Guarantee: nobody is known without a valid key or cookie, whatever bytes he sends; a token is looked up by its SHA-256,
so that no comparison tells anything about it; a revoked key is refused from the moment of its revocation. A cookie
counts only in a request that comes from our own page (or an allowed origin) to a host name that is ours, so that no
other page can use it, not by a foreign form and not by a rebound name. The keyring owns its cache; keys live in the
store.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from tidegate.config import Server, is_loopback
from tidegate.errors import Conflict, NotAllowed, NotFound, StoreFailed, Unauthenticated
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.log import Log
from tidegate.security import Principal, digest, make_key
from tidegate.store import Store, principals
from tidegate.values import Frozen

KNOWN_CALLERS = 4096
"""Callers remembered between requests: more than a gateway has, at a few hundred bytes each."""
KNOWN_SECONDS = 30.0
"""How long one is remembered. Revoking goes through this keyring, which forgets at once; this bounds the rest."""
COOKIE_SECONDS = 30 * 86400.0
"""How long a browser stays signed in."""
COOKIE_NAME = "tidegate"
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS = frozenset({"GET", "HEAD"})

Headers = Mapping[bytes, bytes]

log = Log(__name__)


class Caller(Frozen, frozen=True):
    """A principal, how it showed who it is, and the agents it may use."""

    principal: Principal
    via: Literal["key", "cookie"]
    token: bytes
    agents: tuple[str, ...]

    @property
    def is_owner(self) -> bool:
        return self.principal.role == "owner"


class KeyView(Frozen, frozen=True, omit_defaults=False):
    """A key as its owner is shown it; the key itself is not kept."""

    id: str
    principal: str
    name: str
    role: str
    agents: tuple[str, ...] | None
    label: str
    created: float
    used: float | None
    revoked: float | None


class Keyring:
    def __init__(
        self,
        store: Store,
        server: Server,
        agents: Callable[[Principal], tuple[str, ...]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._agents = agents
        self._clock = clock
        self._known: BoundedCache[tuple[str, bytes], Caller] = BoundedCache(
            "callers", cap=KNOWN_CALLERS, ttl=KNOWN_SECONDS
        )
        self._origins = frozenset(origin.lower().rstrip("/") for origin in server.origins)
        self._hosts = self._own_hosts(server) if is_loopback(server.host) else None
        self._secure = server.tls_cert is not None

    # -- who --

    async def caller(self, method: str, headers: Headers) -> Caller:
        """The caller of a request, or `Unauthenticated`; a cookie from elsewhere is `NotAllowed`."""
        authorization = headers.get(b"authorization")
        if authorization is not None:
            scheme, _, token = authorization.strip().partition(b" ")
            if scheme.lower() != b"bearer" or not token.strip():
                raise Unauthenticated("Send your key in the header Authorization, after the word Bearer.")
            return await self._known_by("key", digest(token.strip()))
        token = _cookie(headers)
        if not token:
            raise Unauthenticated(
                "Send your key in the header Authorization, after the word Bearer, or sign in on the page."
            )
        self.check_host(headers)
        self.check_origin(method, headers)
        return await self._known_by("cookie", digest(token))

    async def _known_by(self, kind: Literal["key", "cookie"], token: bytes) -> Caller:
        caller = self._known.get((kind, token))
        if caller is None:
            found = await self._store.read(principals.authenticate, token, kind, self._clock())
            if found is None:
                raise Unauthenticated(
                    "This key is not valid; `tidegate keys list` shows those that are."
                    if kind == "key"
                    else "You are signed out; open a new link from `tidegate up` or `tidegate status --link`."
                )
            principal = Principal(id=found.id, name=found.name, role=_role(found.role), agents=found.agents)
            caller = Caller(principal=principal, via=kind, token=token, agents=self._agents(principal))
            self._known.put((kind, token), caller)
            await self._mark_used(token)
        return caller

    async def _mark_used(self, token: bytes) -> None:
        """For the operator's list of keys. A store that takes no write keeps nobody from what needs none."""
        try:
            await self._store.write(principals.mark_used, token, self._clock())
        except StoreFailed as error:
            log.warning("the use of a key could not be noted", error=error.message)

    def forget(self) -> None:
        """A key or principal changed: ask the store again."""
        self._known.clear()

    def stats(self) -> CacheStats:
        return self._known.stats()

    # -- signing in --

    async def sign_in(self, code: str, headers: Headers) -> bytes:
        """Exchange a one-time code for a cookie; the value of Set-Cookie. The code dies here."""
        self.check_host(headers)
        self.check_origin("POST", headers, needed=False)
        token = make_key()

        def exchange(db: Any, now: float) -> bool:
            principal = principals.use_code(db, digest(code), now)
            if principal is None:
                return False
            principals.add_key(db, principal.id, "cookie", digest(token), "browser", now, now + COOKIE_SECONDS)
            return True

        if not await self._store.write(exchange, self._clock()):
            raise Unauthenticated(
                "This code is not valid any more; each works once. Get a new link from `tidegate status --link`.",
                code="invalid_code",
            )
        return self._set_cookie(headers, token, COOKIE_SECONDS)

    async def sign_out(self, caller: Caller, headers: Headers) -> bytes:
        """The cookie stops working; the value of Set-Cookie that removes it."""
        if caller.via == "cookie":
            await self._store.write(principals.revoke_digest, caller.token, self._clock())
            self._known.discard(("cookie", caller.token))
        return self._set_cookie(headers, "", 0)

    def _set_cookie(self, headers: Headers, value: str, seconds: float) -> bytes:
        origin = headers.get(b"origin", b"")
        secure = "; Secure" if self._secure or origin.startswith(b"https:") else ""
        name = cookie_name(headers)
        return f"{name}={value}; Path=/; Max-Age={seconds:.0f}; HttpOnly; SameSite=Strict{secure}".encode()

    # -- keys, for the owner --

    async def keys(self) -> list[KeyView]:
        def listing(db: Any) -> list[KeyView]:
            known = {principal.id: principal for principal in principals.listing(db)}
            return [
                KeyView(
                    id=key.id,
                    principal=key.principal,
                    name=known[key.principal].name,
                    role=known[key.principal].role,
                    agents=known[key.principal].agents,
                    label=key.label,
                    created=key.created,
                    used=key.used,
                    revoked=key.revoked,
                )
                for key in principals.list_keys(db, None, "key")
            ]

        return await self._store.read(listing)

    async def add_key(self, name: str, label: str, agents: tuple[str, ...] | None) -> tuple[str, str, str]:
        """A new key for the principal of that name, made if there is none: the key, its id, the principal's id. What a
        principal may use is the principal's, not the key's: `agents` that differ from it are refused."""
        token = make_key()

        def add(db: Any, now: float) -> tuple[str, str]:
            found = principals.by_name(db, name)
            if found is None:
                found = principals.add(db, name=name, role="user", agents=agents, now=now)
            elif agents is not None and (found.agents is None or set(agents) != set(found.agents)):
                has = "all agents" if found.agents is None else ", ".join(found.agents) or "no agent"
                raise Conflict(
                    f"{name} exists and may use {has}: leave the agents out, or choose another name.", param="agents"
                )
            return principals.add_key(db, found.id, "key", digest(token), label, now, None), found.id

        key, principal = await self._store.write(add, self._clock())
        self.forget()
        return token, key, principal

    async def revoke(self, key: str) -> None:
        if not await self._store.write(principals.revoke, key, self._clock()):
            raise NotFound(f"There is no key {key}.", code="key_not_found")
        self.forget()

    # -- where from --

    def check_host(self, headers: Headers) -> None:
        """On loopback only our own names count: a foreign name that was made to point here is another site."""
        if self._hosts is not None and _hostname(headers.get(b"host", b"")) not in self._hosts:
            raise NotAllowed(
                "This host name is not the gateway's; use http://127.0.0.1 or list its origin in server.origins.",
                code="host_not_allowed",
            )

    def check_origin(self, method: str, headers: Headers, *, needed: bool = True) -> None:
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site")
        if origin is None:
            safe = method in _SAFE_METHODS or not needed
            if (safe and site is None) or site in (b"same-origin", b"none"):
                return
        elif self._is_ours(origin.decode("latin-1").lower(), headers):
            return
        raise NotAllowed(
            "This page may not use the gateway: its origin is neither the gateway's own nor in server.origins.",
            code="origin_not_allowed",
        )

    def _is_ours(self, origin: str, headers: Headers) -> bool:
        if origin in self._origins:
            return True
        scheme = "https" if self._secure else "http"
        return origin == f"{scheme}://{headers.get(b'host', b'').decode('latin-1').lower()}"

    def _own_hosts(self, server: Server) -> frozenset[str]:
        listed = (urlsplit(origin).hostname for origin in server.origins)
        return _LOCAL_NAMES | {server.host.lower().strip("[]")} | {name for name in listed if name}


def _role(text: str) -> Literal["owner", "user"]:
    return "owner" if text == "owner" else "user"


def cookie_name(headers: Headers) -> str:
    """Cookies know no ports: two gateways on one machine must not overwrite each other's."""
    _, _, port = headers.get(b"host", b"").decode("latin-1").rpartition(":")
    return f"{COOKIE_NAME}_{port}" if port.isascii() and port.isdigit() else COOKIE_NAME


def _cookie(headers: Headers) -> bytes:
    wanted = cookie_name(headers).encode()
    for pair in headers.get(b"cookie", b"").split(b";"):
        name, _, value = pair.strip().partition(b"=")
        if name == wanted:
            return value
    return b""


def _hostname(host: bytes) -> str:
    try:
        return (urlsplit("//" + host.decode("ascii")).hostname or "").lower()
    except ValueError:
        return ""
