"""web_fetch: pages as readable text, within bounds that have names."""

import asyncio
import gzip
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.spool.sounds import wav
from tests.spool.spools import BYTES
from tests.tools.sites import ALLOWED, Agent, Handler, ScriptedResolver, agent, site
from tidegate.errors import ToolFailed
from tidegate.tools.builtin.web import tools as web_tools
from tidegate.tools.builtin.web.http_access import AT_ONCE, REDIRECTS

pytestmark = pytest.mark.anyio

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cfc0500f00038401809d"
    "22e0f40000000049454e44ae426082"
)
PAGE = """<!doctype html><html><head><title>Tide &amp; time</title><style>p {color: red}</style></head><body>
<nav><a href="/">Home</a></nav><h1>The <em>tide</em></h1><p>It comes   and <a href="../goes?a=1">goes</a>.</p>
<script>document.write("no")</script><ul><li>one<li>two</ul><footer>imprint</footer></body></html>"""


def answering(body: bytes | str, content_type: str | None = None, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        data = body.encode() if isinstance(body, str) else body
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        response = web.Response(body=data, headers=given)
        if content_type is not None:
            response.headers["Content-Type"] = content_type
        return response

    return handler


async def fetched(tmp_path: Path, handler: Handler, **settings: Any) -> str:
    async with site(handler) as found, agent(tmp_path, **settings) as mine:
        return (await mine.fetch(found.url)).text


async def refusal(agent: Agent, url: str, **arguments: str) -> str:
    with pytest.raises(ToolFailed) as caught:
        await agent.fetch(url, **arguments)
    assert "\n" not in caught.value.message
    return caught.value.message


async def test_a_page_is_readable_text_with_whole_addresses(tmp_path: Path) -> None:
    async with site(answering(PAGE, "text/html; charset=utf-8")) as found, agent(tmp_path) as mine:
        text = (await mine.fetch(f"{found.url}/a/b#part")).text
        head, _, rest = text.partition("\n\n")
        assert head == f'[{found.url}/a/b: "Tide & time", text/html, {len(PAGE)} bytes]'
        assert "# The *tide*" in rest
        assert f"[goes]({found.url}/goes?a=1)" in rest
        assert re.search(r"^- one\n- two$", rest, re.MULTILINE)
        assert not re.search(r"document|color|imprint|Home", rest)


async def test_a_fetch_sends_no_cookies_or_credentials(tmp_path: Path) -> None:
    """No cookie that a site has set, and nothing that says who asks."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text="x", headers={"Set-Cookie": "seen=1; Path=/"})

    async with site(handler) as found, agent(tmp_path) as mine:
        await mine.fetch(found.url)
        await mine.fetch(found.url)
        for request in found.requests:
            assert {"Cookie", "Authorization", "Referer"}.isdisjoint(request.headers)
            assert request.method == "GET"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/json", "application/ld+json", "image/svg+xml", "text/x-c"]
)
async def test_other_text_comes_as_it_is(tmp_path: Path, content_type: str) -> None:
    text = await fetched(tmp_path, answering('{"a": "<b>ü</b>"}', content_type))
    assert text.endswith('\n\n{"a": "<b>ü</b>"}')


async def test_text_of_another_charset_is_decoded(tmp_path: Path) -> None:
    assert "Grüße" in await fetched(tmp_path, answering("Grüße".encode("latin-1"), "text/plain; charset=iso-8859-1"))
    assert "Grüße" in await fetched(tmp_path, answering("Grüße".encode("utf-16"), "text/plain; charset=utf-16"))
    page = '<meta charset="windows-1251"><p>прилив</p>'.encode("cp1251")
    assert "прилив" in await fetched(tmp_path, answering(page, "text/html"))
    page = "<p>прилив</p>".encode("koi8-r")
    assert "прилив" in await fetched(tmp_path, answering(page, "text/html; charset=koi8-r"))
    assert "plain" in await fetched(tmp_path, answering("plain", "text/html; charset=rot13"))


async def test_without_a_type_the_content_decides(tmp_path: Path) -> None:
    assert "# Title" in await fetched(tmp_path, answering("<!DOCTYPE html><h1>Title</h1>", "application/octet-stream"))
    assert "just text" in await fetched(tmp_path, answering("just text", "application/octet-stream"))


async def test_a_long_page_is_in_the_spool_and_its_excerpt_in_the_result(tmp_path: Path) -> None:
    """D1: what a model is shown stays within its bound, with the line about the page."""
    text = await fetched(tmp_path, answering("word " * 20_000, "text/plain"))
    assert len(text.encode()) <= BYTES
    assert re.search(r"sp_\w+", text)
    assert text.startswith(f"[http://{ALLOWED}:")


async def test_a_picture_is_shown_as_one(tmp_path: Path) -> None:
    async with site(answering(PNG, "image/png")) as found, agent(tmp_path) as mine:
        result = await mine.fetch(f"{found.url}/a.png")
        (media,) = result.media
        assert (media.media_type, media.width, media.height) == ("image/png", 1, 1)
        assert "image/png, 1 x 1" in result.text


async def test_a_sound_is_given_as_one_and_another_kind_is_only_saved(tmp_path: Path) -> None:
    """D3, D8: what it holds decides, within the bounds of every sound."""
    sound, other = wav(1.5), b"OggS\0" + bytes(90)
    async with site(answering(sound, "audio/mpeg")) as found, agent(tmp_path) as mine:
        result = await mine.fetch(f"{found.url}/a.mp3")
        (media,) = result.media
        assert (media.media_type, media.seconds, media.data) == ("audio/wav", 1.5, sound)
        assert "audio/wav, 1.5 s" in result.text
    async with site(answering(other, "audio/ogg")) as found, agent(tmp_path) as mine:
        message = await refusal(mine, found.url)
        assert "audio/ogg" in message and "save" in message


async def test_media_that_the_spool_refuses_comes_with_the_result_up_to_a_limit(tmp_path: Path) -> None:
    """D5: the same as for any other tool."""
    sound = wav(20)
    async with site(answering(sound, "audio/wav")) as found, agent(tmp_path) as mine:
        (home,) = tmp_path.iterdir()
        (home / "spool").write_text("in the way")
        (media,) = (await mine.fetch(found.url)).media
        assert (media.data, media.spooled) == (sound, "")
        assert "it could not be written" in media.note
        for _ in range(2):
            await mine.fetch(found.url)
        message = await refusal(mine, found.url)
        assert "cannot be sent: it could not be written" in message and "2097152 bytes per turn in total" in message


async def test_another_file_is_only_saved(tmp_path: Path) -> None:
    body = bytes(range(256)) * 100
    async with site(answering(body, "application/zip")) as found, agent(tmp_path) as mine:
        message = await refusal(mine, found.url)
        assert "application/zip" in message and "save" in message
        result = await mine.fetch(found.url, save="deep/data.zip")
        assert f"Saved {len(body)} bytes" in result.text
        assert (mine.folder / "deep/data.zip").read_bytes() == body
        assert "in place of" in (await mine.fetch(found.url, save="/workspace/deep/data.zip")).text


async def test_saved_content_stays_in_the_workspace(tmp_path: Path) -> None:
    """X07: the path is judged by the workspace's files."""
    async with site(answering("x", "text/plain")) as found, agent(tmp_path) as mine:
        for path in ("../out", "/etc/tidegate-test", "a/../../out"):
            await refusal(mine, found.url, save=path)
        assert not (tmp_path / "out").exists()


async def test_a_page_is_saved_as_it_is(tmp_path: Path) -> None:
    async with site(answering(PAGE, "text/html")) as found, agent(tmp_path) as mine:
        await mine.fetch(found.url, save="page.html")
        assert (mine.folder / "page.html").read_text() == PAGE


@pytest.mark.parametrize("size", [65_536, 65_537])
async def test_the_limit_of_size_is_exact_and_named(tmp_path: Path, size: int) -> None:
    async with site(answering("x" * size, "text/plain")) as found, agent(tmp_path, fetch_bytes=65_536) as mine:
        if size <= 65_536:
            assert "65536 bytes" in (await mine.fetch(found.url)).text
        else:
            assert "web.fetch_bytes (65536 bytes)" in await refusal(mine, found.url)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compressed_page_is_bounded_by_its_decompressed_size(tmp_path: Path, encoding: str) -> None:
    """A thousandfold bomb ends at the limit."""
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    bomb, small = pack(b"x" * 20_000_000), pack(b"a small page")
    async with agent(tmp_path, fetch_bytes=1_000_000) as mine:
        async with site(answering(bomb, "text/plain", Content_Encoding=encoding)) as found:
            assert len(bomb) < 100_000
            assert "web.fetch_bytes" in await refusal(mine, found.url)
        async with site(answering(small, "text/plain", Content_Encoding=encoding)) as found:
            assert "a small page" in (await mine.fetch(found.url)).text


async def test_a_page_packed_in_another_way_is_refused(tmp_path: Path) -> None:
    async with agent(tmp_path) as mine:
        for encoding in ("br", "gzip, gzip", "nonsense"):
            async with site(answering(b"\1\2\3", "text/html", Content_Encoding=encoding)) as found:
                assert "cannot be fetched" in await refusal(mine, found.url)


async def test_an_endless_page_ends_at_the_limit(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)

    async with site(handler) as found, agent(tmp_path, fetch_bytes=1_000_000) as mine:
        assert "web.fetch_bytes" in await refusal(mine, found.url)


@pytest.mark.parametrize("begun", [False, True])
async def test_the_limit_of_time_is_named(tmp_path: Path, begun: bool) -> None:
    """Before the answer, and in the midst of it."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        if begun:
            await response.prepare(request)
            await response.write(b"begun")
        await asyncio.Event().wait()
        return response

    async with site(handler) as found, agent(tmp_path, fetch_seconds=0.5) as mine:
        assert "web.fetch_seconds (0.5 s)" in await refusal(mine, found.url)


async def test_a_bounded_number_of_fetches_runs_at_once(tmp_path: Path) -> None:
    full, now, most = asyncio.Event(), 0, 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if most == AT_ONCE:
            full.set()
        await full.wait()
        now -= 1
        return web.Response(text="at last")

    async with site(handler) as found, agent(tmp_path) as mine:
        results = await asyncio.gather(*(mine.fetch(found.url) for _ in range(AT_ONCE + 4)))
    assert all("at last" in result.text for result in results)
    assert most == AT_ONCE


async def test_waiting_for_a_place_counts_as_time(tmp_path: Path) -> None:
    """None waits for ever, and a place comes back."""
    answers = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        await answers.wait()
        return web.Response(text="at last")

    async with site(handler) as found, agent(tmp_path, fetch_seconds=2) as mine:
        for message in await asyncio.gather(*(refusal(mine, found.url) for _ in range(AT_ONCE + 4))):
            assert "web.fetch_seconds" in message
        answers.set()
        assert "at last" in (await mine.fetch(found.url)).text


async def test_redirects_are_followed_up_to_a_number(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        left = int(request.path.rpartition("/")[2])
        if left:
            return web.Response(status=(301, 302, 303, 307, 308)[left % 5], headers={"Location": f"{left - 1}"})
        return web.Response(text="arrived")

    async with site(handler) as found, agent(tmp_path) as mine:
        text = (await mine.fetch(f"{found.url}/x/{REDIRECTS}")).text
        assert text.startswith(f"[{found.url}/x/0:") and "arrived" in text
        assert f"redirects more than {REDIRECTS} times" in await refusal(mine, f"{found.url}/x/{REDIRECTS + 1}")


@pytest.mark.parametrize("status", [204, 304, 404, 403, 429, 500, 503, 599])
async def test_an_error_status_is_reported(tmp_path: Path, status: int) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    async with site(handler) as found, agent(tmp_path) as mine:
        assert f"responded with {status}" in await refusal(mine, found.url)


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_server_that_violates_http_is_reported_in_a_sentence(tmp_path: Path, wire: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(wire)
        writer.close()

    server = await asyncio.start_server(serve, ALLOWED, 0)
    async with server, agent(tmp_path) as mine:
        port = server.sockets[0].getsockname()[1]
        assert len(await refusal(mine, f"http://{ALLOWED}:{port}/")) < 300


async def test_an_unreachable_or_unknown_server_is_reported_in_a_sentence(tmp_path: Path) -> None:
    async with site(answering("")) as found:
        gone = found.url
    async with agent(tmp_path, resolver=ScriptedResolver(())) as mine:
        assert "cannot be reached" in await refusal(mine, gone)
        assert "not found" in await refusal(mine, "http://nowhere.example/")
    async with site(answering("")) as found, agent(tmp_path) as mine:
        await refusal(mine, found.url.replace("http:", "https:"))


async def test_an_empty_page_says_so(tmp_path: Path) -> None:
    assert "no text in it" in await fetched(tmp_path, answering("<html><script>1</script></html>", "text/html"))
    assert "no text in it" in await fetched(tmp_path, answering("", "text/plain"))


async def test_a_page_that_is_made_to_take_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read in a child, which is ended; the gateway goes on."""
    monkeypatch.setattr(web_tools, "READING_SECONDS", 1.0)
    async with site(answering("<b><!--" * 500_000, "text/html")) as found, agent(tmp_path) as mine:
        assert "s to convert" in await refusal(mine, found.url)
        assert "Saved" in (await mine.fetch(found.url, save="x.html")).text


async def test_a_fetch_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    """A4: the connection is gone with its turn."""
    asked, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        assert await reader.read() == b""
        gone.set()
        writer.close()

    server = await asyncio.start_server(serve, ALLOWED, 0)
    async with server, agent(tmp_path) as mine, asyncio.timeout(30):
        task = asyncio.ensure_future(mine.fetch(f"http://{ALLOWED}:{server.sockets[0].getsockname()[1]}/"))
        await asked.wait()
        task.cancel()
        await gone.wait()
        assert (await asyncio.gather(task, return_exceptions=True))[0].__class__ is asyncio.CancelledError
