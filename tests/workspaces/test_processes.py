"""Named background processes: started once, watched, written to, waited for, ended, and reported."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import core
from tests.effects import results
from tests.workspaces.harness import WAIT, WorkspaceHarness, alive, open_workspaces, token, until
from tidegate.agent import Conversation
from tidegate.errors import ToolFailed
from tidegate.store import processes, workspaces
from tidegate.workspaces.backends.bubblewrap import BubblewrapBackend
from tidegate.workspaces.backends.bubblewrap_sandbox import BubblewrapSandbox
from tidegate.workspaces.backends.interface import Backend, SandboxSpec
from tidegate.workspaces.bounds import WorkspaceBounds
from tidegate.workspaces.processes.background import MOST_RUNNING
from tidegate.workspaces.processes.children import Spawner

pytestmark = pytest.mark.anyio


async def ended(harness: WorkspaceHarness, session: str, name: str) -> Any:
    """Wait for the process to end."""
    with anyio.fail_after(WAIT):
        return (await harness.of(session).wait(name, pattern=None, timeout=WAIT)).process


# -- start -------------------------------------------------------------------------------------------------------------


async def test_a_process_that_runs_is_not_started_again(harness: WorkspaceHarness, session: str) -> None:
    """S09: the name is the identity of a background command; retries find what is there."""
    mark = token()
    first = await harness.of(session).start("server", f"sleep {mark}")
    again = await harness.of(session).start("server", f"sleep {mark}")
    assert (first.new, again.new, again.state) == (True, False, "running")
    await until(lambda: alive(mark))
    assert len({process.name for process in await harness.of(session).list()}) == 1


async def test_many_starts_at_once_start_one(harness: WorkspaceHarness, session: str) -> None:
    """S09, L25."""
    views = await asyncio.gather(*(harness.of(session).start("one", "sleep 1000") for _ in range(10)))
    assert sum(view.new for view in views) == 1
    assert len(await harness.store.read(processes.of_session, session, principal=None)) == 1


async def test_a_process_starts_where_the_shell_is_and_changes_nothing_there(
    harness: WorkspaceHarness, session: str
) -> None:
    await harness.output_of(session, "mkdir here; cd here; export WHO=me; f() { echo fun; }")
    await harness.of(session).start("look", "pwd; echo $WHO; f; cd /; export WHO=you")
    await ended(harness, session, "look")
    assert (await harness.of(session).output("look", limit=1000)).text == "/workspace/here\nme\nfun\n"
    assert await harness.output_of(session, "pwd; echo $WHO") == "/workspace/here\nme"


async def test_a_process_has_a_row_before_it_starts_and_a_failed_start_is_recorded(home: Path) -> None:
    """L09: ownership is recorded before the spawn."""
    seen: list[list[str]] = []

    class Refusing(BubblewrapBackend):
        async def open(self, spec: SandboxSpec) -> BubblewrapSandbox:
            rows = await harness.store.read(processes.of_session, spec.session, principal=None)
            seen.append([row.state for row in rows])
            raise ToolFailed("No sandbox today.")

    def refusing(name: str) -> Backend:
        return Refusing(Spawner(frozenset({0})))

    async with open_workspaces(home, backends=refusing) as harness:
        session = await harness.new_session()
        with pytest.raises(ToolFailed, match="No sandbox today"):
            await harness.of(session).start("server", "sleep 1000")
        assert seen == [["starting"]]
        assert [view.state for view in await harness.of(session).list()] == ["ended"]


async def test_a_start_that_is_cancelled_leaves_no_process(harness: WorkspaceHarness, session: str) -> None:
    mark = token()
    for turns in range(12):
        task = asyncio.ensure_future(harness.of(session).start(f"p{turns}", f"sleep {mark}"))
        for _ in range(turns * 3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    views = await harness.of(session).list()
    running = {view.name for view in views if view.live}
    live_sandbox = harness.live_sandbox(session)
    assert running == (set() if live_sandbox is None else set(live_sandbox.running))
    for name in running:
        await harness.of(session).stop(name)
    await until(lambda: alive(mark) == [])


async def test_the_number_of_processes_of_a_session_is_bounded(harness: WorkspaceHarness, session: str) -> None:
    for number in range(MOST_RUNNING):
        await harness.of(session).start(f"p{number}", "sleep 1000")
    with pytest.raises(ToolFailed, match=f"{MOST_RUNNING} processes are already running"):
        await harness.of(session).start("more", "sleep 1000")


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "ä"])
async def test_a_process_name_must_be_plain(harness: WorkspaceHarness, session: str, name: str) -> None:
    with pytest.raises(ToolFailed, match="letters, digits"):
        await harness.of(session).start(name, "true")


async def test_in_an_ended_session_nothing_is_started(harness: WorkspaceHarness, session: str) -> None:
    await harness.output_of(session, "true")
    await harness.end(session)
    with pytest.raises(ToolFailed, match="ended"):
        await harness.of(session).start("late", "sleep 1000")
    with pytest.raises(ToolFailed, match="ended"):
        await harness.run(session, "true")
    assert harness.home.joinpath("workspaces", session).exists() is False


# -- output and input --------------------------------------------------------------------------------------------------


async def test_output_is_read_on_from_where_it_was_left(harness: WorkspaceHarness, session: str) -> None:
    mine = harness.of(session)
    await mine.start("steps", 'while read line; do echo "got $line"; done')
    await mine.write("steps", b"one\n")
    assert (await mine.wait("steps", pattern="got one", timeout=WAIT)).matched == "got one"
    page = await mine.output("steps", since=0, limit=1000)
    assert page == ("got one\n", 8, 0)
    await mine.write("steps", b"two\nthree\n", close=True)
    await ended(harness, session, "steps")
    assert await mine.output("steps", since=page.next, limit=1000) == ("got two\ngot three\n", 26, 0)
    assert await mine.output("steps", since=26, limit=1000) == ("", 26, 0)
    assert (await mine.output("steps", limit=6)).text == "three\n"


async def test_no_character_is_cut_in_two(harness: WorkspaceHarness, session: str) -> None:
    mine = harness.of(session)
    await mine.start("wide", "printf 'aäöü€'; sleep 1000")
    await mine.wait("wide", pattern="€", timeout=WAIT)
    pages, at = [], 0
    while (page := await mine.output("wide", since=at, limit=4)).text:
        pages.append(page.text)
        at = page.next
    assert "".join(pages) == "aäöü€" and "\N{REPLACEMENT CHARACTER}" not in "".join(pages)
    assert (await mine.output("wide", limit=4)).text == "€"


async def test_a_log_is_bounded_and_says_what_is_gone(home: Path) -> None:
    """L19, D4: two files of half the limit each; offsets stay valid."""
    async with open_workspaces(home, process_log_bytes=64 * 1024) as harness:
        session = await harness.new_session()
        mine = harness.of(session)
        await mine.start("much", "seq 100000")
        view = await ended(harness, session, "much")
        whole = "".join(f"{number}\n" for number in range(1, 100001))
        assert view.bytes == len(whole)
        kept = sum(file.stat().st_size for file in (home / "spool" / session).iterdir())
        assert kept <= 64 * 1024 + 100
        page = await mine.output("much", since=0, limit=1 << 20)
        assert page.dropped > 0 and page.text == whole[page.dropped :] and page.next == len(whole)
        assert (await mine.output("much", since=len(whole) - 7, limit=100)).text == "100000\n"


async def test_a_process_that_does_not_read_is_not_waited_for(home: Path) -> None:
    async with open_workspaces(home, bounds=WorkspaceBounds(write_seconds=0.2)) as harness:
        mine = harness.of(await harness.new_session())
        await mine.start("deaf", "sleep 1000")
        with pytest.raises(ToolFailed, match="did not read all"):
            await mine.write("deaf", b"x" * 1_000_000)
        with pytest.raises(ToolFailed, match="not read its earlier input"):
            await mine.write("deaf", b"x")


async def test_an_ended_or_unknown_process_cannot_be_written_to(harness: WorkspaceHarness, session: str) -> None:
    mine = harness.of(session)
    await mine.start("short", "true")
    await ended(harness, session, "short")
    with pytest.raises(ToolFailed, match="is no longer running"):
        await mine.write("short", b"x")
    with pytest.raises(ToolFailed, match=r"no process named 'other'; the processes are: short"):
        await mine.output("other", limit=10)


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_a_pattern_is_found_in_what_comes_later_and_in_a_prompt_without_a_line_break(
    harness: WorkspaceHarness, session: str
) -> None:
    mine = harness.of(session)
    await mine.start("slow", "echo first; read go; printf 'name: '; read name; echo \"hello $name\"; sleep 1000")
    await mine.wait("slow", pattern="^first$", timeout=WAIT)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(mine.wait("slow", pattern="(pass|na)me?: ", timeout=WAIT))
        await mine.write("slow", b"go\n")
    assert waiting.result().matched == "name: "
    await mine.write("slow", b"you\n")
    assert (await mine.wait("slow", pattern="hello", timeout=WAIT, since=6)).matched == "name: hello you"


async def test_a_pattern_far_inside_much_output_is_found(harness: WorkspaceHarness, session: str) -> None:
    await harness.of(session).start("much", "seq 200000; echo needle; seq 1000; sleep 1000")
    assert (await harness.of(session).wait("much", pattern="needle", timeout=WAIT)).matched == "needle"


async def test_waiting_ends_with_its_time_and_with_the_process(harness: WorkspaceHarness, session: str) -> None:
    mine = harness.of(session)
    await mine.start("quiet", "sleep 1000")
    waited = await mine.wait("quiet", pattern="never", timeout=0.3)
    assert waited.matched is None and waited.process.state == "running"
    await mine.start("brief", "echo something; exit 4")
    waited = await mine.wait("brief", pattern="never", timeout=WAIT)
    assert waited.matched is None and (waited.process.state, waited.process.exit_code) == ("exited", 4)


async def test_an_expensive_pattern_delays_only_its_own_session(harness: WorkspaceHarness, session: str) -> None:
    """L20: the search runs in the sandbox, not in the gateway."""
    mine = harness.of(session)
    await mine.start("p", "echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!; sleep 1000")
    with anyio.fail_after(WAIT):
        assert (await mine.wait("p", pattern="(a+)+$", timeout=1)).matched is None
    with pytest.raises(ToolFailed, match="not a valid extended regular expression"):
        await mine.wait("p", pattern="(", timeout=WAIT)


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_stop_asks_first_and_ends_the_whole_tree(harness: WorkspaceHarness, session: str) -> None:
    mark = token()
    mine = harness.of(session)
    await mine.start("tree", f"(setsid sleep {mark} &); trap 'echo asked; exit 3' TERM; echo up; sleep {mark} & wait")
    await mine.wait("tree", pattern="up", timeout=WAIT)
    view = await mine.stop("tree")
    assert (view.state, view.exit_code) == ("ended", 3)
    assert "asked" in (await mine.output("tree", limit=100)).text
    assert alive(mark) == []
    assert await harness.take_notices(session) == ""


async def test_a_process_that_ignores_sigterm_is_killed(home: Path) -> None:
    mark = token()
    async with open_workspaces(home, bounds=WorkspaceBounds(stop_grace=0.2)) as harness:
        mine = harness.of(await harness.new_session())
        await mine.start("deaf", f"trap '' TERM; echo up; sleep {mark}; sleep {mark}")
        await mine.wait("deaf", pattern="up", timeout=WAIT)
        assert (await mine.stop("deaf")).state == "ended"
        assert alive(mark) == []


async def test_an_end_is_reported_with_the_next_message_unless_awaited(harness: WorkspaceHarness, session: str) -> None:
    mine = harness.of(session)
    await mine.start("build", "echo almost; exit 2")
    await until(lambda: not _running(harness, session))
    told = await harness.take_notices(session)
    assert "'build' (echo almost; exit 2) has ended with exit code 2" in told and told.endswith("almost")
    await mine.start("waited", "read; true")
    async with asyncio.TaskGroup() as group:
        group.create_task(ended(harness, session, "waited"))
        await asyncio.sleep(0)
        await mine.write("waited", b"", close=True)
    assert await harness.take_notices(session) == ""
    assert harness.finished == []


async def test_a_process_with_notify_starts_a_turn_when_it_ends(harness: WorkspaceHarness, session: str) -> None:
    """S08: "tell me when it is done"."""
    await harness.of(session).start("job", "echo result; true", notify=True)
    await until(lambda: harness.finished)
    [(name, text)] = harness.finished
    assert name == "job" and "exit code 0" in text and text.endswith("result")
    await until(lambda: not _running(harness, session))
    assert await harness.take_notices(session) == ""


async def test_an_end_whose_turn_cannot_start_is_reported_with_the_next_message(
    harness: WorkspaceHarness, session: str
) -> None:
    async def fail(row: Any, text: str) -> None:
        raise RuntimeError("no turns today")

    harness.workspaces.processes.finished = fail
    await harness.of(session).start("job", "true", notify=True)
    await until(lambda: not _running(harness, session))
    assert "exit code 0" in await harness.take_notices(session)


async def test_processes_left_behind_end_with_their_process(harness: WorkspaceHarness, session: str) -> None:
    mark = token()
    await harness.of(session).start("leaver", f"(env -i setsid sleep {mark} &); exit 0")
    await until(lambda: not _running(harness, session))
    assert alive(mark) == []
    assert "left 1 process running, which was ended" in await harness.take_notices(session)


async def test_finished_processes_are_kept_up_to_a_limit(home: Path) -> None:
    """L19: the last ones, with their logs; older ones are removed with theirs."""
    async with open_workspaces(home, kept_processes=3) as harness:
        session = await harness.new_session()
        for number in range(6):
            harness.clock.now += 1
            await harness.of(session).start(f"p{number}", f"echo {number}")
            await ended(harness, session, f"p{number}")
        views = await harness.of(session).list()
        assert views[0].name == "p5" and len(views) <= 4
        logs = {file.stem for file in (home / "spool" / session).iterdir()}
        assert len(logs) == len(views)
        assert (await harness.of(session).output("p5", limit=10)).text == "5\n"


async def test_endless_output_does_not_block_the_gateway(harness: WorkspaceHarness, session: str) -> None:
    """L21: its output is read at a bounded rate, and the process waits."""
    mine = harness.of(session)
    await mine.start("yes", "yes")
    await until(lambda: _written(harness, session, "yes") > 8 << 20)
    with anyio.fail_after(WAIT):
        assert await harness.output_of(session, "echo fine") == "fine"
        await mine.stop("yes")


async def test_output_is_read_at_a_bounded_rate(home: Path) -> None:
    """L21: three seconds' worth of output takes at least two seconds, however fast it comes."""
    loop = asyncio.get_running_loop()
    async with open_workspaces(home, bounds=WorkspaceBounds(pace_bytes=1 << 20)) as harness:
        session = await harness.new_session()
        begun = loop.time()
        await harness.of(session).start("yes", "yes")
        await until(lambda: _written(harness, session, "yes") > 3 << 20)
        assert loop.time() - begun >= 2
        await harness.of(session).stop("yes")


