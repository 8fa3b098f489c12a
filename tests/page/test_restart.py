"""The page during a restart of its gateway: it reconnects and shows everything once."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.page import browser as chromium
from tests.page.browser import Visit
from tests.page.conftest import answers, check_and_close, mine, say, send
from tests.page.gateway import Gateway


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that the test may stop and start."""
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
    visit.ignore_errors("net::ERR")
    check_and_close(visit, own_gateway.origin)
    visit.context.close()


def test_a_running_answer_continues_on_the_page_after_a_kill(own_gateway: Gateway, open_page: Page) -> None:
    """F4, S16, S19: earlier rows, the interrupted answer, and later messages, once each."""
    page = open_page
    say(page, "say before")
    words = " ".join(f"word{number}" for number in range(1, 16))
    send(page, f"slow {words}")
    expect(page.locator(".answer.draft .markdown")).to_contain_text("word2")
    own_gateway.stop(signal.SIGKILL)
    expect(page.locator(".banner .note")).to_contain_text("Reconnecting…")
    own_gateway.start()
    expect(page.locator(".banner .note")).to_have_count(0)
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(["before", words])
    say(page, "say after")
    assert mine(page) == ["say before", f"slow {words}", "say after"]
    assert answers(page) == ["before", words, "after"]
    page.reload()
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(["before", words, "after"])


def test_a_new_configuration_is_loaded_without_a_page_reload(own_gateway: Gateway, open_page: Page) -> None:
    """S05: the conversation's model and the list of agents are those of the restarted gateway."""
    page = open_page
    say(page, "say before")
    expect(page.locator(".demo")).to_be_visible()
    own_gateway.stop()
    (own_gateway.home / "tidegate.toml").write_text(
        '[models.main]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
        '[agents.main]\nmodel = "main"\n[agents.second]\nmodel = "main"\n'
    )
    own_gateway.start()
    expect(page.locator(".banner .note")).to_have_count(0)
    expect(page.locator(".demo")).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(page.get_by_label("Agent").locator("option")).to_have_text(["main", "second"])
    expect(page.locator(".demo")).to_have_count(0)


def test_a_message_written_while_the_gateway_is_stopped_is_kept_and_sent_again(
    own_gateway: Gateway, open_page: Page
) -> None:
    """S14: it stays on the page until it is accepted, and is accepted once."""
    page = open_page
    say(page, "say before")
    own_gateway.stop()
    send(page, "say from the gap")
    failed = page.locator(".pending[data-state=failed]")
    expect(failed).to_contain_text("Cannot reach the gateway")
    own_gateway.start()
    expect(page.locator(".banner .note")).to_have_count(0)
    failed.get_by_role("button", name="Send again").click()
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(["before", "from the gap"])
    assert mine(page) == ["say before", "say from the gap"]
    expect(page.locator(".pending")).to_have_count(0)


def test_a_message_delivered_twice_is_accepted_once(page: Page, visit: Visit) -> None:
    """S14: when the response to its delivery is lost, delivering it again changes nothing."""
    say(page, "say before")
    bodies: list[tuple[str | None, str | None]] = []

    def lose_the_first(route: Route) -> None:
        bodies.append((route.request.post_data, route.request.headers.get("idempotency-key")))
        response = route.fetch()
        if len(bodies) == 1:
            route.abort()
        else:
            route.fulfill(response=response)

    # The events are held back too, or the page would know from them that the message has arrived.
    page.route("**/events", lambda route: route.abort())
    page.reload()
    page.route("**/api/messages", lose_the_first)
    send(page, "say only once")
    again = page.get_by_role("button", name="Send again")
    again.click()
    expect(again).to_have_count(0)
    assert len(bodies) == 2 and bodies[0] == bodies[1] and bodies[0][1]
    page.unroute("**/events")
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(["before", "only once"])
    expect(page.locator("#stop")).to_have_count(0)
    say(page, "say the end")
    assert mine(page) == ["say before", "say only once", "say the end"]
    visit.ignore_errors("net::ERR_FAILED")


def test_a_turn_whose_events_were_missed_is_shown_in_its_place(page: Page, visit: Visit) -> None:
    """S14, S19: its end may be known before its rows; neither is lost, and a failure is shown below its message."""
    say(page, "say before")
    silent = {"status": 200, "content_type": "text/event-stream", "body": ": open\n\n"}
    page.route("**/events", lambda route: route.fulfill(**silent))  # type: ignore[arg-type]
    page.reload()
    expect(page.locator(".mine")).to_have_count(1)
    send(page, "fail")
    expect(page.locator(".note.error").get_by_role("button", name="Try again")).to_be_visible()
    assert mine(page) == ["say before", "fail"]
    places = page.evaluate("[...document.querySelectorAll('.mine, .note.error')].map((e) => e.className)")
    assert places == ["mine", "mine", "note error"]
    send(page, "say after")
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(["before", "after"])
    expect(page.locator("#announcer")).to_have_text("Answer: after")
    assert mine(page) == ["say before", "fail", "say after"]
    page.unroute("**/events")
    expect(page.locator(".banner .note")).to_have_count(0)
    assert answers(page) == ["before", "after"]


def test_a_turn_that_ends_before_the_stream_is_open_is_shown(page: Page, visit: Visit) -> None:
    """S14, S19: it was still running when the page asked for the conversation, and had failed before the stream was
    open."""
    send(page, "fail")
    expect(page.locator(".note.error")).to_have_count(1)
    page.route("**/events", lambda route: route.abort())
    page.reload()
    begun: list[str] = []

    def begin(route: Route) -> None:
        response = route.fetch()
        begun.append(response.json()["reply"]["turn"])
        route.fulfill(response=response)

    def still_running(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, json={**response.json(), "running": begun[-1] if begun else None})

    page.route("**/api/messages", begin)
    page.route(re.compile(r"/api/sessions/[^/?]+$"), still_running)
    page.locator(".note.error").get_by_role("button", name="Try again").click()
    expect(page.locator(".note.reply")).to_contain_text("Trying again")
    expect(page.locator(".note.error")).to_have_count(0)
    page.unroute("**/events")
    expect(page.locator(".note.error")).to_have_count(1)
    visit.ignore_errors("net::ERR_FAILED")
