"""A misbehaving server fails its own calls, and leaves nothing behind. Every server here is a real process."""

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.mcp.harness import WAIT, ServerHarness, bad_server, open_servers
from tidegate.errors import ToolFailed
from tidegate.lifetimes import RestartPolicy, ServiceFailed

pytestmark = pytest.mark.anyio

GRANDCHILD = "time.sleep(1000)\0grandchild"
"""In the command line of the processes that the servers start, which are in sessions of their own."""

EITHER = pytest.mark.parametrize("sandbox", [True, False], ids=["sandboxed", "unsandboxed"])


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def processes_with(text: str) -> list[int]:
    """The processes of this machine, in any sandbox, whose command line or environment contains this text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes() and is_alive(int(entry.name)):
                    found.append(int(entry.name))
    return found


@pytest.fixture
def mark() -> Iterator[str]:
    """A text in the arguments of the servers of a test. No process with it is left after the test."""
    text = f"mark-{os.urandom(8).hex()}"
    yield text
    assert processes_with(text) == []


@EITHER
async def test_a_server_that_exits_at_once_is_not_available_and_its_last_words_are_shown(
    home: Path, mark: str, sandbox: bool
) -> None:
    """E1, L12"""
    async with open_servers(home, {"bad": bad_server(sandbox, exit=7, mark=mark)}) as servers:
        with pytest.raises(ServiceFailed, match="exited with code 7: no configuration found"):
            await servers.ready("bad")
        assert servers.state("bad").tools is None


async def test_a_program_that_does_not_exist_is_reported_by_its_name(home: Path) -> None:
    """E1"""
    async with open_servers(home, {"bad": bad_server(sandbox=True)}) as servers:
        settings = servers.config.mcp["bad"]
        missing = type(settings)(command="no-such-program", sandbox=True, network=False)
        await servers.servers.apply({"bad": missing}, {})
        with pytest.raises(ServiceFailed, match="no-such-program"):
            await servers.ready("bad")


@EITHER
@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_a_server_that_never_answers_is_given_up_in_time_and_ended(
    home: Path, mark: str, sandbox: bool, method: str
) -> None:
    """E1, E2, L09"""
    settings = bad_server(sandbox, ignores=method, start_timeout=2.0, revision="2025", mark=mark)
    async with open_servers(home, {"bad": settings}) as servers:
        with pytest.raises(ServiceFailed, match="not ready within 2 s"):
            await servers.ready("bad")
        await servers.until(lambda: processes_with(mark) == [])


async def test_output_that_is_no_message_is_kept_with_the_log_and_changes_nothing(home: Path) -> None:
    """L12"""
    async with open_servers(home, {"bad": bad_server(garbage=True)}) as servers:
        await servers.ready("bad")
        assert (await servers.call("bad__do", what="garbage")).text == "done"
        assert (await servers.call("bad__say", text="still here")).text == "still here"
        (lines,) = servers.servers.logs("bad").values()
        assert "log line 99" in lines
        assert "this is no message" in lines


@pytest.mark.parametrize("kind", ["stdout", "endless"])
async def test_a_server_that_floods_its_output_is_ended(home: Path, mark: str, kind: str) -> None:
    """D7, L12"""
    settings = bad_server(flood=kind, mark=mark, start_timeout=WAIT, message_bytes=64 * 1024)
    async with open_servers(home, {"bad": settings}) as servers:
        before = memory()
        with pytest.raises(ServiceFailed):
            await servers.ready("bad")
        assert memory() - before < 64 * 2**20


async def test_error_output_is_read_forever_and_only_its_end_is_kept(home: Path) -> None:
    """D7"""
    async with open_servers(home, {"bad": bad_server(floods_errors=True)}) as servers:
        await servers.ready("bad")
        for number in range(20):
            assert (await servers.call("bad__say", text=str(number))).text == str(number)
        (lines,) = servers.servers.logs("bad").values()
        assert 0 < sum(map(len, lines)) <= 20_000


async def test_a_result_of_200_megabytes_fails_its_call_and_the_server_stays(home: Path) -> None:
    """D7, L24"""
    async with open_servers(home, {"bad": bad_server()}) as servers:
        await servers.ready("bad")
        pid = (await servers.call("bad__do", what="pid")).text
        before = memory()
        with pytest.raises(ToolFailed, match="message_bytes"):
            await servers.call("bad__do", what="big", megabytes=200)
        assert memory() - before < 64 * 2**20
        assert (await servers.call("bad__do", what="pid")).text == pid


async def test_a_small_message_that_would_become_a_large_object_fails_its_call(home: Path) -> None:
    """D7"""
    async with open_servers(home, {"bad": bad_server()}) as servers:
        await servers.ready("bad")
        before = memory()
        with pytest.raises(ToolFailed, match="more than 200,000 values"):
            await servers.call("bad__do", what="values", count=2_000_000)
        assert memory() - before < 64 * 2**20
        assert (await servers.call("bad__say", text="here")).text == "here"


async def test_text_with_many_commas_is_no_large_object(home: Path) -> None:
    """D7"""
    async with open_servers(home, {"bad": bad_server()}) as servers:
        await servers.ready("bad")
        text = '{[,"\\' * 100_000
        assert (await servers.call("bad__say", text=text)).text == text


@EITHER
async def test_a_server_that_crashes_at_every_third_call_is_started_again_each_time(
    home: Path, mark: str, sandbox: bool
) -> None:
    """E1, E4"""
    async with open_servers(home, {"bad": bad_server(sandbox, crash_every=3, mark=mark)}) as servers:
        await servers.ready("bad")
        answered = failed = 0
        for _ in range(7):
            try:
                await servers.call("bad__do", what="pid")
                answered += 1
            except ToolFailed as error:
                assert "the server ended during the call" in error.message
                assert "effect is unknown" in error.message
                failed += 1
        assert (answered, failed) == (5, 2)
        assert servers.state("bad").restarts == 2


async def test_a_call_fails_when_its_server_dies_and_not_at_its_time_limit(home: Path) -> None:
    """E1"""
    async with open_servers(home, {"bad": bad_server(call_timeout=10_000.0)}) as servers:
        await servers.ready("bad")
        with anyio.fail_after(WAIT), pytest.raises(ToolFailed, match="ended during the call"):
            await servers.call("bad__do", what="exit")


@EITHER
async def test_a_server_is_gone_when_it_dies_although_its_grandchild_holds_the_output(
    home: Path, mark: str, sandbox: bool
) -> None:
    """E2, L12, L15"""
    settings = bad_server(sandbox, mark=mark, restart="never", call_timeout=10_000.0)
    async with open_servers(home, {"bad": settings}) as servers:
        await servers.ready("bad")
        await servers.call("bad__do", what="child")
        await servers.until(lambda: processes_with(GRANDCHILD))
        with anyio.fail_after(WAIT), pytest.raises(ToolFailed, match="ended during the call"):
            await servers.call("bad__do", what="exit")
        await servers.until(lambda: servers.state("bad").state == "failed")
        await servers.until(lambda: processes_with(GRANDCHILD) == [])


@EITHER
async def test_stopping_ends_a_server_that_ignores_everything_and_its_escaped_grandchildren(
    home: Path, mark: str, sandbox: bool
) -> None:
    """E2, L12, L15"""
    settings = bad_server(sandbox, ignores_sigterm=True, ignores_input_end=True, child=True, mark=mark)
    async with open_servers(home, {"bad": settings}) as servers:
        await servers.ready("bad")
        assert processes_with(mark)
        await servers.until(lambda: processes_with(GRANDCHILD))
    assert processes_with(mark) == []
    assert processes_with(GRANDCHILD) == []


async def test_tools_that_change_during_a_call_reach_new_conversations_only(home: Path) -> None:
    """A4, E4"""
    async with open_servers(home, {"bad": bad_server()}) as servers:
        await servers.ready("bad")
        before = servers.toolset()
        generation = servers.servers.generation
        assert (await servers.call("bad__do", what="change")).text == "changed"
        await servers.until(lambda: servers.servers.generation > generation)
        assert {"bad__new"} <= set(servers.toolset().names)
        assert "bad__say" not in servers.toolset().names
        frozen = servers.servers.frozen_toolset("main", type(before)(), before.names)
        assert frozen.names == before.names
        vanished = frozen.get("bad__say")
        assert vanished is not None
        with pytest.raises(ToolFailed, match=r"no longer exists.*/reload"):
            await servers.run(vanished.run, "s_1", "p_1", {"text": "x"})


async def test_ten_thousand_notifications_a_second_are_throttled_and_then_the_server_is_restarted(home: Path) -> None:
    """L12, L21"""
    async with open_servers(home, {"bad": bad_server(call_timeout=WAIT)}) as servers:
        await servers.ready("bad")
        started = time.process_time()
        with anyio.fail_after(WAIT), pytest.raises(ToolFailed, match="more than 200 messages per second"):
            await servers.call("bad__do", what="notify", count=1_000_000)
        assert time.process_time() - started < 5
        assert (await servers.call("bad__say", text="again")).text == "again"
        assert servers.state("bad").restarts == 1


async def test_a_burst_of_notifications_is_no_flood(home: Path) -> None:
    """L12"""
    async with open_servers(home, {"bad": bad_server()}) as servers:
        await servers.ready("bad")
        assert (await servers.call("bad__do", what="notify", count=900)).text == "done"
        assert servers.state("bad").restarts == 0


async def test_an_answer_after_the_time_limit_is_dropped_and_the_connection_stays(home: Path) -> None:
    """E1"""
    async with open_servers(home, {"bad": bad_server(call_timeout=0.3)}) as servers:
        await servers.ready("bad")
        pid = (await servers.call("bad__do", what="pid")).text
        with pytest.raises(ToolFailed, match=r"did not answer within 0.3 s.*effect is unknown"):
            await servers.call("bad__do", what="late", seconds=0.6)
        await anyio.sleep(0.6)  # until the late answer has come
        for _ in range(3):
            assert (await servers.call("bad__do", what="pid")).text == pid


async def test_a_call_is_repeated_once_only_if_its_tool_may_be_repeated(home: Path) -> None:
    """E4"""
    record = home / "mcp" / "bad" / "work" / "record"
    async with open_servers(home, {"bad": bad_server(record="record", mark="done")}) as servers:
        await servers.ready("bad")
        assert (await servers.call("bad__do_again", what="exit_once")).text == "done"
        assert record.read_text().count("do_again") == 2
        with pytest.raises(ToolFailed, match="ended during the call"):
            await servers.call("bad__do_again", what="exit")
        assert record.read_text().count("do_again") == 4
        with pytest.raises(ToolFailed, match="ended during the call"):
            await servers.call("bad__do", what="exit")
        assert record.read_text().count("do {") == 1


async def test_a_flapping_server_is_given_up(home: Path) -> None:
    """E1, L25"""
    policy = RestartPolicy(first_pause=0.001, attempts=3)
    async with open_servers(home, {"bad": bad_server(crash_every=1)}, policy=policy) as servers:
        await servers.ready("bad")
        for _ in range(20):
            with pytest.raises(ToolFailed):
                await servers.call("bad__do", what="pid")
        assert servers.state("bad").state == "failed"
        with pytest.raises(ToolFailed, match="not available"):
            await servers.call("bad__do", what="pid")
        assert servers.state("bad").restarts == 3


async def test_a_broken_server_delays_no_other_server(home: Path) -> None:
    """E3, E4"""
    broken = bad_server(ignores="initialize", revision="2025", start_timeout=600.0, list_timeout=600.0)
    async with open_servers(home, {"bad": broken, "good": bad_server()}) as servers:
        waiting = servers.scope.start(_quietly, servers, "bad", name="waiting")
        await servers.ready("good")
        assert (await servers.call("good__say", text="quick")).text == "quick"
        assert servers.state("bad").state == "starting"
        waiting.cancel()


async def _quietly(servers: ServerHarness, name: str) -> None:
    with contextlib.suppress(ServiceFailed):
        await servers.servers.test(name)


async def test_the_stop_of_a_server_that_is_starting_is_prompt(home: Path, mark: str) -> None:
    """E2, L28"""
    broken = bad_server(ignores="initialize", revision="2025", start_timeout=600.0, list_timeout=600.0, mark=mark)
    with anyio.fail_after(WAIT):
        async with open_servers(home, {"bad": broken}) as servers:
            servers.scope.start(_quietly, servers, "bad", name="waiting")
            await servers.until(lambda: processes_with(mark))


async def test_a_hundred_starts_and_stops_leave_nothing(home: Path) -> None:
    """E2, L12: the fixtures around every test look for what is left."""
    async with open_servers(home, {"bad": bad_server()}) as servers:
        await servers.ready("bad")
        running = servers.servers.configured("bad").running[""]  # type: ignore[union-attr]
        await running.stop()
        descriptors, tasks = len(list(Path("/proc/self/fd").iterdir())), len(asyncio.all_tasks())
        for _ in range(20):
            await servers.ready("bad")
            await running.stop()
        assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
        assert len(asyncio.all_tasks()) <= tasks


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
