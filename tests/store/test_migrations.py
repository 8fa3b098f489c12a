"""A file of an older format: it gets the current schema and keeps all its content."""

import contextlib
from pathlib import Path

import anyio
import anyio.to_thread
import apsw
import pytest

from tests.store.rows import OWNER, count, sessions_with
from tidegate.errors import StoreFailed
from tidegate.store import (
    Db,
    IntentRow,
    Store,
    approvals,
    intents,
    messages,
    migrations,
    open_turns,
    principals,
    processes,
    sessions,
    settings,
    turns,
    usage,
    workspaces,
)
from tidegate.store.migrations import CURRENT
from tidegate.values import Usage

pytestmark = pytest.mark.anyio

BASE = "You are kind."
VERSE = "Answer in verse.\nNever rhyme 'love' with 'dove'. " + "Keep to the metre. " * 60


@pytest.fixture
def old(path: Path) -> Path:
    """A store of the first format."""
    text = Path(__file__).with_name("format_1.sql").read_text(encoding="utf-8")
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute(text)
    return path


def shape(db: Db) -> set[tuple[str, str]]:
    """Tables with their columns, and indexes, whatever way they came to be."""
    found: set[tuple[str, str]] = set()
    for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'"):
        if kind == "table":
            columns = [row[1:] for row in db.execute(f'PRAGMA table_xinfo("{name}")')]
            found.add((name, repr(sorted(columns, key=lambda column: column[0]))))
        else:
            found.add((name, sql))
    return found


async def test_an_old_file_gets_the_schema_of_a_new_one(old: Path, tmp_path: Path) -> None:
    """L18: its tables, columns and indexes are those of a new file."""
    async with Store.open(tmp_path / "new.db") as new, Store.open(old) as store:
        assert await store.read(migrations.version) == CURRENT
        assert await store.read(shape) == await new.read(shape)
        assert await store.integrity() == []
        assert await store.read(lambda db: db.execute("PRAGMA foreign_key_check").fetchall()) == []


async def test_an_old_conversation_can_be_continued(old: Path) -> None:
    """L18: transcript, queue, settings, keys and indexed words are unchanged."""
    async with Store.open(old) as store:
        assert [message.text for message in await store.read(messages.history, "s_verse")] == [
            "hello tide",
            "The water knows. " * 80,
        ]
        assert [turn.id for turn in await store.read(open_turns.listing)] == ["t_2"]
        assert [one.value for one in await store.read(settings.get_all, "s_verse", 5.0)] == ["fast"]
        assert await store.read(principals.authenticate, b"k" * 32, "key", 5.0) is not None
        assert await sessions_with(store, "tide", principal=OWNER) == ["s_verse"]
        over = await store.read(sessions.get, "s_over")
        assert over is not None and over.ended == 5.0
        await store.write(turns.take, "t_2", 6.0)
        assert len(await store.read(messages.history, "s_verse")) == 3


async def test_an_old_sign_in_is_signed_out(old: Path) -> None:
    """X05: its cookie was sufficient alone and may be known to others."""
    with contextlib.closing(apsw.Connection(str(old))) as db:
        db.execute(
            "INSERT INTO keys(id, principal, kind, digest, created) VALUES('k_old', ?, 'cookie', ?, 1.0)",
            (OWNER, b"c" * 32),
        )
    async with Store.open(old) as store:
        assert await store.read(principals.authenticate, b"c" * 32, "cookie", 5.0) is None
        assert await store.read(principals.list_keys, None, "cookie") == []


async def test_an_old_approval_still_waits_for_its_answer(old: Path) -> None:
    """S29: and an answered one stays answered."""
    async with Store.open(old) as store:
        (waiting,) = await store.read(approvals.open_for, principal=OWNER, role="member", now=5.0)
        assert (waiting.id, waiting.turn, waiting.summary) == ("a_1", "t_1", '{"command":"rm x"}')
        assert (waiting.digest, waiting.expires) == (b"d" * 32, 9.0)
        answered = await store.read(approvals.get, "a_2")
        assert answered is not None and (answered.state, answered.answered_by) == ("approved", OWNER)
        assert await store.read(count, "approvals") == 2


