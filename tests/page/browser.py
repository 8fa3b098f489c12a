"""A real Chromium for the page's tests. One browser serves a whole run; each test gets a fresh context."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 20_000
"""Milliseconds that anything on the page may take: generous, since tests share their machine."""


def installed() -> str | None:
    """The path of an installed Chromium, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def running(executable: str, scratch: Path) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=list(ARGUMENTS), env={"TMPDIR": str(scratch), "HOME": str(scratch)}
        )
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One visitor: a page, with its requests and its console errors."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.requests: list[str] = []
        self.console_errors: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.console_errors.append(f"uncaught: {error}"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.console_errors.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def ignore_errors(self, *words: str) -> None:
        """Drop the console errors that contain one of these words: the test expects them."""
        self.console_errors = [told for told in self.console_errors if not any(word in told for word in words)]

    def foreign_requests(self, origin: str) -> list[str]:
        """Requests to other origins."""
        return [url for url in self.requests if not url.startswith((f"{origin}/", "about:", "blob:", "data:"))]


def visit(browser: Browser, **options: Any) -> Visit:
    return Visit(browser.new_context(**options))
