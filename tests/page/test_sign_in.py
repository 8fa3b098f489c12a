"""Signing in to the page: a one-time code in a link's fragment, or typed."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Request, expect

from tests.page.browser import Visit
from tests.page.conftest import check_and_close, say
from tests.page.gateway import Gateway

REFUSED = "status of 401"  # the browser's own console message about the response


def test_the_link_signs_in_and_the_code_is_removed_from_the_url(
    new_visit: Callable[..., Visit], gateway: Gateway
) -> None:
    """X04: the code is exchanged by POST for an http-only, same-site cookie and is in no request's URL."""
    visit = new_visit()
    link = gateway.new_link()
    code = link.partition("#code=")[2]
    posted: list[str] = []

    def sent(request: Request) -> None:
        if code in (request.post_data or ""):
            posted.append(request.method)

    visit.page.on("request", sent)
    visit.page.goto(link)
    expect(visit.page.locator("#composer")).to_be_focused()
    assert visit.page.url == gateway.origin + "/"
    kept = "JSON.stringify([history.state, document.cookie, {...localStorage}, {...sessionStorage}])"
    assert code not in visit.page.evaluate(kept)
    assert not [url for url in visit.requests if code in url.partition("#")[0]]
    assert posted == ["POST"]
    [cookie] = visit.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    assert code not in cookie["value"]


def test_a_code_works_once_and_a_new_one_can_be_typed(new_visit: Callable[..., Visit], gateway: Gateway) -> None:
    """X04: the second user of a link is told so, and signs in with another code."""
    link = gateway.new_link()
    first = new_visit()
    first.page.goto(link)
    expect(first.page.locator("#composer")).to_be_visible()
    second = new_visit()
    second.page.goto(link)
    expect(second.page.get_by_role("alert")).to_have_text(re.compile(r"\w.*\."))
    assert second.page.url == gateway.origin + "/"
    expect(second.page.get_by_label("One-time code")).to_be_focused()
    second.page.keyboard.type(gateway.new_link().partition("#code=")[2])
    second.page.keyboard.press("Enter")
    expect(second.page.locator("#composer")).to_be_visible()
    second.ignore_errors(REFUSED)


def test_a_visitor_sees_a_form_and_an_invalid_code_is_explained(
    new_visit: Callable[..., Visit], gateway: Gateway
) -> None:
    """X04: nothing is shown without signing in."""
    visit = new_visit()
    visit.page.goto(gateway.origin + "/")
    visit.page.get_by_label("One-time code").fill("not-a-code")
    visit.page.get_by_role("button", name="Sign in").click()
    expect(visit.page.get_by_role("alert")).to_have_text(re.compile(r"\w.*\."))
    expect(visit.page.locator(".sidebar")).to_have_count(0)
    visit.ignore_errors(REFUSED)


def test_opening_a_used_link_again_while_signed_in_just_opens_the_page(
    new_visit: Callable[..., Visit], gateway: Gateway
) -> None:
    """X04: a used code does not affect a user who is signed in."""
    visit = new_visit()
    link = gateway.new_link()
    for _ in range(2):
        visit.page.goto("about:blank")
        visit.page.goto(link)
        expect(visit.page.locator("#composer")).to_be_visible()
    visit.ignore_errors(REFUSED)


def test_signing_out_ends_the_cookie(new_visit: Callable[..., Visit], gateway: Gateway) -> None:
    """X04: the old cookie no longer works."""
    visit = new_visit()
    with visit.page.expect_response("**/api/commands"):  # what is under way at that moment would be refused
        visit.page.goto(gateway.new_link())
    visit.page.get_by_role("button", name="Sign out", exact=True).click()
    expect(visit.page.get_by_label("One-time code")).to_be_visible()
    visit.page.reload()
    expect(visit.page.get_by_label("One-time code")).to_be_visible()
    visit.ignore_errors(REFUSED)


def test_the_page_may_load_nothing_but_its_own_files(new_visit: Callable[..., Visit], gateway: Gateway) -> None:
    """X04: the policy forbids inline and foreign scripts, and the page needs neither."""
    visit = new_visit()
    response = visit.page.goto(gateway.new_link())
    assert response is not None
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    expect(visit.page.locator("#composer")).to_be_visible()
    assert visit.page.locator("script:not([src]), style, [style*=expression]").count() == 0


def test_a_browser_that_lost_its_page_token_is_told_how_to_sign_in(
    new_visit: Callable[..., Visit], gateway: Gateway
) -> None:
    """X05: the cookie alone does not work; a new link restores the sign-in."""
    visit = new_visit()
    visit.page.goto(gateway.new_link())
    expect(visit.page.locator("#composer")).to_be_visible()
    visit.page.evaluate("localStorage.clear()")
    visit.page.reload()
    expect(visit.page.get_by_role("alert")).to_contain_text("tidegate status --link")
    assert len(visit.context.cookies()) == 1
    visit.page.goto(gateway.new_link())
    expect(visit.page.locator("#composer")).to_be_visible()
    visit.ignore_errors(REFUSED)


def test_tabs_share_signing_in_and_out(new_visit: Callable[..., Visit], gateway: Gateway) -> None:
    """X05: a new sign-in in another tab replaces both parts for all tabs."""
    visit = new_visit()
    first, second = Visit(visit.context), Visit(visit.context)
    first.page.goto(gateway.new_link())
    expect(first.page.locator("#composer")).to_be_visible()
    second.page.goto(gateway.origin)
    expect(second.page.locator("#composer")).to_be_visible()
    second.page.goto(gateway.new_link())
    expect(second.page.locator("#composer")).to_be_visible()
    for tab in (first, second):
        say(tab.page, "say we are both in")
    second.page.get_by_role("button", name="Sign out", exact=True).click()
    for tab in (first, second):
        expect(tab.page.get_by_label("One-time code")).to_be_visible()
    first.page.goto(gateway.new_link())
    for tab in (first, second):
        expect(tab.page.locator("#composer")).to_be_visible()
        tab.ignore_errors(REFUSED)
        check_and_close(tab, gateway.origin)


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/120.0 Safari/537.36", "Chrome on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/120.0 Safari/537.36 Edg/120.0", "Edge on Windows"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 14_0) AppleWebKit/605.1 Version/17.0 Safari/605.1", "Safari on macOS"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) Version/17.0 Safari/604.1", "Safari on iPhone"),
        ("Mozilla/5.0 (Android 14; Mobile; rv:120.0) Gecko/120.0 Firefox/120.0", "Firefox on Android"),
        ("curl/8.0", "Browser"),
    ],
)
def test_a_browser_is_listed_by_a_familiar_name(page_of_record: Page, agent: str, name: str) -> None:
    """By program and system, as far as they are known."""
    asked = "async (agent) => (await import('/static/signin.js')).browserName(agent)"
    assert page_of_record.evaluate(asked, agent) == name
