"""Conversations on the page, in a real browser, with a real gateway and its demo model."""

import re

from playwright.sync_api import Page, expect

from tests.page.browser import Visit
from tests.page.conftest import address_of_conversation, answers, mine, say, send
from tests.page.gateway import Gateway


def test_an_answer_is_shown_while_it_is_being_written(page: Page) -> None:
    """The text grows in one place and ends as one answer."""
    words = [f"word{number}" for number in range(1, 13)]
    send(page, "slow " + " ".join(words))
    draft = page.locator(".answer.draft .markdown")
    expect(draft).to_contain_text("word1")
    assert "word12" not in draft.inner_text()
    expect(page.locator("#stop")).to_be_visible()
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text(" ".join(words))
    expect(page.locator(".answer.draft")).to_have_count(0)
    expect(page.locator("#announcer")).to_contain_text("word12")


def test_escape_stops_a_long_answer_and_keeps_its_text(page: Page) -> None:
    """The page shows that it was stopped, and the conversation continues."""
    send(page, "count to 100000")
    expect(page.locator(".answer.draft .markdown")).to_contain_text("20")
    page.keyboard.press("Escape")
    expect(page.locator(".finish")).to_have_text("Stopped.")
    expect(page.locator("#stop")).to_have_count(0)
    expect(page.locator(".note")).to_have_count(0)
    assert answers(page)[0].startswith("1")
    say(page, "say still here")
    assert answers(page)[-1] == "still here"


def test_the_stop_button_stops_too(page: Page) -> None:
    """With the mouse."""
    send(page, "count to 100000")
    page.locator("#stop").click()
    expect(page.locator("#stop")).to_have_count(0)
    # If there is text, the mark is below it, otherwise it is a notice; never both.
    expect(page.locator(".finish, .note").filter(has_text=re.compile("stopped", re.IGNORECASE))).to_have_count(1)


def test_a_new_conversation_is_its_own_and_the_list_has_both_newest_first(page: Page) -> None:
    """L26: messages of one are not shown in the other."""
    say(page, "say alpha speaks")
    address_of_conversation(page)
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".mine")).to_have_count(0)
    say(page, "say beta speaks")
    assert mine(page) == ["say beta speaks"]
    entries = page.locator(".entries a")
    expect(entries.nth(0)).to_contain_text("beta")
    expect(entries.nth(1)).to_contain_text("alpha")
    expect(entries.nth(0)).to_have_attribute("aria-current", "page")
    entries.nth(1).click()
    expect(page.locator(".mine .plain")).to_have_text("say alpha speaks")
    page.go_back()
    expect(page.locator(".mine .plain")).to_have_text("say beta speaks")


def test_the_list_marks_running_conversations(page: Page) -> None:
    """The mark appears and disappears with the turn."""
    send(page, "count to 100000")
    current = page.locator(".entries a[aria-current]")
    expect(current.locator(".running")).to_be_visible()
    page.keyboard.press("Escape")
    expect(current.locator(".running")).to_have_count(0)


def test_reloading_shows_the_same_conversation_once(page: Page) -> None:
    """The history is loaded from the gateway."""
    say(page, "say first")
    say(page, "say second")
    page.reload()
    expect(page.locator(".answer .markdown")).to_have_text(["first", "second"])
    assert mine(page) == ["say first", "say second"]


def test_reloading_during_an_answer_continues_it(page: Page) -> None:
    """The stream reconnects and nothing is shown twice."""
    words = [f"word{number}" for number in range(1, 16)]
    send(page, "slow " + " ".join(words))
    expect(page.locator(".answer.draft .markdown")).to_contain_text("word2")
    address_of_conversation(page)
    page.reload()
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text([" ".join(words)])
    assert len(mine(page)) == 1


def test_a_tool_is_a_line_that_opens(page: Page) -> None:
    """It shows the call, its state, and an excerpt when it is opened."""
    send(page, "what time is it in Europe/Paris")
    tool = page.locator("details.tool")
    expect(tool).to_have_attribute("data-state", "done")
    expect(tool.locator(".tool-words")).to_contain_text("Europe/Paris")
    expect(tool.locator("pre").last).to_be_hidden()
    tool.locator("summary").press("Enter")
    expect(tool.locator("pre").last).to_contain_text("Paris")
    expect(page.locator(".answer .markdown")).to_contain_text("The clock says")
    page.reload()
    expect(page.locator("details.tool")).to_have_attribute("data-state", "done")


def test_a_restarted_answer_is_shown_once(page: Page) -> None:
    """Text of the failed attempt is removed."""
    say(page, "stumble")
    expect(page.locator(".answer")).to_have_count(1)
    assert answers(page) == ["I stumbled, took it back, and this is the whole answer."]


