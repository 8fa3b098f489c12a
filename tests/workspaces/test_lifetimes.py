"""What of a workspace survives what: the loss of its box, the gateway's stop and start, its session's end."""

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
    site = rooms.site(session)
    assert site is not None and site.box is not None and site.box.pid is not None
    return site.box.pid


# -- the box -----------------------------------------------------------------------------------------------------------


async def test_a_session_gets_its_box_with_its_first_command_and_only_then(rooms: Room, session: str) -> None:
    """L29: a session that runs nothing has no box, no folder and no row."""
    mine = rooms.of(session)
    assert await mine.list() == () and await mine.sandboxed()
    assert rooms.site(session) is None and not (rooms.home / "workspaces").exists()
    assert await rooms.store.read(workspaces.get, session) is None
    await rooms.said(session, "true")
    assert (rooms.home / "workspaces" / session).stat().st_mode & 0o777 == 0o700
    assert (await rooms.store.read(workspaces.get, session)).backend == "bubblewrap"


async def test_many_first_commands_at_once_open_one_box(rooms: Room, session: str) -> None:
    """L25: single flight."""
    said = await asyncio.gather(*(rooms.said(session, "readlink /proc/self/ns/pid") for _ in range(12)))
    assert len(set(said)) == 1


async def test_a_box_that_was_removed_from_outside_is_made_again_and_the_agent_is_told(
    rooms: Room, session: str
) -> None:
    """S10: state was lost, and that is said; files and the shell are as they were."""
    mark = token()
    await rooms.said(session, "cd /tmp; echo kept > file")
    await rooms.of(session).start("server", f"sleep {mark}")
    os.kill(box_pid(rooms, session), signal.SIGKILL)
    await until(lambda: not rooms.site(session).running)  # type: ignore[union-attr]
    assert await rooms.said(session, "pwd; cat file") == "/tmp\nkept"
    told = await rooms.told(session)
    assert "ended from outside" in told and "'server'" in told
    assert [view.state for view in await rooms.of(session).list()] == ["lost"]
    assert alive(mark) == []


async def test_the_loss_of_a_box_in_which_nothing_ran_is_told_too(rooms: Room, session: str) -> None:
    """S10: what lay in its memory is gone; it is told once, on the timer or with the next command."""
    for look in (rooms.workspaces.reconcile, lambda: rooms.said(session, "true")):
        await rooms.said(session, "true")
        site = rooms.site(session)
        assert site is not None and site.box is not None
        os.kill(box_pid(rooms, session), signal.SIGKILL)
        await site.box.wait()
        await look()
        assert "The sandbox of this conversation's commands was ended from outside" in await rooms.told(session)
        assert await rooms.said(session, "echo fine") == "fine"
        assert await rooms.told(session) == ""


async def test_what_was_lost_with_a_box_is_known_also_when_the_next_command_comes_at_once(
    rooms: Room, session: str
) -> None:
    """S10: the box may be made again before the ends of its processes are seen."""
    mark = token()
    await rooms.of(session).start("kept", f"sleep {mark}", restart=True)
    await rooms.of(session).start("gone", f"sleep {mark}")
    await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
    site = rooms.site(session)
    assert site is not None and site.box is not None
    os.kill(box_pid(rooms, session), signal.SIGKILL)
    await site.box.wait()
    await site.mourn()
    assert await rooms.said(session, "echo fine") == "fine"
    told = await until_told(rooms, session, "'kept'")
    assert "has been started again" in told
    await until(lambda: len(alive(f"sleep\0{mark}")) == 1)
    states = sorted((view.name, view.state) for view in await rooms.of(session).list())
    assert states == [("gone", "lost"), ("kept", "lost"), ("kept", "running")]


async def test_a_command_whose_box_is_removed_says_why_it_ended(rooms: Room, session: str) -> None:
    """S10."""
    mark = token()
    running = asyncio.ensure_future(rooms.run(session, f"sleep {mark}"))
    await until(lambda: alive(f"sleep\0{mark}"))
    os.kill(box_pid(rooms, session), signal.SIGKILL)
    done, _ = await running
    assert done.code != 0 and "ended from outside" in done.note
    assert await rooms.said(session, "echo fine") == "fine"


async def test_a_process_marked_restart_comes_back_with_its_box(rooms: Room, session: str) -> None:
    """S10: what should survive the gateway survives its box too."""
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