async def test_an_old_prompt_is_kept_once_and_sent_as_it_was(old: Path) -> None:
    """B4, S32: byte for byte, under the same identity, and with the session's own part still known."""
    async with Store.open(old) as store:
        for id, extra, prompt in (
            ("s_plain", "", BASE),
            ("s_verse", VERSE.strip(), f"{BASE}\n\n{VERSE.strip()}"),
            ("s_over", "Be brief.", f"{BASE}\n\nBe brief."),
        ):
            row = await store.read(sessions.get, id)
            assert row is not None and row.prefix is not None
            prefix = await store.read(sessions.prefix, row.prefix)
            assert prefix.prompt == prompt and prefix.tools[0].name == "clock"
            assert row.prefix == sessions.identity(prefix)
            assert await store.read(sessions.extra, row) == extra
            assert sessions.has_extra(row, extra) and not sessions.has_extra(row, extra + "!")
        assert await store.read(count, "prefixes", "packed") == 1
        assert not await store.read(count, "prefixes", "instr(body, 'metre')")


async def test_an_old_session_that_lost_its_prompt_keeps_its_own_part(old: Path) -> None:
    """S32: so that a new prompt can be built with it."""
    async with Store.open(old) as store:
        row = await store.read(sessions.get, "s_bare")
        assert row is not None
        assert await store.read(sessions.extra, row) == "Be brief."


def look(path: Path) -> tuple[int, int]:
    """The file's format, and how many approvals it has that wait in the way of the first."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        return migrations.version(db), count(db, "approvals", "state = 'pending'")


async def test_a_step_that_fails_leaves_the_file_as_it_was(old: Path) -> None:
    """L18: each migration is applied completely or not at all; the next start begins with it again."""
    with contextlib.closing(apsw.Connection(str(old))) as db:
        db.execute("CREATE TABLE spooled(in_the_way)")  # the last table that the second migration makes
    with pytest.raises(StoreFailed, match="table spooled already exists"):
        async with Store.open(old):
            pytest.fail("it was opened")
    assert await anyio.to_thread.run_sync(look, old) == (1, 1)
    with contextlib.closing(apsw.Connection(str(old))) as db:
        db.execute("DROP TABLE spooled")
    async with Store.open(old) as store:
        assert await store.read(migrations.version) == CURRENT
        assert await store.read(count, "approvals", "state = 'open'") == 1


def make_old(db: apsw.Connection, version: int) -> None:
    """A file of that format, with one session."""
    for number, step in enumerate(migrations.MIGRATIONS[:version], start=1):
        step(db)
        db.execute(f"PRAGMA user_version = {number}")
    db.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
    db.execute(
        "INSERT INTO sessions(id, principal, channel, kind, agent, created, active)"
        " VALUES('s_1', 'p', 'page', 'named', 'main', 1, 1)"
    )


def as_of_three(path: Path) -> None:
    """A file of the third format, in which a turn that a process began waits, and another has ended."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        make_old(db, 3)
        for number, state in enumerate(("answered", "queued"), start=1):
            db.execute(
                "INSERT INTO turns(id, session, number, state, channel, call, on_disconnect, attempts, accepted)"
                " VALUES(?, 's_1', ?, ?, 'process', x'7b7d', 'continue', 0, 1)",
                (f"t_{number}", number, state),
            )
        db.execute(
            "INSERT INTO processes(id, session, name, command, backend, state, exit_code, restart, notify, started,"
            " ended, log) VALUES('pr_1', 's_1', 'job', 'make', 'local', 'exited', 0, 0, 1, 1, 2, 'pr_1')"
        )


