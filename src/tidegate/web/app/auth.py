"""Authentication: keys, browser sign-ins, one-time codes, and the origin of browsers' requests.

A caller is identified by a valid key or by a browser's sign-in. A sign-in has two parts, both of which are required: a
cookie, which scripts cannot read but browsers send to every port on the host, and a page token, which only pages from
the gateway's own origin can read and which is sent as a header. Tokens are looked up by their SHA-256, so comparing
them reveals nothing. A revoked key or sign-in is refused immediately; its event streams are closed and its downloads
are cut off.

A sign-in is accepted only in a request from the gateway's own page (or an allowed origin) to one of its own host names,
so that neither another page nor DNS rebinding can use it. `Credentials` owns its cache; keys are in the store.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

from tidegate.config import ServerSettings, is_loopback
from tidegate.errors import Conflict, NotAllowed, NotFound, StoreFailed, Unauthenticated
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.log import Log
from tidegate.security import CODE_SECONDS, Principal, UserRole, digest, make_key, make_page_token, may_grant, same
from tidegate.store import KeyKind, PrincipalRow, Store, principals
from tidegate.values import Frozen

KNOWN_CALLERS = 4096
"""Maximum number of cached callers: more than a gateway has. Each caller takes only a few hundred bytes."""
KNOWN_SECONDS = 30.0
"""Seconds for which a caller is cached. Revocations clear the cache immediately; all other changes take effect within
this time."""
COOKIE_SECONDS = 30 * 86400.0
"""Seconds for which a browser stays signed in."""
COOKIE_NAME = "tidegate"
PAGE_TOKEN = b"x-page-token"
"""The name of the header with a browser's page token."""
NEW_LINK = "open a new link from `tidegate up` or `tidegate status --link`"
_CODE_STATES = {
    "used": "This link has already been used; each works only once",
    "expired": f"This link has expired; each works for {CODE_SECONDS / 60:.0f} minutes",
    "unknown": f"This code is not valid; each works only once, for {CODE_SECONDS / 60:.0f} minutes",
}
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS = frozenset({"GET", "HEAD"})

Headers = Mapping[bytes, bytes]

log = Log(__name__)


class Caller(Frozen, frozen=True):
    """An authenticated principal, its credential (`key` is the id of that row), and the agents it may use."""

    principal: Principal
    via: Literal["key", "cookie"]
    key: str
    agents: tuple[str, ...]
    is_terminal: bool = False
    """True if the key is the home folder's key, which the CLI uses."""

    def channel(self, *, attended: bool) -> Literal["http", "page", "terminal"]:
        """Returns the channel for this caller's messages, derived from the credential. For a browser, it is the page.
        The home folder's key counts as the terminal if a user is present; otherwise, it is treated like any program's
        key."""
        if self.via == "cookie":
            return "page"
        return "terminal" if self.is_terminal and attended else "http"


class KeyView(Frozen, frozen=True, omit_defaults=False):
    """An entry in the list of keys. The key itself is not stored."""

    id: str
    principal: str
    name: str
    role: str
    agents: tuple[str, ...] | None
    label: str
    created: float
    used: float | None
    revoked: float | None


class BrowserView(Frozen, frozen=True, omit_defaults=False):
    """A signed-in browser. `current` is true for the browser that makes the request."""

    id: str
    principal: str
    name: str
    browser: str
    created: float
    used: float | None
    expires: float | None
    current: bool


class SignIn(Frozen, frozen=True):
    """The result of a browser's sign-in: the value of Set-Cookie, and its page token."""

    cookie: bytes
    page_token: str


