"""A notice for users of the demo model, with the way to configure a real one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.page.browser import Visit
from tests.page.conftest import say, send
from tests.page.gateway import Gateway

REAL = '[models.main]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nretries = 0\n'
TOY = '[models.toy]\napi = "demo"\n[agents.main]\nmodel = "main"\n[agents.toy]\nmodel = "toy"\n'


def test_a_line_says_that_the_demo_model_answers_and_how_to_configure_another(page: Page) -> None:
    """From the beginning, in a conversation too, and once."""
    line = page.locator(".demo")
    expect(line).to_contain_text("demo model")
    expect(line.locator("code")).to_have_text(["[models.main]", "tidegate.toml"])
    say(page, "say hello")
    expect(line).to_have_count(1)
    expect(line).to_be_visible()


@pytest.fixture
def mixed(tmp_path: Path) -> Gateway:
    (tmp_path / "tidegate.toml").write_text(REAL + TOY)
    return Gateway(tmp_path)


def test_the_line_is_there_only_where_the_demo_model_answers(mixed: Gateway, new_visit: Callable[..., Visit]) -> None:
    """S05: for the selected agent, and for the model chosen in a conversation."""
    mixed.start()
    try:
        visit = new_visit()
        page = visit.page
        page.goto(mixed.link)
        line = page.locator(".demo")
        expect(page.locator("#composer")).to_be_visible()
        expect(line).to_have_count(0)
        page.get_by_label("Agent").select_option("toy")
        expect(line.locator("code").first).to_have_text("[models.toy]")
        say(page, "say hello")
        expect(line).to_be_visible()
        send(page, "/model main")
        expect(page.locator(".note.reply")).to_be_visible()
        expect(line).to_have_count(0)
        visit.requests.clear()  # of this gateway, which is not the one that the fixture knows
        page.goto("about:blank")
    finally:
        mixed.stop()
