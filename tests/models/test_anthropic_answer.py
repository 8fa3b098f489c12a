"""Parsing of Anthropic's answers, however the network splits them and whatever they contain."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.anthropic_streams import (
    BROKEN_OFF,
    PING,
    SIGNATURE,
    STREAMS,
    USAGE,
    begin,
    delta,
    end,
    sse,
    start,
    stop,
    text,
    thinking,
    tool,
)
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.answer import AnswerError, BrokenAnswer
from tidegate.models.formats.anthropic.messages import AnthropicWire
from tidegate.models.formats.anthropic.messages_answer import AnthropicAnswer
from tidegate.values import Message, Usage

MODEL = "claude-opus-5-5"
LIMIT = 64 * 1024
WIRE = AnthropicWire(MODEL, Facts())


def reading(*received: bytes, limit: int = LIMIT) -> tuple[AnthropicAnswer, list[str]]:
    heard: list[str] = []
    answer = AnthropicAnswer(limit, heard.append)
    for piece in received:
        answer.feed(piece)
        if answer.done:
            break
    else:
        answer.end()
    return answer, heard


def read(*received: bytes) -> Message:
    answer, heard = reading(*received)
    assert answer.complete
    message = answer.message(MODEL)
    assert "".join(heard) == message.text
    return message


def items(message: Message) -> list[Any]:
    return [(msgspec.json.decode(carried.item), carried.text, carried.calls) for carried in message.carried]


# -- streams as they are ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(STREAMS))
def test_a_stream_split_at_any_byte_gives_the_same_message(name: str) -> None:
    """The network may split it anywhere."""
    stream = STREAMS[name]
    whole = read(stream)
    for at in range(1, len(stream)):
        assert read(stream[:at], stream[at:]) == whole
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == whole


@pytest.mark.parametrize("name", list(STREAMS))
def test_a_stream_that_ends_early_is_not_complete(name: str) -> None:
    """An answer without a stop reason is incomplete."""
    stream = STREAMS[name]
    said_why = stream.index(b"event: message_delta")
    for at in range(said_why):
        answer, _ = reading(stream[:at])
        assert not answer.complete
    answer, _ = reading(stream[: stream.index(b"event: message_stop")])
    assert answer.complete
    assert not answer.done


def test_reasoning_calls_and_text_keep_their_positions() -> None:
    message = read(STREAMS["thinking and parallel calls"])
    assert message.text == "I'll read both."
    assert message.finish == "tool_calls"
    assert [(call.id, call.name, call.arguments) for call in message.calls] == [
        ("toolu_01A09q90qw90lq917835lq9", "read_file", '{"path": "a/ä.txt"}'),
        ("toolu_01T1x1fJ34qAmk2tNTrN7Up6", "clock", "{}"),
        ("toolu_01B2y2gK45rBnl3uOUsO8Vq7", "read_file", '{"path": "b", "lines": [1, 2.50]}'),
    ]
    thought = 'The user wants two files.\nBoth "at once", then.'
    assert items(message) == [({"thinking": thought, "signature": SIGNATURE, "type": "thinking"}, 0, 0)]
    assert (message.carrier, message.model) == ("anthropic", MODEL)
    assert message.usage == Usage(input=5952, cached=5600, written=340, output=321, reasoning=57)


@pytest.mark.parametrize(
    "name", [name for name in STREAMS if "cut" not in name and name not in ("nothing", "a tool of the server")]
)
def test_an_answer_is_sent_back_as_the_same_blocks_in_the_same_order(name: str) -> None:
    """S32: the model receives exactly what it wrote."""
    blocks: list[dict[str, Any]] = []
    for line in STREAMS[name].splitlines():
        event = msgspec.json.decode(line[6:]) if line.startswith(b"data: ") else {}
        if event.get("type") == "content_block_start":
            blocks.append({**event["content_block"]})
        elif event.get("type") == "content_block_delta":
            for field, value in event["delta"].items():
                if field == "partial_json":
                    blocks[-1]["json"] = blocks[-1].get("json", "") + value
                elif field != "type":
                    blocks[-1][field] += value
    for block in blocks:
        if given := block.pop("json", ""):
            block["input"] = msgspec.json.decode(given)
    message = read(STREAMS[name])
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    assert msgspec.json.decode(WIRE.encode(stored))["content"] == blocks


def test_an_answer_cut_off_during_reasoning_keeps_the_reasoning_and_its_finish() -> None:
    message = read(STREAMS["cut by the limit in a thought"])
    assert (message.text, message.finish, message.calls) == ("", "length", ())
    assert items(message) == [({"thinking": "So let us", "signature": "", "type": "thinking"}, 0, 0)]
    assert WIRE.encode(message) == b""


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "length"),
        ("refusal", "content_filter"),
        ("tool_use", "stop"),
        ("something_new", "stop"),
    ],
)
def test_stop_reasons_are_mapped_to_finish_reasons(reason: str, finish: str) -> None:
    assert read(sse(start(), *text(0, "x"), *end(reason, 1))).finish == finish


def test_later_token_counts_replace_earlier_ones() -> None:
    assert read(STREAMS["counted again at the end"]).usage == Usage(input=20, output=7)
    assert (
        read(
            sse(start(usage=None), *text(0, "x"), {"type": "message_delta", "delta": {"stop_reason": "end_turn"}})
        ).usage
        is None
    )


# -- unknown content -------------------------------------------------------------------------------


def test_unknown_events_and_blocks_are_ignored() -> None:
    """Whatever their shape."""
    message = read(
        sse(
            PING,
            start(),
            {"type": "new_event", "delta": "no object", "index": "x", "usage": 5, "message": []},
            begin(0, type="new_block", text=["not", "text"], id=7),
            delta(0, type="new_delta", text=1),
            delta(0, type="text_delta", text="not shown"),
            stop(0),
            begin(1, type="text", text=""),
            delta(1, type="citations_delta", citation={"type": "char_location"}),
            delta(1, type="new_delta", text={"a": 1}),
            delta(1, type="other_delta", text="not this"),
            delta(1, type="text_delta", text="this"),
            stop(1),
            *end("end_turn", 5),
        )
    )
    assert (message.text, message.carried) == ("this", ())


def test_blocks_that_are_never_closed_or_arrive_complete_are_accepted() -> None:
    message = read(
        sse(
            start(),
            begin(0, type="thinking", thinking="all", signature="s"),
            begin(1, type="text", text="Hi"),
            begin(2, type="tool_use", id="a", name="f", input={"x": 1}),
            begin(3, type="tool_use", id="b", name="f", input={"x": 1}),
            delta(3, type="input_json_delta", partial_json='{"x":2}'),
            *end("tool_use", 1),
        )
    )
    assert message.text == "Hi"
    assert [call.arguments for call in message.calls] == ['{"x":1}', '{"x":2}']
    assert items(message) == [({"thinking": "all", "signature": "s", "type": "thinking"}, 0, 0)]


# -- errors ----------------------------------------------------------------------------------------


def test_an_error_event_is_reported() -> None:
    """Also after text was shown."""
    heard: list[str] = []
    answer = AnthropicAnswer(LIMIT, heard.append)
    with pytest.raises(AnswerError) as caught:
        answer.feed(BROKEN_OFF)
    assert msgspec.json.decode(caught.value.complaint) == {"type": "overloaded_error", "message": "Overloaded"}
    assert heard == ["Hel"]
    assert answer.shown
    assert not answer.complete


@pytest.mark.parametrize("data", [b'{"type":"error"}', b'{"type":"error","error":null}', b'{"error":{"message":"m"}}'])
def test_an_error_event_of_any_shape_is_an_error(data: bytes) -> None:
    with pytest.raises(AnswerError):
        reading(b"data: " + data + b"\n\n")


@pytest.mark.parametrize(
    "events",
    [
        [*text(0, "x")],
        [*text(0, "x"), *end("end_turn", 1)],
        [start(), start(), *end("end_turn", 1)],
        [start(), {"type": "message_stop"}],
        [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}],
        [start(), delta(0, type="text_delta", text="x")],
        [start(), *text(0, "x"), delta(0, type="text_delta", text="y")],
        [start(), begin(0, type="text", text=""), delta(1, type="text_delta", text="x")],
        [start(), *text(1, "x"), *text(0, "y")],
        [start(), begin(0, type="text", text=5)],
        [start(), begin(0, type="text", text=""), delta(0, type="text_delta", text=5)],
    ],
)
def test_a_stream_with_events_out_of_order_or_malformed_is_refused(events: list[dict[str, Any]]) -> None:
    with pytest.raises(BrokenAnswer):
        reading(sse(*events))


@pytest.mark.parametrize(
    "events",
    [
        text(0, "x" * 600, "x" * 600),
        thinking(0, "x" * 600, "x" * 600),
        thinking(0, "x", signature="x" * 1200),
        [begin(0, type="redacted_thinking", data="x" * 1200)],
        tool(0, "a", "f", '{"a":"', "x" * 1200),
        [begin(0, type="tool_use", id="x" * 1200, name="f", input={})],
        [begin(index, type="redacted_thinking", data="") for index in range(40)],
    ],
)
def test_an_answer_beyond_its_bound_is_refused(events: list[dict[str, Any]]) -> None:
    """Content that is never shown counts too."""
    with pytest.raises(BrokenAnswer) as caught:
        reading(sse(start(), *events, *end("end_turn", 1)), limit=1000)
    assert caught.value.limit == "answer_bytes"


def test_too_many_calls_are_refused() -> None:
    with pytest.raises(BrokenAnswer) as caught:
        reading(sse(start(), *(event for index in range(129) for event in tool(index, f"t{index}", "f"))))
    assert caught.value.limit == "tool calls"


@given(st.sampled_from(list(STREAMS.values())), st.data())
def test_a_damaged_stream_gives_a_message_or_a_known_error(stream: bytes, data: st.DataObject) -> None:
    """With bytes changed, removed or inserted anywhere. A resulting message always has a stop reason."""
    damaged = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        until = min(len(damaged), at + data.draw(st.integers(0, 40)))
        damaged[at:until] = data.draw(
            st.binary(max_size=8) | st.sampled_from([b"\n\n", b'"', b"null", b"{", b"[" * 2000])
        )
        damaged = damaged or bytearray(b"x")
    try:
        answer, heard = reading(bytes(damaged))
    except (BrokenAnswer, AnswerError):
        return
    message = answer.message(MODEL)
    assert "".join(heard) == message.text
    if answer.complete:
        assert b"stop_reason" in damaged
        WIRE.encode(message)


@given(
    st.binary(max_size=200)
    | st.lists(st.sampled_from(sorted({*sse(*text(0, "x"), PING).splitlines(True)})), max_size=9).map(b"".join)
)
def test_garbage_is_never_an_answer(garbage: bytes) -> None:
    try:
        answer, _ = reading(garbage)
    except (BrokenAnswer, AnswerError):
        return
    assert not answer.complete


# -- in one piece ----------------------------------------------------------------------------------

WHOLE: dict[str, Any] = {
    **start()["message"],
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "text", "text": "Hi"},
        {"type": "new_block", "text": 5},
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1.50}},
    ],
    "stop_reason": "tool_use",
    "usage": {**USAGE, "output_tokens": 8},
}


def whole(body: bytes) -> AnthropicAnswer:
    answer = AnthropicAnswer(LIMIT, lambda text: None)
    answer.whole(body)
    return answer


def test_a_complete_body_is_parsed_like_a_stream() -> None:
    answer = whole(msgspec.json.encode(WHOLE))
    assert answer.complete
    assert answer.done
    message = answer.message(MODEL)
    assert (message.text, message.finish) == ("Hi", "tool_calls")
    assert [(call.id, call.name, call.arguments) for call in message.calls] == [("toolu_1", "f", '{"a":1.5}')]
    assert [(item["type"], at, done) for item, at, done in items(message)] == [
        ("thinking", 0, 0),
        ("redacted_thinking", 2, 0),
    ]
    assert message.usage == Usage(input=5952, cached=5600, written=340, output=8)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"type":"message"}', b'{"type":"message","content":5}', b"\xff", b"[" * 9999]
)
def test_a_body_that_is_not_a_message_is_refused(body: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        whole(body)


def test_a_malformed_block_in_a_complete_body_is_refused() -> None:
    with pytest.raises(BrokenAnswer):
        whole(msgspec.json.encode({**WHOLE, "content": [{"type": "text", "text": 5}]}))
    with pytest.raises(BrokenAnswer):
        whole(msgspec.json.encode({**WHOLE, "content": [5]}))


def test_an_error_body_is_reported() -> None:
    with pytest.raises(AnswerError) as caught:
        whole(b'{"type":"error","error":{"type":"api_error","message":"m"}}')
    assert caught.value.complaint == b'{"type":"api_error","message":"m"}'