async def test_a_turn_that_a_process_began_gets_the_channel_of_its_session(tmp_path: Path) -> None:
    """X11, L18: open turns get the rights of an existing channel; settled ones are unchanged."""
    path = tmp_path / "tidegate.db"
    await anyio.to_thread.run_sync(as_of_three, path)
    async with Store.open(path) as store:
        assert await store.read(migrations.version) == CURRENT
        assert await store.read(count, "turns", "id = 't_1' AND channel = 'process'") == 1
        assert await store.read(count, "turns", "id = 't_2' AND channel = 'page'") == 1
        [row] = await store.read(processes.unreported)
        assert (row.id, row.channel) == ("pr_1", "")


def as_of_four(path: Path) -> None:
    """A file of the fourth format, with a turn that was paid for and one that waits."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        make_old(db, 4)
        for number, state in enumerate(("answered", "queued"), start=1):
            db.execute(
                "INSERT INTO turns(id, session, number, state, channel, call, on_disconnect, accepted, input, cached,"
                " output, steps) VALUES(?, 's_1', ?, ?, 'page', x'7b7d', 'continue', 1, 7, 3, 2, 1)",
                (f"t_{number}", number, state),
            )
        db.execute(
            "INSERT INTO usage(session, principal, agent, channel, model, turn, at, input, cached, output)"
            " VALUES('s_1', 'p', 'main', 'page', 'm', 't_1', 7200, 7, 3, 2)"
        )


async def test_usage_from_before_there_were_prices_is_still_known(tmp_path: Path) -> None:
    """X22, L18: its tokens count, without a cost or a job; turns can continue."""
    path = tmp_path / "tidegate.db"
    await anyio.to_thread.run_sync(as_of_four, path)
    async with Store.open(path) as store:
        assert await store.read(migrations.version) == CURRENT
        (row,) = await store.read(usage.totals, by="job")
        assert (row.key, row.calls, row.input, row.cached, row.output, row.cost, row.estimated) == (
            "",
            1,
            7,
            3,
            2,
            0,
            0,
        )
        assert (await store.read(usage.spent_by, "principal", "p", 0.0)).tokens == 9
        turn = await store.read(turns.get, "t_1")
        assert turn is not None and (turn.job, turn.usage) == ("", Usage(input=7, cached=3, output=2))
        await store.write(turns.take, "t_2", 2.0)
        assert await store.integrity() == []


def as_of_six(path: Path) -> None:
    """A file of the sixth format, with a call that had begun."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        make_old(db, 6)
        db.execute("INSERT INTO intents(turn, step, tool, at) VALUES('t_1', 'tool-0-0', 'clock', 1)")


async def test_a_call_that_had_begun_before_intents_said_more_counts_as_one_with_effects(tmp_path: Path) -> None:
    """P05, L18: its tool decides whether it may be run again."""
    path = tmp_path / "tidegate.db"
    await anyio.to_thread.run_sync(as_of_six, path)
    async with Store.open(path) as store:
        assert await store.read(intents.open_of, "t_1") == {"tool-0-0": IntentRow("clock", False, None)}


def as_of_eight(path: Path) -> None:
    """A file of the eighth format, in which a user and the owner worked in a project folder."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        make_old(db, 8)
        db.execute("INSERT INTO principals VALUES('p_anna', 'anna', 'user', NULL, 1), ('p_me', 'me', 'owner', NULL, 1)")
        for principal, folder in (("p_anna", "/shared"), ("p_me", "/mine")):
            db.execute(
                "INSERT INTO sessions(id, principal, channel, kind, agent, created, active)"
                " VALUES(?1, ?1, 'http', 'named', 'main', 1, 1)",
                (principal,),
            )
            db.execute(
                "INSERT INTO workspaces(session, backend, folder, project, state)"
                " VALUES(?, 'bubblewrap', ?, 1, 'live')",
                (principal, folder),
            )


async def test_principals_with_an_old_project_workspace_count_as_writers(tmp_path: Path) -> None:
    """X19, L18: nothing there is trusted until the owner accepts it; the owner is not counted."""
    path = tmp_path / "tidegate.db"
    await anyio.to_thread.run_sync(as_of_eight, path)
    async with Store.open(path) as store:
        assert await store.read(workspaces.project_trust) == (frozenset({("/shared", "p_anna")}), frozenset())
