"""A real Chromium for the page's tests. One browser serves a whole run; each test gets a fresh context of its own."""

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
    """Where a Chromium is, if there is one."""
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
    """One visitor: a page, with everything that it asked for and complained about."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def forgive(self, *words: str) -> None:
        """Complaints that contain one of these belong to the test."""
        self.complaints = [told for told in self.complaints if not any(word in told for word in words)]

    def strangers(self, origin: str) -> list[str]:
        """Requests that left our own origin."""
        return [url for url in self.requests if not url.startswith((f"{origin}/", "about:", "blob:", "data:"))]


def visit(browser: Browser, **options: Any) -> Visit:
    return Visit(browser.new_context(**options))
