"""Answers of servers that interpret the chat-completions format in their own way."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.streams import broken_in_any_way, cut_everywhere, outcome
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.answer import DEPTH, AnswerError, BrokenAnswer
from tidegate.models.formats.openai.chat import API, ChatWire
from tidegate.models.formats.openai.chat_answer import ChatAnswer
from tidegate.models.formats.stream_answer import CALLS
from tidegate.models.formats.token_counts import TOKENS
from tidegate.values import Message, ToolCall, Usage

WIRE = ChatWire("m", Facts(thinking="effort"))


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


def test_text_of_one_read_is_passed_on_in_one_piece() -> None:
    message, shown = read(delta(content="a"), delta(content="b"), delta("stop"), b"data: [DONE]\n\n")
    assert message == Message(role="assistant", text="ab", finish="stop", model="m")
    assert shown == ["ab"]


def test_small_pieces_of_one_read_are_stored_as_one_text() -> None:
    """L03: an answer in thousands of pieces does not stay as thousands of objects."""
    message, shown = read(*(delta(content=f"piece {number} ") for number in range(100)), delta("stop"))
    assert message.text is shown[0]


def test_calls_without_an_index_are_distinguished_by_id() -> None:
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


def test_interleaved_calls_are_assembled_by_index() -> None:
    message, _ = read(
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "x", "arguments": ""}}]),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "y", "arguments": "[1"}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}, {"index": 1, "function": {"arguments": "]"}}]),
        delta("tool_calls"),
    )
    assert [call.arguments for call in message.calls] == ["{}", "[1]"]


def test_calls_with_the_same_index_are_distinguished_by_id_and_name() -> None:
    """A2: some endpoints number the calls of each event from the start. A new id alone starts no call, because some
    servers make one up for every piece."""
    message, _ = read(
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "x", "arguments": '{"k":1}'}}]),
        delta(tool_calls=[{"index": 0, "id": "b", "function": {"name": "x", "arguments": '{"k":'}}]),
        delta(tool_calls=[{"index": 0, "id": "piece", "function": {"arguments": "2}"}}]),
        delta("tool_calls"),
    )
    assert message.calls == (
        ToolCall(id="a", name="x", arguments='{"k":1}'),
        ToolCall(id="b", name="x", arguments='{"k":2}'),
    )


@pytest.mark.parametrize("long", [{"id": "i" * 2000}, {"function": {"name": "n" * 2000}}])
def test_names_and_ids_of_calls_count_towards_the_bound(long: dict[str, Any]) -> None:
    """L03: everything that is kept of an answer is bounded."""
    with pytest.raises(BrokenAnswer, match="longer than 1000 bytes"):
        read(delta("tool_calls", tool_calls=[{"index": 0, **long}]), limit=1000)


@pytest.mark.parametrize("field", ["extra_content", "reasoning_details", "call"])
def test_fields_to_send_back_have_a_limit_on_nesting(field: str) -> None:
    """S33: they are stored in a row that must be readable everywhere in the program."""

    def answer(depth: int) -> bytes:
        nested: Any = json.loads('{"a":' * depth + "1" + "}" * depth)
        if field == "call":
            return delta(
                "stop", tool_calls=[{"index": 0, "id": "a", "function": {"name": "x"}, "extra_content": nested}]
            )
        return delta("stop", content="hi", **{field: [nested] if field == "reasoning_details" else nested})

    assert read(answer(DEPTH))[0].carried
    with pytest.raises(BrokenAnswer, match="nested"):
        read(answer(DEPTH + 1))


def test_a_call_without_id_or_arguments_gets_both() -> None:
    message, _ = read(delta("tool_calls", tool_calls=[{"index": 0, "function": {"name": "x"}}]))
    assert message.calls == (ToolCall(id="call_0", name="x", arguments="{}"),)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("model_length", "length"),
        ("eos", "stop"),
        ("tool_calls", "stop"),
    ],
)
def test_finish_reasons_are_a_closed_set(reason: str, finish: str) -> None:
    assert read(delta(reason, content="a"))[0].finish == finish


def test_content_in_parts_and_a_refusal_are_text() -> None:
    message, _ = read(delta(content=[{"type": "text", "text": "a"}, {"type": "thinking"}]), delta("stop", refusal="no"))
    assert message.text == "ano"


def test_other_choices_and_unknown_fields_are_ignored() -> None:
    message, _ = read(
        event(choices=[{"index": 1, "delta": {"content": "no"}}], x_new={"a": 1}),
        event(choices=[]),
        event(choices=None),
        delta("stop", content="yes", annotations=[{"a": 1}]),
        event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}),
    )
    assert message.text == "yes"
    assert message.usage == Usage(input=9, output=2)


@pytest.mark.parametrize("limit", [4, 5])
def test_an_answer_over_its_limit_is_cut_off_and_one_at_the_limit_is_not(limit: int) -> None:
    """Counted in bytes of text, for any characters."""
    if limit == 5:
        assert read(delta("stop", content="a€b"), limit=limit)[0].text == "a€b"
    else:
        with pytest.raises(BrokenAnswer) as caught:
            read(delta("stop", content="a€b"), limit=limit)
        assert caught.value.limit == "answer_bytes"


def test_tool_arguments_count_towards_the_limit() -> None:
    with pytest.raises(BrokenAnswer):
        read(
            delta("stop", tool_calls=[{"index": 0, "id": "a", "function": {"name": "x", "arguments": "y" * 9}}]),
            limit=8,
        )


def test_an_endless_stream_without_content_is_given_up() -> None:
    answer = ChatAnswer(1024, lambda text: None)
    with pytest.raises(BrokenAnswer):
        for _ in range(1000):
            answer.feed(b": keep alive\n" * 200)


def test_too_many_calls_are_refused() -> None:
    with pytest.raises(BrokenAnswer):
        read(delta(tool_calls=[{"index": n, "id": str(n), "function": {"name": "x"}} for n in range(CALLS + 1)]))


def test_text_before_a_broken_piece_was_shown() -> None:
    shown: list[str] = []
    answer = ChatAnswer(1024, shown.append)
    with pytest.raises(BrokenAnswer):
        answer.feed(delta(content="a") + b"data: {oops\n\n")
    assert shown == ["a"]
    assert answer.shown


def test_an_error_object_is_reported() -> None:
    with pytest.raises(AnswerError) as caught:
        ChatAnswer(1024, lambda text: None).feed(event(error={"message": "overloaded", "code": 503}))
    assert b"overloaded" in caught.value.complaint


def test_a_complete_body_is_parsed_too() -> None:
    answer = ChatAnswer(1024, lambda text: None)
    answer.whole(
        json.dumps({"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}).encode()
    )
    assert answer.message("m").text == "hi"


@pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b'{"status":"ok"}'])
def test_a_body_without_an_answer_is_refused(body: bytes) -> None:
    """Otherwise another service at that address would look like a model with nothing to say."""
    answer = ChatAnswer(1000, lambda _: None)
    with pytest.raises(BrokenAnswer):
        answer.whole(body)
    assert not answer.done


# -- usage, in all its forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "total_tokens": 14,
                "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0, "cache_write_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 0},
            },
            Usage(input=9, cached=4, written=2, output=5, reasoning=3),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 5, "prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 1},
            Usage(input=9, cached=8, output=5),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 5, "cached_tokens": 7}, Usage(input=9, cached=7, output=5)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "total_tokens": 34,
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            Usage(input=9, output=25, reasoning=20),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 34}, Usage(input=9, output=25, reasoning=20)),
        ({"prompt_tokens": None, "completion_tokens": None}, Usage()),
        ({"prompt_tokens": -5, "completion_tokens": 2**70}, Usage(input=TOKENS, output=TOKENS)),
        (
            {"prompt_tokens": 9.0, "completion_tokens": 5, "cost": 0.1, "cost_details": {"x": 1}},
            Usage(input=9, output=5),
        ),
    ],
)
def test_usage_is_read_in_every_form_in_use(usage: dict[str, Any], counted: Usage) -> None:
    """A2: cached tokens under any of their names; reasoning counts as output even if the provider omits it there."""
    assert read(delta("stop", content="a"), event(choices=[], usage=usage))[0].usage == counted
    with_choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}
    assert read(event(choices=[with_choice], usage=usage))[0].usage == counted
    assert read(event(choices=[{**with_choice, "usage": usage}]))[0].usage == counted


# -- fields that an endpoint wants back --------------------------------------------------------------------------------


def back(message: Message) -> Any:
    """The message as it is in the next request."""
    assert message.carrier == API
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    return msgspec.json.decode(WIRE.encode(stored))


CALLED: dict[str, Any] = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "x", "arguments": "{}"}}]}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_sent_back_complete_under_its_field_name(field: str) -> None:
    """S32: however it was split; with calls and without."""
    message, shown = read(delta(**{field: "Let me "}), delta(**{field: "see: ä"}), delta("tool_calls", **CALLED))
    assert back(message)[field] == "Let me see: ä"
    assert shown == []
    message, _ = read(delta(**{field: "hm"}), delta("stop", content="4"))
    assert back(message) == {"role": "assistant", "content": "4", field: "hm"}


def test_an_empty_reasoning_field_is_sent_back_if_the_endpoint_requires_it() -> None:
    """S32: DeepSeek refuses a conversation without it."""
    message, _ = read(delta(reasoning_content=""), delta("tool_calls", **CALLED))
    assert back(message)["reasoning_content"] == ""
    assert read(delta(reasoning="", reasoning_content=None), delta("stop", content="a"))[0].carried == ()


def test_reasoning_details_are_sent_back_instead_of_the_fields_that_repeat_them() -> None:
    """S32: pieces of one detail are joined; everything else is kept as received and in order."""
    encrypted = {
        "type": "reasoning.encrypted",
        "data": "gAAA",
        "id": "rs_1",
        "format": "openai-responses-v1",
        "index": 0,
    }
    message, _ = read(
        delta(reasoning="The ", reasoning_details=[{"type": "reasoning.summary", "summary": "The ", "index": 0}]),
        delta(reasoning="plan", reasoning_details=[{"type": "reasoning.summary", "summary": "plan", "index": 0}]),
        delta(reasoning_details=[{"type": "reasoning.text", "text": "I th", "index": 1, "signature": None}]),
        delta(reasoning_details=[{"type": "reasoning.text", "text": "ink", "index": 1}]),
        delta(reasoning_details=[{"type": "reasoning.text", "text": None, "signature": "sig", "index": 1}]),
        delta(reasoning_details=[{"type": "reasoning.text", "text": "again", "index": 2}]),
        delta(reasoning_details=[encrypted, encrypted, "no detail", 7]),
        delta("tool_calls", **CALLED),
    )
    sent = back(message)
    assert "reasoning" not in sent
    assert sent["reasoning_details"] == [
        {"type": "reasoning.summary", "summary": "The plan", "index": 0},
        {"type": "reasoning.text", "text": "I think", "index": 1, "signature": "sig"},
        {"type": "reasoning.text", "text": "again", "index": 2},
        encrypted,
        encrypted,
    ]


def test_signatures_are_sent_back_on_their_calls() -> None:
    """S32: Gemini refuses a call without its signature."""
    mark = {"google": {"thought_signature": "Zm9v"}}
    message, _ = read(
        delta(**CALLED),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "y", "arguments": "{"}, "extra_content": mark}]),
        delta("tool_calls", tool_calls=[{"index": 1, "function": {"arguments": "}"}, "extra_content": None}]),
    )
    first, second = back(message)["tool_calls"]
    assert "extra_content" not in first
    assert second["extra_content"] == mark
    message, _ = read(delta(content="4", extra_content={"google": {"x": 1}}), delta("stop", extra_content=mark))
    assert back(message)["extra_content"] == mark


@pytest.mark.parametrize("odd", [7, {"a": [1]}, [], [[]], "x", True])
def test_unexpected_values_in_reasoning_fields_break_no_answer(odd: object) -> None:
    """A2: the fields are not part of the format, and endpoints differ."""
    message, _ = read(
        delta(reasoning=odd, reasoning_content=odd, reasoning_details=odd, extra_content=odd),
        delta(reasoning_details=[{"type": odd, "text": odd}, {"type": "reasoning.text", "text": odd}]),
        delta("stop", content="yes"),
    )
    assert message.text == "yes"
    back(message)


def test_reasoning_counts_towards_the_limit() -> None:
    """L03: content that is never shown is held too."""
    for given_ in ({"reasoning": "y" * 9}, {"reasoning_details": [{"type": "x", "data": "y" * 9}]}):
        with pytest.raises(BrokenAnswer) as caught:
            read(delta(**given_), limit=8)
        assert caught.value.limit == "answer_bytes"


def test_a_signature_that_is_not_json_is_refused() -> None:
    """S32: it would be part of every later request."""
    for mark in (b'{"a":"\\q"}', b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"):
        with pytest.raises(BrokenAnswer):
            read(b'data: {"choices":[{"delta":{"extra_content":' + mark + b"}}]}\n\n", limit=100_000)


def test_an_end_mark_without_content_is_not_an_answer() -> None:
    """A2: it would look like a model with nothing to say."""
    assert outcome(new_answer, b"data: [DONE]\n\n") is None
    assert outcome(new_answer, event(choices=[], usage={}) + b"data: [DONE]\n\n") is None
    assert isinstance(outcome(new_answer, delta(content="") + b"data: [DONE]\n\n"), Message)


def test_an_answer_that_ends_with_an_error_fails() -> None:
    """A2: relays end a stream this way when the provider behind them fails."""
    with pytest.raises(AnswerError):
        read(delta(content="a"), delta("error"))


# -- streams that are cut and broken -----------------------------------------------------------------------------------

STREAM = b"".join(
    (
        b": keep alive\n\n",
        delta(role="assistant", content="", reasoning_content="hm "),
        delta(reasoning_content="hm"),
        delta(content="Grüße, "),
        delta(content="世界 🌊"),
        delta(**CALLED),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "y", "arguments": '{"k":'}}]),
        delta(tool_calls=[{"index": 1, "function": {"arguments": '"ü"}'}}]),
        delta("tool_calls"),
        event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2}),
        b"data: [DONE]\n\n",
    )
)


def new_answer(shown: list[str]) -> ChatAnswer:
    return ChatAnswer(4096, shown.append)


def test_the_message_is_the_same_wherever_the_network_splits_the_stream() -> None:
    """A2, S32: between any two bytes."""
    messages = cut_everywhere(new_answer, STREAM)
    assert len({msgspec.json.encode(message) for message in messages}) == 1
    assert messages[0].text == "Grüße, 世界 🌊"


def test_a_stream_that_ends_early_is_complete_only_after_its_finish() -> None:
    """A2: cut off before that it is incomplete, which is not the endpoint's error and may be retried."""
    finished = STREAM.index(b'"finish_reason": "tool_calls"') + len(b'"finish_reason": "tool_calls"}]}')
    for end in range(len(STREAM)):
        found = outcome(new_answer, STREAM[:end])
        if end < finished:
            assert found is None
        else:
            assert isinstance(found, Message)
            assert (found.text, len(found.calls)) == ("Grüße, 世界 🌊", 2)


