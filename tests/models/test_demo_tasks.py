"""The demo model delegates tasks to other agents with the phrases that docs/demo-model.md documents."""

import msgspec
import pytest

from tidegate.models.demo.script import read_request as read
from tidegate.models.demo.script import reply

TOOLS = [{"type": "function", "function": {"name": "delegate", "parameters": {}}}]


def demo_request(text: str, *, tools: bool = True) -> bytes:
    messages = [{"role": "user", "content": text}]
    return msgspec.json.encode({"messages": messages, "tools": TOOLS if tools else []})


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("delegate to helper: what time is it?", [("helper", "what time is it?")]),
        ("Delegate to a: say x; delegate to b: say y", [("a", "say x"), ("b", "say y")]),
        ("delegate to a: delegate to b: say x", [("a", "delegate to b: say x")]),
        ("delegate to a: call x {}; call y {}", [("a", "call x {}; call y {}")]),
    ],
)
def test_it_delegates_tasks_in_plain_words(text: str, tasks: list[tuple[str, str]]) -> None:
    calls = reply(read(demo_request(text))).calls
    assert [call.name for call in calls] == ["delegate"] * len(tasks)
    given = [msgspec.json.decode(call.arguments) for call in calls]
    assert [(each["agent"], each["task"]) for each in given] == tasks
    assert len({call.id for call in calls}) == len(tasks)


def test_it_says_that_the_delegate_tool_is_missing() -> None:
    assert "no delegate tool" in reply(read(demo_request("delegate to a: say x", tools=False))).text
    assert not reply(read(demo_request("say delegate to a: b"))).calls
