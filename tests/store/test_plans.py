"""Query plans: the cost of a statement does not grow with the store."""

import contextlib
import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.store.rows import OFFER, OWNER, answered, ask, complete_turn, new_session, new_turn, user_message
from tidegate.recall import recall as recalling
from tidegate.store import (
    AllWords,
    Db,
    StopRequest,
    Store,
    SummaryRow,
    approval_rules,
    approvals,
    audit,
    dialect,
    intents,
    maintenance,
    messages,
    migrations,
    open_turns,
    outbox,
    principals,
    processes,
    ranking,
    receipts,
    search,
    search_index,
    session_search,
    sessions,
    settings,
    spooled,
    summaries,
    turns,
    workspaces,
)
from tidegate.store.sqlite.connections import connect
from tidegate.values import Outcome, Prefix, Receipt

GROWING = (
    "sessions",
    "turns",
    "messages",
    "receipts",
    "usage",
    "keys",
    "intents",
    "settings",
    "approvals",
    "approval_rules",
    "outbox",
    "processes",
    "workspaces",
    "spooled",
    "prefixes",
    "index_blocks",
    "indexed_extents",
    "summaries",
    "audit",
)
OPEN = (
    "index_retitled|index_unplaced|turns_open|endings_pending|processes_live|processes_restart|processes_untold|workspaces_trash|outbox_sending"
    "|audit_configuration"
)
"""Indexes that hold only what is open, or the configurations there were, of which there is little."""


def scenario(db: Db) -> None:
    """The statements of a turn, an end, a delete and a start."""
    receipt = Receipt(source="idempotency", key="k", digest=b"d")
    new_session(db, "s_1", name="work")
    sessions.refreeze(db, "s_1", Prefix(prompt="p"), 1)
    sessions.reencode(db, "s_1", 2)
    receipts.find(db, OWNER, "idempotency", "k", 1.0)
    sessions.live_by_name(db, OWNER, "work")
    open_turns.of_session(db, "s_1")
    new_turn(db, "s_1", "t_1", "hello")
    receipts.put(db, OWNER, receipt, "t_1", 1.0)
    answered(db, "s_1", "t_1")
    new_turn(db, "s_1", "t_2", "again")
    turns.take(db, "t_2", 2.0)
    turns.take(db, "t_2", 2.0)
    open_turns.running(db, "s_1")
    settings.get_all(db, "s_1", 1.0)
    intents.begin(db, "t_2", "tool-0", "x", 1.0)
    intents.open_of(db, "t_2")
    intents.clear(db, "t_2", "tool-0")
    messages.accept(db, session="s_1", turn="t_2", message=user_message("steer"), now=2.0)
    messages.place_steered(db, "t_2", "steer-0-", 2.0)
    messages.count_waiting(db, "t_2")
    messages.journal(db, "t_2")
    messages.history(db, "s_1", "t_2")
    messages.page(db, "s_1", after=1)
    messages.newest(db, "s_1")
    messages.last_turn(db, "s_1")
    messages.undo(db, "t_2", 3.0)
    open_turns.listing(db)
    open_turns.of_sessions(db, ["s_1", "s_2"])
    open_turns.ids(db, "s_1")
    open_turns.tasks_of(db, "t_2")
    open_turns.waiting_calls(db, "s_1")
    open_turns.waiting(db)
    open_turns.waiting_of(db, OWNER)
    turns.news(db, "t_2", 2)
    turns.request_stop(db, "t_2", StopRequest("by a test"))
    turns.outcome(db, "t_1")
    turns.listing(db, "s_1", 10)
    sessions.listing(db, principal=OWNER, limit=10)
    sessions.listing(db, principal=OWNER, limit=10, before=(1.0, "s_1"))
    sessions.idle(db, kind="named", before=1.0, limit=10)
    sessions.ended_before(db, 1.0, 10)
    principals.authenticate(db, b"d", "key", 1.0)
    receipts.finish(db, "t_1", Outcome(turn="t_1", session="s_1", state="answered"))
    own(db, "s_1", "t_2")
    recall(db, "s_1")
    sessions.end(db, "s_1", reason="new", hooks=("h",), now=4.0)
    sessions.end(db, "s_1", reason="expiry", hooks=("h",), now=4.0, only_idle_since=3.0)
    sessions.mark_for_deletion(db, "s_1")
    sessions.pending_hooks(db)
    sessions.pending_hooks(db, 10, ("s_1", "h"))
    sessions.owed_hooks(db, "s_1")
    sessions.finish_hook(db, "s_1", "h", 4.0)
    upkeep(db)
    sessions.delete(db, "s_1")


