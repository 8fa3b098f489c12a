"""Answers of the Responses format: assembled from events, and sent back correctly."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import recordings as recorded
from tests.models.streams import broken_in_any_way, cut_everywhere, outcome
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.answer import DEPTH, AnswerError, BrokenAnswer
from tidegate.models.formats.openai.responses import API, ResponsesWire
from tidegate.models.formats.openai.responses_answer import BETWEEN_MESSAGES, ITEMS, ResponsesAnswer
from tidegate.models.formats.stream_answer import CALLS
from tidegate.values import Message, ToolCall, Usage

WIRE = ResponsesWire("m", Facts(thinking="effort"))
USAGE = Usage(input=81, cached=64, output=47, written=11, reasoning=20)


def new_answer(shown: list[str]) -> ResponsesAnswer:
    return ResponsesAnswer(65_536, shown.append)


def read(told: list[dict[str, Any]]) -> Message:
    found = outcome(new_answer, recorded.responses_stream(told))
    assert isinstance(found, Message), found
    return found


def back(message: Message) -> Any:
    """The items in the next request, after a round trip through the store."""
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    return msgspec.json.decode(b"[" + WIRE.encode(stored) + b"]")


def test_a_plain_answer_is_its_text_and_usage() -> None:
    """A2: with cached, written and reasoning tokens."""
    assert read(recorded.RESPONSES["plain"]) == Message(
        role="assistant", text='Hello, 世界! \\ "quoted"', finish="stop", usage=USAGE, model="m"
    )


def test_token_counts_written_as_floats_are_accepted() -> None:
    """A relay in another language may write integers as floats."""
    body = (
        b'{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]}],"usage":'
        b'{"input_tokens":12.0,"output_tokens":3.0,"input_tokens_details":{"cached_tokens":4.0}}}'
    )
    answer = new_answer([])
    answer.whole(body)
    assert answer.message("m").usage == Usage(input=12, cached=4, output=3)


def test_calls_are_kept_verbatim_in_their_order() -> None:
    """S32: with the id that their results must name."""
    message = read(recorded.RESPONSES["parallel tool calls"])
    assert message.calls == (
        ToolCall(id="call_1", name="clock", arguments="{}"),
        ToolCall(id="call_2", name="x", arguments='{"a":1}'),
    )
    assert message.finish == "tool_calls"
    assert message.carried == ()


@pytest.mark.parametrize("field", ["call_id", "name", "id"])
def test_names_and_ids_of_calls_count_towards_the_bound(field: str) -> None:
    """L03: everything that is kept of an answer is bounded."""
    given = {"type": "function_call", "name": "x", field: "y" * 70_000}
    found = outcome(new_answer, recorded.responses_stream([{"type": "response.output_item.added", "item": given}]))
    assert isinstance(found, BrokenAnswer) and found.limit == "answer_bytes"


def test_reasoning_has_a_limit_on_nesting() -> None:
    """S33: it is stored in a row that must be readable everywhere in the program."""
    nested = msgspec.json.decode(b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1))
    item = {"type": "reasoning", "encrypted_content": "x", "content": [], "more": nested}
    found = outcome(new_answer, recorded.responses_stream([{"type": "response.output_item.done", "item": item}]))
    assert isinstance(found, BrokenAnswer) and "nested" in str(found)


def test_reasoning_is_sent_back_verbatim_before_the_items_that_followed_it() -> None:
    """S32: in its final form, with the phases of the messages."""
    message = read(recorded.RESPONSES["reasoning, words and calls"])
    assert message.carrier == API
    assert back(message) == [
        recorded.MANY[0],
        {"role": "assistant", "content": "I'll look at both: ä 🌊", "phase": "commentary", "type": "message"},
        recorded.MANY[2],
        {"call_id": "call_1", "name": "read_file", "arguments": '{"path": "ä/ö.txt"}', "type": "function_call"},
        {"call_id": "call_2", "name": "clock", "arguments": "{}", "type": "function_call"},
    ]


def test_two_messages_of_one_answer_are_separated_and_sent_back_separately() -> None:
    """S32: the separator is ours and is not sent."""
    message = read(recorded.RESPONSES["two messages"])
    assert message.text == "First this." + BETWEEN_MESSAGES + "Then that."
    assert [(item["content"], item["phase"]) for item in back(message)] == [
        ("First this.", "commentary"),
        ("Then that.", "final_answer"),
    ]
    unphased = read(
        recorded.events([recorded.message("One."), recorded.reasoning(), recorded.message("Two.", "msg_2")])
    )
    assert [item.get("content") for item in back(unphased)] == ["One.", None, "Two."]


def test_text_after_a_call_stays_after_it() -> None:
    """S32: an answer is sent back in its original order."""
    message = read(recorded.events([recorded.function_call("x", "{}"), recorded.message("Called.")]))
    assert [item["type"] for item in back(message)] == ["function_call", "message"]


def test_a_refusal_is_text() -> None:
    assert read(recorded.RESPONSES["refusal"]).text == "I can't help with that."


@pytest.mark.parametrize(
    ("name", "finish", "text"),
    [("no room", "length", "This is as far as"), ("filtered", "content_filter", "Well"), ("nothing", "stop", "")],
)
def test_the_finish_reason_of_an_answer(name: str, finish: str, text: str) -> None:
    """A2"""
    message = read(recorded.RESPONSES[name])
    assert (message.finish, message.text, message.usage) == (finish, text, USAGE)


def test_reasoning_without_following_items_is_not_sent_back() -> None:
    """S32: the service refuses it."""
    message = read(recorded.RESPONSES["no room to think"])
    assert (message.finish, message.text) == ("length", "")
    assert WIRE.encode(message) == b""
    dropped = msgspec.structs.replace(read(recorded.RESPONSES["reasoning, words and calls"]), calls=())
    assert [item["type"] for item in back(dropped)] == ["reasoning", "message"]
    cut = read(recorded.events([recorded.message("Hm."), recorded.reasoning()], "incomplete"))
    assert [item["type"] for item in back(cut)] == ["message"]


def test_reasoning_with_only_an_id_is_not_sent_back() -> None:
    """S32: nothing is stored at the provider, so the id is useless; plain reasoning is sent back."""
    bare = recorded.events([recorded.reasoning(encrypted=None), recorded.message("4")])
    assert back(read(bare)) == [{"role": "assistant", "content": "4", "type": "message"}]
    plain = recorded.reasoning(encrypted=None, content=[{"type": "reasoning_text", "text": "2 + 2"}])
    assert back(read(recorded.events([plain, recorded.message("4")])))[0] == plain


def test_unknown_events_are_ignored_and_unknown_items_are_sent_back() -> None:
    """A2: new kinds appear without notice."""
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": ["gAAA"], "content": "x", "arguments": {"a": 1}}
    told = recorded.events([item, recorded.message("yes")])
    told[3:3] = [{"type": "response.new_thing", "output_index": "none", "delta": {"a": 1}, "item": None}]
    with pytest.raises(BrokenAnswer):  # an output_index that is no number
        ResponsesAnswer(4096, lambda _: None).feed(recorded.responses_stream(told))
    told[3] = {"type": "response.new_thing", "delta": {"a": 1}, "item": None, "arguments": [1]}
    message = read(told)
    assert message.text == "yes"
    assert back(message)[0] == item


@pytest.mark.parametrize("name", recorded.FAILING)
def test_an_error_is_reported(name: str) -> None:
    """A2: in each of the shapes that the service uses."""
    found = outcome(new_answer, recorded.responses_stream(recorded.FAILING[name]))
    assert isinstance(found, AnswerError)
    complaint = msgspec.json.decode(found.complaint)
    assert complaint["message"]
    assert complaint["code"] in ("rate_limit_exceeded", "server_error")


def test_an_error_in_the_shape_of_chat_completions_is_reported_too() -> None:
    found = outcome(new_answer, b'data: {"error":{"message":"overloaded","code":503}}\n\n')
    assert isinstance(found, AnswerError) and b"overloaded" in found.complaint


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_failed_response_without_a_message_is_an_error(status: str) -> None:
    found = outcome(new_answer, recorded.responses_stream(recorded.events([], status)))
    assert isinstance(found, AnswerError) and status.encode() in found.complaint


# -- servers that take the format in their own way ---------------------------------------------------------------------


def without(told: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [event for event in told if not event["type"].startswith(kinds)]


@pytest.mark.parametrize("name", recorded.RESPONSES)
@pytest.mark.parametrize(
    "left_out",
    [
        ("response.created", "response.in_progress", "response.content_part", "response.output_text.done"),
        ("response.output_text.delta", "response.refusal.delta", "response.function_call_arguments"),
        ("response.output_item.added",),
        ("response.output_item", "response.output_text", "response.refusal", "response.function_call_arguments"),
    ],
)
def test_events_that_only_repeat_may_be_missing(name: str, left_out: tuple[str, ...]) -> None:
    """A2: also if the whole answer is in its last event."""
    whole = recorded.RESPONSES[name]
    assert read(without(whole, *left_out)) == read(whole)


def test_an_answer_whose_last_event_has_no_items_is_complete() -> None:
    """A2: relays omit them."""
    told = recorded.events(recorded.MANY)
    told[-1] = {**told[-1], "response": {**told[-1]["response"], "output": []}}
    assert read(told) == read(recorded.RESPONSES["reasoning, words and calls"])


def test_items_without_an_index_are_distinguished_by_order() -> None:
    told = [
        {key: value for key, value in event.items() if key != "output_index"}
        for event in recorded.RESPONSES["reasoning, words and calls"]
    ]
    assert read(told) == read(recorded.RESPONSES["reasoning, words and calls"])


@pytest.mark.parametrize("name", recorded.RESPONSES)
def test_a_complete_body_gives_the_same_answer(name: str) -> None:
    """A2: from an endpoint that does not stream."""
    answer = new_answer([])
    answer.whole(json.dumps(recorded.RESPONSES[name][-1]["response"]).encode())
    assert answer.message("m") == read(recorded.RESPONSES[name])


@pytest.mark.parametrize(
    "body",
    [
        *(b"{}", b'{"status":"ok"}', b"[]", b"x", b'{"status":"completed"}', b'{"status":"queued","output":[]}'),
        *(b'{"output":[{"type":7}]}', b'{"output":"x"}', b'{"output":[' + b"[" * 5000 + b"]" * 5000 + b"]}"),
    ],
)
def test_a_body_without_an_answer_is_refused(body: bytes) -> None:
    """Otherwise another service at that address would look like a model with nothing to say."""
    answer = new_answer([])
    with pytest.raises(BrokenAnswer):
        answer.whole(body)
    assert not answer.done


def test_a_failed_complete_body_is_an_error() -> None:
    with pytest.raises(AnswerError):
        new_answer([]).whole(msgspec.json.encode(recorded.FAILING["failed"][-1]["response"]))


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [
        recorded.message("y" * 200),
        recorded.function_call("x", "y" * 200),
        recorded.reasoning(encrypted="y" * 200),
        recorded.refusal("y" * 200),
    ],
)
def test_everything_that_is_kept_counts_towards_the_limit(item: dict[str, Any]) -> None:
    """L03: text, arguments and reasoning, streamed or not."""
    told = recorded.responses_stream(recorded.events([item]))
    for stream in (told, recorded.responses_stream([recorded.events([item])[-1]])):
        with pytest.raises(BrokenAnswer) as caught:
            ResponsesAnswer(150, lambda _: None).feed(stream)
        assert caught.value.limit == "answer_bytes"


def test_too_many_calls_and_items_are_refused() -> None:
    """L03"""
    for item, most in ((recorded.function_call("x", "{}"), CALLS), (recorded.message(""), ITEMS)):
        assert isinstance(
            outcome(new_answer, recorded.responses_stream(recorded.events([item] * (most + 1)))), BrokenAnswer
        )


# -- streams that are cut and broken -----------------------------------------------------------------------------------


def test_the_message_is_the_same_wherever_the_network_splits_the_stream() -> None:
    """A2, S32: between any two bytes."""
    stream = recorded.responses_stream(recorded.events(recorded.MANY)[2:])
    assert len({msgspec.json.encode(message) for message in cut_everywhere(new_answer, stream)}) == 1


@pytest.mark.parametrize("name", recorded.RESPONSES)
def test_a_stream_is_incomplete_before_its_last_event(name: str) -> None:
    """A2: which is not the endpoint's error and may be retried."""
    stream = recorded.responses_stream(recorded.RESPONSES[name])
    last = stream.rindex(b"\n\n", 0, -2) + 2
    for end in (*range(0, last, 13), *range(last, len(stream) - 2)):
        assert outcome(new_answer, stream[:end]) is None
    assert isinstance(outcome(new_answer, stream[:-2]), Message)


