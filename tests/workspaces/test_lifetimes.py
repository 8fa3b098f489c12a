"""What of a workspace survives what: the loss of its sandbox, a restart of the gateway, the end of its session."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from anyio import to_thread

from tests.logs import capture_logs
from tests.workspaces.harness import Clock, WorkspaceHarness, alive, open_workspaces, token, until
from tidegate.errors import ToolFailed
from tidegate.store import processes, sessions, workspaces
from tidegate.workspaces.backends.bubblewrap import BubblewrapBackend
from tidegate.workspaces.backends.interface import Backend
from tidegate.workspaces.bounds import DEFAULT_BOUNDS, WorkspaceBounds
from tidegate.workspaces.kernel.process_table import start_ticks
from tidegate.workspaces.processes.children import Spawner

pytestmark = pytest.mark.anyio

DAY = 86400.0


def box_pid(harness: WorkspaceHarness, session: str) -> int:
    live_sandbox = harness.live_sandbox(session)
    assert live_sandbox is not None and live_sandbox.sandbox is not None and live_sandbox.sandbox.pid is not None
    return live_sandbox.sandbox.pid


# -- the box -----------------------------------------------------------------------------------------------------------


async def test_a_session_gets_its_sandbox_with_its_first_command(harness: WorkspaceHarness, session: str) -> None:
    """L29: a session that runs nothing has no sandbox, no folder and no row."""
    mine = harness.of(session)
    assert await mine.list() == () and await mine.sandboxed()
    assert harness.live_sandbox(session) is None and not (harness.home / "workspaces").exists()
    assert await harness.store.read(workspaces.get, session) is None
    await harness.output_of(session, "true")
    assert (harness.home / "workspaces" / session).stat().st_mode & 0o777 == 0o700
    assert (await harness.store.read(workspaces.get, session)).backend == "bubblewrap"


async def test_concurrent_first_commands_open_one_sandbox(harness: WorkspaceHarness, session: str) -> None:
    """L25: single flight."""
    said = await asyncio.gather(*(harness.output_of(session, "readlink /proc/self/ns/pid") for _ in range(12)))
    assert len(set(said)) == 1


async def test_a_sandbox_ended_from_outside_is_opened_again_and_the_agent_is_told(
    harness: WorkspaceHarness, session: str
) -> None:
    """S10: the loss of state is reported; files and the shell are unchanged."""
    mark = token()
    await harness.output_of(session, "cd /tmp; echo kept > file")
    await harness.of(session).start("server", f"sleep {mark}")
    os.kill(box_pid(harness, session), signal.SIGKILL)
    await until(lambda: not harness.live_sandbox(session).running)  # type: ignore[union-attr]
    assert await harness.output_of(session, "pwd; cat file") == "/tmp\nkept"
    told = await harness.take_notices(session)
    assert "killed from outside" in told and "'server'" in told
    assert [view.state for view in await harness.of(session).list()] == ["lost"]
    assert alive(mark) == []


async def test_the_loss_of_an_idle_sandbox_is_reported_too(harness: WorkspaceHarness, session: str) -> None:
    """S10: what was in its memory is lost; that is reported once, on the timer or with the next command."""
    for look in (harness.workspaces.reconcile, lambda: harness.output_of(session, "true")):
        await harness.output_of(session, "true")
        live_sandbox = harness.live_sandbox(session)
        assert live_sandbox is not None and live_sandbox.sandbox is not None
        os.kill(box_pid(harness, session), signal.SIGKILL)
        await live_sandbox.sandbox.wait()
        await look()
        assert "The sandbox of this conversation's commands was killed from outside" in await harness.take_notices(
            session
        )
        assert await harness.output_of(session, "echo fine") == "fine"
        assert await harness.take_notices(session) == ""


async def test_lost_processes_are_reported_even_if_the_next_command_comes_at_once(
    harness: WorkspaceHarness, session: str
) -> None:
    """S10: the sandbox may be opened again before the ends of its processes are seen."""
    mark = token()
    await harness.of(session).start("kept", f"sleep {mark}", restart=True)
    await harness.of(session).start("gone", f"sleep {mark}")
    await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
    live_sandbox = harness.live_sandbox(session)
    assert live_sandbox is not None and live_sandbox.sandbox is not None
    os.kill(box_pid(harness, session), signal.SIGKILL)
    await live_sandbox.sandbox.wait()
    await live_sandbox.note_lost()
    assert await harness.output_of(session, "echo fine") == "fine"
    told = await until_told(harness, session, "'kept'")
    assert "has been started again" in told
    await until(lambda: len(alive(f"sleep\0{mark}")) == 1)
    states = sorted((view.name, view.state) for view in await harness.of(session).list())
    assert states == [("gone", "lost"), ("kept", "lost"), ("kept", "running")]


async def test_a_command_whose_sandbox_is_ended_reports_the_reason(harness: WorkspaceHarness, session: str) -> None:
    """S10."""
    mark = token()
    running = asyncio.ensure_future(harness.run(session, f"sleep {mark}"))
    await until(lambda: alive(f"sleep\0{mark}"))
    os.kill(box_pid(harness, session), signal.SIGKILL)
    done, _ = await running
    assert done.code != 0 and "killed from outside" in done.note
    assert await harness.output_of(session, "echo fine") == "fine"


async def test_a_process_marked_restart_comes_back_with_its_sandbox(harness: WorkspaceHarness, session: str) -> None:
    """S10: a process that survives the gateway's restart also survives the loss of its sandbox."""
    mark = token()
    await harness.of(session).start("server", f"sleep {mark}", restart=True)
    [before] = await until(lambda: alive(f"sleep\0{mark}"))
    os.kill(box_pid(harness, session), signal.SIGKILL)
    await until(lambda: alive(f"sleep\0{mark}") not in ([], [before]))
    await until_told(harness, session, "has been started again")
    views = await harness.of(session).list()
    assert sorted(view.state for view in views) == ["lost", "running"]