def own(db: Db, session: str, turn: str) -> None:
    """The statements of tools, their watchers and the reconciling timer."""
    ask(db, session, "ap_1", turn=turn)
    ask(db, session, "ap_1", turn=turn)
    ask(db, session, "ap_2", turn=turn, expires=2.0)
    approvals.get(db, "ap_1")
    approvals.visible_to(db, "ap_1", principal=OWNER, role="user")
    approvals.of_session(db, session, principal=OWNER)
    approvals.open_for(db, principal=OWNER, role="user", now=2.0)
    approvals.open_of(db, session, 2.0)
    approvals.answer(db, "ap_1", decision="approved", principal=OWNER, role="user", now=2.0)
    approvals.expire(db, 2.0, 10)
    for number, scope in enumerate(("conversation", "always")):
        ask(db, session, f"ap_1{number}", turn=turn, offer=OFFER)
        approvals.answer(
            db,
            f"ap_1{number}",
            decision="approved",
            principal=OWNER,
            role="user",
            now=2.0,
            scope=scope,
            rule=f"ar_{number}",
        )
    [first, _] = approval_rules.of_tool(db, OFFER, b"d", session)
    approval_rules.use(db, first.id, turn=turn, step="tool-0-0", session=session, digest=b"d", now=2.0)
    approval_rules.has_void(db, OFFER)
    approval_rules.remove_void(db, OFFER, 2.0)
    approval_rules.listing(db, principal=OWNER)
    approval_rules.listing(db, session=session)
    approval_rules.remove(db, first.id, principal=OWNER, by=OWNER, now=2.0)
    approvals.cancel_call(db, turn, "tool-0-0", 2.0)
    approvals.cancel_turn(db, turn, 2.0)
    for id in ("pr_1", "pr_2"):
        processes.begin(
            db,
            id=id,
            session=session,
            name=id,
            command="x",
            backend="local",
            log="l",
            restart=True,
            notify=True,
            now=1.0,
        )
        processes.mark_running(db, id, pid=1, start_ticks=1)
        processes.mark_ended(db, id, state="lost", exit_code=None, now=2.0)
    processes.restart(db, "pr_1", new_id="pr_3", log="l", now=3.0)
    processes.get(db, "pr_1")
    processes.by_name(db, session, "pr_1")
    processes.of_session(db, session, principal=OWNER)
    processes.live(db)
    processes.restartable(db)
    processes.unreported(db)
    processes.mark_reported(db, "pr_1")
    processes.prune(db, session, 1)
    processes.existing(db, ["pr_1"])
    workspaces.put(db, session=session, backend="local", folder="w", project=False)
    workspaces.save_shell(db, session, b"x")
    workspaces.shell(db, session)
    workspaces.due_for_removal(db, 1.0)
    workspaces.unmeasured_trash(db, 10)
    workspaces.set_trash_size(db, session, 1)
    workspaces.over_quota(db, 1, 10)
    workspaces.remove(db, session)
    workspaces.existing(db, [session])
    spooled.add(db, id="sp_1", session=session, turn=turn, kind="text", bytes=1, now=1.0)
    spooled.get(db, "sp_1", session)
    spooled.owned(db, "sp_1", OWNER)
    spooled.total(db, session)
    spooled.of_session(db, session, principal=OWNER)
    spooled.existing(db, ["sp_1"])
    spooled.latest_texts(db, session)
    sessions.existing(db, [session])


def recall(db: Db, session: str) -> None:
    """The statements of recall."""
    search_index.index(db)
    search_index.index_former(db)
    search_index.sweep(db)
    search_index.count_unindexed(db)
    analyzer = search_index.analyzer(db)
    for principal, one in ((OWNER, None), (OWNER, session)):
        words = AllWords("hello", analyzer)
        search.search_messages(db, words, lambda found: found, principal=principal, session=one, own=session)
        asked = ranking.Question("hello", analyzer, 1.0)
        ranking.search_ranked(db, asked, lambda found: found, principal=principal, session=one, own=session)
    for whose in (OWNER, None):
        session_search.find(db, "hello", principal=whose)
    search.mention(db, 1, "t_9")
    search_index.sessions_below(db, OWNER, 1 << 30, 10)
    search_index.session_of(db, OWNER, 0)
    search.results_below(db, OWNER, session, 1 << 30, 10, 10)
    search_index.is_behind(db, "t_1")
    search.next_messages(db, "mine", 10, 1000)
    search.save_index_mark(db, "mine", 1)
    summary = summaries.add(db, session, SummaryRow(0, 0, 1, 2, None, "prepared", "model", "m", 0.0, "x"), 1.0)
    summaries.apply(db, session, [summary])
    row = summaries.get(db, session, summary)
    assert row is not None
    recalling.summary_heading(db, session, row)