@pytest.mark.parametrize("how", ["asked for", "idle"])
async def test_unloading_a_session_keeps_its_processes(home: Path, model: ScriptedModel, how: str) -> None:
    """B1, B2, S08, V11, V12: a running process does not keep its session's resident in memory. When the resident is
    unloaded, the process, the shell's directory and its variables stay."""
    mark = token()
    sandbox = '[workspaces]\nbackend = "bubblewrap"'
    async with core(home, sandbox, model=model, tools='"terminal"') as gateway:
        session = (await gateway.say(_calls("process", action="start", name="server", command=f"sleep {mark}"))).session
        await gateway.say(_calls("terminal", command="cd /tmp; export A=b"))
        await until(lambda: alive(f"sleep\0{mark}"))
        presence, before = gateway.components.presence, alive(mark)
        live_sandbox, record = gateway.components.workspaces.present(session), presence.get(session)
        assert live_sandbox is not None and record is not None and isinstance(record.resident, Conversation)
        if how == "asked for":
            assert presence.unload(session, reason="test")
        else:
            assert presence.sweep(record.used + presence.idle_ttl + 1) == 1
        await until(lambda: presence.stats().residents == 0 and not presence.releasing)
        assert presence.get(session) is record and record.resident is None
        assert gateway.components.workspaces.present(session) is live_sandbox and list(live_sandbox.running) == [
            "server"
        ]
        assert alive(mark) == before
        await gateway.say(_calls("terminal", command="echo $PWD $A"))
        assert results(gateway)[-1].startswith("/tmp b")
        await gateway.say(_calls("process", action="list"))
        assert "server: has been running" in results(gateway)[-1]
        assert alive(mark) == before
        assert (await gateway.store.read(workspaces.get, session)).state == "live"


def _calls(tool: str, **arguments: str) -> str:
    """A message on which the model calls a tool."""
    return f"[tool {tool} {json.dumps(arguments)}] [say done]"


def _running(harness: WorkspaceHarness, session: str) -> dict[str, Any]:
    live_sandbox = harness.live_sandbox(session)
    return {} if live_sandbox is None else live_sandbox.running


def _written(harness: WorkspaceHarness, session: str, name: str) -> int:
    return _running(harness, session)[name].log.total
