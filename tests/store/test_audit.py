"""The table of the audit log: appended to, read, pruned by age, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.store.rows import OWNER, new_session, new_turn
from tidegate.cli.commands import audit as command
from tidegate.errors import TidegateError
from tidegate.store import AuditKind, AuditRow, Db, Store, approvals, audit, intents, maintenance, principals, sessions
from tidegate.store.rows import NewApproval
from tidegate.store.tables.approvals import action_digest

pytestmark = pytest.mark.anyio

DAY = 86400.0


def event(number: int, **fields: Any) -> Callable[[Db], None]:
    return lambda db: audit.append(db, "tool", "done", number * DAY, **{"subject": f"terminal t_{number}", **fields})


def audit_facts(rows: list[AuditRow]) -> list[tuple[str, str, str | None, str]]:
    return [(row.kind, row.outcome, row.principal, row.subject) for row in rows]


async def test_a_row_is_never_changed(store: Store) -> None:
    """X24: not even by a statement sent to the store."""
    await store.write(event(1))
    for column in ("at", "kind", "principal", "session", "subject", "outcome", "digest", "id"):
        with pytest.raises(TidegateError):
            await store.write(lambda db, column=column: db.execute(f"UPDATE audit SET {column} = 7").fetchall())
    columns = "id, at, kind, subject, outcome"
    for statement in (
        f"INSERT OR REPLACE INTO audit({columns}) VALUES(1, 9e9, 'tool', '', 'denied')",
        f"REPLACE INTO audit({columns}) SELECT id, at, kind, '', 'denied' FROM audit",
        f"INSERT INTO audit({columns}) VALUES(1, 9e9, 'tool', '', 'x') ON CONFLICT DO UPDATE SET outcome = 'denied'",
        f"INSERT INTO audit({columns}) VALUES(0, 9e9, 'tool', '', 'denied')",
    ):
        with pytest.raises(TidegateError):
            await store.write(lambda db, statement=statement: db.execute(statement).fetchall())
    assert audit_facts(await store.read(audit.listing)) == [("tool", "done", None, "terminal t_1")]


async def test_a_row_is_removed_when_its_retention_is_over_and_not_before(store: Store) -> None:
    """X24, L19: the oldest first, a bounded number at a time; younger rows cannot be deleted."""
    for number in range(1, 11):
        await store.write(event(number))
    with pytest.raises(TidegateError):
        await store.write(lambda db: db.execute("DELETE FROM audit WHERE id = 1").fetchall())
    assert await store.write(audit.prune, 1 * DAY, 3) == 0
    assert [await store.write(audit.prune, 6 * DAY, 3) for _ in range(3)] == [3, 2, 0]
    assert [row.id for row in await store.read(audit.listing)] == [10, 9, 8, 7, 6]
    assert await store.read(audit.count) == 5
    with pytest.raises(TidegateError):
        await store.write(lambda db: db.execute("DELETE FROM audit").fetchall())
    assert await store.read(audit.count) == 5
    assert await store.write(audit.prune, 100 * DAY, maintenance.BATCH) == 5
    await store.write(event(11))
    assert [row.id for row in await store.read(audit.listing)] == [11], "numbers are not given twice"


async def test_a_list_is_paged_and_every_filter_holds(store: Store) -> None:
    """X24: in the order of time, each row on exactly one page."""
    for number in range(1, 11):
        principal, session = ("p_1", "s_1") if number % 2 else ("p_2", "s_2")
        await store.write(event(number // 2, principal=principal, session=session, of=b"x" if number > 8 else None))
    await store.write(lambda db: audit.append(db, "key", "revoked", 9 * DAY, subject="key k_1 p_1", principal="p_2"))
    pages: list[list[int]] = []
    before = None
    while rows := await store.read(audit.listing, before=before, limit=4):
        pages.append([row.id for row in rows])
        before = (rows[-1].at, rows[-1].id)
    assert pages == [[11, 10, 9, 8], [7, 6, 5, 4], [3, 2, 1]]

    async def ids(**query: Any) -> list[int]:
        return [row.id for row in await store.read(audit.listing, **query)]

    assert await ids(kind="key") == [11]
    assert await ids(session="s_2") == [10, 8, 6, 4, 2]
    assert await ids(principal="p_1") == [11, 9, 7, 5, 3, 1], "what they did, and what was done to them"
    assert await ids(principal="p_") == []
    assert await ids(since=4 * DAY) == [11, 10, 9, 8]
    assert await ids(of=b"x") == [10, 9]
    assert await ids(of=b"y") == []


async def test_a_digest_reveals_nothing_without_the_key_of_its_database(store: Store, tmp_path: Any) -> None:
    """X24: equal content has equal digests in one database, and different ones in another."""
    await store.write(event(1, of=b"rm -rf /"))
    await store.write(event(2, of=b"rm -rf /"))
    first, second = await store.read(audit.listing)
    assert first.digest == second.digest is not None
    async with Store.open(tmp_path / "other.db") as other:
        await other.write(event(1, of=b"rm -rf /"))
        (row,) = await other.read(audit.listing)
        assert row.digest != first.digest


async def test_the_failed_sign_ins_of_an_hour_are_counted_beyond_twenty(store: Store) -> None:
    """X24: up to twenty have a row each; the number of further ones is recorded in the next hour."""
    for _ in range(100):
        assert await store.write(principals.use_code, b"wrong", 10.0) is None
    assert await store.read(audit.count) == audit.FAILURES_EACH_HOUR
    await store.write(audit.append_further_failures, 3599.0)
    assert await store.read(audit.count) == audit.FAILURES_EACH_HOUR
    for _ in range(2):
        await store.write(audit.append_further_failures, 3600.0)
    assert audit_facts(await store.read(audit.listing, since=11.0)) == [("sign_in", "failed", None, "80 more")]
    await store.write(principals.use_code, b"wrong", 3700.0)
    assert await store.read(audit.count) == audit.FAILURES_EACH_HOUR + 2


async def test_keys_and_sign_ins_are_recorded_with_their_actor(store: Store) -> None:
    """X24: for a key, a link and a browser; a second revocation adds no row."""
    await store.write(
        lambda db: principals.add(db, name="anna", role="member", agents=None, now=1.0, id="p_1", by=OWNER)
    )
    ids: dict[str, str] = {}
    for kind in ("key", "code", "cookie"):
        ids[kind] = await store.write(principals.add_key, "p_1", kind, kind.encode(), "secret label", 1.0, by=OWNER)
    for _ in range(2):
        await store.write(principals.revoke, "key", 2.0, id=ids["key"], by=OWNER)
        await store.write(principals.revoke, "cookie", 2.0, principal="p_1", by="p_1")
    assert audit_facts(await store.read(audit.listing)) == [
        ("sign_out", "revoked", "p_1", f"cookie {ids['cookie']} p_1"),
        ("key", "revoked", OWNER, f"key {ids['key']} p_1"),
        ("sign_in", "done", "p_1", f"cookie {ids['cookie']}"),
        ("key", "added", OWNER, f"code {ids['code']} p_1"),
        ("key", "added", OWNER, f"key {ids['key']} p_1"),
        ("principal", "added", OWNER, "p_1 member"),
    ]


async def test_an_approval_is_recorded_when_it_is_asked_and_however_it_is_closed(store: Store) -> None:
    """X24, X14: with its actor and action; questions are not recorded, and a second answer changes nothing."""
    digest = action_digest("terminal", '{"command": "rm x"}')

    def ask(db: Db, id: str, kind: Any = "approval") -> None:
        request = NewApproval(kind=kind, tool="terminal", digest=digest, summary="rm x")
        approvals.ask(db, id=id, session="s_1", turn="t_1", step=id, request=request, now=1.0, expires=9.0)

    def work(db: Db) -> None:
        new_session(db, "s_1")
        new_turn(db, "s_1", "t_1")
        for id in ("ap_1", "ap_2", "ap_3"):
            ask(db, id)
        ask(db, "ap_1")
        ask(db, "ap_4", "question")
        for _ in range(2):
            approvals.answer(db, "ap_1", decision="approved", principal=OWNER, role="owner", now=2.0)
        approvals.cancel_call(db, "t_1", "ap_2", 3.0)
        approvals.expire(db, 10.0)

    await store.write(work)
    rows = await store.read(audit.listing, kind="approval")
    assert audit_facts(rows) == [
        ("approval", "expired", None, "ap_3 terminal t_1 ap_3"),
        ("approval", "cancelled", None, "ap_2 terminal t_1 ap_2"),
        ("approval", "approved", OWNER, "ap_1 terminal t_1 ap_1"),
        *(("approval", "asked", OWNER, f"{id} terminal t_1 {id}") for id in ("ap_3", "ap_2", "ap_1")),
    ]
    assert {row.digest for row in rows} == {await store.read(audit.digest, digest)}
    assert {row.session for row in rows} == {"s_1"}


async def test_rows_outlive_the_session_they_name(store: Store) -> None:
    """X24, B3."""

    def work(db: Db) -> None:
        new_session(db, "s_1")
        audit.append(db, "tool", "begun", 1.0, session="s_1")
        sessions.end(db, "s_1", reason="new", hooks=(), now=2.0)
        assert sessions.delete(db, "s_1")

    await store.write(work)
    assert [row.session for row in await store.read(audit.listing)] == ["s_1"]


async def test_a_configuration_is_recorded_when_it_differs_from_the_last(store: Store) -> None:
    """X24: by its digest; a reloaded conversation in between makes no difference."""
    assert await store.write(audit.append_configuration, b"a", 1.0)
    assert not await store.write(audit.append_configuration, b"a", 2.0)
    await store.write(lambda db: audit.append(db, "configuration", "reloaded", 3.0, session="s_1", of=b"b"))
    assert not await store.write(audit.append_configuration, b"a", 4.0)
    assert await store.write(audit.append_configuration, b"b", 5.0)
    assert await store.write(audit.append_configuration, b"a", 6.0)


async def test_an_intent_keeps_the_digest_of_what_is_recorded(store: Store) -> None:
    """X24: so the end of a turn can record which action was interrupted."""
    await store.write(intents.begin, "t_1", "tool-0-0", "terminal", 1.0, digest=b"d")
    assert (await store.read(intents.open_of, "t_1"))["tool-0-0"].digest == b"d"
    assert await store.write(intents.clear, "t_1", "tool-0-0")
    assert not await store.write(intents.clear, "t_1", "tool-0-0")


def test_the_command_knows_every_kind() -> None:
    [option] = [each for each in command.command.params if each.name == "kind"]
    assert AuditKind.__args__ == tuple(option.type.choices)  # type: ignore[attr-defined]