def upkeep(db: Db) -> None:
    """The statements of the maintenance timer."""
    settings.expire(db, 1.0, 10)
    principals.prune_keys(db, 1.0, 10)
    audit.append_configuration(db, b"c", 1.0)
    audit.append_failed_sign_in(db, 1.0)
    audit.append_further_failures(db, 7200.0)
    audit.count(db)
    audit.listing(db, since=1.0, before=(2.0, 3))
    audit.prune(db, 2.0, 10)
    maintenance.unused_prompts(db, b"")
    sessions.delete_messages(db, "s_1", 1)
    outbox.claim_due(db, 1.0, 10)
    outbox.recover(db, 1.0, 10)
    outbox.purge(db, 1.0, 10)


def test_no_statement_of_a_turn_reads_a_growing_table_from_end_to_end(tmp_path: Path) -> None:
    """L20: each finds its rows by an index, so that a million sessions cost a turn nothing."""
    db = connect(tmp_path / "t.db", "process", 1 << 20)
    seen: dict[str, Any] = {}
    with contextlib.closing(db):
        migrations.migrate(db)

        def note(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
            seen.setdefault(sql, bindings)
            return True

        db.exec_trace = note
        scenario(db)
        db.exec_trace = None
        assert len(seen) > 40
        for sql, bindings in seen.items():
            if not re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE)", sql):
                continue
            plan = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, bindings)]
            for line in plan:
                scanned = re.match(rf"SCAN (\w+)(?! USING (COVERING )?INDEX ({OPEN}))\b", line)
                # A turn's own rows are few; what must not be read whole is a table.
                assert not (scanned and scanned[1] in GROWING), f"{line}\n{sql}"


def test_a_search_reads_a_range_of_the_index_and_sorts_nothing(tmp_path: Path) -> None:
    """L20: the index itself finds the words and both ends of the range, and is read only as far as needed."""
    db = connect(tmp_path / "t.db", "process", 1 << 20)
    with contextlib.closing(db):
        migrations.migrate(db)
        results = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + search.RESULTS_QUERY, (1, 2, "p", "s", 3))]
        assert not any("TEMP B-TREE" in line or "SCAN" in line for line in results), results
        for sql, table in ((dialect.FIND_ENTRIES, "message_terms"), (dialect.FIND_TITLES, "session_titles")):
            plan = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, ("x", 1, 2, 3))]
            (index,) = (line for line in plan if table in line)
            assert re.search(r"VIRTUAL TABLE INDEX \d+:M\d?><$", index), plan
            assert not any("TEMP B-TREE" in line or "MATERIALIZE" in line for line in plan), plan


@pytest.mark.anyio
async def test_a_statement_is_prepared_once_whatever_is_bound_to_it(tmp_path: Path) -> None:
    """L20: a library with STAT4 would prepare it again for each new value, which costs ten times as much."""

    def stable(db: Db) -> int:
        return db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1)

    async with Store.open(tmp_path / "t.db") as store:
        assert await store.write(stable) == 1
        assert await store.read(stable) == 1


@pytest.mark.parametrize("size", [10, 400])
def test_a_turn_touches_as_many_pages_in_a_large_store_as_in_a_small_one(tmp_path: Path, size: int) -> None:
    """L20: nothing old is rewritten."""
    db = connect(tmp_path / "t.db", "process", 64 << 20)
    pages: list[int] = []
    with contextlib.closing(db):
        migrations.migrate(db)
        with db:
            for number in range(size):
                new_session(db, f"s_{number}")
                complete_turn(db, f"s_{number}", f"t_{number}", "hello there " * 20)
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

        def count_pages(connection: apsw.Connection, name: str, number: int) -> int:
            pages.append(number)
            return apsw.SQLITE_OK

        db.set_wal_hook(count_pages)
        with db:
            complete_turn(db, "s_3", "t_x", "hello there " * 20)
        db.set_wal_hook(None)
    assert pages[-1] < 40
