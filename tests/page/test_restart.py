"""The page over a restart of its gateway: it comes back by itself and shows each thing once."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page import browser as chromium
from tests.page.conftest import answers, mine, say, send
from tests.page.gateway import Gateway


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path / "home")
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture
def open_page(browser: Browser, own_gateway: Gateway) -> Iterator[Page]:
    visit = chromium.visit(browser)
    visit.page.goto(own_gateway.link)
    expect(visit.page.locator("#composer")).to_be_visible()
    yield visit.page
    visit.context.close()
    assert visit.strangers(own_gateway.origin) == []
    visit.forgive("net::ERR", "Failed to load resource")
    assert visit.complaints == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_restarted_gateway_is_found_again_and_nothing_is_shown_twice(
    own_gateway: Gateway, open_page: Page, how: signal.Signals
) -> None:
    """F4, S16, S19: rows of before, an answer that was under way, and what is said afterwards: once each."""
    page = open_page
    say(page, "say before")
    words = " ".join(f"word{number}" for number in range(1, 31))
    send(page, f"slow {words}")
    expect(page.locator(".answer.draft .markdown")).to_contain_text("word2")
    if how == signal.SIGTERM:
        page.keyboard.press("Escape")
        expect(page.locator("#stop")).to_have_count(0)
    own_gateway.stop(how)
    expect(page.locator(".banner .note")).to_contain_text("taken up again by itself")
    own_gateway.start()
    expect(page.locator(".banner .note")).to_have_count(0)
    expect(page.locator("#stop")).to_have_count(0)
    if how == signal.SIGKILL:
        expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(["before", words])
    say(page, "say after")
    assert mine(page) == ["say before", f"slow {words}", "say after"]
    said = answers(page)
    assert (said[0], said[-1], len(said)) == ("before", "after", 3)
    page.reload()
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(said)


def test_a_message_sent_into_the_gap_can_be_sent_again_and_is_one(own_gateway: Gateway, open_page: Page) -> None:
    """S14: a message whose fate is unknown keeps its key."""
    page = open_page
    say(page, "say before")
    own_gateway.stop()
    send(page, "say from the gap")
    failed = page.locator(".pending[data-state=failed]")
    expect(failed).to_contain_text("cannot be reached")
    own_gateway.start()
    expect(page.locator(".banner .note")).to_have_count(0)
    failed.get_by_role("button", name="Send again").click()
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(["before", "from the gap"])
    assert mine(page) == ["say before", "say from the gap"]
    expect(page.locator(".pending")).to_have_count(0)


def test_the_same_message_delivered_twice_is_taken_once(own_gateway: Gateway, open_page: Page) -> None:
    """S14: the answer to the first delivery is lost on its way; the page's own second delivery changes nothing."""
    page = open_page
    say(page, "say before")
    lost: list[str] = []

    def lose(route: object) -> None:
        if lost:
            route.continue_()  # type: ignore[attr-defined]
            return
        lost.append(route.fetch().text())  # type: ignore[attr-defined]
        route.abort()  # type: ignore[attr-defined]

    page.route("**/api/messages", lose)
    send(page, "say only once")
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(["before", "only once"])
    for button in page.get_by_role("button", name="Send again").all():
        button.click()
    say(page, "say the end")
    assert mine(page) == ["say before", "say only once", "say the end"]
    page.reload()
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(["before", "only once", "the end"])
