"""What of a workspace survives what: the loss of its sandbox, a restart of the gateway, the end of its session."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from anyio import to_thread

from tests.logs import capture_logs
from tests.workspaces.making import Clock, Room, alive, room, token, until
from tidegate.errors import ToolFailed
from tidegate.store import processes, sessions, workspaces
from tidegate.workspaces.backends.bubblewrap import BubblewrapBackend
from tidegate.workspaces.backends.interface import Backend
from tidegate.workspaces.kernel.process_table import start_ticks
from tidegate.workspaces.processes.children import Spawner
from tidegate.workspaces.workspaces import IDLE_SECONDS

pytestmark = pytest.mark.anyio

DAY = 86400.0


def box_pid(rooms: Room, session: str) -> int:
    live_sandbox = rooms.live_sandbox(session)
    assert live_sandbox is not None and live_sandbox.sandbox is not None and live_sandbox.sandbox.pid is not None
    return live_sandbox.sandbox.pid


# -- the box -----------------------------------------------------------------------------------------------------------


async def test_a_session_gets_its_sandbox_with_its_first_command(rooms: Room, session: str) -> None:
    """L29: a session that runs nothing has no sandbox, no folder and no row."""
    mine = rooms.of(session)
    assert await mine.list() == () and await mine.sandboxed()
    assert rooms.live_sandbox(session) is None and not (rooms.home / "workspaces").exists()
    assert await rooms.store.read(workspaces.get, session) is None
    await rooms.said(session, "true")
    assert (rooms.home / "workspaces" / session).stat().st_mode & 0o777 == 0o700
    assert (await rooms.store.read(workspaces.get, session)).backend == "bubblewrap"


async def test_concurrent_first_commands_open_one_sandbox(rooms: Room, session: str) -> None:
    """L25: single flight."""
    said = await asyncio.gather(*(rooms.said(session, "readlink /proc/self/ns/pid") for _ in range(12)))
    assert len(set(said)) == 1


async def test_a_sandbox_ended_from_outside_is_opened_again_and_the_agent_is_told(rooms: Room, session: str) -> None:
    """S10: the loss of state is reported; files and the shell are unchanged."""
    mark = token()
    await rooms.said(session, "cd /tmp; echo kept > file")
    await rooms.of(session).start("server", f"sleep {mark}")
    os.kill(box_pid(rooms, session), signal.SIGKILL)
    await until(lambda: not rooms.live_sandbox(session).running)  # type: ignore[union-attr]
    assert await rooms.said(session, "pwd; cat file") == "/tmp\nkept"
    told = await rooms.told(session)
    assert "ended from outside" in told and "'server'" in told
    assert [view.state for view in await rooms.of(session).list()] == ["lost"]
    assert alive(mark) == []


async def test_the_loss_of_an_idle_sandbox_is_reported_too(rooms: Room, session: str) -> None:
    """S10: what was in its memory is lost; that is reported once, on the timer or with the next command."""
    for look in (rooms.workspaces.reconcile, lambda: rooms.said(session, "true")):
        await rooms.said(session, "true")
        live_sandbox = rooms.live_sandbox(session)
        assert live_sandbox is not None and live_sandbox.sandbox is not None
        os.kill(box_pid(rooms, session), signal.SIGKILL)
        await live_sandbox.sandbox.wait()
        await look()
        assert "The sandbox of this conversation's commands was ended from outside" in await rooms.told(session)
        assert await rooms.said(session, "echo fine") == "fine"
        assert await rooms.told(session) == ""


async def test_lost_processes_are_reported_even_if_the_next_command_comes_at_once(rooms: Room, session: str) -> None:
    """S10: the sandbox may be opened again before the ends of its processes are seen."""
    mark = token()
    await rooms.of(session).start("kept", f"sleep {mark}", restart=True)
    await rooms.of(session).start("gone", f"sleep {mark}")
    await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
    live_sandbox = rooms.live_sandbox(session)
    assert live_sandbox is not None and live_sandbox.sandbox is not None
    os.kill(box_pid(rooms, session), signal.SIGKILL)
    await live_sandbox.sandbox.wait()
    await live_sandbox.note_lost()
    assert await rooms.said(session, "echo fine") == "fine"
    told = await until_told(rooms, session, "'kept'")
    assert "has been started again" in told
    await until(lambda: len(alive(f"sleep\0{mark}")) == 1)
    states = sorted((view.name, view.state) for view in await rooms.of(session).list())
    assert states == [("gone", "lost"), ("kept", "lost"), ("kept", "running")]


async def test_a_command_whose_sandbox_is_ended_reports_the_reason(rooms: Room, session: str) -> None:
    """S10."""
    mark = token()
    running = asyncio.ensure_future(rooms.run(session, f"sleep {mark}"))
    await until(lambda: alive(f"sleep\0{mark}"))
    os.kill(box_pid(rooms, session), signal.SIGKILL)
    done, _ = await running
    assert done.code != 0 and "ended from outside" in done.note
    assert await rooms.said(session, "echo fine") == "fine"


async def test_a_process_marked_restart_comes_back_with_its_sandbox(rooms: Room, session: str) -> None:
    """S10: a process that survives the gateway's restart also survives the loss of its sandbox."""
    mark = token()
    await rooms.of(session).start("server", f"sleep {mark}", restart=True)
    [before] = await until(lambda: alive(f"sleep\0{mark}"))
    os.kill(box_pid(rooms, session), signal.SIGKILL)
    await until(lambda: alive(f"sleep\0{mark}") not in ([], [before]))
    await until_told(rooms, session, "has been started again")
    views = await rooms.of(session).list()
    assert sorted(view.state for view in views) == ["lost", "running"]


