"""Search engines: their requests and responses.

This module does no I/O. A request contains everything that is sent. A response is parsed into results, each with an
HTTP address and texts of bounded length, or into a one-sentence error. Keys are sent in a header and never appear in an
address or message.
"""

import html
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from tidegate.config import WebSettings
from tidegate.errors import ToolFailed
from tidegate.security import Secret

TITLE_CHARACTERS = 200
TEXT_CHARACTERS = 600
MARKED_UP_CHARACTERS = 4000
"""Maximum number of characters parsed from a title or text with markup. This is several times as many as are shown, but
not enough for a number with more digits than `int` accepts."""

ADDRESS_CHARACTERS = 1000
"""Results with a longer address are left out, since half an address is useless."""

MOST = 20
"""Maximum number of results per search: as many as every engine returns in one response."""

BRAVE = "https://api.search.brave.com/res/v1"
TAVILY = "https://api.tavily.com"

_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,100}>")
_Answer = TypeVar("_Answer")
_NO_PARAMS: Mapping[str, str] = MappingProxyType({})


class SearchHit(NamedTuple):
    title: str
    url: str
    text: str


class SearchEngineRequest(NamedTuple):
    method: str
    url: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes | None = None


class SearchEngine(Protocol):
    name: str

    def request(self, query: str, count: int) -> SearchEngineRequest: ...
    def complaint(self, status: int) -> str:
        """Explains an error status, phrased as the end of a sentence."""
        ...

    def hits(self, answer: bytes) -> tuple[SearchHit, ...]: ...


def engine(settings: WebSettings, key: Secret | None) -> SearchEngine | None:
    """Returns the configured engine, or None if there is none."""
    if settings.search == "none":
        return None
    kinds: Mapping[str, type[SearXNG] | type[Brave] | type[Tavily]]
    kinds = {"searxng": SearXNG, "brave": Brave, "tavily": Tavily}
    return kinds[settings.search](settings.search_url, key)


class _Result(msgspec.Struct, frozen=True):
    """One result. The three engines use the same field names, with few exceptions."""

    url: str = ""
    title: str | None = None
    content: str | None = None
    description: str | None = None


class _Results(msgspec.Struct, frozen=True):
    results: list[_Result]


class _BraveAnswer(msgspec.Struct, frozen=True):
    web: _Results | None = None


class SearXNG:
    name = "searxng"

    def __init__(self, base: str, key: Secret | None) -> None:
        self._base, self._key = base, key

    def request(self, query: str, count: int) -> SearchEngineRequest:
        headers = {"Accept": "application/json"}
        if self._key is not None:  # for a proxy in front of the engine
            headers["Authorization"] = f"Bearer {self._key.reveal()}"
        return SearchEngineRequest("GET", f"{self._base}/search", {"q": query, "format": "json"}, headers)

    def complaint(self, status: int) -> str:
        if status == 403:
            return "it refused (403); its operator must add json to search.formats in its settings.yml"
        return _complaint(status)

    def hits(self, answer: bytes) -> tuple[SearchHit, ...]:
        return _hits(_decoded(answer, _Results, self.name).results)


class Brave:
    name = "brave"

    def __init__(self, base: str, key: Secret | None) -> None:
        self._base, self._key = base or BRAVE, key

    def request(self, query: str, count: int) -> SearchEngineRequest:
        headers = {"Accept": "application/json", "X-Subscription-Token": _revealed(self._key)}
        params = {"q": query, "count": str(count), "result_filter": "web", "text_decorations": "false"}
        return SearchEngineRequest("GET", f"{self._base}/web/search", params, headers)

    def complaint(self, status: int) -> str:
        if status == 422:
            return "it refused the query or the key (422); simplify the query, or have the operator check search_key"
        return _complaint(status)

    def hits(self, answer: bytes) -> tuple[SearchHit, ...]:
        web = _decoded(answer, _BraveAnswer, self.name).web
        return () if web is None else _hits(web.results)


class Tavily:
    name = "tavily"

    def __init__(self, base: str, key: Secret | None) -> None:
        self._base, self._key = base or TAVILY, key

    def request(self, query: str, count: int) -> SearchEngineRequest:
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "Authorization": f"Bearer {_revealed(self._key)}",
        }
        body = msgspec.json.encode({"query": query, "max_results": count})
        return SearchEngineRequest("POST", f"{self._base}/search", _NO_PARAMS, headers, body)

    def complaint(self, status: int) -> str:
        if status in (432, 433):
            return f"the plan's limit is used up ({status}); the operator can raise it"
        return _complaint(status)

    def hits(self, answer: bytes) -> tuple[SearchHit, ...]:
        return _hits(_decoded(answer, _Results, self.name).results)


def _revealed(key: Secret | None) -> str:
    if key is None:
        raise ToolFailed("The search engine needs a key: the operator must set search_key in [web].")
    return key.reveal()


def _complaint(status: int) -> str:
    if status in (401, 403):
        return f"the key was refused ({status}); the operator must check search_key in [web]"
    if status in (400, 422):
        return f"it refused the query ({status}); make it shorter or simpler"
    if status == 429:
        return "it received too many requests (429); try again later"
    if 300 <= status < 400:
        return f"it redirects to another address ({status}); the operator must correct search_url in [web]"
    return f"it answered {status}; try again later"


def _decoded(answer: bytes, kind: type[_Answer], name: str) -> _Answer:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ToolFailed(f"The search with {name} failed: its answer has an unexpected form.") from None


def _hits(results: Iterable[_Result]) -> tuple[SearchHit, ...]:
    hits = (
        SearchHit(
            _plain(result.title or "", TITLE_CHARACTERS) or result.url,
            result.url,
            _plain(result.content or result.description or "", TEXT_CHARACTERS),
        )
        for result in results
        if result.url.startswith(("http://", "https://"))
        and len(result.url) <= ADDRESS_CHARACTERS
        and result.url.isprintable()
    )
    return tuple(islice(hits, MOST))


def _plain(text: str, most: int) -> str:
    """Returns the text on one line, without markup."""
    line = " ".join(html.unescape(_TAG.sub("", text[:MARKED_UP_CHARACTERS])).split())
    return line if len(line) <= most else f"{line[:most]}…"
