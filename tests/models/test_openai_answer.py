"""Answers of servers that take the format in their own way."""

import json
from typing import Any

import pytest

from tidegate.models.answer import AnswerBroken, AnswerError
from tidegate.models.streamed import CALLS, ChatAnswer
from tidegate.values import Message, ToolCall, Usage


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def delta(finish: str | None = None, **given: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": given, "finish_reason": finish}])


def read(*events: bytes, limit: int = 4096) -> tuple[Message, list[str]]:
    shown: list[str] = []
    answer = ChatAnswer(limit, shown.append)
    answer.feed(b"".join(events))
    answer.end()
    assert answer.complete
    return answer.message("m"), shown


def test_text_of_one_read_is_handed_on_in_one_piece() -> None:
    message, shown = read(delta(content="a"), delta(content="b"), delta("stop"), b"data: [DONE]\n\n")
    assert message == Message(role="assistant", text="ab", finish="stop", model="m")
    assert shown == ["ab"]


def test_small_pieces_of_one_read_are_kept_as_the_text_that_was_handed_on() -> None:
    """L03: an answer in thousands of pieces does not stay as thousands of objects."""
    message, shown = read(*(delta(content=f"piece {number} ") for number in range(100)), delta("stop"))
    assert message.text is shown[0]


def test_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    message, _ = read(
        delta(tool_calls=[{"id": "a", "function": {"name": "x", "arguments": "{"}}]),
        delta(tool_calls=[{"function": {"arguments": "}"}}]),
        delta("stop", tool_calls=[{"id": "b", "function": {"name": "y", "arguments": {"k": 1}}}]),
    )
    assert message.calls == (
        ToolCall(id="a", name="x", arguments="{}"),
        ToolCall(id="b", name="y", arguments='{"k":1}'),
    )
    assert message.finish == "tool_calls"


def test_calls_that_arrive_interleaved_are_put_together_by_index() -> None:
    message, _ = read(
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "x", "arguments": ""}}]),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "y", "arguments": "[1"}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}, {"index": 1, "function": {"arguments": "]"}}]),
        delta("tool_calls"),
    )
    assert [call.arguments for call in message.calls] == ["{}", "[1]"]


def test_a_call_without_id_or_arguments_gets_both() -> None:
    message, _ = read(delta("tool_calls", tool_calls=[{"index": 0, "function": {"name": "x"}}]))
    assert message.calls == (ToolCall(id="call_0", name="x", arguments="{}"),)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("eos", "stop"),
        ("tool_calls", "stop"),
    ],
)
def test_finish_reasons_are_a_closed_set(reason: str, finish: str) -> None:
    assert read(delta(reason, content="a"))[0].finish == finish


def test_content_in_parts_and_a_refusal_are_text() -> None:
    message, _ = read(delta(content=[{"type": "text", "text": "a"}, {"type": "thinking"}]), delta("stop", refusal="no"))
    assert message.text == "ano"


def test_other_choices_and_unknown_fields_are_passed_over() -> None:
    message, _ = read(
        event(choices=[{"index": 1, "delta": {"content": "no"}}], x_new={"a": 1}),
        event(choices=[]),
        event(choices=None),
        delta("stop", content="yes", reasoning_content="thinking"),
        event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}),
    )
    assert message.text == "yes"
    assert message.usage == Usage(input=9, output=2)


@pytest.mark.parametrize("limit", [4, 5])
def test_an_answer_over_its_limit_is_broken_off_and_one_at_the_limit_is_not(limit: int) -> None:
    """Counted in bytes of text, whatever the characters."""
    if limit == 5:
        assert read(delta("stop", content="a€b"), limit=limit)[0].text == "a€b"
    else:
        with pytest.raises(AnswerBroken) as caught:
            read(delta("stop", content="a€b"), limit=limit)
        assert caught.value.limit == "answer_bytes"


def test_tool_arguments_count_towards_the_limit() -> None:
    with pytest.raises(AnswerBroken):
        read(
            delta("stop", tool_calls=[{"index": 0, "id": "a", "function": {"name": "x", "arguments": "y" * 9}}]),
            limit=8,
        )


def test_a_stream_of_nothing_is_not_read_for_ever() -> None:
    answer = ChatAnswer(1024, lambda text: None)
    with pytest.raises(AnswerBroken):
        for _ in range(1000):
            answer.feed(b": keep alive\n" * 200)


def test_too_many_calls_are_refused() -> None:
    with pytest.raises(AnswerBroken):
        read(delta(tool_calls=[{"index": n, "id": str(n), "function": {"name": "x"}} for n in range(CALLS + 1)]))


def test_text_before_a_broken_piece_was_shown() -> None:
    shown: list[str] = []
    answer = ChatAnswer(1024, shown.append)
    with pytest.raises(AnswerBroken):
        answer.feed(delta(content="a") + b"data: {oops\n\n")
    assert shown == ["a"]
    assert answer.shown


def test_an_error_object_is_told_as_such() -> None:
    with pytest.raises(AnswerError) as caught:
        ChatAnswer(1024, lambda text: None).feed(event(error={"message": "overloaded", "code": 503}))
    assert b"overloaded" in caught.value.complaint


def test_a_completion_in_one_piece_is_read_too() -> None:
    answer = ChatAnswer(1024, lambda text: None)
    answer.whole(
        json.dumps({"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}).encode()
    )
    assert answer.message("m").text == "hi"


@pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b'{"status":"ok"}'])
def test_a_whole_answer_without_an_answer_in_it_is_none(body: bytes) -> None:
    """Another service at that address would otherwise pass for a model that has nothing to say."""
    answer = ChatAnswer(1000, lambda _: None)
    with pytest.raises(AnswerBroken):
        answer.whole(body)
    assert not answer.done
