"""Open WebUI, started as the documentation says and used in its page with Chromium."""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from tests.clients.check import (
    AGENTS,
    ANSWER,
    PAGE,
    SMALL,
    TOO_LONG,
    URL,
    WINDOW,
    Skipped,
    check,
    forget,
    has_picture,
    picture,
    run,
    same,
    sent,
    with_client_path,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
START_WITHIN = 90.0
APPEARS_WITHIN = 20_000.0
"""Milliseconds for an answer to appear in the page."""
ALONE = {
    "DATA_DIR": "data",
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "secret",
    "ENABLE_OLLAMA_API": "False",
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "ENABLE_VERSION_UPDATE_CHECK": "False",
}
"""No sign-in, and no requests to the internet."""


class Site:
    """The running server, and the browser that uses it."""

    address = ""
    browser: BrowserContext


def start() -> "tuple[subprocess.Popen[bytes], str]":
    """Starts Open WebUI with the example of docs/clients.md, on its own port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    (block,) = re.findall(r"^## Open WebUI\n.*?^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    code = block.replace("http://127.0.0.1:8420", URL)
    code = code.replace("open-webui serve", f"exec open-webui serve --host 127.0.0.1 --port {port}")
    with Path("open-webui.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", code],
            env={**with_client_path(), **ALONE, "DATA_DIR": str(Path.cwd() / "data")}, stdout=log, stderr=log,
        )  # fmt: skip
    return process, f"http://127.0.0.1:{port}"


def wait_until_up(process: "subprocess.Popen[bytes]", address: str) -> None:
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health") as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise SystemExit("Open WebUI did not start: " + Path("open-webui.log").read_text(errors="replace")[-2000:])


@contextlib.contextmanager
def chat(agent: str) -> Iterator[Page]:
    """A new chat with an agent; a screenshot of its last state is kept beside the log."""
    if not CHROMIUM:
        raise Skipped("no Chromium is installed")
    page = Site.browser.new_page()
    page.set_default_timeout(APPEARS_WITHIN)
    try:
        page.goto(f"{Site.address}/?models={agent}", wait_until="domcontentloaded")
        page.locator("#chat-input").wait_for()
        page.get_by_label("Selected model: " + agent).wait_for()
        news = page.get_by_text("Okay, Let's Go!")
        if news.is_visible():
            news.click()
        yield page
    finally:
        page.screenshot(path=f"{len(list(Path.cwd().glob('*.png'))):02}-{agent}.png")
        page.close()


def say(page: Page, text: str) -> None:
    page.locator("#chat-input").click()
    page.keyboard.insert_text(text)
    page.keyboard.press("Enter")


def answers(page: Page, text: str = ANSWER) -> Any:
    return page.locator(".chat-assistant").get_by_text(text)


def model_requests() -> list[dict[str, Any]]:
    """The requests of the chat itself: those for titles and suggestions have no tools."""
    return [request for request in sent() if "get_current_timestamp" in json.dumps(request.get("tools", []))]


@check(agents=AGENTS[:1])
def example(agent: str) -> None:
    """The server was started with the example."""
    with chat(agent) as page:
        say(page, "hello")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)


@check(agents=AGENTS[:1])
def models(agent: str) -> None:
    with chat(agent) as page:
        page.get_by_label("Selected model: " + agent).click()
        for name in (*AGENTS, SMALL):
            expect(page.get_by_role("option", name=name).or_(page.get_by_text(name, exact=True)).first).to_be_visible()


@check()
def stream(agent: str) -> None:
    with chat(agent) as page:
        say(page, "hello")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)


@check(agents=AGENTS[:1])
def turns(agent: str) -> None:
    with chat(agent) as page:
        say(page, "hello")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)
        say(page, "[say the second]")
        expect(answers(page, "the second")).to_have_count(1, timeout=APPEARS_WITHIN)


@check()
def tools(agent: str) -> None:
    """Open WebUI's own clock."""
    forget()
    with chat(agent) as page:
        say(page, "[tool get_current_timestamp {}]")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)
    assert "user_timezone" in json.dumps(model_requests()[-1]), "the model was not sent the tool's result"


@check()
def own_tools(agent: str) -> None:
    forget()
    with chat(agent) as page:
        say(page, "[tool clock {}]")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)
    told = json.dumps(model_requests()[-1])
    assert '"clock"' in told and "not found" not in told, "the agent's tool did not run in the gateway"


@check(agents=AGENTS[:2])
def continued(agent: str) -> None:
    with chat(agent) as page:
        say(page, "[say The gate keeps]")
        expect(answers(page, "The gate keeps")).to_have_count(1, timeout=APPEARS_WITHIN)
        page.get_by_label("Continue Response").last.click()
        expect(answers(page, "The gate keepsThe gate keeps")).to_have_count(1, timeout=APPEARS_WITHIN)


@check(agents=AGENTS[:1])
def regenerated(agent: str) -> None:
    with chat(agent) as page:
        say(page, "hello")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)
        forget()
        page.get_by_label("Regenerate").last.click()
        again = page.get_by_text("Try Again")
        if again.count():
            again.first.click()
        expect(page.get_by_text("2/2")).to_be_visible(timeout=APPEARS_WITHIN)
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)


@check()
def image(agent: str) -> None:
    forget()
    Path("red.png").write_bytes(picture())
    with chat(agent) as page:
        attach(page)
        say(page, "What is it?")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)
    assert has_picture(model_requests()[-1])


@check(agents=AGENTS[:1])
def image_alone(agent: str) -> None:
    Path("red.png").write_bytes(picture())
    with chat(agent) as page:
        attach(page)
        say(page, "")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)


def attach(page: Page) -> None:
    page.locator("input[type=file]").first.set_input_files("red.png")
    page.locator("form img").first.wait_for()


@check()
def empty(agent: str) -> None:
    with chat(agent) as page:
        say(page, "[say]")
        page.get_by_label("Regenerate").last.wait_for()
        say(page, "hello")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)


@check()
def tools_failure(agent: str) -> None:
    with chat(agent) as page:
        say(page, "[tool get_current_timestamp {}]")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)
        say(page, "[status 400]")
        expect(page.get_by_text("Scripted failure")).to_have_count(1, timeout=APPEARS_WITHIN)


@check(agents=(SMALL,))
def too_long(agent: str) -> None:
    with chat(agent) as page:
        say(page, TOO_LONG)
        expect(
            page.locator(".chat-assistant, #messages-container").get_by_text(f"{WINDOW} tokens").first
        ).to_be_visible(timeout=APPEARS_WITHIN)
        same(answers(page).count(), 0)


@check()
def retry(agent: str) -> None:
    with chat(agent) as page:
        say(page, "[status 503 times=1]")
        expect(answers(page)).to_have_count(1, timeout=APPEARS_WITHIN)


def main() -> None:
    if not CHROMIUM:
        run()
        return
    process, Site.address = start()
    try:
        wait_until_up(process, Site.address)
        with sync_playwright() as driver:
            Site.browser = driver.chromium.launch_persistent_context(
                Path.cwd() / "profile", executable_path=CHROMIUM, args=FLAGS, viewport={"width": 1280, "height": 900}
            )
            run()
            Site.browser.close()
    finally:
        process.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
