"""The page's record of events: repeated events show everything once, and the record is bounded."""

from typing import Any

import pytest
from playwright.sync_api import Page

WALK = """async ([events, start]) => {
    const known = await import('/static/record.js');
    let record = start ?? known.EMPTY;
    for (const event of events) record = event === 'reopened' ? known.reopened(record) : known.apply(record, event);
    return record;
}"""


def walk(page: Page, events: list[Any], start: Any = None) -> Any:
    return page.evaluate(WALK, [events, start])


def row(seq: int, role: str, text: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "message", "seq": seq, "message": {"role": role, "text": text, **more}}


def text(piece: str) -> dict[str, Any]:
    return {"type": "text", "text": piece}


STARTED = {"type": "turn_started", "turn": "t_1"}
CALL = {"id": "c", "name": "clock", "arguments": "{}"}
TURN = [
    STARTED,
    row(1, "user", "hello"),
    {"type": "text", "text": "let me "},
    {"type": "text", "text": "look"},
    row(2, "assistant", "let me look", calls=[CALL]),
    {"type": "tool_started", "call_id": "c", "name": "clock", "arguments": "{}"},
    row(3, "tool", "noon", call_id="c"),
    {"type": "tool_ended", "call_id": "c", "name": "clock", "excerpt": "noon"},
    {"type": "notice", "text": "the prefix was rebuilt"},
    {"type": "text", "text": "it is "},
    {"type": "text", "text": "noon"},
    row(4, "assistant", "it is noon"),
    {"type": "turn_ended", "outcome": {"turn": "t_1", "session": "s", "state": "answered"}},
]


@pytest.mark.parametrize("cut", range(1, len(TURN)))
def test_a_resumed_stream_shows_everything_once(page_of_record: Page, cut: int) -> None:
    """Wherever it was interrupted, the replayed turn gives the same record; rows already received may be missing from
    it."""
    page = page_of_record
    whole = walk(page, TURN)
    seen = max((event.get("seq", 0) for event in TURN[:cut]), default=0)
    unseen_only = [event for event in TURN if event.get("seq", seen + 1) > seen]
    for again in (TURN, unseen_only):
        broken = walk(page, [*TURN[:cut], "reopened", *again])
        assert broken["rows"] == whole["rows"]
        assert [note["text"] for note in broken["notes"]] == ["the prefix was rebuilt"]
        assert (broken["draft"], broken["running"], broken["live"]) == ("", None, {})


def test_a_reset_removes_the_shown_text(page_of_record: Page) -> None:
    """The draft is restarted."""
    told = [STARTED, text("wrong"), {"type": "text_reset", "reason": "the stream broke"}, text("right")]
    assert walk(page_of_record, told)["draft"] == "right"


def test_a_failed_turn_leaves_its_unfinished_text_and_one_sentence(page_of_record: Page) -> None:
    """Text that is not saved is marked as such."""
    outcome = {"turn": "t_1", "session": "s", "state": "failed", "error": {"message": "It broke; try again."}}
    record = walk(page_of_record, [STARTED, text("half"), {"type": "turn_ended", "outcome": outcome}])
    told = [(note["kind"], note["text"]) for note in record["notes"]]
    assert told == [("unfinished", "half"), ("error", "It broke; try again.")]
    assert record["running"] is None


def test_an_interrupted_tool_is_not_shown_as_failed(page_of_record: Page) -> None:
    """P05: its effect is unknown, which is different."""
    started = {"type": "tool_started", "call_id": "c", "name": "clock", "arguments": "{}"}
    ended = {"type": "tool_ended", "call_id": "c", "name": "clock", "excerpt": "no", "failed": True}
    for more, state in (({}, "failed"), ({"interrupted": True}, "interrupted")):
        assert walk(page_of_record, [STARTED, started, {**ended, **more}])["live"]["c"]["state"] == state


def test_an_unknown_event_changes_nothing(page_of_record: Page) -> None:
    """A newer gateway may send more events."""
    assert walk(page_of_record, [*TURN, {"type": "later"}]) == walk(page_of_record, TURN)


