"""Agents' web fetches and searches.

A fetch connects only to public addresses and those listed in `web.private`. Without a proxy, the address is checked
right before the connection is made. With the proxy in `web.proxy`, which resolves names itself, each host is checked
before the request, as far as this machine can resolve it (`http_client/address_guard.py`). A fetch sends no cookies and
no credentials. Its time and decompressed size are bounded, and only one chunk is in memory at a time. Searches and the
search key are sent only to the configured engine.

WebAccess owns its connections, which are opened on first use and closed when it is exited.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self

from yarl import URL

from tidegate import __version__
from tidegate.config import WebSettings
from tidegate.errors import ToolFailed
from tidegate.http_client import (
    AddressGuard,
    ConnectionFailed,
    ForbiddenAddress,
    HttpClient,
    IncomingResponse,
    Network,
    Target,
    Timeouts,
    resolved,
)
from tidegate.security import Secret
from tidegate.security.addresses import networks
from tidegate.spool import JobRunner
from tidegate.tools.builtin.web.search_engines import SearchEngine, SearchHit, engine

AT_ONCE = 16
"""Number of pages fetched or processed concurrently. Further fetches wait, within their deadlines."""

REDIRECTS = 5
"""Maximum number of redirects per fetch: more than any page needs. Browsers stop at 20."""

URL_CHARACTERS = 4000
"""Maximum length of an address in characters: longer than servers accept."""

AUTHORITY_CHARACTERS = 300
"""Maximum length of a host with its port, in characters. Host names have at most 253 characters, and encoding a long
name in another script is slow."""

TYPE_CHARACTERS = 300
"""Maximum number of characters read from the Content-Type header."""

SHOWN_CHARACTERS = 300
"""Maximum number of characters of an address shown in a message."""

SEARCH_BYTES = 2 * 1024 * 1024
"""Maximum size of a search engine's response. Twenty results take a few tens of KiB."""

NOT_PUBLIC = "its address is not public and not listed in web.private"

_AUTHORITY = re.compile(rf"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//[^/?#]{{{AUTHORITY_CHARACTERS + 1}}}")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+")
_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([A-Za-z0-9_:.-]+)""", re.IGNORECASE)
_REDIRECTING = frozenset({301, 302, 303, 307, 308})
_HEADERS = {
    "User-Agent": f"tidegate/{__version__}",
    "Accept": "text/html, text/markdown, text/plain, application/json, image/*;q=0.8, */*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}


Contacts = Callable[[str], None]
"""Called with a host's name before the host is contacted."""


def _unrecorded(host: str) -> None:
    """Does nothing; the default for `contacts` if there is no audit log."""


class FetchedPage(NamedTuple):
    """A fetched page. `url` is its address after redirects. `fd` is a descriptor for the decompressed content, which
    has `size` bytes. It stays open until the end of the block."""

    url: str
    media_type: str
    charset: str
    size: int
    fd: int


