"""Approvals and questions on the page: cards that stay until they are answered, here or elsewhere."""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.page import browser as chromium
from tests.page.browser import PATIENCE, Visit
from tests.page.conftest import address_of_conversation, answers, check_and_close, say, send
from tests.page.gateway import Gateway

CAREFUL = """
[models.main]
api = "demo"
[agents.main]
model = "main"
tools = ["clock", "ask", "terminal"]
rules = ["ask clock zone=Europe/*"]
workspace = "project"
[workspaces]
backend = "local"
"""
CLOCK = 'call clock {"zone": "Europe/Paris"}'
BOTH = 'call clock {"zone": "Europe/Paris"}; clock {"zone": "Europe/Oslo"}'
CHOICES = "ask me Tea or coffee? tea, coffee"


@pytest.fixture(scope="module")
def careful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose agent asks before it reads a European clock."""
    gateway = started(tmp_path_factory.mktemp("careful"))
    yield gateway
    gateway.stop()


def started(home: Path) -> Gateway:
    (home / "tidegate.toml").write_text(CAREFUL)
    (home / "project").mkdir()
    (home / "project").chmod(0o777)  # where root has made it, agents are another user
    gateway = Gateway(home)
    try:
        gateway.start()
    except BaseException:
        gateway.stop()
        raise
    return gateway


@pytest.fixture
def profile(browser: Browser, careful: Gateway) -> Iterator[BrowserContext]:
    """One user's browser, signed in."""
    visit = chromium.visit(browser)
    visit.page.goto(careful.new_link())
    expect(visit.page.locator("#composer")).to_be_visible()
    visit.page.close()
    yield visit.context
    visit.context.close()


@pytest.fixture
def new_page(profile: BrowserContext, careful: Gateway) -> Iterator[Callable[..., Visit]]:
    visits: list[Visit] = []

    def make(address: str = "/") -> Visit:
        visits.append(Visit(profile))
        visits[-1].page.goto(careful.origin + address)
        expect(visits[-1].page.locator("#composer")).to_be_visible()
        return visits[-1]

    yield make
    for visit in visits:
        check_and_close(visit, careful.origin)


@pytest.fixture
def page(new_page: Callable[..., Visit]) -> Page:
    return new_page().page


def waiting(gateway: Gateway) -> list[dict[str, Any]]:
    return list(gateway.call("GET", "/api/approvals")["approvals"])


def test_an_approval_is_a_card_that_shows_the_action(page: Page) -> None:
    """S29: it is shown completely; approving it continues the turn and removes the card."""
    send(page, CLOCK)
    card = page.locator(".question")
    expect(card.locator("pre")).to_have_text("clock\nzone: Europe/Paris", use_inner_text=True)
    expect(card).to_contain_text("asks for your approval")
    expect(page.locator("#stop")).to_be_visible()
    expect(page.locator("#announcer")).to_contain_text("The agent asks")
    expect(page.locator(".entries a[aria-current] .asking")).to_be_visible()
    expect(page.locator(".tool-state").last).to_have_text("waiting for you")
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    card.get_by_role("button", name="Approve").click()
    expect(card).to_have_count(0)
    expect(page.locator(".answer .markdown").last).to_contain_text("The clock says")
    expect(page.locator("#composer")).to_be_focused()
    expect(page.locator(".asking")).to_have_count(0)
    expect(page).to_have_title(re.compile(r"^[^(]"))


def test_an_approval_for_the_owner_reaches_the_owners_page(new_page: Callable[..., Visit], careful: Gateway) -> None:
    """X11, S29: a command outside the sandbox, shown completely however long it is, first in the list."""
    key = careful.call("POST", "/api/keys", {"name": "mallory"})["key"]
    command = "echo " + "x" * 9000 + " | wc -c"
    said = {"text": f"call terminal {json.dumps({'command': command})}", "attended": True}
    begun = careful.call("POST", "/api/messages", said, Authorization=f"Bearer {key}")
    deadline = time.monotonic() + PATIENCE / 1000
    while not waiting(careful):
        assert time.monotonic() < deadline
    page = new_page().page
    entry = page.locator(f'.entries a[href="#/{begun["session"]}"]')
    expect(entry).to_contain_text("Approval for terminal")
    entry.click()
    card = page.locator(".question")
    expect(card).to_contain_text("asks for the owner's approval")
    assert command in (card.locator("pre").text_content() or "")
    card.get_by_role("button", name="Approve").click()
    expect(card).to_have_count(0)
    expect(page.locator(".answer .markdown").last).to_contain_text("9001")
    expect(entry).to_have_count(0)


