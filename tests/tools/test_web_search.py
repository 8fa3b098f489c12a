"""web_search: three engines by their own protocols, and none."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tests.logs import capture_logs
from tests.tools.sites import FORBIDDEN, Agent, Handler, agent, refuse, site
from tidegate.config import read
from tidegate.errors import Misconfigured, ToolFailed
from tidegate.gateway.preflight import PreflightFailed
from tidegate.gateway.preflight.preflight import examine
from tidegate.security import Secret

pytestmark = pytest.mark.anyio

KEY = "key-of-the-engine-123"
HITS = [
    {
        "title": "Tides &amp; <strong>time</strong>",
        "url": "https://example.org/tides",
        "text": "Water   comes\nand goes.",
    },
    {"title": "", "url": "http://example.com/", "text": ""},
    {"title": "A script", "url": "javascript:alert(1)", "text": "no"},
    {"title": "Third", "url": "https://example.net/3", "text": "x" * 5000},
]


def reply(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def searxng(request: web.Request, body: bytes) -> web.Response:
    assert (request.method, request.path) == ("GET", "/search")
    assert set(request.query) == {"q", "format"} and request.query["format"] == "json"
    results = [{"title": h["title"], "url": h["url"], "content": h["text"], "engine": "x", "score": 1.5} for h in HITS]
    return reply({"query": request.query["q"], "number_of_results": 0, "results": results, "answers": []})


def brave(request: web.Request, body: bytes) -> web.Response:
    if request.headers.get("X-Subscription-Token") != KEY:
        return web.Response(status=422, text=f"bad token {request.headers.get('X-Subscription-Token')}")
    assert (request.method, request.path) == ("GET", "/web/search")
    assert 1 <= int(request.query["count"]) <= 20 and len(request.query["q"]) <= 400
    results = [{"title": h["title"], "url": h["url"], "description": h["text"], "age": None} for h in HITS]
    return reply({"type": "search", "query": {"original": request.query["q"]}, "web": {"results": results}})


def tavily(request: web.Request, body: bytes) -> web.Response:
    if request.headers.get("Authorization") != f"Bearer {KEY}":
        return web.Response(status=401, text='{"detail": {"error": "Unauthorized"}}')
    assert (request.method, request.path, request.query_string) == ("POST", "/search", "")
    assert request.headers["Content-Type"] == "application/json"
    asked = msgspec.json.decode(body)
    assert set(asked) == {"query", "max_results"} and 0 <= asked["max_results"] <= 20
    results = [
        {"title": h["title"], "url": h["url"], "content": h["text"], "score": 0.9, "raw_content": None} for h in HITS
    ]
    return reply({"query": asked["query"], "answer": None, "images": [], "results": results, "response_time": 1.1})


ENGINES = {"searxng": searxng, "brave": brave, "tavily": tavily}


def serving(engine: Callable[[web.Request, bytes], web.Response]) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return engine(request, await request.read())

    return handler


@asynccontextmanager
async def searching(tmp_path: Path, name: str, handler: Handler, **settings: Any) -> AsyncIterator[Agent]:
    async with (
        site(handler, FORBIDDEN) as found,
        agent(tmp_path, search=name, search_url=found.url, key=Secret(KEY), **settings) as mine,
    ):
        yield mine


async def failure(tmp_path: Path, name: str, handler: Handler, **settings: Any) -> str:
    async with searching(tmp_path, name, handler, **settings) as mine:
        with pytest.raises(ToolFailed) as caught:
            await mine.use("web_search", query="tides")
    assert KEY not in caught.value.message and "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("name", ENGINES)
async def test_a_search_gives_titles_addresses_and_excerpts(tmp_path: Path, name: str) -> None:
    """The engine may be on a private address: the operator chose it."""
    async with searching(tmp_path, name, serving(ENGINES[name])) as mine:
        text = (await mine.use("web_search", query="tides & time ü", count=3)).text
    first, second, third = text.split("\n\n")
    assert first == "1. Tides & time\n   https://example.org/tides\n   Water comes and goes."
    assert second == "2. http://example.com/\n   http://example.com/"
    assert third.startswith("3. Third\n   https://example.net/3\n") and len(third) < 1000


@pytest.mark.parametrize("name", ENGINES)
async def test_at_most_the_requested_number_of_results_is_returned(tmp_path: Path, name: str) -> None:
    async with searching(tmp_path, name, serving(ENGINES[name])) as mine:
        assert "2. " not in (await mine.use("web_search", query="tides", count=1)).text


async def test_without_an_engine_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    async with agent(tmp_path) as mine:
        with pytest.raises(ToolFailed, match=r"search in \[web\] in tidegate.toml"):
            await mine.use("web_search", query="tides")
        with pytest.raises(ToolFailed, match="empty"):
            await mine.use("web_search", query="  ")


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("status", "word"), [(401, "search_key"), (403, ""), (422, ""), (429, "later"), (500, "later"), (301, "search_url")]
)
async def test_a_refusal_of_the_engine_is_reported_in_a_sentence(
    tmp_path: Path, name: str, status: int, word: str
) -> None:
    """Its own words are not repeated: they may quote the key."""

    async def handler(request: web.Request) -> web.StreamResponse:
        sent = request.headers.get("X-Subscription-Token", request.headers.get("Authorization", ""))
        return web.Response(status=status, text=f"bad {sent}", headers={"Location": "/elsewhere"})

    message = await failure(tmp_path, name, handler)
    assert name in message and str(status) in message and word in message
    if (name, status) == ("searxng", 403):
        assert "settings.yml" in message


async def test_a_key_is_not_sent_on_to_where_an_engine_leads(tmp_path: Path) -> None:
    async with site(refuse, FORBIDDEN) as other:

        async def handler(request: web.Request) -> web.StreamResponse:
            return web.Response(status=302, headers={"Location": other.url})

        await failure(tmp_path, "brave", handler)
        assert other.connections == 0


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"results": 1, "web": 2}', b"[" * 100_000, b'{"results": [1]}']
)
async def test_an_answer_of_another_form_is_reported_in_a_sentence(tmp_path: Path, name: str, body: bytes) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    if name == "brave" and body == b'{"results": [1]}':
        return  # without `web` there is nothing found
    assert "an unexpected form" in await failure(tmp_path, name, handler)


async def test_an_answer_without_results_says_so(tmp_path: Path) -> None:
    async with searching(tmp_path, "brave", serving(lambda request, body: reply({"query": {}}))) as mine:
        assert (await mine.use("web_search", query="tides")).text == "[nothing found]"


async def test_an_answer_is_bounded_in_size_and_time(tmp_path: Path) -> None:
    async def long(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 3_000_000)

    async def late(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    assert "longer than" in await failure(tmp_path, "brave", long)
    assert "web.fetch_seconds" in await failure(tmp_path, "brave", late, fetch_seconds=0.5)


async def test_nothing_of_the_key_is_logged(tmp_path: Path) -> None:
    """A secret is in a header and nowhere else."""
    with capture_logs() as logs:
        async with searching(tmp_path, "tavily", serving(tavily)) as mine:
            await mine.use("web_search", query="tides")
        await failure(tmp_path, "tavily", refuse)
    assert KEY not in repr(logs)


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ('search = "searxng"', "search_url"),
        ('search = "brave"', "search_key"),
        ('search = "tavily"', "search_key"),
        ('search = "google"', "one of"),
        ('private = ["10.0.0.1/8"]', "10.0.0.1/8"),
        ('private = ["intranet"]', "intranet"),
        ('private = "10.0.0.1"', "a list"),
        ('search_key = "brave-key-itself"', "reference"),
        ("fetch_bytes = 1", "KiB"),
    ],
)
def test_a_table_that_cannot_work_is_refused_at_the_start(table: str, word: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        read(f"[web]\n{table}\n", Path("/nowhere"))
    assert word in caught.value.message and "brave-key-itself" not in caught.value.message


def test_the_key_is_found_by_its_reference_like_a_models(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text(
        '[web]\nsearch = "brave"\nsearch_key = "env:BRAVE"\nprivate = ["10.0.0.0/8"]\n'
    )
    ready = examine(tmp_path, {"BRAVE": KEY, "OTHER": "x"})
    assert ready.secrets == {"env:BRAVE": Secret(KEY)}
    assert ready.config.web.private == ("10.0.0.0/8",)
    with pytest.raises(PreflightFailed) as caught:
        examine(tmp_path, {})
    assert "[web] search_key" in str(caught.value)
