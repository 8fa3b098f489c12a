"""The HTTP client for the fetches and searches of agents.

A fetch connects only to public addresses and to those listed in `web.private`. The socket address is checked right
before the connection, so the check cannot be bypassed by the spelling of a host, a changing DNS answer or a redirect. A
fetch sends no cookies and no credentials, and uses no proxy. Its time and its decompressed size are bounded, and only
one chunk is in memory at a time. Searches, and the search key, go only to the configured engine.

WebAccess owns its connections, which are opened on first use and closed when it is exited.
"""

import asyncio
import errno
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from tidegate import __version__
from tidegate.config import WebSettings
from tidegate.errors import ToolFailed
from tidegate.security import Secret
from tidegate.security.addresses import Network, networks, refusal
from tidegate.spool import JobRunner
from tidegate.tools.builtin.web.search_engines import SearchEngine, SearchHit, engine

AT_ONCE = 16
"""Pages that are fetched or processed concurrently. Further fetches wait, within their deadlines."""

REDIRECTS = 5
"""The most redirects of one fetch: more than any page needs. Browsers stop at 20."""

URL_CHARACTERS = 4000
"""The longest address in characters, longer than servers accept."""

AUTHORITY_CHARACTERS = 300
"""The longest host with port, in characters. Host names have at most 253, and encoding a long name in another script is
slow."""

TYPE_CHARACTERS = 300
"""The most characters of the Content-Type header that are read."""

SHOWN_CHARACTERS = 300
"""The most characters of an address that are shown in a message."""

SEARCH_BYTES = 2 * 1024 * 1024
"""The largest response of a search engine. Twenty results take some tens of KiB."""

READ_BUFFER_BYTES = 64 * 1024

NOT_PUBLIC = "its address is not public"