def test_a_denial_may_say_why(page: Page) -> None:
    """S29: the agent gets the reason and continues."""
    send(page, CLOCK)
    card = page.locator(".question")
    card.get_by_label("Reason (optional)").fill("not on a Friday")
    card.get_by_role("button", name="Deny").click()
    expect(page.locator(".answer .markdown").last).to_contain_text("denied it, and said: not on a Friday")
    expect(page.locator("details.tool")).to_have_attribute("data-state", "failed")


def test_a_question_is_answered_by_a_button_or_in_words(page: Page) -> None:
    """S29: as in the demo model's own examples; an empty answer is ignored."""
    send(page, CHOICES)
    expect(page.locator(".question pre")).to_have_text("Tea or coffee?")
    expect(page.locator(".question .scopes")).to_have_count(0)
    expect(page.locator(".tool-state").last).to_have_text("waiting for you")
    page.locator(".question").get_by_role("button", name="coffee").click()
    expect(page.locator(".answer .markdown").last).to_contain_text("coffee")
    send(page, "ask me What is your name?")
    card = page.locator(".question")
    card.get_by_role("button", name="Answer").click()
    expect(card.get_by_label("Your answer")).to_be_focused()
    card.get_by_label("Your answer").fill("Ada <b>")
    card.get_by_label("Your answer").press("Enter")
    expect(page.locator(".answer .markdown").last).to_contain_text("Ada <b>")


def test_everything_can_be_answered_by_keyboard_and_nothing_by_accident(page: Page) -> None:
    """X14: keys work only while the card has the focus; Escape in it stops nothing."""
    keys = page.keyboard
    send(page, CLOCK)
    card = page.locator(".question")
    expect(card).to_be_visible()
    expect(page.locator("#composer")).to_be_focused()
    keys.type("yny")
    expect(page.locator("#composer")).to_have_value("yny")
    keys.press("Alt+q")
    expect(card).to_be_focused()
    keys.press("Escape")
    expect(page.locator("#composer")).to_be_focused()
    keys.press("Alt+q")
    keys.press("Tab")
    keys.press("Tab")
    expect(card.get_by_label("Reason (optional)")).to_be_focused()
    keys.type("y")
    expect(card).to_be_visible()
    keys.press("Alt+q")
    keys.press("y")
    expect(page.locator(".answer .markdown").last).to_contain_text("The clock says")
    page.locator("#composer").fill("")
    send(page, CHOICES)
    expect(page.locator(".question")).to_be_visible()
    keys.press("Alt+q")
    keys.press("3")
    keys.press("n")
    keys.press("1")
    expect(page.locator(".answer .markdown").last).to_contain_text("tea")
    send(page, CLOCK)
    expect(page.locator(".question")).to_be_visible()
    keys.press("Alt+q")
    keys.press("n")
    expect(page.locator(".answer .markdown").last).to_contain_text("denied")


def test_an_approval_may_reach_further_and_the_card_says_how_far(page: Page, careful: Gateway) -> None:
    """X14, S29: beside each button is what it allows; the key C is for the conversation, and none is for all."""
    try:
        for name, allows in (
            ("Allow in this", "in this conversation"),
            ("Always allow", "in every conversation of owner"),
        ):
            page.goto(f"{careful.origin}/")
            send(page, CLOCK)
            card = page.locator(".question")
            button = card.get_by_role("button", name=name)
            expect(button).to_have_accessible_description(re.compile(f"may call clock with any arguments {allows} "))
            expect(card.locator(".scopes")).to_contain_text("the only reason to ask is 'rule: ask clock zone=Europe/*'")
            if name == "Always allow":
                page.keyboard.press("Alt+q")
                page.keyboard.press("a")
                button.click()
            else:
                page.keyboard.press("Alt+q")
                page.keyboard.press("c")
            expect(card).to_have_count(0)
            expect(page.locator(".answer .markdown")).to_have_count(1)
            say(page, CLOCK)
            expect(page.locator(".question")).to_have_count(0)
        page.goto(f"{careful.origin}/")
        say(page, CLOCK)
        send(page, "run echo exactly")
        expect(card.locator(".scopes")).to_contain_text("may repeat exactly this call of terminal in this conversation")
        card.get_by_role("button", name="Allow in this").click()
        expect(page.locator(".answer .markdown")).to_have_count(2)
        say(page, "run echo exactly")
        send(page, "run echo exactly; echo more")
        expect(card.locator("pre")).to_contain_text("command: echo exactly; echo more")
        card.get_by_role("button", name="Deny").click()
        expect(card).to_have_count(0)
    finally:
        for rule in careful.call("GET", "/api/approval-rules")["rules"]:
            careful.call("DELETE", f"/api/approval-rules/{rule['id']}")


