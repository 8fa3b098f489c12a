"""The list of conversations: searching it, and reading it to its end."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page import browser as chromium
from tests.page.conftest import check_and_close, say, send
from tests.page.gateway import Gateway

MANY = 53
"""More than are listed at a time."""


@pytest.fixture(scope="module")
def own_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with many conversations, active and ended."""
    gateway = Gateway(tmp_path_factory.mktemp("own"))
    try:
        gateway.start()
        for number in range(2 * MANY):
            kind, place = ("ended", number) if number < MANY else ("live", number - MANY)
            accepted = gateway.call("POST", "/api/messages", {"text": f"say {kind} gull{place}"})
            if kind == "ended":
                gateway.call("POST", f"/api/sessions/{accepted['session']}/end")
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture
def open_page(browser: Browser, own_gateway: Gateway) -> Iterator[Page]:
    visit = chromium.visit(browser)
    visit.page.goto(own_gateway.new_link())
    expect(visit.page.locator("#composer")).to_be_visible()
    yield visit.page
    check_and_close(visit, own_gateway.origin)
    visit.context.close()


def test_a_search_finds_conversations_by_what_was_said_and_by_their_title(open_page: Page) -> None:
    """Active and ended ones; a result opens; Escape leaves the search, and a message can be typed immediately."""
    page = open_page
    entries = page.locator(".entries a")
    expect(page.locator("#composer")).to_be_focused()
    page.keyboard.press("Alt+s")
    search = page.get_by_role("searchbox", name="Search conversations")
    expect(search).to_be_focused()
    search.fill("gull7")
    expect(entries).to_have_count(2)
    expect(entries.nth(0)).to_have_text(re.compile("live gull7"))
    expect(entries.nth(1)).to_have_attribute("data-ended", "yes")
    entries.nth(0).click()
    expect(page.locator(".mine .plain")).to_have_text("say live gull7")
    send(page, "/title A heron")
    expect(page.locator("header h2")).to_have_text("A heron")
    search.fill("HERON")
    expect(entries).to_have_text([re.compile("A heron")])
    search.fill("no such bird")
    expect(page.locator(".entries .hint")).to_contain_text("No matching conversations.")
    search.press("Escape")
    expect(search).to_have_value("")
    expect(entries.nth(5)).to_be_visible()
    expect(page.locator("#composer")).to_be_focused()


def test_both_lists_can_be_read_to_their_end(open_page: Page) -> None:
    """Nothing is left out silently."""
    page = open_page
    live, ended = page.locator(".entries > ul a"), page.locator(".over a")
    expect(live).to_have_count(50)
    page.get_by_role("button", name="Show older conversations").click()
    expect(live).to_have_count(MANY)
    expect(page.get_by_role("button", name="Show older conversations")).to_have_count(0)
    page.get_by_text("Ended conversations").click()
    expect(ended).to_have_count(50)
    page.get_by_role("button", name="Show older conversations").click()
    expect(ended).to_have_count(MANY)
    expect(page.get_by_role("button", name="Show older conversations")).to_have_count(0)


def test_every_command_is_in_the_list_of_commands(page: Page, gateway: Gateway) -> None:
    """A slash alone shows all of them, and the selected one is visible."""
    names = [command["name"] for command in gateway.call("GET", "/api/commands")["commands"]]
    page.locator("#composer").fill("/")
    options = page.get_by_role("option")
    expect(options).to_have_count(len(names))
    page.keyboard.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    expect(options.last).to_be_in_viewport(ratio=0.9)
    page.keyboard.press("ArrowDown")
    expect(options.first).to_be_in_viewport(ratio=0.9)


def test_only_the_last_failure_offers_a_retry(page: Page) -> None:
    """S13: a retry repeats the last message, so an earlier failure must not offer it."""
    send(page, "fail")
    again = page.locator(".note.error").get_by_role("button", name="Try again")
    expect(again).to_have_count(1)
    say(page, "say went on")
    expect(page.locator(".note.error")).to_have_count(1)
    expect(again).to_have_count(0)


def test_a_result_shows_what_was_said_below_its_title(open_page: Page, own_gateway: Gateway) -> None:
    """X06: as text that begins shortly before the words, which are marked; a match in the title needs none."""
    long = f"say {'the tide table of the harbour lists many other things ' * 3}<b>before</b> the cormorants of Ostend"
    own_gateway.call("POST", "/api/messages", {"text": long})
    page = open_page
    search = page.get_by_role("searchbox", name="Search conversations")
    search.fill("Ostend cormoran")
    excerpt = page.locator(".entries a .entry-excerpt")
    expect(excerpt).to_have_text(re.compile(r"^….{0,30}the cormorants of Ostend$"))
    expect(excerpt).to_be_in_viewport()
    expect(excerpt.locator("mark")).to_have_text(["cormoran", "Ostend"])
    expect(page.locator(".entries a")).to_have_accessible_name(re.compile("cormorants of Ostend"))
    page.locator(".entries a").click()
    send(page, "/title A lonely gannet")
    expect(page.locator("header h2")).to_have_text("A lonely gannet")
    search.fill("gannet")
    expect(page.locator(".entries a")).to_have_text([re.compile("A lonely gannet")])
    expect(excerpt).to_have_count(0)