class WebAccess:
    """Web access for all agents. Refuses all requests until its context is entered. `key` is the search engine's key;
    `resolver` is for tests."""

    def __init__(
        self,
        settings: WebSettings | None = None,
        *,
        workers: JobRunner | None = None,
        key: Secret | None = None,
        network: Network | None = None,
        resolver: Any = None,
    ) -> None:
        self.settings = settings or WebSettings()
        self.workers = workers or JobRunner()
        self._engine: SearchEngine | None = engine(self.settings, key)
        self._resolver = resolver
        self._network = network or Network()
        self._guard = AddressGuard(networks(self.settings.private))
        # An agent's next fetch goes to another host or comes minutes later.
        self._guarded = HttpClient(
            self._network, connections=AT_ONCE, keepalive=0, guard=self._guard, resolver=resolver
        )
        self._unguarded = HttpClient(self._network, connections=AT_ONCE, keepalive=0, resolver=resolver)
        """For the search engine and the proxy, which the operator has chosen."""
        seconds = self.settings.fetch_seconds
        self._waits = Timeouts(connect=seconds, first_byte=seconds, idle=seconds)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._stack = AsyncExitStack()
        self._entered = False

    async def __aenter__(self) -> Self:
        for client in (self._guarded, self._unguarded):
            await self._stack.enter_async_context(client)
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        await self._stack.aclose()

    @asynccontextmanager
    async def fetch(self, text: str, contacts: Contacts = _unrecorded) -> AsyncIterator[FetchedPage]:
        """Fetches an address, following redirects. Raises `ToolFailed` with the reason if the fetch fails. `contacts`
        is called with each host before it is contacted."""
        self._check_entered()
        url = _checked(text)
        seconds = self.settings.fetch_seconds
        held = False
        try:
            with _anonymous() as fd:
                async with _in_time(f"Fetching {shown(url)}", seconds):
                    await self._places.acquire()
                    held = True
                    fetched = await self._followed(url, fd, contacts)
                yield fetched
        finally:
            if held:
                self._places.release()

    async def search(self, query: str, count: int, contacts: Contacts = _unrecorded) -> tuple[SearchHit, ...]:
        """Returns at most `count` results, best first. `contacts` is called with the search engine's host."""
        if self._engine is None:
            raise ToolFailed(
                "No search engine is configured: the operator can choose one with search in [web] in "
                "tidegate.toml; web_fetch works without one."
            )
        self._check_entered()
        request = self._engine.request(query, count)
        name = self._engine.name
        url = URL(request.url).update_query(request.params)
        contacts(url.host or "")
        headers = {**request.headers, "Accept-Encoding": _HEADERS["Accept-Encoding"]}
        target = self._target(url, headers, request.method)
        body = () if request.body is None else (request.body,)
        async with _in_time(f"The search with {name}", self.settings.fetch_seconds):
            try:
                # Redirects are not followed, since the key must go only to the configured address.
                response = await self._unguarded.request(target, body, self._waits)
                try:
                    status = response.status
                    answer = await _read(response, SEARCH_BYTES) if status == HTTPStatus.OK else b""
                finally:
                    response.close()
            except ConnectionFailed as failure:
                raise ToolFailed(f"The search with {name} failed: {_why(failure)}.") from None
        if status != HTTPStatus.OK:
            raise ToolFailed(f"The search with {name} failed: {self._engine.complaint(status)}.")
        return self._engine.hits(answer)[:count]

    def _check_entered(self) -> None:
        if not self._entered:
            raise ToolFailed("Web access is not available here.")

    def _target(self, url: URL, headers: dict[str, str], method: str = "GET") -> Target:
        proxy = self._network.secret_proxy_for(str(url), self.settings.proxy, exceptions=True)
        return Target(method, str(url), {"User-Agent": _HEADERS["User-Agent"], **headers}, proxy)

    async def _requested(self, url: URL) -> IncomingResponse:
        target = self._target(url, _HEADERS)
        if target.proxy is None:
            return await self._guarded.request(target, (), self._waits)
        await self._guard.check(url.host or "", url.port or 0, self._resolve)
        return await self._unguarded.request(target, (), self._waits)

    async def _resolve(self, host: str, port: int) -> list[str]:
        if self._resolver is None:
            return await resolved(host, port)
        return [found["host"] for found in await self._resolver.resolve(host, port)]

    async def _followed(self, url: URL, fd: int, contacts: Contacts) -> FetchedPage:
        first = url
        for _ in range(REDIRECTS + 1):
            contacts(url.host or "")
            try:
                response = await self._requested(url)
                try:
                    target = response.headers.get("location") if response.status in _REDIRECTING else None
                    if target is None:
                        return await self._kept(response, url, fd)
                finally:
                    response.close()
            except ForbiddenAddress:
                raise ToolFailed(f"{shown(url)} cannot be fetched: {NOT_PUBLIC}.") from None
            except ConnectionFailed as failure:
                raise ToolFailed(f"{shown(url)} cannot be fetched: {_why(failure)}.") from None
            url = _checked(target, url)
        raise ToolFailed(f"{shown(first)} redirects more than {REDIRECTS} times.")

    async def _kept(self, response: IncomingResponse, url: URL, fd: int) -> FetchedPage:
        if response.status != HTTPStatus.OK:
            raise ToolFailed(f"{shown(url)} cannot be fetched: the server responded with {_status(response.status)}.")
        most = self.settings.fetch_bytes
        size = 0
        while piece := await response.read():
            size += len(piece)
            if size > most:
                raise ToolFailed(f"{shown(url)} is larger than web.fetch_bytes ({most} bytes) allows.")
            _write(fd, piece)
        return FetchedPage(str(url), *content_type(response.headers.get("content-type", "")), size, fd)