def test_two_calls_side_by_side_are_two_cards(page: Page) -> None:
    """X14: each is answered separately."""
    send(page, BOTH)
    cards = page.locator(".question")
    expect(cards).to_have_count(2)
    oslo = cards.filter(has_text="Oslo")
    oslo.get_by_role("button", name="Deny").click()
    expect(cards).to_have_count(1)
    cards.filter(has_text="Paris").get_by_role("button", name="Approve").click()
    expect(page.locator(".answer .markdown").last).to_contain_text("Not run: the person denied it")
    states = [tool.get_attribute("data-state") for tool in page.locator("details.tool").all()]
    assert sorted(str(state) for state in states) == ["done", "failed"]


def test_a_reload_and_a_second_browser_show_open_questions(page: Page, new_page: Callable[..., Visit]) -> None:
    """S29: a later visitor sees it; an answer anywhere closes it everywhere."""
    send(page, CLOCK)
    expect(page.locator(".question")).to_be_visible()
    address_of_conversation(page)
    page.reload()
    expect(page.locator(".question")).to_have_count(1)
    other = new_page("/" + page.url.partition("/#")[2].join(("#", ""))).page
    expect(other.locator(".question")).to_have_count(1)
    elsewhere = new_page().page
    expect(elsewhere.locator(".entries .asking")).to_have_count(1)
    other.locator(".question").get_by_role("button", name="Approve").click()
    for seen in (page, other):
        expect(seen.locator(".question")).to_have_count(0)
        expect(seen.locator(".answer .markdown").last).to_contain_text("The clock says")


def test_a_command_answers_too_and_a_plain_message_does_not(page: Page, careful: Gateway) -> None:
    """S29, S13: a message in the meantime is queued and marked as such."""
    send(page, CLOCK)
    expect(page.locator(".question")).to_be_visible()
    send(page, "say yes")
    expect(page.locator(".pending .ack")).to_contain_text("Queued")
    assert len(waiting(careful)) == 1
    send(page, "/approve")
    expect(page.locator(".note.reply")).to_contain_text("Approved: clock")
    expect(page.locator(".question")).to_have_count(0)
    expect(page.locator(".answer:not(.draft) .markdown").last).to_have_text("yes")


def test_a_stop_takes_the_card_away(page: Page, careful: Gateway) -> None:
    """S30: the conversation continues."""
    send(page, CLOCK)
    expect(page.locator(".question")).to_be_visible()
    page.locator("#stop").click()
    expect(page.locator(".question")).to_have_count(0)
    assert waiting(careful) == []
    say(page, "say still here")
    assert answers(page)[-1] == "still here"


def test_a_question_survives_a_restart_of_the_gateway(browser: Browser, tmp_path: Path) -> None:
    """S29, S31, F4: killed during a question, the page reconnects with the same card, and the tool runs once; a
    question answered meanwhile is removed."""
    gateway = started(tmp_path)
    visit = chromium.visit(browser)
    page = visit.page
    try:
        page.goto(gateway.link)
        for how in (signal.SIGKILL, signal.SIGTERM):
            send(page, CLOCK)
            card = page.locator(".question")
            expect(card).to_be_visible()
            gateway.stop(how)
            expect(page.locator(".banner .note")).to_contain_text("Reconnecting…")
            gateway.start()
            expect(page.locator(".banner .note")).to_have_count(0)
            expect(card).to_have_count(1)
            card.get_by_role("button", name="Approve").click()
            expect(card).to_have_count(0)
            expect(page.locator("#stop")).to_have_count(0)
            expect(page.locator(".answer .markdown").last).to_contain_text("The clock says")
        expect(page.locator("details.tool[data-state=done]")).to_have_count(2)
        send(page, CLOCK)
        expect(card).to_be_visible()
        gateway.stop(signal.SIGKILL)
        page.route("**/events", lambda route: route.abort())
        gateway.start()
        (question,) = waiting(gateway)
        gateway.call("POST", f"/api/approvals/{question['id']}", {"decision": "denied", "text": "from elsewhere"})
        while gateway.call("GET", f"/api/turns/{question['turn']}")["state"] == "running":
            pass
        page.unroute("**/events")
        expect(card).to_have_count(0)
        expect(page.locator(".answer .markdown").last).to_contain_text("from elsewhere")
        visit.ignore_errors("net::ERR")
        check_and_close(visit, gateway.origin)
    finally:
        visit.context.close()
        gateway.stop()