def test_a_failure_is_one_sentence_with_what_to_do(page: Page) -> None:
    """The model's failure is shown in place of the answer."""
    send(page, "fail")
    expect(page.locator(".note.error")).to_have_text(re.compile(r"\w.*[.;].*Try again"), use_inner_text=True)
    page.locator(".note.error").get_by_role("button", name="Try again").click()
    expect(page.locator(".note.reply")).to_contain_text("Trying again")
    expect(page.locator(".note.error")).to_have_count(1)
    expect(page.locator(".mine")).to_have_count(1)


def test_a_failure_is_shown_after_a_reload_and_removed_with_its_turn(page: Page) -> None:
    """The reason for a missing answer is shown later too; an undone turn leaves no notice."""
    say(page, "say before")
    send(page, "fail")
    expect(page.locator(".note.error")).to_have_count(1)
    told = page.locator(".note.error").inner_text()
    page.reload()
    expect(page.locator(".note.error")).to_have_text(told, use_inner_text=True)
    expect(page.locator(".note.error").get_by_role("button", name="Try again")).to_be_visible()
    send(page, "/undo")
    expect(page.locator(".note.reply")).to_contain_text("undone")
    expect(page.locator(".note.error")).to_have_count(0)
    assert mine(page) == ["say before"]


def test_an_empty_conversation_gives_examples_that_work(page: Page) -> None:
    """Users need not invent a first message."""
    expect(page.locator(".empty")).to_contain_text("what time is it?")
    say(page, page.locator(".empty q").first.inner_text().strip('"“”'))
    expect(page.locator(".tool-name")).to_have_text("clock")


def test_a_message_during_an_answer_is_queued_and_says_so(page: Page) -> None:
    """S13, S14: the acknowledgement matches what happens."""
    first = "one two three four five six seven eight nine ten"
    send(page, f"slow {first}")
    expect(page.locator(".answer.draft")).to_be_visible()
    send(page, "say after that")
    waiting = page.locator(".pending[data-how=queued]")
    expect(waiting.locator(".ack")).to_have_text(re.compile("Queued"))
    expect(page.locator(".answer:not(.draft) .markdown")).to_have_text([first, "after that"])
    expect(page.locator(".pending")).to_have_count(0)
    assert len(mine(page)) == 2


def test_a_message_can_interrupt_the_answer(page: Page) -> None:
    """S13: interrupting stops the answer first, and the message is answered."""
    send(page, "count to 100000")
    page.locator("#busy").select_option("interrupt")
    send(page, "say now this")
    expect(page.locator(".answer:not(.draft) .markdown").last).to_have_text("now this")
    expect(page.locator("#stop")).to_have_count(0)
    assert mine(page) == ["count to 100000", "say now this"]


def test_a_message_can_join_the_answer(page: Page) -> None:
    """S14: steering is acknowledged as such and appears exactly once."""
    send(page, "slow one two three four five six")
    page.locator("#busy").select_option("steer")
    send(page, "say joined")
    expect(page.locator(".answer:not(.draft) .markdown").last).to_have_text("joined")
    expect(page.locator("#stop")).to_have_count(0)
    expect(page.locator(".pending")).to_have_count(0)
    assert mine(page) == ["slow one two three four five six", "say joined"]


def test_an_ended_conversation_shows_what_was_interrupted_and_what_was_not_answered(page: Page) -> None:
    """P05, S14: an interrupted tool and a late message are each marked."""
    send(page, "run sleep 100000")
    expect(page.locator(".tool-state")).to_have_text("running")
    address_of_conversation(page)
    conversation = page.url
    page.locator("#busy").select_option("steer")
    send(page, "say joined")
    expect(page.locator(".pending .ack")).to_contain_text("Will join the current answer")
    send(page, "/new")
    expect(page.locator(".mine")).to_have_count(0)
    page.goto(conversation)
    expect(page.locator(".mine .plain")).to_have_text(["run sleep 100000", "say joined"])
    expect(page.locator(".tool-state")).to_have_text("interrupted")
    expect(page.locator(".mine .finish")).to_contain_text("Not answered because the conversation ended.")
    expect(page.locator(".pending")).to_have_count(0)


def test_a_continued_second_column_of_a_reply_stays_in_that_column(page: Page, visit: Visit) -> None:
    """An indented line belongs below the line before it."""
    say(page, "say a thing")
    send(page, "/reasoning high")
    expect(page.locator(".note.reply")).to_contain_text("Reasoning high")
    send(page, "/reasoning")
    row = page.locator(".note.reply tr", has_text="/reasoning default resets it")
    expect(row.locator("td")).to_have_text(["", "/reasoning default resets it"])


def test_commands_are_completed_and_answered(page: Page, visit: Visit) -> None:
    """The list comes from the gateway; a reply is not part of the transcript."""
    box = page.locator("#composer")
    box.fill("/he")
    expect(page.get_by_role("option", selected=True)).to_contain_text("/help")
    box.press("Tab")
    expect(box).to_have_value("/help ")
    box.press("Enter")
    expect(page.locator(".note.reply")).to_contain_text("/retry")
    expect(page.locator(".mine")).to_have_count(0)
    say(page, "say a thing")
    send(page, "/title Things said")
    expect(page.locator("header h2")).to_have_text("Things said")
    expect(page.locator(".entries a").first).to_contain_text("Things said")
    send(page, "/undo")
    expect(page.locator(".mine")).to_have_count(0)
    send(page, "/nosuch")
    expect(page.locator(".banner .error")).to_contain_text("no command /nosuch")
    expect(box).to_have_value("/nosuch")
    visit.ignore_errors("status of 400")