async def until_told(harness: WorkspaceHarness, session: str, text: str) -> str:
    told = ""
    while text not in told:
        told += await harness.take_notices(session)
        await asyncio.sleep(0.01)
    return told


async def test_closing_an_idle_sandbox_is_invisible(
    harness: WorkspaceHarness, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11: an idle sandbox costs nothing after a while; one with a running process stays."""
    busy = await harness.new_session()
    await harness.of(busy).start("server", "sleep 1000")
    await harness.output_of(session, "cd /tmp; echo kept > file")
    await harness.workspaces.reconcile()
    assert harness.live_sandbox(session) is not None
    for live_sandbox in (harness.live_sandbox(session), harness.live_sandbox(busy)):
        assert live_sandbox is not None
        live_sandbox.last_used -= DEFAULT_BOUNDS.idle_seconds + 1
    await harness.workspaces.reconcile()
    assert harness.live_sandbox(session) is None and harness.presence.get(session) is None
    assert harness.live_sandbox(busy) is not None
    assert await harness.output_of(session, "pwd; cat file") == "/tmp\nkept"
    assert await harness.take_notices(session) == ""


async def test_the_number_of_idle_sandboxes_is_bounded(home: Path) -> None:
    """L04, L14: the least recently used are closed first."""
    async with open_workspaces(home, bounds=WorkspaceBounds(idle_sandboxes=2)) as harness:
        made = [await harness.new_session() for _ in range(4)]
        for session in made:
            await harness.output_of(session, "true")
        await harness.workspaces.reconcile()
        assert [harness.live_sandbox(session) is not None for session in made] == [False, False, True, True]


async def test_a_sandbox_is_never_reused_for_another_backend(home: Path) -> None:
    """S12: a sandbox is keyed by its session and by what it was made with."""
    made: list[Backend] = []

    def other(name: str) -> Backend:
        backend = BubblewrapBackend(Spawner(frozenset(os.sched_getaffinity(0))))
        backend.name = f"other-{len(made)}"  # type: ignore[misc]
        made.append(backend)
        return backend

    mark = token()
    async with open_workspaces(home, backends=other) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "cd /tmp; export A=1")
        await harness.of(session).start("server", f"sleep {mark}")
        harness.workspaces._choice._chosen = None  # as if the operator had chosen another
        assert await harness.output_of(session, "pwd; echo $A") == "/workspace"
        assert alive(mark) == []
        assert "another workspace" in await harness.take_notices(session)
        assert (await harness.store.read(workspaces.get, session)).backend == "other-1"


async def test_opening_and_closing_sandboxes_leaks_nothing(harness: WorkspaceHarness, session: str) -> None:
    """L06, L15: descriptors, children and zombies after fifty sandboxes are as before."""
    await harness.output_of(session, "true")
    await harness.workspaces.close_sandbox(harness.live_sandbox(session))  # type: ignore[arg-type]
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        await harness.output_of(session, "true")
        await harness.workspaces.close_sandbox(harness.live_sandbox(session))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    assert children == []


async def test_held_resources_are_accounted(harness: WorkspaceHarness, session: str) -> None:
    await harness.of(session).start("server", "sleep 1000")
    held = dict(harness.ledger.owners())[f"session {session}"]
    assert held.count == 1 and held.children == 2 and held.fds > 0
    status = harness.workspaces.status()
    assert (status.boxes, status.processes, status.backend, status.sandboxed) == (1, 1, "bubblewrap", True)
    assert set(status.enforced) == {"memory_bytes", "processes", "disk_bytes", "files", "file_bytes", "cpu_seconds"}


@pytest.mark.parametrize(
    ("backend", "meaning"), [("auto", "a flaw in the gateway itself"), ("local", "without a sandbox"), ("none", "")]
)
@pytest.mark.parametrize("user", [0, 1000])
async def test_a_gateway_that_runs_as_root_says_what_that_means(
    home: Path, monkeypatch: pytest.MonkeyPatch, backend: str, meaning: str, user: int
) -> None:
    """X12: once in the log, and in the status."""
    monkeypatch.setattr("os.geteuid", lambda: user)
    with capture_logs() as lines:
        async with open_workspaces(home, backend=backend) as harness:
            warning = harness.workspaces.status().warning
            await harness.workspaces.reconcile()
            await harness.workspaces.tidy()
    assert [line["meaning"] for line in lines if "as root" in line["event"]] == ([warning] if warning else [])
    assert bool(warning) == (user == 0 and backend != "none")
    assert user != 0 or meaning in warning


# -- the gateway -------------------------------------------------------------------------------------------------------


async def test_processes_end_with_the_gateway_and_the_agent_is_told(home: Path) -> None:
    """L28, S08, V12: a stop ends the whole tree, and the next start reports it, once."""
    mark = token()
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.of(session).start("server", f"sleep {mark}; sleep {mark}")
        await until(lambda: alive(mark))
    assert alive(mark) == []
    async with open_workspaces(home) as harness:
        assert [view.state for view in await harness.of(session).list()] == ["lost"]
        assert "'server'" in (told := await harness.take_notices(session)) and "when the gateway was stopped" in told
        assert await harness.take_notices(session) == ""


async def test_processes_marked_restart_are_started_again_with_the_gateway(home: Path) -> None:
    """S08, V11, V12: in the shell's directory, with its variables, as at the first start."""
    mark = token()
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "mkdir d; cd d; export V=1")
        await harness.of(session).start("server", f"echo $PWD $V; exec sleep {mark}", restart=True)
        await until(lambda: alive(f"sleep\0{mark}"))
    assert alive(mark) == []
    async with open_workspaces(home) as harness:
        await until(lambda: alive(f"sleep\0{mark}"))
        await until_told(harness, session, "has been started again")
        views = await harness.of(session).list()
        assert sorted(view.state for view in views) == ["lost", "running"]
        assert (await harness.of(session).wait("server", pattern="/workspace/d 1", timeout=20)).matched is not None