_AUTHORITY = re.compile(rf"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//[^/?#]{{{AUTHORITY_CHARACTERS + 1}}}")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+")
_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([A-Za-z0-9_:.-]+)""", re.IGNORECASE)
_REDIRECTING = frozenset({301, 302, 303, 307, 308})
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
_HEADERS = {
    "User-Agent": f"tidegate/{__version__}",
    "Accept": "text/html, text/markdown, text/plain, application/json, image/*;q=0.8, */*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}


Contacts = Callable[[str], None]
"""Called with the name of a host before it is contacted."""


def _unrecorded(host: str) -> None:
    """The default for `contacts` where there is no audit log."""


class FetchedPage(NamedTuple):
    """A fetched page. `url` is its address after redirects. `fd` is a descriptor of the decompressed content, which has
    `size` bytes. It stays open until the end of the block."""

    url: str
    media_type: str
    charset: str
    size: int
    fd: int


class AddressGuard:
    """Creates the sockets of a connector, and refuses addresses that must not be reached."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = tuple(allowed)

    def __call__(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _name, address = info
        if refusal(str(address[0]), self._allowed):
            raise OSError(errno.EACCES, NOT_PUBLIC)
        return socket.socket(family, kind, protocol)


class WebAccess:
    """The HTTP client of the process. Refuses all requests until its context is entered. `key` is the search engine's
    key; `resolver` is for tests."""

    def __init__(
        self,
        settings: WebSettings | None = None,
        *,
        workers: JobRunner | None = None,
        key: Secret | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self.settings = settings or WebSettings()
        self.workers = workers or JobRunner()
        self._engine: SearchEngine | None = engine(self.settings, key)
        self._resolver = resolver
        self._places = asyncio.Semaphore(AT_ONCE)
        self._entered = False
        self._fetching: aiohttp.ClientSession | None = None
        self._searching: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        sessions = (self._fetching, self._searching)
        self._fetching = self._searching = None
        for session in sessions:
            if session is not None:
                await session.close()

    @asynccontextmanager
    async def fetch(self, text: str, contacts: Contacts = _unrecorded) -> AsyncIterator[FetchedPage]:
        """Fetches an address, following redirects. Raises `ToolFailed` with the reason if the fetch fails. `contacts`
        is called with each host before it is contacted."""
        if self._fetching is None:
            self._fetching = self._opened(socket_factory=AddressGuard(networks(self.settings.private)))
        url = _checked(text)
        seconds = self.settings.fetch_seconds
        held = False
        try:
            with _anonymous() as fd:
                async with _in_time(f"Fetching {shown(url)}", seconds):
                    await self._places.acquire()
                    held = True
                    fetched = await self._followed(self._fetching, url, fd, contacts)
                yield fetched
        finally:
            if held:
                self._places.release()

    async def search(self, query: str, count: int, contacts: Contacts = _unrecorded) -> tuple[SearchHit, ...]:
        """Returns at most `count` results, the best first. `contacts` is called with the search engine's host."""
        if self._engine is None:
            raise ToolFailed(
                "No search engine is configured: the operator can choose one with search in the table [web] of "
                "tidegate.toml; web_fetch works without one."
            )
        if self._searching is None:
            self._searching = self._opened()
        request = self._engine.request(query, count)
        name = self._engine.name
        contacts(URL(request.url).host or "")
        async with _in_time(f"The search with {name}", self.settings.fetch_seconds):
            try:
                # Redirects are not followed: the key goes only to the configured address.
                async with self._searching.request(
                    request.method,
                    URL(request.url),
                    params=request.params,
                    headers={**request.headers, "Accept-Encoding": _HEADERS["Accept-Encoding"]},
                    data=request.body,
                    allow_redirects=False,
                ) as response:
                    status = response.status
                    answer = await _read(response, SEARCH_BYTES) if status == HTTPStatus.OK else b""
            except aiohttp.ClientError as error:
                raise ToolFailed(f"The search with {name} failed: {_why(error)}.") from None
        if status != HTTPStatus.OK:
            raise ToolFailed(f"The search with {name} failed: {self._engine.complaint(status)}.")
        return self._engine.hits(answer)[:count]

    def _opened(self, **options: Any) -> aiohttp.ClientSession:
        if not self._entered:
            raise ToolFailed("There is no access to the web here.")
        connector = aiohttp.TCPConnector(
            limit=AT_ONCE,
            resolver=self._resolver,
            use_dns_cache=False,
            # An agent's next fetch goes to another host or comes minutes later.
            force_close=True,
            **options,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            read_bufsize=READ_BUFFER_BYTES,
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"User-Agent": _HEADERS["User-Agent"]},
        )

    async def _followed(self, session: aiohttp.ClientSession, url: URL, fd: int, contacts: Contacts) -> FetchedPage:
        first = url
        for _ in range(REDIRECTS + 1):
            contacts(url.host or "")
            try:
                async with session.get(url, headers=_HEADERS, allow_redirects=False) as response:
                    target = response.headers.get("Location") if response.status in _REDIRECTING else None
                    if target is None:
                        return await self._kept(response, url, fd)
            except aiohttp.ClientError as error:
                raise ToolFailed(f"{shown(url)} cannot be fetched: {_why(error)}.") from None
            url = _checked(target, url)
        raise ToolFailed(f"{shown(first)} redirects more than {REDIRECTS} times.")

    async def _kept(self, response: aiohttp.ClientResponse, url: URL, fd: int) -> FetchedPage:
        if response.status != HTTPStatus.OK:
            raise ToolFailed(f"{shown(url)} cannot be fetched: the server answered {_status(response.status)}.")
        if response.headers.get("Content-Encoding", "").strip().lower() not in _ENCODINGS:
            raise ToolFailed(f"{shown(url)} cannot be fetched: the server used a compression that was not requested.")
        most = self.settings.fetch_bytes
        size = 0
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > most:
                raise ToolFailed(f"{shown(url)} is larger than web.fetch_bytes ({most} bytes) allows.")
            _write(fd, piece)
        return FetchedPage(str(url), *content_type(response.headers.get("Content-Type", "")), size, fd)


def content_type(header: str) -> tuple[str, str]:
    """Returns the media type and charset of a Content-Type header. The standard library's parser is not used, since it
    takes quadratic time, and decodes parts of the header with codecs that the header chooses."""
    media_type, _, parameters = header[:TYPE_CHARACTERS].partition(";")
    found = _CHARSET.search(f";{parameters}")
    known = _MEDIA_TYPE.fullmatch(media_type.strip())
    return known[0].lower() if known else "application/octet-stream", found[1] if found else ""


def shown(url: URL | str) -> str:
    text = str(url)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _checked(text: str, base: URL | None = None) -> URL:
    """Parses and checks an address; `base` is the address that redirected to it. An address that is refused is not
    quoted, since it may hold a password."""
    whose = "The address" if base is None else f"{shown(base)} leads to an address that"
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
        raise ToolFailed(f"{whose} cannot be fetched: it must begin with http:// or https:// and a host.")
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


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > most:
            raise ToolFailed(f"The search engine's answer is longer than {most} bytes.")
    return bytes(data)


def _why(error: aiohttp.ClientError) -> str:
    """Returns the reason for a failure. The library's message is not used, since it may quote the server's response."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host was not found"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the server's certificate is not valid"
    if isinstance(error, aiohttp.ClientConnectorError):
        if NOT_PUBLIC in str(error.os_error):
            return f"{NOT_PUBLIC} and not listed in web.private"
        reason = errno.errorcode.get(error.os_error.errno or 0)
        return f"the server cannot be reached ({os.strerror(error.os_error.errno or 0)})" if reason else "no connection"
    if isinstance(error, aiohttp.InvalidURL):
        return "its host is malformed"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer was cut off, or its compression is invalid"
    return f"the server's answer was not valid HTTP ({type(error).__name__})"


def _status(status: int) -> str:
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)


@contextmanager
def _anonymous() -> Iterator[int]:
    """Yields the descriptor of an anonymous file in memory, which disappears when it is closed."""
    fd = os.memfd_create("page")
    try:
        yield fd
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