class Credentials:
    def __init__(
        self,
        store: Store,
        server: ServerSettings,
        agents: Callable[[Principal], tuple[str, ...]],
        *,
        revoked: Callable[[Collection[str]], None] = lambda keys: None,
        terminal: bytes = b"",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`revoked` is called with the ids of keys and sign-ins that have just been revoked."""
        self._store = store
        self._agents = agents
        self._revoked = revoked
        self._terminal = terminal
        self._clock = clock
        self._known: BoundedCache[tuple[bytes, bytes | None], Caller] = BoundedCache(
            "callers", cap=KNOWN_CALLERS, ttl=KNOWN_SECONDS
        )
        self._responses: dict[
            object, tuple[str, Callable[[], None]]
        ] = {}  # responses in progress: the key's id, and how to drop the response
        self._changes = 0  # invalidates what was read from the store before a revocation
        self._origins = frozenset(origin.lower().rstrip("/") for origin in server.origins)
        self._hosts = self._own_hosts(server) if is_loopback(server.host) else None
        self._secure = server.tls_cert is not None

    # -- callers --

    async def caller(self, method: str, headers: Headers) -> Caller:
        """Returns a request's caller. Raises `Unauthenticated`, or `NotAllowed` for a sign-in used from another
        origin."""
        authorization = headers.get(b"authorization")
        if authorization is not None:
            scheme, _, token = authorization.strip().partition(b" ")
            if scheme.lower() != b"bearer" or not token.strip():
                raise Unauthenticated("Send your key in the Authorization header, after the word `Bearer`.")
            return await self._known_by("key", digest(token.strip()))
        cookie, page_token = _cookie(headers), headers.get(PAGE_TOKEN, b"")
        if not cookie and not page_token:
            raise Unauthenticated(
                "Send your key in the Authorization header, after the word `Bearer`, or sign in on the page."
            )
        self.check_host(headers)
        self.check_origin(method, headers)
        if not cookie or not page_token:
            missing = "the header X-Page-Token" if cookie else "the cookie"
            raise Unauthenticated(f"Part of the sign-in is missing ({missing}): {NEW_LINK}.", code="signed_out")
        return await self._known_by("cookie", digest(cookie), digest(page_token))

    async def _known_by(self, kind: Literal["key", "cookie"], token: bytes, page: bytes | None = None) -> Caller:
        caller = self._known.get((token, page))
        while caller is None:
            changes = self._changes
            found = await self._store.read(principals.authenticate, token, kind, self._clock(), page)
            if found is None and kind == "key":
                raise Unauthenticated("This key is not valid; `tidegate keys list` shows the valid ones.")
            if found is None:
                raise Unauthenticated(f"You are signed out; {NEW_LINK}.", code="signed_out")
            await self._mark_used(token)
            if changes == self._changes:  # otherwise, it may have been revoked in the meantime: look it up again
                caller = self._caller(kind, token, *found)
                self._known.put((token, page), caller)
        return caller

    def _caller(self, kind: Literal["key", "cookie"], token: bytes, key: str, row: PrincipalRow) -> Caller:
        principal = Principal(id=row.id, name=row.name, role=row.role, agents=row.agents)
        return Caller(
            principal=principal,
            via=kind,
            key=key,
            agents=self._agents(principal),
            is_terminal=kind == "key" and same(token, self._terminal),
        )

    async def _mark_used(self, token: bytes) -> None:
        """Records that a key was used, for the list of keys. If the write fails, the request still succeeds."""
        try:
            await self._store.write(principals.mark_used, token, self._clock())
        except StoreFailed as error:
            log.warning("a key's use could not be recorded", error=error.message)

    def forget(self) -> None:
        """Clears the cache because a key or principal has changed."""
        self._changes += 1
        self._known.clear()

    @contextmanager
    def dropped_when_revoked(self, caller: Caller, drop: Callable[[], None]) -> Iterator[None]:
        """Calls `drop` if the caller's key or sign-in is revoked within the block."""
        response = object()
        self._responses[response] = (caller.key, drop)
        try:
            yield
        finally:
            del self._responses[response]

    def stats(self) -> CacheStats:
        return self._known.stats()

    # -- signing in and out --

    def check_page(self, headers: Headers) -> None:
        """Refuses a request that comes from a page with another origin or that names an unknown host."""
        self.check_host(headers)
        self.check_origin("POST", headers, needed=False)

    async def sign_in(self, code: str, browser: str, headers: Headers) -> SignIn:
        """Exchanges a one-time code for a sign-in. The code can then no longer be used, and the browser's previous
        sign-in is replaced."""
        cookie, page_token = make_key(), make_page_token()
        previous = digest(_cookie(headers)), digest(headers.get(PAGE_TOKEN, b""))

        def exchange(db: Any, now: float) -> list[str] | None:
            principal = principals.use_code(db, digest(code), now)
            if principal is None:
                return None
            before = principals.authenticate(db, previous[0], "cookie", now, previous[1])
            expires = now + COOKIE_SECONDS
            principals.add_key(db, principal.id, "cookie", digest(cookie), browser, now, expires, digest(page_token))
            return [] if before is None else principals.revoke(db, "cookie", now, id=before[0], by=principal.id)

        replaced = await self._store.write(exchange, self._clock())
        if replaced is None:
            state = await self._store.read(principals.code_state, digest(code))
            raise Unauthenticated(f"{_CODE_STATES[state]}: {NEW_LINK}.", code="invalid_code")
        self._ended(replaced)
        return SignIn(self._set_cookie(headers, cookie, COOKIE_SECONDS), page_token)

    async def sign_out(self, caller: Caller, headers: Headers) -> bytes:
        """Revokes the caller's sign-in. Returns the Set-Cookie value that removes the cookie."""
        await self._revoke("cookie", id=caller.key, by=caller.principal.id)
        return self._set_cookie(headers, "", 0)

    async def browsers(self, caller: Caller) -> list[BrowserView]:
        """Returns the caller's signed-in browsers. The owner gets all users' browsers."""

        def listing(db: Any, now: float) -> list[BrowserView]:
            names = {principal.id: principal.name for principal in principals.listing(db)}
            return [
                BrowserView(
                    id=key.id,
                    principal=key.principal,
                    name=names[key.principal],
                    browser=key.label,
                    created=key.created,
                    used=key.used,
                    expires=key.expires,
                    current=key.id == caller.key,
                )
                for key in principals.list_keys(
                    db, None if caller.principal.is_owner else caller.principal.id, "cookie"
                )
                if key.revoked is None and (key.expires is None or key.expires > now)
            ]

        return await self._store.read(listing, self._clock())

    async def sign_out_browser(self, caller: Caller, id: str) -> None:
        """Revokes one of the caller's sign-ins. The owner can revoke any user's sign-in."""
        principal = None if caller.principal.is_owner else caller.principal.id
        if not await self._revoke("cookie", id=id, principal=principal, by=caller.principal.id):
            raise NotFound(f"There is no signed-in browser {id[:100]!r}.", code="browser_not_found")

    async def sign_out_everywhere(self, caller: Caller, *, everyone: bool) -> int:
        """Revokes all of the caller's sign-ins, or everyone's. Returns the number of revoked sign-ins."""
        by = caller.principal.id
        return len(await self._revoke("cookie", principal=None if everyone else by, by=by))

    def _set_cookie(self, headers: Headers, value: str, seconds: float) -> bytes:
        origin = headers.get(b"origin", b"")
        secure = "; Secure" if self._secure or origin.startswith(b"https:") else ""
        name = cookie_name(headers)
        return f"{name}={value}; Path=/; Max-Age={seconds:.0f}; HttpOnly; SameSite=Strict{secure}".encode()

    # -- keys --

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

    async def add_key(
        self, by: Principal, name: str, label: str, agents: tuple[str, ...] | None, role: UserRole | None = None
    ) -> tuple[str, str, str]:
        """Creates a key for the principal with this name, who is created if necessary. Returns the key, its id and the
        principal's id. Agents and role belong to the principal, not to the key. If the principal exists, values that
        differ from theirs are refused."""
        token = make_key()

        def add(db: Any, now: float) -> tuple[str, str]:
            found = principals.by_name(db, name)
            _check_grant(by, role or "member" if found is None else found.role)
            _check_agents(by, agents if found is None else found.agents)
            if found is None:
                if role == "owner":
                    raise Conflict("A gateway has exactly one owner; choose another role.", param="role")
                found = principals.add(db, name=name, role=role or "member", agents=agents, now=now, by=by.id)
            elif role not in (None, found.role):
                raise Conflict(f"{name} exists and has the role {found.role}; leave the role out.", param="role")
            elif agents is not None and (found.agents is None or set(agents) != set(found.agents)):
                has = "all agents" if found.agents is None else ", ".join(found.agents) or "no agent"
                raise Conflict(
                    f"{name} exists and may use {has}; leave the agents out, or choose another name.", param="agents"
                )
            return principals.add_key(db, found.id, "key", digest(token), label, now, None, by=by.id), found.id

        key, principal = await self._store.write(add, self._clock())
        self.forget()
        return token, key, principal

    async def revoke(self, by: Principal, key: str) -> None:
        def revoke(db: Any, now: float) -> list[str]:
            holder = principals.holder(db, key)
            if holder is not None:
                _check_grant(by, holder.role)
            return principals.revoke(db, "key", now, id=key, by=by.id)

        ended = await self._store.write(revoke, self._clock())
        self._ended(ended)
        if not ended:
            raise NotFound(f"There is no key {key}.", code="key_not_found")

    async def _revoke(self, kind: KeyKind, **which: str | None) -> list[str]:
        keys = await self._store.write(principals.revoke, kind, self._clock(), **which)
        self._ended(keys)
        return keys

    def _ended(self, keys: Collection[str]) -> None:
        self.forget()
        self._revoked(keys)
        for key, drop in tuple(self._responses.values()):
            if key in keys:
                drop()

    # -- hosts and origins --

    def check_host(self, headers: Headers) -> None:
        """Refuses requests to unknown host names on loopback. An unknown name that resolves to this address belongs to
        another site (DNS rebinding)."""
        if self._hosts is not None and _hostname(headers.get(b"host", b"")) not in self._hosts:
            raise NotAllowed(
                "This host name does not belong to the gateway; use http://127.0.0.1 or add its origin to "
                "server.origins.",
                code="host_not_allowed",
            )

    def check_origin(self, method: str, headers: Headers, *, needed: bool = True) -> None:
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site")
        if origin is None:
            safe = method in _SAFE_METHODS or not needed
            if (safe and site is None) or site in (b"same-origin", b"none"):
                return
        elif self._is_allowed(origin.decode("latin-1").lower(), headers):
            return
        raise NotAllowed(
            "This page may not use the gateway: its origin is not the gateway's own and not in server.origins.",
            code="origin_not_allowed",
        )

    def _is_allowed(self, origin: str, headers: Headers) -> bool:
        if origin in self._origins:
            return True
        scheme = "https" if self._secure else "http"
        return origin == f"{scheme}://{headers.get(b'host', b'').decode('latin-1').lower()}"

    def _own_hosts(self, server: ServerSettings) -> frozenset[str]:
        listed = (urlsplit(origin).hostname for origin in server.origins)
        return _LOCAL_NAMES | {server.host.lower().strip("[]")} | {name for name in listed if name}


def _check_grant(by: Principal, role: UserRole) -> None:
    if not may_grant(by, role):
        raise NotAllowed(
            f"Only the owner can create and revoke keys with the role {role}; your role is {by.role}.",
            code="right_missing",
        )


def _check_agents(by: Principal, agents: tuple[str, ...] | None) -> None:
    if by.agents is not None and (agents is None or not set(agents) <= set(by.agents)):
        raise NotAllowed(
            f"A key cannot allow more agents than its creator may use: {', '.join(by.agents) or 'none'}.",
            code="right_missing",
            param="agents",
        )


def cookie_name(headers: Headers) -> str:
    """Returns the cookie's name, which includes the port. Browsers ignore the port when they send cookies, and two
    gateways on one host must not share a cookie."""
    _, _, port = headers.get(b"host", b"").decode("latin-1").rpartition(":")
    return f"{COOKIE_NAME}_{port}" if port.isascii() and port.isdigit() else COOKIE_NAME


def _cookie(headers: Headers) -> bytes:
    expected = cookie_name(headers).encode()
    for pair in headers.get(b"cookie", b"").split(b";"):
        name, _, value = pair.strip().partition(b"=")
        if name == expected:
            return value
    return b""


def _hostname(host: bytes) -> str:
    try:
        return (urlsplit("//" + host.decode("ascii")).hostname or "").lower()
    except ValueError:
        return ""