def test_the_new_command_ends_the_conversation_and_begins_another(page: Page) -> None:
    """S02: an ended conversation is read-only."""
    say(page, "say the last words")
    send(page, "/new")
    expect(page.locator(".note.reply")).to_contain_text("new conversation")
    expect(page.locator(".mine")).to_have_count(0)
    page.get_by_text("Ended conversations").click()
    ended = page.locator(".entries a[data-ended]").first
    expect(ended).to_contain_text("the last words")
    ended.click()
    expect(page.locator(".note.ended")).to_be_visible()
    expect(page.locator("#composer")).to_have_count(0)
    assert mine(page) == ["say the last words"]


def test_a_long_transcript_is_read_from_its_end_and_kept_bounded(page: Page, gateway: Gateway) -> None:
    """The newest rows come first, older ones on request, and the page never keeps more than its bound."""
    say(page, "say row 0")
    address_of_conversation(page)
    session = page.url.rpartition("/")[2]
    body = {"session": session, "busy": "queue"}
    for number in range(1, 251):
        turn = gateway.call("POST", "/api/messages", {**body, "text": f"say row {number}"})["turn"]
        if number % 10 == 0 or number == 250:
            while gateway.call("GET", f"/api/turns/{turn}")["state"] in ("queued", "running"):
                pass
    page.reload()
    rows = page.locator(".mine, .answer")
    expect(rows).to_have_count(200)
    expect(page.locator(".answer").last).to_have_text(re.compile("row 250$"))
    earlier = page.get_by_role("button", name="Show earlier messages")
    earlier.click()
    expect(rows).to_have_count(400)
    earlier.click()
    expect(page.locator(".mine").first).to_have_text(re.compile("say row 0$"))
    expect(earlier).to_have_count(0)
    assert rows.count() == 400
    page.get_by_role("button", name="Jump to latest").click()
    expect(page.locator(".answer").last).to_have_text(re.compile("row 250$"))
    say(page, "say the end")
    expect(page.locator(".answer").last).to_have_text(re.compile("the end$"))


def test_a_transcript_of_long_messages_is_read_to_its_beginning(page: Page, gateway: Gateway) -> None:
    """L24: a short page of long messages is not taken for the beginning of the transcript."""
    say(page, "say the very first")
    address_of_conversation(page)
    body = {"session": page.url.rpartition("/")[2], "busy": "queue"}
    turns = [gateway.call("POST", "/api/messages", {**body, "text": "long 1000000"})["turn"] for _ in range(3)]
    while gateway.call("GET", f"/api/turns/{turns[-1]}")["state"] in ("queued", "running"):
        pass
    page.reload()
    earlier = page.get_by_role("button", name="Show earlier messages")
    earlier.click()
    expect(page.locator(".mine").first).to_have_text(re.compile("say the very first$"))
    expect(earlier).to_have_count(0)
    expect(page.locator(".mine, .answer")).to_have_count(8)


def test_the_end_stays_visible_when_the_transcript_shrinks(page: Page) -> None:
    """While a long message is typed, and when a note appears above it; a user who has scrolled up stays there."""
    say(page, "say " + "\n\n".join(f"line {number}" for number in range(60)))
    last, first = page.get_by_text("line 59", exact=True), page.locator(".mine")
    expect(last).to_be_in_viewport()
    page.keyboard.insert_text("\n" * 10)
    expect(last).to_be_in_viewport()
    page.keyboard.press("Control+a")
    page.keyboard.press("Backspace")
    for _ in range(8):
        page.keyboard.press("Shift+Enter")
    expect(last).to_be_in_viewport()
    page.locator(".transcript").evaluate("(box) => { box.scrollTop = 0; }")
    expect(page.get_by_role("button", name="Jump to latest")).to_be_visible()
    for _ in range(3):
        page.keyboard.press("Shift+Enter")
    expect(first).to_be_in_viewport()


def test_scrolling_up_during_a_change_of_size_is_kept(page: Page) -> None:
    """The browser reports both at once, and only one of them was the user."""
    say(page, "say " + "\n\n".join(f"line {number}" for number in range(60)))
    expect(page.get_by_text("line 59", exact=True)).to_be_in_viewport()
    page.evaluate(
        """() => {
          document.execCommand("insertText", false, "\\n\\n\\n");
          document.querySelector(".transcript").scrollTop = 0;
        }"""
    )
    expect(page.get_by_role("button", name="Jump to latest")).to_be_visible()
    expect(page.locator(".mine")).to_be_in_viewport()