def test_by_default_the_page_asks_only_when_the_mode_requires_it(visit: Visit) -> None:
    """X11: without any configuration, reading, writing in the workspace and questions work, and nothing needs
    approval."""
    page = visit.page
    send(page, "ask me Tea or coffee? tea, coffee")
    page.locator(".question").get_by_role("button", name="tea").click()
    expect(page.locator(".answer .markdown").last).to_contain_text("tea")
    say(page, 'call write_file {"path": "note.txt", "content": "hello"}')
    expect(page.locator("details.tool").last).to_have_attribute("data-state", "done")
    expect(page.locator(".question")).to_have_count(0)


# -- the record ------------------------------------------------------------------------------------------------------

WALK = """async (events) => {
    const known = await import('/static/record.js');
    let record = known.EMPTY;
    for (const event of events) record = event === 'reopened' ? known.reopened(record) : known.apply(record, event);
    return record;
}"""
STARTED = {"type": "turn_started", "turn": "t_1"}
TOOL = {"type": "tool_started", "call_id": "c", "name": "build", "arguments": "{}"}


def question_event(id: str, turn: str = "t_1") -> dict[str, Any]:
    return {"type": "asked", "id": id, "turn": turn, "kind": "approval", "tool": "build", "summary": id}


def ended(turn: str) -> dict[str, Any]:
    return {"type": "turn_ended", "outcome": {"turn": turn, "session": "s", "state": "answered"}}


def test_a_question_is_shown_once_however_often_it_is_received(page_of_record: Page) -> None:
    """S29: before its turn, in its place, and again; it disappears with its answer or its turn."""
    told = [
        question_event("a"),
        STARTED,
        question_event("a"),
        question_event("b"),
        "reopened",
        question_event("a"),
        STARTED,
        question_event("a"),
        question_event("b"),
    ]

    def walk(events: list[Any]) -> list[str]:
        return [question["id"] for question in page_of_record.evaluate(WALK, events)["asked"]]

    assert walk(told) == ["a", "b"]
    assert walk([*told, {"type": "answered", "id": "a", "state": "approved"}]) == ["b"]
    assert walk([*told, ended("t_0")]) == ["a", "b"]
    assert walk([*told, ended("t_1")]) == []
    assert len(walk([STARTED, *(question_event(f"q{number}") for number in range(200))])) == 50


def test_the_output_of_a_tool_is_bounded_and_its_end_is_kept(page_of_record: Page) -> None:
    """D7: the newest part, while it runs, and once when it is received again."""

    def live(events: list[Any]) -> Any:
        return page_of_record.evaluate(WALK, events)["live"]["c"]

    def piece(text: str) -> dict[str, Any]:
        return {"type": "tool_progress", "call_id": "c", "name": "build", "text": text}

    told = [STARTED, TOOL, piece("one\n"), piece("two\n")]
    assert live(told)["progress"] == "one\ntwo\n"
    assert live([*told, "reopened", *told])["progress"] == "one\ntwo\n"
    long = live([*told, *(piece("x" * 5000) for _ in range(10)), piece("end")])["progress"]
    assert len(long) == 8000 and long.endswith("xend")
    over = {"type": "tool_ended", "call_id": "c", "name": "build", "excerpt": "built"}
    assert live([*told, over, piece("late")])["progress"] == "one\ntwo\n"


def test_a_running_command_shows_its_output(page: Page, careful: Gateway) -> None:
    """D6, X11: without a sandbox it asks first; then its output is in a box below its line, scrolled to the end, and
    removed when the command has ended."""
    send(page, "run seq 200; until [ -e go ]; do sleep 0.1; done; echo built")
    card = page.locator(".question")
    expect(card.locator("pre")).to_contain_text("command: seq 200; until")
    card.get_by_role("button", name="Approve").click()
    box = page.locator(".progress")
    expect(box).to_contain_text("200")
    assert box.evaluate("e => e.scrollHeight > e.clientHeight && e.scrollTop + e.clientHeight > e.scrollHeight - 30")
    page.reload()
    expect(box).to_contain_text("200")
    (careful.home / "project" / "go").touch()
    expect(box).to_have_count(0)
    expect(page.locator("details.tool")).to_have_attribute("data-state", "done")
    expect(page.locator(".answer .markdown").last).to_contain_text("built")
