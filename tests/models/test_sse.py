"""The parser of server-sent events: the same events wherever the network splits the stream."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.models.http.sse import EVENT_BYTES, EventParser, EventTooLarge

payloads = st.lists(st.binary(min_size=1, max_size=20).filter(lambda b: not set(b) & {10, 13}), max_size=6)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges) if a != b]


@given(payloads, st.lists(st.integers(min_value=0), max_size=8), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_wherever_the_network_splits_the_stream(
    expected: list[bytes], places: list[int], newline: bytes
) -> None:
    stream = b"".join(
        b": comment" + newline + b"event: x" + newline + b"data: " + payload + newline + newline for payload in expected
    )
    events = EventParser()
    found = [event for piece in cut(stream, places) for event in events.feed(piece)]
    assert found == expected
    assert events.finish() == []


def test_lines_of_one_event_are_joined() -> None:
    assert EventParser().feed(b"data: a\ndata:b\ndata:\n\ndata: c\n\n") == [b"a\nb\n", b"c"]


def test_a_byte_order_mark_at_the_start_is_ignored() -> None:
    events = EventParser()
    assert [event for byte in b"\xef\xbb\xbfdata: a\n\n" for event in events.feed(bytes([byte]))] == [b"a"]


def test_a_last_event_without_an_empty_line_counts() -> None:
    events = EventParser()
    assert events.feed(b"data: a") == []
    assert events.finish() == [b"a"]


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 65536, b"data: " + b"x" * 65536 + b"\n", b"x" * 65536])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    """Memory is bounded, whether the line or the number of lines grows."""
    events = EventParser()
    with pytest.raises(EventTooLarge):
        for _ in range(2 * EVENT_BYTES // len(piece)):
            events.feed(piece)
