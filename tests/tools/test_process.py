"""The tool `process`, over real processes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tools.test_terminal import ToolCaller
from tests.workspaces.harness import alive, token, until
from tests.workspaces.harness import open_workspaces as room
from tidegate.errors import ToolFailed
from tidegate.tools import Result
from tidegate.tools.builtin.terminal.processes import process

pytestmark = pytest.mark.anyio


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[ToolCaller]:
    async with room(tmp_path / "home") as workspaces:
        yield ToolCaller(workspaces, await workspaces.new_session())


async def call(caller: ToolCaller, action: str, **arguments: Any) -> Result:
    result = await process.run(caller.context(), msgspec.json.encode({"action": action, **arguments}).decode())
    assert isinstance(result, Result)
    return result


async def test_a_server_is_started_once_watched_and_stopped(caller: ToolCaller) -> None:
    """S09: start, list, output since, write, wait, stop."""
    mark = token()
    serve = f"echo listening; while read line; do echo got $line; done; sleep {mark}"
    assert (
        await call(caller, "start", name="server", command=serve)
    ).text == "[server is running]\nlistening\n[next: since=10]"
    again = await call(caller, "start", name="server", command=serve)
    assert (again.text, again.failed) == ("[server is already running]", False)
    other = await call(caller, "start", name="server", command="sleep 5")
    assert other.failed and "with another command: echo listening" in other.text
    assert (await call(caller, "write", name="server", input="hello\n")).text == "[6 bytes were written]"
    waited = await call(caller, "wait", name="server", pattern="got (hello|bye)", since=10)
    assert waited.text == "[server printed: got hello]\ngot hello\n[next: since=20]"
    listed = (await call(caller, "list")).text
    assert listed.startswith("server: has been running for ") and "20 bytes of output" in listed
    await call(caller, "write", name="server", input="", close=True)
    stopped = await call(caller, "stop", name="server")
    assert stopped.text.startswith("[server was stopped") and alive(mark) == []
    assert "was stopped" in (await call(caller, "list")).text
    assert (await call(caller, "output", name="server", since=20)).text == "[next: since=20]"


async def test_a_process_that_ends_immediately_is_reported_by_the_start(caller: ToolCaller) -> None:
    result = await call(caller, "start", name="typo", command="no-such-program")
    assert result.failed and "ended immediately with exit code 127" in result.text
    assert "no-such-program: command not found" in result.text


async def test_waiting_reports_how_the_process_ended(caller: ToolCaller) -> None:
    await call(caller, "start", name="slow", command="sleep 1000")
    late = await call(caller, "wait", name="slow", timeout=0.2)
    assert late.failed and late.text == "[0.2 s have passed; slow is still running]\n[next: since=0]"
    await call(caller, "start", name="job", command="read x; exit 4")
    await call(caller, "write", name="job", input="", close=True)
    over = await call(caller, "wait", name="job", pattern="never")
    assert over.failed and over.text.startswith("[job has ended with exit code 4]")


async def test_much_output_is_shown_from_its_end_and_can_be_paged(caller: ToolCaller) -> None:
    """D1."""
    await call(caller, "start", name="much", command="seq 10000")
    await call(caller, "wait", name="much")
    last = (await call(caller, "output", name="much")).text
    assert "bytes before this are not shown" in last and "\n10000\n[next: since=48894]" in last
    first = (await call(caller, "output", name="much", since=0)).text
    assert first.startswith("1\n2\n3\n") and "[next: since=8192]" in first


async def test_no_more_finished_ones_are_listed_than_are_kept(tmp_path: Path) -> None:
    """L19: at every moment, those that ended last."""
    async with room(tmp_path / "home", kept_processes=3) as workspaces:
        caller = ToolCaller(workspaces, await workspaces.new_session())
        await call(caller, "start", name="early", command="read line")
        for number in range(5):
            workspaces.clock.now += 1
            await call(caller, "start", name=f"p{number}", command="true")
            await call(caller, "wait", name=f"p{number}")  # on a busy machine even that takes a while
            listed = (await call(caller, "list")).text.splitlines()
            assert len(listed) == min(number + 1, 3) + 1
            assert any(line.startswith(f"p{number}: ") for line in listed)
        workspaces.clock.now += 1
        await call(caller, "write", name="early", input="over\n")
        await call(caller, "wait", name="early")
        listed = (await call(caller, "list")).text
        assert len(listed.splitlines()) == 3 and "early: " in listed
        for number in range(5):
            await call(caller, "start", name=f"lost{number}", command="sleep 1000")
    workspaces.clock.now += 1
    async with room(tmp_path / "home", kept_processes=3, clock=workspaces.clock) as workspaces:
        listed = (await call(ToolCaller(workspaces, caller.session), "list")).text
        assert len(listed.splitlines()) == 3 and listed.count("ended with the gateway") == 3


async def test_a_process_that_runs_too_long_is_ended_and_reported(tmp_path: Path) -> None:
    """L14: with all that came of it; one that ends in time is not touched."""
    mark = token()
    async with room(tmp_path / "home", process_seconds=1.0) as workspaces:
        caller = ToolCaller(workspaces, session := await workspaces.new_session())
        await call(caller, "start", name="late", command=f"trap '' HUP; (setsid sleep {mark} &); sleep {mark}")
        await until(lambda: not _runs(caller, session))
        assert alive(mark) == []
        told = await workspaces.take_notices(session)
        assert "'late'" in told and "was killed by signal" in told
        assert "It reached its time limit of 1 s (workspaces.process_seconds)." in told


async def test_a_process_may_be_allowed_to_run_for_ever(tmp_path: Path) -> None:
    """L14: with 0."""
    async with room(tmp_path / "home", process_seconds=0.0) as workspaces:
        caller = ToolCaller(workspaces, session := await workspaces.new_session())
        started = await call(caller, "start", name="server", command="read line; echo $line")
        site = workspaces.workspaces.present(session)
        assert (
            started.text.startswith("[server is running]") and site is not None and not site.running["server"].timed_out
        )
        await call(caller, "write", name="server", input="still here\n")
        assert "still here" in (await call(caller, "wait", name="server")).text


def _runs(caller: ToolCaller, session: str) -> bool:
    site = caller.workspaces.workspaces.present(session)
    return site is not None and bool(site.running)


async def test_an_empty_list_says_so(caller: ToolCaller) -> None:
    assert (await call(caller, "list")).text == "[there are no processes]"


@pytest.mark.parametrize(
    ("action", "arguments", "why"),
    [
        ("start", {}, "needs the name"),
        ("start", {"name": "x"}, "command is empty"),
        ("stop", {"name": "x"}, "no process named 'x'"),
        ("wait", {"name": "x", "timeout": 10_000}, "timeout"),
        ("dance", {"name": "x"}, "action"),
    ],
)
async def test_impossible_actions_are_refused(
    caller: ToolCaller, action: str, arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(ToolFailed, match=why):
        await call(caller, action, **arguments)
