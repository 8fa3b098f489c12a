"""The list of signed-in browsers on the page."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.page.browser import Visit
from tests.page.conftest import say
from tests.page.gateway import Gateway
from tests.page.test_sign_in import REFUSED


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway of its own: signing out everywhere would sign out the other tests."""
    gateway = Gateway(tmp_path_factory.mktemp("home"))
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()


def test_browsers_are_listed_and_signed_out_here_or_everywhere(
    new_visit: Callable[..., Visit], gateway: Gateway
) -> None:
    """X05: the other browser notices immediately, by the end of its event stream."""
    here, there = new_visit(), new_visit()
    for visit in (here, there):
        visit.page.goto(gateway.new_link())
        say(visit.page, "say hello")
    here.page.get_by_role("button", name="Signed-in browsers").click()
    dialog = here.page.get_by_role("dialog", name="Signed-in browsers")
    other = dialog.get_by_role("listitem").filter(has_not_text="this browser")
    expect(dialog.get_by_role("listitem").filter(has_text="this browser")).to_have_count(1)
    before = other.count()
    other.last.get_by_role("button", name="Sign out").click()
    expect(there.page.get_by_role("alert")).to_contain_text("tidegate status --link")
    expect(other).to_have_count(before - 1)
    here.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    there.page.goto(gateway.new_link())
    say(there.page, "say hello")
    here.page.get_by_role("button", name="Signed-in browsers").click()
    dialog.get_by_role("button", name="Sign out everywhere").click()
    for visit in (here, there):
        expect(visit.page.get_by_label("One-time code")).to_be_visible()
        visit.page.reload()
        expect(visit.page.get_by_label("One-time code")).to_be_visible()
        visit.ignore_errors(REFUSED)
    assert gateway.call("GET", "/api/browsers")["browsers"] == []