async def test_a_process_of_a_session_that_ended_meanwhile_is_not_started_again(home: Path) -> None:
    mark = token()
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.of(session).start("server", f"sleep {mark}", restart=True)
    async with open_workspaces(home) as harness:
        await harness.end(session)
        await harness.workspaces.restart_processes()
        assert alive(mark) == []


async def test_what_the_last_gateway_left_alive_is_ended_at_the_start(home: Path) -> None:
    """L14: identified by pid and start time, so that no other process is hit."""
    mark = token()
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        spawner = Spawner(frozenset(os.sched_getaffinity(0)))
        left, stranger = [await spawner.spawn(["/bin/sleep", mark], {}) for _ in range(2)]
        assert os.getpgid(stranger.pid) == stranger.pid
        try:
            for name, pid in (("left", left.pid), ("stranger", stranger.pid)):
                await harness.store.write(
                    lambda db, name=name: processes.begin(
                        db, id=f"pr_{name}", session=session, name=name, command="sleep", backend="local",
                        log=f"pr_{name}", restart=False, notify=False, now=1.0,
                    )
                )  # fmt: skip
                ticks = await to_thread.run_sync(start_ticks, pid)
                assert ticks is not None
                wrong = ticks + (name == "stranger")
                await harness.store.write(processes.mark_running, f"pr_{name}", pid=pid, start_ticks=wrong)
            await harness.workspaces.start()
            assert await left.wait() == -9
            await stranger.end(5)
            assert await stranger.wait() == -15  # it received SIGTERM
        finally:
            for child in (left, stranger):
                await child.end(0)
                child.close()


