"""Tool calls and results stay paired, whatever rows a turn has."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.agent import is_balanced, missing, not_run
from tidegate.agent.tool_results import MODEL_STEP, tool_step_name
from tidegate.values import Message, ToolCall


def asking(number: int, count: int) -> tuple[str, Message]:
    calls = tuple(ToolCall(id=f"c{number}-{index}", name="clock", arguments="{}") for index in range(count))
    return f"{MODEL_STEP}{number}", Message(role="assistant", calls=calls)


def result(number: int, index: int) -> tuple[str, Message]:
    return tool_step_name(number, index), Message(role="tool", call_id=f"c{number}-{index}", text="12:00")


@given(
    rounds=st.lists(st.integers(1, 4), max_size=4),
    last=st.integers(0, 4),
    answered=st.sets(st.integers(0, 3)),
)
def test_missing_results_complete_a_turn_that_was_cut_off(rounds: list[int], last: int, answered: set[int]) -> None:
    """P02, S17: a turn may stop after any row; with its missing results added, every call has exactly one."""
    rows = [("in-0", Message(role="user", text="hello"))]
    for number, count in enumerate(rounds):
        rows.append(asking(number, count))
        rows += [result(number, index) for index in range(count)]
    if last:
        rows.append(asking(len(rounds), last))
        rows += [result(len(rounds), index) for index in sorted(answered) if index < last]
    owed = [(step, not_run(call, "It was stopped.")) for step, call in missing(rows)]
    assert {step for step, _ in owed}.isdisjoint(step for step, _ in rows)
    assert is_balanced([message for _, message in [*rows, *owed]])
    assert missing([*rows, *owed]) == []


def test_a_result_without_a_call_is_unbalanced() -> None:
    """P02: an orphan result is detected."""
    assert not is_balanced([Message(role="user", text="x"), Message(role="tool", call_id="c1", text="y")])


def test_a_call_without_a_result_is_unbalanced() -> None:
    """P02: an orphan call is detected."""
    assert not is_balanced([asking(0, 1)[1], Message(role="user", text="and?")])
