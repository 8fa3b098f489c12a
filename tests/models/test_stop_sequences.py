"""Stop sequences that the gateway itself applies."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.models.formats.stop_sequences import StopCutter
from tidegate.values import Message, ToolCall

letters = st.text(alphabet="abc", max_size=30)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple)


@given(st.lists(letters, max_size=8), stops)
def test_the_answer_is_shown_up_to_the_first_stop_sequence(pieces: list[str], stops: tuple[str, ...]) -> None:
    """H08: wherever the stream is split, no part of a stop sequence is ever shown."""
    whole = "".join(pieces)
    found = [place for stop in stops if (place := whole.find(stop)) >= 0]
    expected = whole[: min(found)] if found else whole
    shown: list[str] = []
    cutter = StopCutter(stops, shown.append)
    for piece in pieces:
        cutter(piece)
        assert expected.startswith("".join(shown))
    calls = (ToolCall(id="c", name="f", arguments="{}"),)
    answer = cutter.finish(Message(role="assistant", text=whole, calls=calls, finish="tool_calls"))
    assert "".join(shown) == answer.text == expected
    assert (answer.calls, answer.finish) == (((), "stop") if found else (calls, "tool_calls"))