async def test_a_row_without_a_process_is_corrected_on_the_timer(harness: WorkspaceHarness, session: str) -> None:
    """L16: level-triggered; recent rows are left alone."""
    await harness.of(session).start("real", "sleep 1000")
    for name, at in (("old", 0.0), ("young", harness.clock.now)):
        await harness.store.write(
            lambda db, name=name, at=at: processes.begin(
                db, id=f"pr_{name}", session=session, name=name, command="x", backend="bubblewrap", log=f"pr_{name}",
                restart=False, notify=False, now=at,
            )
        )  # fmt: skip
    await harness.workspaces.tidy()
    states = {view.name: view.state for view in await harness.of(session).list()}
    assert states == {"real": "running", "old": "lost", "young": "starting"}


# -- the session -------------------------------------------------------------------------------------------------------


async def test_ending_a_session_ends_everything_and_moves_its_folder_to_the_trash(
    harness: WorkspaceHarness, session: str
) -> None:
    """B3, S08, V09, V11, V12: shell, background processes and workspace folder, when the session ends."""
    mark = token()
    await harness.output_of(session, "echo text > file; echo x > /tmp/t; export A=1")
    await harness.of(session).start("server", f"echo up; (setsid env -i sleep {mark} &); sleep {mark}")
    await until(lambda: len(alive(mark)) >= 2)
    await harness.end(session)
    assert alive(mark) == []
    assert harness.presence.get(session) is None
    assert (harness.home / "trash" / session / "file").read_text() == "text\n"
    assert [entry.name for entry in (harness.home / "workspaces").iterdir()] == []
    assert await harness.store.read(workspaces.shell, session) is None
    assert [row.state for row in await harness.store.read(processes.of_session, session, principal=None)] == ["ended"]
    assert list((harness.home / "spool" / session).iterdir()) == []
    await harness.workspaces.end(session)
    assert (harness.home / "trash" / session / "file").exists()


async def test_the_trash_is_emptied_after_its_time(home: Path) -> None:
    """L19, B3, V09: removed after seven days; private files go with the next sweep."""
    clock = Clock()
    async with open_workspaces(home, clock=clock) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "echo text > file; echo x > ~/y")
        await harness.store.write(_end_now, session, clock.now)
        await harness.workspaces.end(session)
        await harness.workspaces.tidy()
        assert [entry.name for entry in (home / "trash").iterdir()] == [session]
        clock.now += 6 * DAY
        await harness.workspaces.tidy()
        assert (home / "trash" / session / "file").exists()
        clock.now += 2 * DAY
        await harness.workspaces.tidy()
        assert list((home / "trash").iterdir()) == []
        assert (await harness.store.read(workspaces.get, session)).state == "gone"


def _end_now(db, session, now):  # type: ignore[no-untyped-def]
    sessions.end(db, session, reason="test", hooks=(), now=now)


