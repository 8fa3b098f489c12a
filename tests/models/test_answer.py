"""Rules for answers of every format."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models import recordings as recorded
from tests.models.streams import outcome
from tidegate.models.formats.call_names import distinct_calls
from tidegate.models.formats.openai.responses_answer import ResponsesAnswer
from tidegate.models.http.sse import EVENT_BYTES
from tidegate.values import Message, ToolCall

ids = st.one_of(
    st.sampled_from(["", "call_0", "call_1", "call_1234", "0", "toolu-7", "call_9f3a77c2d1e0"]), st.text(max_size=40)
)


@given(st.lists(st.lists(ids, max_size=5), max_size=5))
def test_calls_with_only_a_number_as_id_get_unique_ids(steps: list[list[str]]) -> None:
    """S12: providers refuse a conversation in which an id occurs twice, and so would any fallback."""
    answers = [distinct_calls([ToolCall(id=id, name="clock", arguments="{}") for id in step]) for step in steps]
    for step, made in zip(steps, answers, strict=True):
        assert [call.name for call in made] == ["clock"] * len(step)
        assert len({call.id for call in made}) == len(made)
    numbered = [call.id for made in answers for call in made if call.id not in {id for step in steps for id in step}]
    assert len(set(numbered)) == len(numbered)


@pytest.mark.parametrize("own", ["toolu_01A09q90qw90lq917835lq9", "D681PevKs", "QwKpvLmzx", "aBcde1234"])
def test_a_real_call_id_is_kept(own: str) -> None:
    """S12: ids of nine characters are Mistral's, which accepts no others."""
    call = ToolCall(id=own, name="clock", arguments="{}")
    assert distinct_calls([call]) == (call,)


def test_a_long_answer_that_is_repeated_in_its_last_event_is_accepted() -> None:
    """D7: the bound applies to the answer, not to the event that repeats it."""
    text = "x" * (EVENT_BYTES + 1000)
    told = recorded.events([recorded.message(text)])
    assert max(len(msgspec.json.encode(event)) for event in told) > EVENT_BYTES
    found = outcome(lambda shown: ResponsesAnswer(4 * EVENT_BYTES, shown.append), recorded.responses_stream(told))
    assert isinstance(found, Message) and found.text == text