async def until_told(rooms: Room, session: str, text: str) -> str:
    told = ""
    while text not in told:
        told += await rooms.told(session)
        await asyncio.sleep(0.01)
    return told


async def test_closing_an_idle_sandbox_is_invisible(rooms: Room, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S11: an idle sandbox costs nothing after a while; one with a running process stays."""
    busy = await rooms.new_session()
    await rooms.of(busy).start("server", "sleep 1000")
    await rooms.said(session, "cd /tmp; echo kept > file")
    await rooms.workspaces.reconcile()
    assert rooms.live_sandbox(session) is not None
    for live_sandbox in (rooms.live_sandbox(session), rooms.live_sandbox(busy)):
        assert live_sandbox is not None
        live_sandbox.used -= IDLE_SECONDS + 1
    await rooms.workspaces.reconcile()
    assert rooms.live_sandbox(session) is None and rooms.presence.get(session) is None
    assert rooms.live_sandbox(busy) is not None
    assert await rooms.said(session, "pwd; cat file") == "/tmp\nkept"
    assert await rooms.told(session) == ""


async def test_the_number_of_idle_sandboxes_is_bounded(rooms: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """L04, L14: the least recently used are closed first."""
    monkeypatch.setattr("tidegate.workspaces.workspaces.IDLE_SANDBOXES", 2)
    made = [await rooms.new_session() for _ in range(4)]
    for session in made:
        await rooms.said(session, "true")
    await rooms.workspaces.reconcile()
    assert [rooms.live_sandbox(session) is not None for session in made] == [False, False, True, True]


async def test_a_sandbox_is_never_reused_for_another_backend(home: Path) -> None:
    """S12: a sandbox is keyed by its session and by what it was made with."""
    made: list[Backend] = []

    def other(name: str) -> Backend:
        backend = BubblewrapBackend(Spawner(frozenset(os.sched_getaffinity(0))))
        backend.name = f"other-{len(made)}"  # type: ignore[misc]
        made.append(backend)
        return backend

    mark = token()
    async with room(home, backends=other) as rooms:
        session = await rooms.new_session()
        await rooms.said(session, "cd /tmp; export A=1")
        await rooms.of(session).start("server", f"sleep {mark}")
        rooms.workspaces._choice._chosen = None  # as if the operator had chosen another
        assert await rooms.said(session, "pwd; echo $A") == "/workspace"
        assert alive(mark) == []
        assert "another place" in await rooms.told(session)
        assert (await rooms.store.read(workspaces.get, session)).backend == "other-1"


async def test_opening_and_closing_sandboxes_leaks_nothing(rooms: Room, session: str) -> None:
    """L06, L15: descriptors, children and zombies after fifty sandboxes are as before."""
    await rooms.said(session, "true")
    await rooms.workspaces.close_sandbox(rooms.live_sandbox(session))  # type: ignore[arg-type]
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        await rooms.said(session, "true")
        await rooms.workspaces.close_sandbox(rooms.live_sandbox(session))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    assert children == []


async def test_held_resources_are_accounted(rooms: Room, session: str) -> None:
    await rooms.of(session).start("server", "sleep 1000")
    held = dict(rooms.ledger.owners())[f"session {session}"]
    assert held.count == 1 and held.children == 2 and held.fds > 0
    status = rooms.workspaces.status()
    assert (status["boxes"], status["processes"], status["backend"], status["sandboxed"]) == (1, 1, "bubblewrap", True)
    assert set(status["enforced"]) == {"memory_bytes", "processes", "disk_bytes", "files", "file_bytes", "cpu_seconds"}


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
        async with room(home, backend=backend) as rooms:
            warning = rooms.workspaces.status()["warning"]
            await rooms.workspaces.reconcile()
            await rooms.workspaces.tidy()
    assert [line["meaning"] for line in lines if "as root" in line["event"]] == ([warning] if warning else [])
    assert bool(warning) == (user == 0 and backend != "none")
    assert user != 0 or meaning in warning


# -- the gateway -------------------------------------------------------------------------------------------------------


async def test_processes_end_with_the_gateway_and_the_agent_is_told(home: Path) -> None:
    """L28, S08, V12: a stop ends the whole tree, and the next start reports it, once."""
    mark = token()
    async with room(home) as rooms:
        session = await rooms.new_session()
        await rooms.of(session).start("server", f"sleep {mark}; sleep {mark}")
        await until(lambda: alive(mark))
    assert alive(mark) == []
    async with room(home) as rooms:
        assert [view.state for view in await rooms.of(session).list()] == ["lost"]
        assert "'server'" in (told := await rooms.told(session)) and "when the gateway was stopped" in told
        assert await rooms.told(session) == ""


async def test_processes_marked_restart_are_started_again_with_the_gateway(home: Path) -> None:
    """S08, V11, V12: in the shell's directory, with its variables, as at the first start."""
    mark = token()
    async with room(home) as rooms:
        session = await rooms.new_session()
        await rooms.said(session, "mkdir d; cd d; export V=1")
        await rooms.of(session).start("server", f"echo $PWD $V; exec sleep {mark}", restart=True)
        await until(lambda: alive(f"sleep\0{mark}"))
    assert alive(mark) == []
    async with room(home) as rooms:
        await until(lambda: alive(f"sleep\0{mark}"))
        await until_told(rooms, session, "has been started again")
        views = await rooms.of(session).list()
        assert sorted(view.state for view in views) == ["lost", "running"]
        assert (await rooms.of(session).wait("server", pattern="/workspace/d 1", timeout=20)).matched is not None


async def test_a_process_of_a_session_that_ended_meanwhile_is_not_started_again(home: Path) -> None:
    mark = token()
    async with room(home) as rooms:
        session = await rooms.new_session()
        await rooms.of(session).start("server", f"sleep {mark}", restart=True)
    async with room(home) as rooms:
        await rooms.end(session)
        await rooms.workspaces._restart()
        assert alive(mark) == []


async def test_what_the_last_gateway_left_alive_is_ended_at_the_start(home: Path) -> None:
    """L14: identified by pid and start time, so that no other process is hit."""
    mark = token()
    async with room(home) as rooms:
        session = await rooms.new_session()
        spawner = Spawner(frozenset(os.sched_getaffinity(0)))
        left, stranger = [await spawner.spawn(["/bin/sleep", mark], {}) for _ in range(2)]
        assert os.getpgid(stranger.pid) == stranger.pid
        try:
            for name, pid in (("left", left.pid), ("stranger", stranger.pid)):
                await rooms.store.write(
                    lambda db, name=name: processes.begin(
                        db, id=f"pr_{name}", session=session, name=name, command="sleep", backend="local",
                        log=f"pr_{name}", restart=False, notify=False, now=1.0,
                    )
                )  # fmt: skip
                ticks = await to_thread.run_sync(start_ticks, pid)
                assert ticks is not None
                wrong = ticks + (name == "stranger")
                await rooms.store.write(processes.spawned, f"pr_{name}", pid=pid, start_ticks=wrong)
            await rooms.workspaces.start()
            assert await left.wait() == -9
            await stranger.end(5)
            assert await stranger.wait() == -15  # it received SIGTERM
        finally:
            for child in (left, stranger):
                await child.end(0)
                child.close()


async def test_a_row_without_a_process_is_corrected_on_the_timer(rooms: Room, session: str) -> None:
    """L16: level-triggered; recent rows are left alone."""
    await rooms.of(session).start("real", "sleep 1000")
    for name, at in (("old", 0.0), ("young", rooms.clock.now)):
        await rooms.store.write(
            lambda db, name=name, at=at: processes.begin(
                db, id=f"pr_{name}", session=session, name=name, command="x", backend="bubblewrap", log=f"pr_{name}",
                restart=False, notify=False, now=at,
            )
        )  # fmt: skip
    await rooms.workspaces.tidy()
    states = {view.name: view.state for view in await rooms.of(session).list()}
    assert states == {"real": "running", "old": "lost", "young": "starting"}


# -- the session -------------------------------------------------------------------------------------------------------


async def test_ending_a_session_ends_everything_and_moves_its_folder_to_the_trash(rooms: Room, session: str) -> None:
    """B3, S08, V09, V11, V12: shell, background processes and workspace folder, when the session ends."""
    mark = token()
    await rooms.said(session, "echo text > file; echo x > /tmp/t; export A=1")
    await rooms.of(session).start("server", f"echo up; (setsid env -i sleep {mark} &); sleep {mark}")
    await until(lambda: len(alive(mark)) >= 2)
    await rooms.end(session)
    assert alive(mark) == []
    assert rooms.presence.get(session) is None
    assert (rooms.home / "trash" / session / "file").read_text() == "text\n"
    assert [entry.name for entry in (rooms.home / "workspaces").iterdir()] == []
    assert await rooms.store.read(workspaces.shell, session) is None
    assert [row.state for row in await rooms.store.read(processes.of_session, session, principal=None)] == ["ended"]
    assert list((rooms.home / "spool" / session).iterdir()) == []
    await rooms.workspaces.end(session)
    assert (rooms.home / "trash" / session / "file").exists()


async def test_the_trash_is_emptied_after_its_time(home: Path) -> None:
    """L19, B3, V09: removed after seven days; private files go with the next sweep."""
    clock = Clock()
    async with room(home, clock=clock) as rooms:
        session = await rooms.new_session()
        await rooms.said(session, "echo text > file; echo x > ~/y")
        await rooms.store.write(_end_now, session, clock.now)
        await rooms.workspaces.end(session)
        await rooms.workspaces.tidy()
        assert [entry.name for entry in (home / "trash").iterdir()] == [session]
        clock.now += 6 * DAY
        await rooms.workspaces.tidy()
        assert (home / "trash" / session / "file").exists()
        clock.now += 2 * DAY
        await rooms.workspaces.tidy()
        assert list((home / "trash").iterdir()) == []
        assert (await rooms.store.read(workspaces.get, session)).state == "gone"


def _end_now(db, session, now):  # type: ignore[no-untyped-def]
    sessions.end(db, session, reason="test", hooks=(), now=now)


async def test_a_deleted_session_leaves_nothing(rooms: Room, session: str) -> None:
    """B3, L19, V09, V12: not even in the trash."""
    mark = token()
    await rooms.said(session, "mkdir -p a/b; echo x > a/b/c; chmod 000 a")
    await rooms.of(session).start("server", f"sleep {mark}")
    await rooms.store.write(_end_now, session, 5.0)
    rooms.presence.drop(session)
    await rooms.workspaces.discard(session)
    assert alive(mark) == [] and rooms.presence.get(session) is None
    assert list((rooms.home / "workspaces").iterdir()) == []
    assert not (rooms.home / "trash").exists() or list((rooms.home / "trash").iterdir()) == []


async def test_a_project_folder_is_never_touched(rooms: Room) -> None:
    """B3, V10: a folder that the user configured is neither moved nor removed, and nothing is added to it."""
    project = rooms.home / "project"
    project.mkdir()
    (project / "mine").write_text("precious")
    for finish in (rooms.workspaces.end, rooms.workspaces.discard):
        session = await rooms.new_session()
        assert await rooms.said(session, "pwd; cat mine; echo x > ~/.hidden", agent="project") == (
            "/workspace\nprecious"
        )
        await rooms.of(session, "project").start("server", "sleep 1000")
        await rooms.store.write(_end_now, session, 5.0)
        await finish(session)
        await rooms.workspaces.tidy()
        assert [entry.name for entry in project.iterdir()] == ["mine"]
        assert (project / "mine").read_text() == "precious"
        assert list((rooms.home / "workspaces").iterdir()) == []


async def test_a_missing_project_folder_is_named_and_not_created(rooms: Room, session: str) -> None:
    with pytest.raises(ToolFailed, match="workspace is set to .*project, which does not exist"):
        await rooms.run(session, "true", agent="project")
    assert not (rooms.home / "project").exists()


async def test_the_demo_model_finds_its_notes_in_a_new_folder_once(rooms: Room, session: str) -> None:
    assert "demo model" in await rooms.said(session, "cat notes.txt; rm notes.txt", agent="demo")
    await rooms.workspaces.close_sandbox(rooms.live_sandbox(session))  # type: ignore[arg-type]
    assert await rooms.said(session, "ls", agent="demo") == ""
    assert await rooms.said(await rooms.new_session(), "ls") == ""


async def test_folders_without_an_owner_are_removed_and_others_left_alone(rooms: Room, session: str) -> None:
    """L14, L19: leftovers of a crash are swept by name; anything with another name is not ours."""
    await rooms.said(session, "echo mine > file")
    stray = "s_" + "0" * 32
    for name in (stray, f"{stray}.private", f"{session}.1234-7"):
        (rooms.home / "workspaces" / name / "deep").mkdir(parents=True)
    for name in ("main", "s_main", "notes"):
        (rooms.home / "workspaces" / name).mkdir()
    (rooms.home / "trash" / stray).mkdir(parents=True)
    (rooms.home / "trash" / f"{session}.private").mkdir()
    await rooms.workspaces.tidy()
    left = {entry.name for entry in (rooms.home / "workspaces").iterdir()}
    assert left == {session, f"{session}.private", f"{session}.1234-7", "main", "s_main", "notes"}
    assert list((rooms.home / "trash").iterdir()) == []
    assert await rooms.said(session, "cat file") == "mine"


async def test_ending_a_session_ends_its_running_command(rooms: Room, session: str) -> None:
    """B3: even if its turn did not end in time."""
    mark = token()
    running = asyncio.ensure_future(rooms.run(session, f"sleep {mark}"))
    await until(lambda: alive(f"sleep\0{mark}"))
    await rooms.end(session)
    done, _ = await running
    assert done.code != 0 and alive(mark) == []


async def test_ending_a_session_while_its_sandbox_opens_leaves_none(rooms: Room) -> None:
    """L09: a sandbox that opens too late is closed."""
    for turns in range(0, 60, 5):
        session = await rooms.new_session()
        running = asyncio.ensure_future(rooms.run(session, "sleep 1000"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await rooms.end(session)
        await asyncio.gather(running, return_exceptions=True)
        assert rooms.presence.get(session) is None or rooms.live_sandbox(session) is None
    assert [entry.name for entry in Path("/proc/self/task").iterdir() if (entry / "children").read_text()] == []