async def test_an_idle_box_is_closed_and_nobody_sees_the_difference(
    rooms: Room, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11: a box in which nothing runs costs nothing after a while; one in which something runs stays."""
    busy = await rooms.new_session()
    await rooms.of(busy).start("server", "sleep 1000")
    await rooms.said(session, "cd /tmp; echo kept > file")
    await rooms.workspaces.reconcile()
    assert rooms.site(session) is not None
    for site in (rooms.site(session), rooms.site(busy)):
        assert site is not None
        site.used -= IDLE_SECONDS + 1
    await rooms.workspaces.reconcile()
    assert rooms.site(session) is None and rooms.presence.get(session) is None
    assert rooms.site(busy) is not None
    assert await rooms.said(session, "pwd; cat file") == "/tmp\nkept"
    assert await rooms.told(session) == ""


async def test_idle_boxes_are_bounded_in_number(rooms: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """L04, L14: the longest unused go first."""
    monkeypatch.setattr("tidegate.workspaces.workspaces.IDLE_BOXES", 2)
    made = [await rooms.new_session() for _ in range(4)]
    for session in made:
        await rooms.said(session, "true")
    await rooms.workspaces.reconcile()
    assert [rooms.site(session) is not None for session in made] == [False, False, True, True]


async def test_a_box_is_never_another_backends(home: Path) -> None:
    """S12: what a session has is keyed by the session and by what it was made with."""
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


async def test_opening_and_closing_leaves_nothing(rooms: Room, session: str) -> None:
    """L06, L15: descriptors, children and zombies after fifty boxes are as before."""
    await rooms.said(session, "true")
    await rooms.workspaces.vacate(rooms.site(session))  # type: ignore[arg-type]
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        await rooms.said(session, "true")
        await rooms.workspaces.vacate(rooms.site(session))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    assert children == []


async def test_what_is_held_is_on_the_books(rooms: Room, session: str) -> None:
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
    """L28, S08, V12: a stop ends the whole tree, and the next start says so, once."""
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
    """S08, V11, V12: where the shell is, with its variables, as at the first start."""
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
    """L14: known by its number and the time of its start, so that nobody else is hit."""
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
                await rooms.store.write(processes.mark_running, f"pr_{name}", pid=pid, start_ticks=wrong)
            await rooms.workspaces.start()
            assert await left.wait() == -9
            await stranger.end(5)
            assert await stranger.wait() == -15  # it was there to be asked
        finally:
            for child in (left, stranger):
                await child.end(0)
                child.close()


async def test_a_row_that_nothing_is_behind_is_put_right_on_the_timer(rooms: Room, session: str) -> None:
    """L16: level-triggered; the young are left alone."""
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


async def test_the_end_of_a_session_ends_everything_and_puts_its_folder_into_the_trash(
    rooms: Room, session: str
) -> None:
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
    """L19, B3, V09: removed after seven days; what lay beside the folder goes with the next sweep."""
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
    """B3, V10: a folder that the user configured is neither moved nor removed, nor cluttered."""
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


async def test_a_project_folder_that_is_missing_is_named_and_not_made(rooms: Room, session: str) -> None:
    with pytest.raises(ToolFailed, match="project, which the agent's workspace is set to, is not there"):
        await rooms.run(session, "true", agent="project")
    assert not (rooms.home / "project").exists()


async def test_the_demo_model_finds_its_notes_in_a_new_folder_once(rooms: Room, session: str) -> None:
    assert "demo model" in await rooms.said(session, "cat notes.txt; rm notes.txt", agent="demo")
    await rooms.workspaces.vacate(rooms.site(session))  # type: ignore[arg-type]
    assert await rooms.said(session, "ls", agent="demo") == ""
    assert await rooms.said(await rooms.new_session(), "ls") == ""


async def test_folders_that_nobody_owns_are_removed_and_others_left_alone(rooms: Room, session: str) -> None:
    """L14, L19: what a crash leaves is swept by name; what is not named by us is not ours."""
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


async def test_an_end_while_a_command_runs_ends_the_command(rooms: Room, session: str) -> None:
    """B3: also when its turn did not let go in time."""
    mark = token()
    running = asyncio.ensure_future(rooms.run(session, f"sleep {mark}"))
    await until(lambda: alive(f"sleep\0{mark}"))
    await rooms.end(session)
    done, _ = await running
    assert done.code != 0 and alive(mark) == []


async def test_an_end_while_a_box_is_opened_leaves_none(rooms: Room) -> None:
    """L09: the thing that came too late is closed."""
    for turns in range(0, 60, 5):
        session = await rooms.new_session()
        running = asyncio.ensure_future(rooms.run(session, "sleep 1000"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await rooms.end(session)
        await asyncio.gather(running, return_exceptions=True)
        assert rooms.presence.get(session) is None or rooms.site(session) is None
    assert [entry.name for entry in Path("/proc/self/task").iterdir() if (entry / "children").read_text()] == []
