"""Commands in a session's shell: what they see, what persists, and how they end."""

import asyncio
import os
import resource
import time
from pathlib import Path

import anyio
import pytest

from tests.workspaces.harness import WAIT, WorkspaceHarness, alive, open_workspaces, token, until
from tidegate.errors import ToolFailed

pytestmark = pytest.mark.anyio

# -- what lasts --------------------------------------------------------------------------------------------------------


async def test_directory_variables_functions_and_aliases_persist_between_commands(
    harness: WorkspaceHarness, session: str
) -> None:
    """B2: each command starts where the last one left the shell."""
    await harness.output_of(session, "mkdir -p deep/er; cd deep/er; export NAME='a  b'; greet() { echo hello $1; }")
    await harness.output_of(session, "alias twice='echo x; echo'; cd() { builtin cd \"$@\" && echo moved; }")
    assert await harness.output_of(session, 'pwd; echo "$NAME"; greet you; twice y; cd ..; pwd') == (
        "/workspace/deep/er\na  b\nhello you\nx\ny\nmoved\n/workspace/deep"
    )
    assert await harness.output_of(session, "cd - >/dev/null; pwd") == "/workspace/deep/er"


async def test_the_shell_is_kept_when_the_command_fails_or_leaves_it(harness: WorkspaceHarness, session: str) -> None:
    done, _ = await harness.run(session, "cd /tmp; export A=1; exit 7")
    assert done.code == 7
    done, _ = await harness.run(session, "set -e; export B=2; false; export C=3")
    assert done.code == 1
    done, printed = await harness.run(session, "trap 'echo theirs' EXIT; export D=4")
    assert (done.code, printed) == (0, "theirs\n")
    assert (
        await harness.output_of(session, "echo $PWD $A $B $C $D; set -o | grep -c 'errexit.*on'; true")
        == "/tmp 1 2 4\n0"
    )


async def test_a_shell_outlives_its_sandbox_and_the_gateway(home: Path) -> None:
    """B1, B2, V11: the shell is a row, so closing a sandbox or stopping the gateway loses nothing of it."""
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "cd /tmp; export X=kept; f() { echo function; }; echo file > /tmp/there")
        live_sandbox = harness.live_sandbox(session)
        assert live_sandbox is not None
        await harness.workspaces.close_sandbox(live_sandbox)
        assert await harness.output_of(session, "pwd; echo $X; f; cat there") == "/tmp\nkept\nfunction\nfile"
    async with open_workspaces(home) as harness:
        assert await harness.output_of(session, "pwd; echo $X; f; cat there") == "/tmp\nkept\nfunction\nfile"


async def test_if_the_directory_is_gone_the_next_command_starts_in_the_workspace(
    harness: WorkspaceHarness, session: str
) -> None:
    await harness.output_of(session, "mkdir gone; cd gone; rmdir ../gone")
    assert await harness.output_of(session, "pwd") == "/workspace"


async def test_a_shell_that_is_too_large_is_not_kept_and_that_is_reported(
    harness: WorkspaceHarness, session: str
) -> None:
    """L24: a saved shell is bounded."""
    await harness.output_of(session, "export KEPT=1")
    done, _ = await harness.run(session, "for i in 1 2 3; do export V$i=$(head -c 100000 /dev/zero | tr '\\0' x); done")
    assert "KiB and were not kept" in done.note
    assert await harness.output_of(session, "echo $KEPT ${#V1}") == "1 0"


@pytest.mark.parametrize("command", ["exec true", "kill -9 $$", "printf 'cd /usr' >&9; exec true"])
async def test_a_command_that_replaces_its_shell_keeps_the_old_state(
    harness: WorkspaceHarness, session: str, command: str
) -> None:
    await harness.output_of(session, "cd /tmp")
    done, _ = await harness.run(session, command)
    assert "replaced or killed its shell" in done.note
    assert await harness.output_of(session, "pwd") == "/tmp"


async def test_a_forged_shell_state_does_not_break_later_commands(harness: WorkspaceHarness, session: str) -> None:
    """A command can write anything to the state channel; the next command still runs."""
    await harness.run(session, 'printf "if \' broken\\n# saved\\nleft 0\\n" >&9; exec true')
    done, printed = await harness.run(session, "echo still here")
    assert done.code == 0 and printed.endswith("still here\n")
    assert await harness.output_of(session, "echo again") == "again"


