"""Things a session owns beside its transcript: processes, a workspace, spooled results."""

import pytest

from tests.store.rows import OWNER, count, new_session
from tidegate.errors import Conflict, NotFound, Refused
from tidegate.store import ProcessRow, SpooledRow, Store, processes, sessions, spooled, turns, workspaces
from tidegate.values import Call

pytestmark = pytest.mark.anyio

OTHER = "p_other"


@pytest.fixture
async def held(store: Store) -> Store:
    await store.write(new_session, "s_1")
    return store


async def begin(
    store: Store, id: str, name: str = "server", *, session: str = "s_1", restart: bool = False, now: float = 1.0
) -> ProcessRow:
    return await store.write(
        processes.begin,
        id=id,
        session=session,
        name=name,
        command="serve --port 8000",
        backend="local",
        log=f"{id}.log",
        restart=restart,
        notify=True,
        now=now,
    )


async def over(store: Store, id: str, now: float = 9.0, *, end_reported: bool = False) -> ProcessRow | None:
    return await store.write(processes.mark_ended, id, state="exited", exit_code=3, now=now, end_reported=end_reported)


async def test_a_process_is_known_before_it_is_spawned_and_its_end_is_recorded_once(held: Store) -> None:
    """Ownership is written down before the spawn."""
    row = await begin(held, "pr_1")
    assert (row.state, row.pid, row.notify, row.restart, row.end_reported) == ("starting", None, True, False, False)
    assert await held.read(processes.live) == [row]
    assert await held.write(processes.mark_running, "pr_1", pid=4711, start_ticks=99)
    assert not await held.write(processes.mark_running, "pr_1", pid=4712, start_ticks=99)
    (running,) = await held.read(processes.live)
    assert (running.state, running.pid, running.start_ticks) == ("running", 4711, 99)
    ended = await over(held, "pr_1")
    assert ended is not None and (ended.state, ended.exit_code, ended.ended) == ("exited", 3, 9.0)
    assert await over(held, "pr_1", 10.0) is None
    assert await held.read(processes.live) == []
    assert await held.read(processes.get, "pr_1") == ended


async def test_a_process_that_was_ended_before_it_was_spawned_is_not_to_run(held: Store) -> None:
    """Code that spawned it in the meantime learns that it must end it."""
    await begin(held, "pr_1")
    await held.write(processes.mark_ended, "pr_1", state="ended", exit_code=None, now=2.0)
    assert not await held.write(processes.mark_running, "pr_1", pid=4711, start_ticks=None)


async def test_a_live_name_leads_to_one_process_of_its_session(held: Store) -> None:
    await held.write(new_session, "s_2")
    await begin(held, "pr_1")
    await begin(held, "pr_2", session="s_2")
    with pytest.raises(Conflict, match="server"):
        await begin(held, "pr_3")
    await over(held, "pr_1")
    await begin(held, "pr_4", now=2.0)
    latest = await held.read(processes.by_name, "s_1", "server")
    assert latest is not None and latest.id == "pr_4"
    assert await held.read(processes.by_name, "s_1", "other") is None


async def test_the_agent_is_notified_of_each_end_once(held: Store) -> None:
    """Of those it did not ask for itself."""
    for number in range(4):
        await begin(held, f"pr_{number}", f"job {number}")
    await over(held, "pr_2", 8.0)
    await over(held, "pr_0", 9.0)
    await over(held, "pr_1", 7.0, end_reported=True)
    assert [row.id for row in await held.read(processes.unreported)] == ["pr_0", "pr_2"]
    assert [row.id for row in await held.read(processes.unreported, after="pr_0")] == ["pr_2"]
    told = [await held.write(processes.mark_reported, id) for id in ("pr_2", "pr_0", "pr_2", "pr_1", "pr_3", "pr_none")]
    assert told == [True, True, False, False, False, False]
    assert await held.read(processes.unreported) == []
    await over(held, "pr_3", 9.0)
    await held.write(sessions.end, "s_1", reason="new", hooks=(), now=4.0)
    assert await held.read(processes.unreported) == []


async def test_a_process_marked_restart_is_restarted_once(held: Store) -> None:
    """After a stop or a kill, in sessions that are still there."""
    await held.write(new_session, "s_ended")
    for id, session, restart in (("pr_1", "s_1", True), ("pr_2", "s_1", False), ("pr_3", "s_ended", True)):
        await begin(held, id, id, session=session, restart=restart)
        await held.write(processes.mark_ended, id, state="lost", exit_code=None, now=3.0)
    await held.write(sessions.end, "s_ended", reason="new", hooks=(), now=4.0)
    assert [row.id for row in await held.read(processes.restartable)] == ["pr_1"]
    again = await held.write(processes.restart, "pr_1", new_id="pr_4", log="pr_4.log", now=5.0)
    assert again is not None and (again.name, again.command, again.restart) == ("pr_1", "serve --port 8000", True)
    assert await held.write(processes.restart, "pr_1", new_id="pr_5", log="", now=5.0) is None
    assert await held.read(processes.restartable) == []
    await begin(held, "pr_6", "taken", restart=True)
    await held.write(processes.mark_ended, "pr_6", state="lost", exit_code=None, now=6.0)
    await begin(held, "pr_7", "taken")
    assert await held.write(processes.restart, "pr_6", new_id="pr_8", log="", now=7.0) is None
    assert await held.read(processes.restartable) == []


