"""The tool `terminal`, over a real sandbox and a real spool."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.workspaces.harness import WorkspaceHarness as Room
from tests.workspaces.harness import alive, token, until
from tests.workspaces.harness import open_workspaces as room
from tidegate.errors import ToolFailed
from tidegate.tools import Result, ToolContext
from tidegate.tools.builtin.output import output
from tidegate.tools.builtin.terminal import terminal
from tidegate.values import new_id

pytestmark = pytest.mark.anyio


class ToolCaller:
    """The context of an agent's calls: a session's workspace and spool, and a watcher."""

    def __init__(self, workspaces: Room, session: str) -> None:
        self.workspaces = workspaces
        self.session = session
        self.watched: list[str] = []

    def context(self) -> ToolContext:
        return ToolContext(
            session=self.session,
            principal="p",
            channel="http",
            agent="main",
            turn=new_id("t"),
            workspace=self.workspaces.of(self.session),
            spool=self.workspaces.spool.of(self.session, None),
            progress=self.watched.append,
        )

    async def terminal(self, **arguments: Any) -> Result:
        result = await terminal.run(self.context(), _json(arguments))
        assert isinstance(result, Result)
        return result


def _json(arguments: dict[str, Any]) -> str:
    import msgspec

    return msgspec.json.encode(arguments).decode()


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[ToolCaller]:
    async with room(tmp_path / "home", command_seconds=20.0) as workspaces:
        yield ToolCaller(workspaces, await workspaces.new_session())


async def test_the_output_of_a_command_is_returned_and_watched_as_it_comes(caller: ToolCaller) -> None:
    result = await caller.terminal(command="echo one; echo two >&2")
    assert (result.text, result.failed) == ("one\ntwo", False)
    assert "".join(caller.watched) == "one\ntwo\n"
    assert (await caller.terminal(command="true")).text == "[no output]"


async def test_a_failed_command_reports_its_exit_code(caller: ToolCaller) -> None:
    result = await caller.terminal(command="echo wrong; exit 3")
    assert (result.text, result.failed) == ("wrong\n[exit code 3]", True)
    result = await caller.terminal(command="kill -15 $$")
    assert result.failed


async def test_directory_and_variables_stay_for_the_next_command(caller: ToolCaller) -> None:
    """B2."""
    await caller.terminal(command="mkdir d; cd d; export V=1")
    assert (await caller.terminal(command="pwd; echo $V")).text == "/workspace/d\n1"


async def test_much_output_is_shown_in_part_and_the_rest_can_be_read(caller: ToolCaller) -> None:
    """D1: head and tail, and the spool's name for the rest."""
    result = await caller.terminal(command="seq 100000; exit 5")
    assert len(result.text.encode()) <= 4096
    assert result.text.startswith("1\n2\n") and result.text.endswith("100000\n[exit code 5]")
    [name] = re.findall(r"sp_\w+", result.text)
    page = await output.run(caller.context(), _json({"id": name, "offset": 50_000, "lines": 2}))
    assert str(page).startswith("50001\n50002")


async def test_invalid_bytes_are_shown_as_replacements(caller: ToolCaller) -> None:
    assert (await caller.terminal(command="printf 'a\\xffb'")).text == "a?b"
    assert (
        await caller.terminal(command="printf 'ä'; sleep 0.1; printf '\\xc3'; sleep 0.1; printf '\\xb6'")
    ).text == "äö"
    assert "".join(caller.watched).endswith("äö")


async def test_a_timeout_is_reported_with_advice(caller: ToolCaller) -> None:
    result = await caller.terminal(command="sleep 1000", timeout=0.3)
    assert result.failed and "[it took longer than 0.3 s and was stopped; give it a longer timeout" in result.text


async def test_the_operator_limits_the_timeout(caller: ToolCaller) -> None:
    caller.workspaces.workspaces.settings = type(caller.workspaces.workspaces.settings)(command_seconds=0.5)
    result = await caller.terminal(command="sleep 1000", timeout=900)
    assert "longer than 0.5 s" in result.text


async def test_background_processes_are_ended_with_a_hint_at_the_tool_process(caller: ToolCaller) -> None:
    mark = token()
    result = await caller.terminal(command=f"sleep {mark} & echo started")
    assert result.text == (
        "started\n[1 process that it had left running in the background was killed; use the tool process for "
        "anything that should keep running]"
    )
    assert not result.failed and alive(mark) == []


async def test_stopping_the_turn_ends_the_command(caller: ToolCaller) -> None:
    mark = token()
    task = asyncio.ensure_future(caller.terminal(command=f"sleep {mark}"))
    await until(lambda: alive(f"sleep\0{mark}"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive(mark) == []
    assert list(caller.workspaces.home.joinpath("spool").glob("*/*")) == []


@pytest.mark.parametrize("arguments", [{"command": " "}, {}, {"command": "true", "timeout": 0}, {"command": 5}])
async def test_wrong_arguments_are_reported(caller: ToolCaller, arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolFailed):
        await caller.terminal(**arguments)


def test_the_terminal_declares_its_effect() -> None:
    assert (terminal.effect, terminal.repeatable, terminal.parallel, terminal.timeout) == (
        "execute",
        False,
        False,
        None,
    )