# -- how a command runs ------------------------------------------------------------------------------------------------


async def test_output_and_errors_come_in_order_with_the_exit_code(harness: WorkspaceHarness, session: str) -> None:
    done, printed = await harness.run(session, "echo one; echo two >&2; echo three; (exit 3)")
    assert (done.code, printed, done.note, done.left_behind) == (3, "one\ntwo\nthree\n", "", 0)


async def test_a_prompt_gets_end_of_file_instead_of_waiting(harness: WorkspaceHarness, session: str) -> None:
    assert await harness.output_of(
        session, "read answer || echo nobody answers; cat; test -t 0 || echo no terminal"
    ) == ("nobody answers\nno terminal")


async def test_a_terminal_is_provided_on_request(harness: WorkspaceHarness, session: str) -> None:
    assert "/dev/pts/" in await harness.output_of(session, "tty; stty size", pty=True)
    done, _ = await harness.run(session, "exit 9", pty=True)
    assert done.code == 9


async def test_a_long_command_and_any_text_arrive_as_they_are(harness: WorkspaceHarness, session: str) -> None:
    text = "x" * 200_000
    assert await harness.output_of(session, f"cat <<'END' | wc -c\n{text}\nEND") == "200001"
    assert await harness.output_of(session, "echo \"äöü '$((1+1))' \\$HOME\"; # comment") == "äöü '2' $HOME"


@pytest.mark.parametrize(
    ("command", "why"), [("  ", "command is empty"), ("echo \0", "zero byte"), ("x" * 2**21, "longer")]
)
async def test_a_command_that_cannot_be_run_is_refused_in_a_sentence(
    harness: WorkspaceHarness, session: str, command: str, why: str
) -> None:
    with pytest.raises(ToolFailed, match=why):
        await harness.run(session, command)


async def test_a_gigabyte_of_output_is_not_held_in_memory(harness: WorkspaceHarness, session: str) -> None:
    """D7, L24: memory moves by less than 16 MiB, whatever a command prints."""
    await harness.output_of(session, "true")
    before, most, total = _resident(), 0, 0

    async def sink(data: bytes) -> None:
        nonlocal most, total
        total += len(data)
        most = max(most, _resident()) if total % (1 << 24) < len(data) else most

    done = await harness.of(session).run("head -c 1073741824 /dev/zero", timeout=120, sink=sink)
    assert (done.code, total) == (0, 1 << 30)
    assert most - before < 16 << 20