async def test_a_session_keeps_the_latest_ends_and_every_live_process(held: Store) -> None:
    """Bounded in number, a bounded number at a time; whose log may go is said."""
    for number in range(8):
        await begin(held, f"pr_{number}", f"job {number}", now=float(number))
        if number:
            await over(held, f"pr_{number}", end_reported=True)
    assert sorted(row.log for row in await held.write(processes.prune, "s_1", 3, 2)) == ["pr_1.log", "pr_2.log"]
    assert sorted(row.log for row in await held.write(processes.prune, "s_1", 3)) == ["pr_3.log", "pr_4.log"]
    assert await held.write(processes.prune, "s_1", 3) == []
    left = await held.read(processes.of_session, "s_1", principal=OWNER)
    assert [row.id for row in left] == ["pr_7", "pr_6", "pr_5", "pr_0"]
    assert await held.read(processes.of_session, "s_1", principal=OTHER) == []
    assert await held.read(processes.existing, ["pr_7", "pr_1", "../x"]) == {"pr_7"}


async def test_the_last_ends_are_kept_and_unreported_ones_are_never_deleted(held: Store) -> None:
    """L19: however long ago it was started."""
    for number in range(4):
        await begin(held, f"pr_{number}", f"job {number}", now=float(number))
    for when, number in enumerate((3, 2, 1, 0), start=10):
        await over(held, f"pr_{number}", float(when), end_reported=number != 3)
    assert [row.id for row in await held.write(processes.prune, "s_1", 2)] == ["pr_2"]
    assert {row.id for row in await held.read(processes.of_session, "s_1", principal=OWNER)} == {"pr_0", "pr_1", "pr_3"}


async def _take(store: Store, turn: str, channel: str) -> None:
    await store.write(
        turns.insert,
        id=turn,
        session="s_1",
        channel=channel,
        call=Call(),
        on_disconnect="continue",
        now=2.0,
        running=True,
    )


async def test_a_process_has_the_channel_of_the_turn_that_starts_it(held: Store) -> None:
    """X11: also when it is started again, in whichever turn."""
    assert (await begin(held, "pr_0", "before")).channel == ""
    await _take(held, "t_1", "page")
    assert (await begin(held, "pr_1", restart=True)).channel == "page"
    await held.write(processes.mark_ended, "pr_1", state="lost", exit_code=None, now=3.0)
    await held.write(turns.settle, "t_1", state="answered", now=3.0)
    await _take(held, "t_2", "http")
    again = await held.write(processes.restart, "pr_1", new_id="pr_2", log="", now=5.0)
    assert again is not None and again.channel == "page"
    assert await held.read(processes.get, "pr_2") == again


async def test_the_live_ones_are_listed_in_pages(held: Store) -> None:
    for number in range(5):
        await begin(held, f"pr_{number}", f"job {number}")
    seen, after = [], ""
    while page := await held.read(processes.live, after=after, limit=2):
        seen += [row.id for row in page]
        after = page[-1].id
    assert seen == [f"pr_{number}" for number in range(5)]


async def put(store: Store, *, session: str = "s_1", folder: str = "w/s_1", project: bool = False) -> None:
    await store.write(workspaces.put, session=session, backend="bubblewrap", folder=folder, project=project)


async def test_a_saved_shell_comes_back_as_it_was(held: Store) -> None:
    """Long ones packed, any bytes, and unchanged when the workspace is put again."""
    assert not await held.write(workspaces.save_shell, "s_1", b"x")
    await put(held)
    assert await held.read(workspaces.shell, "s_1") is None
    for state in (b"cd /tmp", b"\x00\xff\xfe" + b"export A=1\n" * 4000, b""):
        assert await held.write(workspaces.save_shell, "s_1", state)
        await put(held, folder="w/other")
        assert await held.read(workspaces.shell, "s_1") == state
    with pytest.raises(Refused):
        await held.write(workspaces.save_shell, "s_1", b"x" * (workspaces.SHELL_BYTES + 1))
    row = await held.read(workspaces.get, "s_1")
    assert row is not None and (row.folder, row.backend, row.project, row.state) == (
        "w/other",
        "bubblewrap",
        False,
        "live",
    )


