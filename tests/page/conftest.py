"""One browser and one gateway for all tests of the page; a fresh visitor for each."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.page import browser as chromium
from tests.page.browser import PATIENCE, Visit
from tests.page.gateway import Gateway

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = chromium.installed()
    if executable is None:
        pytest.fail("The tests of the chat page need Chromium: apt install chromium")
    with chromium.running(executable, tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="package")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path_factory.mktemp("home"))
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture(scope="package")
def signed_in(browser: Browser, gateway: Gateway) -> Iterator[BrowserContext]:
    """A browser profile that has signed in, so that each test need not."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(gateway.new_link())
    expect(page.locator("#composer")).to_be_visible()
    page.close()
    yield context
    context.close()


def check_and_close(visit: Visit, origin: str) -> None:
    """Check that the page made no request to another origin and logged no error."""
    visit.page.close()
    assert visit.foreign_requests(origin) == []
    assert visit.console_errors == []


@pytest.fixture
def new_visit(browser: Browser, gateway: Gateway) -> Iterator[Callable[..., Visit]]:
    """Makes visitors with a browser profile of their own."""
    visits: list[Visit] = []

    def make(**options: object) -> Visit:
        visits.append(chromium.visit(browser, **options))
        return visits[-1]

    yield make
    for visit in visits:
        check_and_close(visit, gateway.origin)
        visit.context.close()


@pytest.fixture
def visit(signed_in: BrowserContext, gateway: Gateway) -> Iterator[Visit]:
    """A signed-in visitor with the page open."""
    visit = Visit(signed_in)
    visit.page.goto(gateway.origin + "/")
    expect(visit.page.locator("#composer")).to_be_visible()
    yield visit
    check_and_close(visit, gateway.origin)


@pytest.fixture
def page(visit: Visit) -> Page:
    return visit.page


@pytest.fixture(scope="package")
def page_of_record(browser: Browser, gateway: Gateway) -> Iterator[Page]:
    """A page for calling the page's modules directly; nothing is rendered in it, so all such tests share it."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(gateway.origin + "/static/favicon.svg")
    yield page
    context.close()


@pytest.fixture(scope="package")
def page_for_text(browser: Browser, gateway: Gateway) -> Iterator[Page]:
    """A page with the style of the chat page for rendering texts by calling modules; all such tests share it."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(gateway.origin + "/")
    expect(page.locator(".sign-in")).to_be_visible()
    yield page
    context.close()


def send(page: Page, text: str) -> None:
    page.locator("#composer").fill(text)
    page.locator("#composer").press("Enter")


def say(page: Page, text: str) -> None:
    """Sends and waits until the answer has ended."""
    before = page.locator(".answer:not(.draft)").count()
    send(page, text)
    expect(page.locator(".answer:not(.draft)").nth(before)).to_be_visible()
    expect(page.locator("#stop")).to_have_count(0)


def mine(page: Page) -> list[str]:
    """The user's messages, as shown."""
    return [text.strip() for text in page.locator(".mine .plain").all_inner_texts()]


def answers(page: Page) -> list[str]:
    return [text.strip() for text in page.locator(".answer:not(.draft) .markdown").all_inner_texts()]


def address_of_conversation(page: Page) -> None:
    expect(page).to_have_url(re.compile(r"/#/s_[a-z0-9]+$"))