def _peak() -> int:
    """The peak memory of this process since its start, so that short peaks count too."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_sink_that_fails_ends_the_command(harness: WorkspaceHarness, session: str) -> None:
    mark = token()

    async def sink(data: bytes) -> None:
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError, match="no space"):
        await harness.of(session).run(f"echo x; sleep {mark}", timeout=WAIT, sink=sink)
    assert alive(mark) == []


# -- how a command ends ------------------------------------------------------------------------------------------------


async def test_a_command_that_times_out_ends_with_its_whole_tree(harness: WorkspaceHarness, session: str) -> None:
    """L14: children, their children and processes that left the group; the shell is kept."""
    mark = token()
    tree = f"cd /tmp; (setsid bash -c 'trap \"\" TERM; sleep {mark}' &); (sleep {mark} & wait) & sleep {mark}"
    done, _ = await harness.run(session, tree, timeout=3)
    assert done.timed_out and done.code is None
    assert alive(mark) == []
    assert await harness.output_of(session, "pwd") == "/tmp"


async def test_a_stopped_turn_ends_its_command(harness: WorkspaceHarness, session: str) -> None:
    """L14: when the cancellation is complete, the command and its tree are gone."""
    mark = token()
    tree = f"(setsid bash -c 'trap \"\" TERM; while :; do sleep {mark}; done' &); trap '' TERM; sleep {mark}; sleep 9"
    async with asyncio.TaskGroup() as group:
        task = group.create_task(harness.run(session, tree))
        await until(lambda: len(alive(mark)) >= 3)
        task.cancel()
    assert alive(mark) == []
    assert await harness.output_of(session, "echo fine") == "fine"


async def test_a_command_that_ignores_sigterm_is_stopped_within_a_second_of_one_that_does_not(
    harness: WorkspaceHarness, session: str
) -> None:
    """L14: compared with the normal duration, so that a busy machine affects both."""

    async def stopped(command: str) -> float:
        mark = token()
        task = asyncio.ensure_future(harness.run(session, command.format(mark)))
        await until(lambda: alive(f"sleep\0{mark}"))
        begun = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert alive(mark) == []
        return time.monotonic() - begun

    deaf = [await stopped("trap '' TERM; sleep {0}; sleep {0}") for _ in range(3)]
    plain = [await stopped("sleep {0}") for _ in range(3)]
    assert min(deaf) < min(plain) + 1


async def test_endless_state_channel_output_is_not_held(harness: WorkspaceHarness, session: str) -> None:
    """L24: a command can write to it without end."""
    await harness.output_of(session, "true")
    before = _peak()
    done, _ = await harness.run(session, "head -c 200000000 /dev/zero >&9")
    assert done.code == 0 and "KiB and were not kept" in done.note
    assert _peak() - before < 64 << 20


async def test_a_turn_that_is_stopped_twice_still_ends_its_command(harness: WorkspaceHarness, session: str) -> None:
    """L14, L23: a stop, followed at once by the turn's timeout."""
    mark = token()
    tree = f"(setsid bash -c 'trap \"\" TERM; while :; do sleep {mark}; done' &); trap '' TERM; sleep {mark}; sleep 9"
    for pause in (0, 1, 3, 10, 30):
        task = asyncio.ensure_future(harness.run(session, tree))
        await until(lambda: len(alive(mark)) >= 3)
        for _ in range(4):
            task.cancel()
            for _ in range(pause):
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert alive(mark) == []


@pytest.mark.parametrize(
    "start",
    ["sleep {0} &", "(setsid sleep {0} &)", "setsid nohup sleep {0} >/dev/null 2>&1 &", "(env -i setsid sleep {0} &)"],
    ids=["a job", "out of the group", "without the streams", "without a mark"],
)
async def test_processes_left_by_a_command_are_ended_and_counted(
    harness: WorkspaceHarness, session: str, start: str
) -> None:
    mark = token()
    done, printed = await harness.run(session, f"{start.format(mark)}\necho started")
    assert (done.code, printed, done.left_behind) == (0, "started\n", 1)
    assert alive(mark) == []


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_a_crowd_of_processes_ends_with_its_sandbox(home: Path, backend: str) -> None:
    """L14: without control groups, the kernel refuses more processes in a sandbox; without a sandbox, the whole command
    is ended and reported."""
    mark = token()
    async with open_workspaces(home, backend=backend, polled=True, processes=40) as harness:
        session = await harness.new_session()
        crowd = f"for i in $(seq 200); do (setsid env -i sleep {mark} &) ; done; sleep {mark}"
        running = asyncio.ensure_future(harness.run(session, crowd))
        await until(lambda: len(alive(f"sleep\0{mark}")) > 20 or running.done())
        if backend == "bubblewrap":
            assert len(alive(f"sleep\0{mark}")) <= 40
            running.cancel()  # a shell that cannot fork retries for half a minute
            await asyncio.wait([running])
        else:
            done, _ = await running
            assert done.code not in (0, None) and "more than 40 (workspaces.processes)" in done.note
            assert "workspaces.processes" in await harness.take_notices(session)
        await until(lambda: alive(mark) == [])
        assert await harness.output_of(session, "echo fine") == "fine"


async def test_a_command_does_not_wait_for_a_process_that_holds_its_output(
    harness: WorkspaceHarness, session: str
) -> None:
    """A command does not wait for a background process that holds its output."""
    await harness.of(session).start("other", "sleep 1000")
    with anyio.fail_after(WAIT):
        done, printed = await harness.run(session, "echo quick")
    assert (done.code, printed, done.left_behind) == (0, "quick\n", 0)
    assert [process.state for process in await harness.of(session).list()] == ["running"]