async def test_an_end_trashes_the_workspace_and_forgets_the_shell(held: Store) -> None:
    """B3: in the transaction of the end; removed after its time, once."""
    await put(held)
    await held.write(workspaces.save_shell, "s_1", b"export SECRET=1")
    await held.write(sessions.end, "s_1", reason="new", hooks=(), now=5.0)
    row = await held.read(workspaces.get, "s_1")
    assert row is not None and (row.state, row.trashed_at) == ("trash", 5.0)
    assert await held.read(workspaces.shell, "s_1") is None
    assert not await held.write(workspaces.save_shell, "s_1", b"late")
    with pytest.raises(Conflict, match="ended"):
        await put(held)
    assert await held.write(workspaces.trash, "s_1", 6.0) == row
    assert await held.read(workspaces.due_for_removal, 5.0) == []
    assert await held.read(workspaces.due_for_removal, 5.5) == [row]
    assert await held.read(workspaces.existing, ["s_1", "s_none"]) == {"s_1"}
    assert await held.write(workspaces.remove, "s_1")
    assert not await held.write(workspaces.remove, "s_1")
    assert await held.read(workspaces.due_for_removal, 99.0) == []
    assert await held.read(workspaces.existing, ["s_1"]) == set()


async def test_a_users_own_folder_is_never_due_for_removal(held: Store) -> None:
    """An end only lets go of it."""
    await put(held, folder="/home/anna/project", project=True)
    await held.write(sessions.end, "s_1", reason="new", hooks=(), now=5.0)
    row = await held.read(workspaces.get, "s_1")
    assert row is not None and row.state == "gone"
    assert await held.read(workspaces.due_for_removal, 99.0) == []
    assert not await held.write(workspaces.remove, "s_1")


async def spool(store: Store, id: str, *, session: str = "s_1", size: int = 10, now: float = 1.0) -> SpooledRow:
    return await store.write(
        spooled.add, id=id, session=session, turn="t_1", kind="text", bytes=size, lines=2, name="out", now=now
    )


async def test_a_spooled_result_is_found_under_its_session_and_its_principal_only(held: Store) -> None:
    """X06, X07: the id of another's result is the id of nothing."""
    await held.write(new_session, "s_2", principal=OTHER)
    row = await spool(held, "sp_1")
    assert (row.bytes, row.lines, row.media_type) == (10, 2, "text/plain")
    assert await held.read(spooled.get, "sp_1", "s_1") == row
    assert await held.read(spooled.get, "sp_1", "s_2") is None
    assert await held.read(spooled.owned, "sp_1", OWNER) == row
    assert await held.read(spooled.owned, "sp_1", OTHER) is None
    assert await held.read(spooled.of_session, "s_1", principal=OWNER) == [row]
    assert await held.read(spooled.of_session, "s_1", principal=OTHER) == []


async def test_what_a_session_spools_is_summed_listed_and_forgotten(held: Store) -> None:
    """Kept with the transcript when the session ends."""
    for number in range(5):
        await spool(held, f"sp_{number}", size=100, now=float(number // 2))
    assert await held.read(spooled.total, "s_1") == 500
    assert await held.read(spooled.total, "s_none") == 0
    seen: list[SpooledRow] = []
    after = (0.0, "")
    while page := await held.read(spooled.of_session, "s_1", principal=None, after=after, limit=2):
        seen += page
        after = (page[-1].created, page[-1].id)
    assert [row.id for row in seen] == [f"sp_{number}" for number in range(5)]
    assert await held.read(spooled.existing, ["sp_1", "sp_9"]) == {"sp_1"}
    await held.write(sessions.end, "s_1", reason="new", hooks=(), now=5.0)
    assert await held.read(spooled.total, "s_1") == 500
    with pytest.raises(Conflict, match="ended"):
        await spool(held, "sp_late")


async def test_nothing_can_be_owned_by_a_session_that_is_not_there(held: Store) -> None:
    for attempt in (
        begin(held, "pr_1", session="s_none"),
        put(held, session="s_none"),
        spool(held, "sp_1", session=""),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert await held.read(sessions.existing, ["s_1", "s_none"]) == {"s_1"}


async def test_a_delete_takes_what_the_session_owned_and_nothing_of_another(held: Store) -> None:
    """B3: in the same transaction."""
    await held.write(new_session, "s_2")
    for session in ("s_1", "s_2"):
        await begin(held, f"pr_{session}", session=session)
        await put(held, session=session)
        await spool(held, f"sp_{session}", session=session)
    await held.write(sessions.delete, "s_1")
    for table in ("processes", "workspaces", "spooled"):
        assert await held.read(count, table) == await held.read(count, table, "session = 's_2'") == 1
