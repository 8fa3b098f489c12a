"""Pictures, sounds and documents on the page and in the terminal: shown in their row, played or downloaded on
request."""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page import browser as chromium
from tests.page.browser import Visit
from tests.page.conftest import answers, check_and_close, say
from tests.page.gateway import START_SECONDS, Gateway
from tests.spool.pictures import plain, saved
from tests.spool.sounds import mp3, wav

HUM = '''
"""A user's own tool, which makes a sound."""

import io
import wave

from tidegate.plugins import Result, ToolContext, Toolset, plugin, tool


@tool(effect="read", timeout=10)
async def hum(ctx: ToolContext, *, seconds: float = 12.0) -> Result:
    """Hums for a while."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(int(seconds * 16000) * 2))
    media = await ctx.spool.media("hum", buffer.getvalue())
    return Result(text="hummed", media=(media,))


@plugin("toolset")
async def make(ctx):
    return Toolset([hum])
'''
TOML = """
[models.main]
api = "demo"
[agents.main]
model = "main"
tools = ["files", "hum"]
workspace = "project"
[workspaces]
backend = "local"
"""
SONG = mp3(200)


@pytest.fixture(scope="module")
def sounding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a tool of the user's own, and files to read."""
    home = tmp_path_factory.mktemp("sounding")
    (home / "tidegate.toml").write_text(TOML)
    (home / "plugins").mkdir()
    (home / "plugins" / "hum.py").write_text(HUM)
    (home / "project").mkdir()
    (home / "project" / "song.mp3").write_bytes(SONG)
    (home / "project" / "red.png").write_bytes(saved(plain(60, 40), "PNG"))
    gateway = Gateway(home)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture
def page(browser: Browser, sounding: Gateway) -> Iterator[Page]:
    visit: Visit = chromium.visit(browser)
    visit.page.goto(sounding.new_link())
    expect(visit.page.locator("#composer")).to_be_visible()
    yield visit.page
    check_and_close(visit, sounding.origin)
    visit.context.close()


PLAYED = """async (audio) => {
    audio.muted = true;
    await audio.play();
    const seconds = audio.duration;
    audio.currentTime = seconds * 0.8;
    await new Promise((done) => audio.addEventListener('seeked', done, { once: true }));
    audio.pause();
    return [audio.error === null, Math.round(seconds * 10) / 10, audio.currentTime > seconds / 2];
}"""


def played(page: Page) -> Any:
    """Checks that a sound is not loaded before it is played, its duration in a real browser, and seeking."""
    assert page.locator("audio").count() == 0
    with page.expect_request("**/media/*"):
        page.get_by_role("button", name="Play sound").click()
    return page.locator("audio").evaluate(PLAYED)


def test_a_sound_of_a_tool_can_be_played_and_stays_so_after_a_reload(page: Page) -> None:
    """D6, D3: from one of the user's own tools, spooled; with controls and a label, and not played automatically."""
    say(page, 'call hum {"seconds": 12}')
    assert answers(page)[-1].endswith("I was given a sound (wav, 384044 bytes).")
    for _ in range(2):
        expect(page.locator(".media figcaption")).to_have_text("Sound: audio/wav, 12.0 s")
        assert played(page) == [True, 12.0, True]
        sound = page.get_by_label("Sound: audio/wav, 12.0 s", exact=True)
        expect(sound).to_be_visible()
        assert sound.get_attribute("controls") is not None
        page.reload()
        expect(page.locator(".media")).to_be_visible()


def test_an_mp3_and_a_picture_of_the_workspace_are_shown_in_their_row(page: Page) -> None:
    """D6: next to each other, below their tool."""
    say(page, "read file song.mp3")
    say(page, "read file red.png")
    assert page.locator(".media figcaption").all_inner_texts() == [
        "Sound: audio/mpeg, 5.2 s",
        "Image: image/png, 60 x 40",
    ]
    sound = played(page)
    assert sound[0] and abs(sound[1] - 5.2) < 0.2
    picture = page.get_by_role("img", name="Image: image/png, 60 x 40")
    picture.scroll_into_view_if_needed()
    expect(picture).to_be_visible()
    page.wait_for_function("() => document.querySelector('.media img').naturalWidth === 60")


def test_a_callers_media_are_shown_with_their_message_on_the_page_and_in_the_terminal(
    page: Page, sounding: Gateway
) -> None:
    """D6, H05: sent over the chat API; the terminal describes it in words."""
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(3.2)).decode(), "format": "wav"}}
    body = {"model": "main", "messages": [{"role": "user", "content": [part]}]}
    answer = sounding.call("POST", "/v1/chat/completions", body, X_Session_Id="brought")
    assert answer["choices"][0]["message"]["content"].startswith("You gave me a sound (wav, 102444 bytes).")
    session = sounding.call("GET", "/api/sessions")["sessions"][0]["id"]
    page.goto(f"{sounding.origin}/#/{session}")
    expect(page.locator(".mine .media figcaption")).to_have_text("Sound: audio/wav, 3.2 s")
    assert played(page) == [True, 3.2, True]
    assert "user:\n[sound: audio/wav, 3.2 s]\n" in tidegate(sounding.home, "sessions", "show", session)
    assert "[sound: audio/wav, 2.0 s]" in tidegate(sounding.home, "chat", said='call hum {"seconds": 2}\n')


def test_a_document_is_downloaded_by_its_name(page: Page, sounding: Gateway) -> None:
    """D6, H05: by its name, never opened or shown as a picture; the terminal describes it in words."""
    data = b"%PDF-1.7\n" + bytes(300_000)
    file = {"filename": "<b>tides.pdf", "file_data": "data:application/pdf;base64," + base64.b64encode(data).decode()}
    body = {"model": "main", "messages": [{"role": "user", "content": [{"type": "file", "file": file}]}]}
    answer = sounding.call("POST", "/v1/chat/completions", body, X_Session_Id="papers")
    assert answer["choices"][0]["message"]["content"].startswith("You gave me a document (<b>tides.pdf, 300009 bytes).")
    session = sounding.call("GET", "/api/sessions")["sessions"][0]["id"]
    page.goto(f"{sounding.origin}/#/{session}")
    expect(page.locator(".mine .media figcaption")).to_have_text("Document: application/pdf, <b>tides.pdf")
    assert page.locator(".media img, .media audio, .media iframe").count() == 0
    with page.expect_download() as downloading:
        page.get_by_role("button", name="application/pdf, <b>tides.pdf").click()
    assert downloading.value.path().read_bytes() == data
    assert downloading.value.suggested_filename.endswith("tides.pdf")
    assert "user:\n[document: application/pdf, <b>tides.pdf]\n" in tidegate(sounding.home, "sessions", "show", session)


def tidegate(home: Path, *arguments: str, said: str = "") -> str:
    """The program's output, and its notices."""
    command = [sys.executable, "-m", "tidegate", *arguments, "--home", str(home)]
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(
        command,
        input=said,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=START_SECONDS,
        check=True,
    ).stdout