MANY = recorded.responses_stream(recorded.RESPONSES["reasoning, words and calls"])


@settings(max_examples=400)
@given(broken_in_any_way(MANY))
def test_a_damaged_stream_gives_a_message_or_a_known_failure(stream: bytes) -> None:
    """A2: for any bytes, and the message can be stored and sent."""
    found = outcome(new_answer, stream)
    if isinstance(found, Message):
        stored = msgspec.json.decode(msgspec.json.encode(found), type=Message)
        assert stored == found
        msgspec.json.decode(b"[" + WIRE.encode(stored) + b"]")


@settings(max_examples=300)
@given(st.data())
def test_missing_or_repeated_events_never_give_a_wrong_answer(data: st.DataObject) -> None:
    """A2: the final content of an item must start with its streamed content."""
    told = recorded.RESPONSES["reasoning, words and calls"]
    whole = read(told)
    places = data.draw(st.lists(st.integers(0, len(told) - 2), max_size=3, unique=True))
    doubled = data.draw(st.booleans())
    changed = [event for place, event in enumerate(told) for _ in range(1 if place not in places else 2 * doubled)]
    done = [place for place in places if told[place]["type"] == "response.output_item.done"]
    found = outcome(new_answer, recorded.responses_stream(changed))
    if isinstance(found, Message) and not (done and not doubled):
        assert found == whole


@given(st.binary(max_size=300))
def test_garbage_is_never_an_answer(garbage: bytes) -> None:
    """A2"""
    assert not isinstance(outcome(new_answer, garbage), Message)