def content_type(header: str) -> tuple[str, str]:
    """Returns the media type and charset of a Content-Type header. The standard library's parser is not used, because
    it takes quadratic time and decodes parts of the header with codecs chosen by the header."""
    media_type, _, parameters = header[:TYPE_CHARACTERS].partition(";")
    found = _CHARSET.search(f";{parameters}")
    known = _MEDIA_TYPE.fullmatch(media_type.strip())
    return known[0].lower() if known else "application/octet-stream", found[1] if found else ""


def shown(url: URL | str) -> str:
    text = str(url)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _checked(text: str, base: URL | None = None) -> URL:
    """Parses and checks an address; `base` is the address that redirected to it. A refused address is not quoted, since
    it may contain a password."""
    whose = "The address" if base is None else f"{shown(base)} redirects to an address that"
    text = text.strip()
    try:
        if len(text) > URL_CHARACTERS or any(ord(c) < 32 or ord(c) == 127 for c in text) or _AUTHORITY.match(text):
            raise ValueError
        url = URL(text) if base is None else base.join(URL(text))
        host = url.host
    except ValueError:  # UnicodeError is one
        host = None
        url = URL()
    if url.user is not None or url.password is not None:
        raise ToolFailed(f"{whose} contains a user name or a password; such addresses are not fetched.")
    if url.scheme not in ("http", "https") or not host:
        raise ToolFailed(f"{whose} cannot be fetched: it must begin with http:// or https://, followed by a host.")
    return url.with_fragment(None)


@asynccontextmanager
async def _in_time(subject: str, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise ToolFailed(f"{subject} took longer than web.fetch_seconds ({seconds:g} s) allows.") from None


async def _read(response: IncomingResponse, most: int) -> bytes:
    data = bytearray()
    while piece := await response.read():
        data += piece
        if len(data) > most:
            raise ToolFailed(f"The search engine's answer is longer than {most} bytes.")
    return bytes(data)


def _why(failure: ConnectionFailed) -> str:
    """Returns the reason for a failure. The library's message is not used because it may quote the server's
    response."""
    if failure.proxy:
        return "the proxy in web.proxy could not connect"
    match failure.trouble:
        case "forbidden":
            return NOT_PUBLIC
        case "unknown":
            return "its host was not found"
        case "untrusted":
            return "the server's certificate is not valid"
        case "unconnected" if failure.said == "invalid host name":
            return "its host is malformed"
        case "unconnected":
            return f"the server cannot be reached ({failure.said})" if failure.said else "no connection"
        case "broken":
            return "the answer was cut off"
        case "foreign":
            return f"the server's answer is not valid HTTP ({failure.said})"
        case "crowded" | "late" | "silent":
            return "the server did not answer in time"


def _status(status: int) -> str:
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)


@contextmanager
def _anonymous() -> Iterator[int]:
    """Yields the descriptor of an anonymous in-memory file, which disappears when it is closed."""
    fd = os.memfd_create("page")
    try:
        yield fd
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
