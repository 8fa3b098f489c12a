"""Tasks of an agent on the page: how they are shown, and their questions."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page import browser as chromium
from tests.page.conftest import check_and_close, send
from tests.page.gateway import Gateway
from tests.tasks import ASKING, ASKING_TASK


@pytest.fixture(scope="module")
def delegating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("tasks")
    (home / "tidegate.toml").write_text(ASKING)
    gateway = Gateway(home)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture
def page(browser: Browser, delegating: Gateway) -> Iterator[Page]:
    visit = chromium.visit(browser)
    visit.page.goto(delegating.new_link())
    expect(visit.page.locator("#composer")).to_be_visible()
    yield visit.page
    check_and_close(visit, delegating.origin)
    visit.context.close()


def test_a_question_of_a_task_is_a_card_with_the_agents_name(page: Page) -> None:
    """S29: in the conversation that it works for, which the list marks; it disappears when the turn is stopped, too."""
    send(page, ASKING_TASK)
    card = page.locator(".question")
    expect(card).to_contain_text("The agent helper asks for your approval")
    expect(card.locator("pre")).to_have_text("clock\nzone: Europe/Paris", use_inner_text=True)
    expect(page.locator(".entries a[aria-current] .asking")).to_be_visible()
    card.get_by_role("button", name="Approve").click()
    expect(page.locator(".answer .markdown").last).to_contain_text("The answer from agent")
    expect(card).to_have_count(0)
    expect(page.locator(".asking")).to_have_count(0)
    send(page, ASKING_TASK)
    expect(card).to_have_count(1)
    page.locator("#stop").click()
    expect(card).to_have_count(0)
    expect(page.locator(".asking")).to_have_count(0)
