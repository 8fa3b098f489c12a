"""The one HTTP client for what agents fetch and search.

Guarantee: a fetch connects to public addresses only, and to those that `web.private` names. That is decided for the
very socket address that is about to be connected to, so that it makes no difference how a host is written, what its
name meant a moment ago, or whether a redirect led there. A fetch sends nothing of ours: no cookie, no credential, and
goes through no proxy. Its time and its size, unpacked, are bounded, and memory holds a piece of it at a time. Searches
go where the configuration says and nowhere else, and their key with them.

WebAccess owns its connections: they are opened by the first use and are gone when it is left.
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
from tidegate.tools.web.search_engines import SearchEngine, SearchHit, engine

AT_ONCE = 16
"""Pages that are fetched, or held to be shown, at a time; the others wait within their own time."""

REDIRECTS = 5
"""More than any page needs; browsers stop at 20."""

URL_CHARACTERS = 4000
"""Of an address: more than servers take."""

AUTHORITY_CHARACTERS = 300
"""Of the host in it, with its port: names have at most 253, and a longer one in another script takes long to encode."""

TYPE_CHARACTERS = 300
"""Of the header that says what a page is."""

SHOWN_CHARACTERS = 300
"""Of an address in a sentence about it."""

SEARCH_BYTES = 2 * 1024 * 1024
"""Of a search engine's answer: twenty results take some tens of KiB."""

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
"""Is told the name of a host before it is contacted."""


def _unrecorded(host: str) -> None:
    """Where nobody keeps an audit log."""


class FetchedPage(NamedTuple):
    """What was found at `url`, the last of the redirects. `fd` is a descriptor of its content, which is unpacked, has
    `size` bytes, and is there until the end of the block."""

    url: str
    media_type: str
    charset: str
    size: int
    fd: int


class AddressGuard:
    """Makes the sockets of a connector, and none for an address that must not be reached."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = tuple(allowed)

    def __call__(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _name, address = info
        if refusal(str(address[0]), self._allowed):
            raise OSError(errno.EACCES, NOT_PUBLIC)
        return socket.socket(family, kind, protocol)


class WebAccess:
    """Process lifetime. One that is not entered refuses. `key` is the search engine's; `resolver` is for tests."""

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
        """What is at an address, after redirects. ToolFailed says why it cannot be had. `contacts` is told each host
        before it is contacted."""
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
        """At most `count` results, the best first. `contacts` is told the search engine's host."""
        if self._engine is None:
            raise ToolFailed(
                "No search engine is configured: the operator chooses one by search in the table [web] of "
                "tidegate.toml; web_fetch works without."
            )
        if self._searching is None:
            self._searching = self._opened()
        request = self._engine.request(query, count)
        name = self._engine.name
        contacts(URL(request.url).host or "")
        async with _in_time(f"The search with {name}", self.settings.fetch_seconds):
            try:
                # No redirect is followed: the key goes where the configuration says.
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
            # An agent's next fetch is elsewhere, or minutes away.
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
        raise ToolFailed(f"{shown(first)} leads through more than {REDIRECTS} redirects.")

    async def _kept(self, response: aiohttp.ClientResponse, url: URL, fd: int) -> FetchedPage:
        if response.status != HTTPStatus.OK:
            raise ToolFailed(f"{shown(url)} cannot be fetched: the server answered {_status(response.status)}.")
        if response.headers.get("Content-Encoding", "").strip().lower() not in _ENCODINGS:
            raise ToolFailed(f"{shown(url)} cannot be fetched: it is packed in a way that was not asked for.")
        most = self.settings.fetch_bytes
        size = 0
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > most:
                raise ToolFailed(f"{shown(url)} is larger than web.fetch_bytes ({most} bytes) allows.")
            _write(fd, piece)
        return FetchedPage(str(url), *content_type(response.headers.get("Content-Type", "")), size, fd)


def content_type(header: str) -> tuple[str, str]:
    """The media type and the charset that a server names. The library's own reading of this header takes quadratic
    time, and decodes parts of it with codecs that the header chooses."""
    media_type, _, parameters = header[:TYPE_CHARACTERS].partition(";")
    found = _CHARSET.search(f";{parameters}")
    known = _MEDIA_TYPE.fullmatch(media_type.strip())
    return known[0].lower() if known else "application/octet-stream", found[1] if found else ""


def shown(url: URL | str) -> str:
    text = str(url)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _checked(text: str, base: URL | None = None) -> URL:
    """An address that may be asked for; a redirect's is relative to where it stood. What is refused here is not quoted
    when it may hold a password."""
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
        raise ToolFailed(f"{whose} holds a user name or a password, and is not fetched with one.")
    if url.scheme not in ("http", "https") or not host:
        raise ToolFailed(f"{whose} is none that can be fetched: it must begin with http:// or https:// and a host.")
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
    """Why there was no answer, in words of ours: those of the library may quote what the server sent."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host is not known"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the server's certificate is not valid"
    if isinstance(error, aiohttp.ClientConnectorError):
        if NOT_PUBLIC in str(error.os_error):
            return f"{NOT_PUBLIC}, and not among those of web.private"
        reason = errno.errorcode.get(error.os_error.errno or 0)
        return f"the server cannot be reached ({os.strerror(error.os_error.errno or 0)})" if reason else "no connection"
    if isinstance(error, aiohttp.InvalidURL):
        return "its host is not written in the usual form"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer broke off, or is packed wrongly"
    return f"the server did not answer as one should ({type(error).__name__})"


def _status(status: int) -> str:
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)


@contextmanager
def _anonymous() -> Iterator[int]:
    """A file without a name, in memory that is the kernel's, gone when it is closed."""
    fd = os.memfd_create("page")
    try:
        yield fd
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