async def test_a_deleted_session_leaves_nothing(harness: WorkspaceHarness, session: str) -> None:
    """B3, L19, V09, V12: not even in the trash."""
    mark = token()
    await harness.output_of(session, "mkdir -p a/b; echo x > a/b/c; chmod 000 a")
    await harness.of(session).start("server", f"sleep {mark}")
    await harness.store.write(_end_now, session, 5.0)
    harness.presence.drop(session)
    await harness.workspaces.discard(session)
    assert alive(mark) == [] and harness.presence.get(session) is None
    assert list((harness.home / "workspaces").iterdir()) == []
    assert not (harness.home / "trash").exists() or list((harness.home / "trash").iterdir()) == []


async def test_a_project_folder_is_never_touched(harness: WorkspaceHarness) -> None:
    """B3, V10: a folder that the user configured is neither moved nor removed, and nothing is added to it."""
    project = harness.home / "project"
    project.mkdir()
    (project / "mine").write_text("precious")
    for finish in (harness.workspaces.end, harness.workspaces.discard):
        session = await harness.new_session()
        assert await harness.output_of(session, "pwd; cat mine; echo x > ~/.hidden", agent="project") == (
            "/workspace\nprecious"
        )
        await harness.of(session, "project").start("server", "sleep 1000")
        await harness.store.write(_end_now, session, 5.0)
        await finish(session)
        await harness.workspaces.tidy()
        assert [entry.name for entry in project.iterdir()] == ["mine"]
        assert (project / "mine").read_text() == "precious"
        assert list((harness.home / "workspaces").iterdir()) == []


async def test_a_missing_project_folder_is_named_and_not_created(harness: WorkspaceHarness, session: str) -> None:
    with pytest.raises(ToolFailed, match=r"workspace is set to .*project, which does not exist"):
        await harness.run(session, "true", agent="project")
    assert not (harness.home / "project").exists()


async def test_the_demo_model_finds_its_notes_in_a_new_folder_once(harness: WorkspaceHarness, session: str) -> None:
    assert "demo model" in await harness.output_of(session, "cat notes.txt; rm notes.txt", agent="demo")
    await harness.workspaces.close_sandbox(harness.live_sandbox(session))  # type: ignore[arg-type]
    assert await harness.output_of(session, "ls", agent="demo") == ""
    assert await harness.output_of(await harness.new_session(), "ls") == ""


async def test_folders_without_an_owner_are_removed_and_others_left_alone(
    harness: WorkspaceHarness, session: str
) -> None:
    """L14, L19: leftovers of a crash are swept by name; anything with another name is not ours."""
    await harness.output_of(session, "echo mine > file")
    stray = "s_" + "0" * 32
    for name in (stray, f"{stray}.private", f"{session}.1234-7"):
        (harness.home / "workspaces" / name / "deep").mkdir(parents=True)
    for name in ("main", "s_main", "notes"):
        (harness.home / "workspaces" / name).mkdir()
    (harness.home / "trash" / stray).mkdir(parents=True)
    (harness.home / "trash" / f"{session}.private").mkdir()
    await harness.workspaces.tidy()
    left = {entry.name for entry in (harness.home / "workspaces").iterdir()}
    assert left == {session, f"{session}.private", f"{session}.1234-7", "main", "s_main", "notes"}
    assert list((harness.home / "trash").iterdir()) == []
    assert await harness.output_of(session, "cat file") == "mine"


async def test_ending_a_session_ends_its_running_command(harness: WorkspaceHarness, session: str) -> None:
    """B3: even if its turn did not end in time."""
    mark = token()
    running = asyncio.ensure_future(harness.run(session, f"sleep {mark}"))
    await until(lambda: alive(f"sleep\0{mark}"))
    await harness.end(session)
    done, _ = await running
    assert done.code != 0 and alive(mark) == []


async def test_ending_a_session_while_its_sandbox_opens_leaves_none(harness: WorkspaceHarness) -> None:
    """L09: a sandbox that opens too late is closed."""
    for turns in range(0, 60, 5):
        session = await harness.new_session()
        running = asyncio.ensure_future(harness.run(session, "sleep 1000"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await harness.end(session)
        await asyncio.gather(running, return_exceptions=True)
        assert harness.presence.get(session) is None or harness.live_sandbox(session) is None
    assert [entry.name for entry in Path("/proc/self/task").iterdir() if (entry / "children").read_text()] == []
