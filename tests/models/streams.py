"""Shared helpers for tests of answers: streams split at every byte, and damaged in every way."""

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tidegate.models.formats.answer import AnswerError, BrokenAnswer, IncomingAnswer
from tidegate.values import Message

New = Callable[[list[str]], IncomingAnswer]


def cut_everywhere(new: New, stream: bytes) -> list[Message]:
    """The message of the stream, split in two at each of its bytes and into single bytes; the text shown must be the
    message's text."""
    messages = []
    for place in range(len(stream) + 1):
        cuts = [stream[:place], stream[place:]] if place else [stream[at : at + 1] for at in range(len(stream))]
        shown: list[str] = []
        answer = new(shown)
        for piece in cuts:
            if not answer.done:
                answer.feed(piece)
        answer.end()
        assert answer.complete
        message = answer.message("m")
        assert "".join(shown) == message.text
        messages.append(message)
    return messages


def outcome(new: New, stream: bytes) -> Message | BrokenAnswer | AnswerError | None:
    """None if the stream ended early."""
    shown: list[str] = []
    answer = new(shown)
    try:
        answer.feed(stream)
        answer.end()
    except (BrokenAnswer, AnswerError) as error:
        return error
    return answer.message("m") if answer.complete else None


def broken_in_any_way(stream: bytes) -> SearchStrategy[bytes]:
    """The stream with changed bytes, and with events missing, repeated or out of order."""
    events = [event + b"\n\n" for event in stream.split(b"\n\n") if event]

    def changed(changes: list[tuple[int, int]]) -> bytes:
        made = bytearray(stream)
        for place, byte in changes:
            made[place] = byte
        return bytes(made)

    bytewise = st.lists(st.tuples(st.integers(0, len(stream) - 1), st.integers(0, 255)), min_size=1, max_size=4)
    eventwise = st.lists(st.sampled_from(events), max_size=len(events) + 3)
    return st.one_of(bytewise.map(changed), eventwise.map(b"".join), st.permutations(events).map(b"".join))