def test_a_sent_message_is_shown_once_whichever_comes_first(page_of_record: Page) -> None:
    """S14: it is matched with its row; two equal ones are two."""
    script = """async ([rows]) => {
        const known = await import('/static/record.js');
        let record = known.apply(known.EMPTY, { type: 'message', seq: 1, message: { role: 'user', text: 'hi' } });
        record = known.withPending(record, 'a', 'hi');
        record = known.withPending(record, 'b', 'hi');
        const left = [record.pending.length];
        for (const seq of rows) {
            record = known.apply(record, { type: 'message', seq, message: { role: 'user', text: 'hi' } });
            left.push(record.pending.length);
        }
        return left;
    }"""
    assert page_of_record.evaluate(script, [[1, 2, 2, 1, 3]]) == [2, 2, 1, 1, 1, 0]


def test_the_record_is_bounded(page_of_record: Page) -> None:
    """Rows, notes and ended turns."""
    events: list[Any] = []
    for number in range(1, 1001):
        outcome = {"turn": f"t_{number}", "session": "s", "state": "failed", "error": {"message": "no"}}
        events += [row(number, "user", f"m{number}"), {"type": "turn_ended", "outcome": outcome}]
    record = walk(page_of_record, events)
    assert len(record["rows"]) == 400 and record["rows"][-1]["seq"] == 1000 and record["earlier"]
    assert len(record["notes"]) <= 50 and len(record["ended"]) <= 50


def test_rows_stay_contiguous_after_loading_earlier_ones(page_of_record: Page) -> None:
    """Rows that arrive in the meantime are left for "Jump to latest"; the stream still knows its position."""
    script = """async () => {
        const known = await import('/static/record.js');
        const row = (seq) => ({ seq, message: { role: 'user', text: 'x' } });
        const rows = (from, to) => Array.from({ length: to - from }, (_, n) => row(from + n));
        let record = known.withLatest(known.EMPTY, rows(601, 801), true);
        record = known.withEarlier(record, rows(401, 601), true);
        record = known.withEarlier(record, rows(201, 401), true);
        record = known.apply(record, { type: 'message', seq: 801, message: { role: 'user', text: 'new' } });
        return [record.rows.length, record.rows[0].seq, record.rows.at(-1).seq, record.later, record.head];
    }"""
    assert page_of_record.evaluate(script) == [400, 201, 600, True, 801]


def test_acknowledgements_match_the_gateways_response(page_of_record: Page) -> None:
    """S13: a queued message is always called queued."""
    script = "async (items) => items.map((await import('/static/record.js')).acknowledgement)"
    cases = (("started", 0), ("queued", 1), ("queued", 3), ("steered", 0), ("interrupting", 1))
    told = page_of_record.evaluate(script, [{"state": "accepted", "how": how, "ahead": ahead} for how, ahead in cases])
    assert told[0] == ""
    assert told[1].startswith("Queued") and "3 messages" in told[2]
    assert told[3].startswith("Will join") and told[4].startswith("Stopping")


def test_a_stream_is_parsed_however_it_is_split(page_of_record: Page) -> None:
    """Network packets are not events."""
    script = """async ([text, size]) => {
        const { eventParser } = await import('/static/stream.js');
        const found = [];
        const parse = eventParser((event) => found.push(event));
        for (let at = 0; at < text.length; at += size) parse(text.slice(at, at + size));
        return found;
    }"""
    told = (
        ': open\n\nid: 7\nevent: message\ndata: {"a":1}\n\ndata: two\r\ndata:lines\r\n\r\n: keep-alive\n\ndata: 3\n\n'
    )
    wanted = [{"id": "7", "data": '{"a":1}'}, {"id": None, "data": "two\nlines"}, {"id": None, "data": "3"}]
    for size in (1, 2, 3, 7, 1000):
        assert page_of_record.evaluate(script, [told, size]) == wanted