@settings(max_examples=400)
@given(broken_in_any_way(STREAM))
def test_a_damaged_stream_gives_a_message_or_a_known_failure(stream: bytes) -> None:
    """A2: for any bytes, and the message can be stored and sent."""
    found = outcome(new_answer, stream)
    if isinstance(found, Message):
        stored = msgspec.json.decode(msgspec.json.encode(found), type=Message)
        assert stored == found
        msgspec.json.decode(WIRE.encode(stored))


@given(st.binary(max_size=300))
def test_garbage_is_never_an_answer(garbage: bytes) -> None:
    """A2"""
    assert not isinstance(outcome(new_answer, garbage), Message)


def test_log_probabilities_are_kept_verbatim_and_count_towards_the_limit() -> None:
    """H08: of every piece, in order; values of another shape are ignored."""
    said = [{"token": "a", "logprob": -0.5, "top_logprobs": []}, {"token": "b", "logprob": -1.5, "top_logprobs": []}]
    pieces = [
        event(choices=[{"index": 0, "delta": {"content": one["token"]}, "logprobs": {"content": [one]}}])
        for one in said
    ]
    odd = event(choices=[{"index": 0, "delta": {"content": "c"}, "logprobs": {"content": "none"}}])
    message, _ = read(*pieces, odd, delta("stop"))
    assert message.logprobs is not None
    assert (message.text, msgspec.json.decode(message.logprobs)) == ("abc", said)
    huge = event(choices=[{"index": 0, "delta": {}, "logprobs": {"content": [{"token": "x" * 5000}]}}])
    with pytest.raises(BrokenAnswer):
        read(huge)
