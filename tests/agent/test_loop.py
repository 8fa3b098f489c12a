"""The loop detector: a model that repeats itself is warned, then stopped."""

from tidegate.agent.loop import LoopDetector, RepeatVerdict
from tidegate.values import Message, ToolCall

CALL = Message(role="assistant", calls=(ToolCall(id="1", name="clock", arguments="{}"),))


def same(text: str = "12:00") -> list[Message]:
    return [Message(role="tool", call_id="1", text=text)]


def test_a_repeated_round_is_warned_about_and_then_stopped() -> None:
    """Three equal rounds give a warning, six end the turn."""
    repeats = LoopDetector(allowed=3)
    verdicts = [repeats.round(CALL, same()) for _ in range(6)]
    fine, warn, stop = RepeatVerdict.FINE, RepeatVerdict.WARN, RepeatVerdict.STOP
    assert verdicts == [fine, fine, warn, warn, warn, stop]


def test_the_same_call_with_another_result_is_progress() -> None:
    """Polling something that changes is not a loop."""
    repeats = LoopDetector(allowed=2)
    verdicts = {repeats.round(CALL, same(f"12:0{minute}")) for minute in range(8)}
    assert verdicts == {RepeatVerdict.FINE}
