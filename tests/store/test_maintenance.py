"""Maintenance: continues until nothing is left, in short writes."""

from collections import Counter
from pathlib import Path

import pytest

from tests.store.rows import OWNER, complete_turn, count, new_session, new_turn, sessions_with
from tidegate.errors import StoreFailed
from tidegate.store import (
    Db,
    Store,
    intents,
    maintenance,
    messages,
    outbox,
    principals,
    search_index,
    sessions,
    settings,
)
from tidegate.values import Prefix

pytestmark = pytest.mark.anyio

MANY = maintenance.BATCH + 100
"""More than one write may remove."""


def fill(db: Db) -> None:
    """Many of everything that can be over, and one of each that is not."""
    owner = principals.add(db, name="owner", role="owner", agents=None, now=1.0)
    new_session(db, "s_1")
    new_turn(db, "s_1", "t_open", "hello")
    intents.begin(db, "t_open", "tool-0", "shell", 1.0)
    settings.put(db, "s_1", "model", "fast", "command", 1.0)
    principals.add_key(db, owner.id, "cookie", b"valid", "", 1.0, 1e9)
    principals.add_key(db, owner.id, "cookie", b"for ever", "", 1.0)
    principals.revoke(db, "key", 2.0, id=principals.add_key(db, owner.id, "key", b"revoked", "", 1.0))
    for number in range(MANY):
        settings.put(db, "s_1", f"k{number}", 1, "command", 1.0, 2.0)
        principals.add_key(db, owner.id, "code", number.to_bytes(4, "big"), "", 1.0, 2.0)
        intents.begin(db, "t_over", f"tool-{number}", "shell", 1.0)
        new_session(db, f"s_gone_{number}", kind="ephemeral", prefix=Prefix(prompt=f"prompt {number}"))
        sessions.delete(db, f"s_gone_{number}")


async def test_expired_rows_are_removed_completely_in_short_writes(path: Path) -> None:
    """L20: no write removes more than its batch, so no turn waits long behind it."""
    writes: Counter[str] = Counter()

    def note(point: str, names: tuple[str, ...]) -> None:
        if point == "before-write":
            writes.update(names)

    async with Store.open(path, fault=note) as store:
        await store.write(fill)
        writes.clear()
        assert await maintenance.tidy(store, 200_000.0) == 4 * MANY
        assert writes == {"expire": 2, "prune_keys": 2, "forget_intents": 2, "drop_prompts": 2}
        left = {table: await store.read(count, table) for table in ("settings", "keys", "intents", "prefixes")}
        assert left == {"settings": 1, "keys": 3, "intents": 1, "prefixes": 1}
        assert await maintenance.tidy(store, 200_000.0) == 0


async def test_a_prompt_that_came_into_use_between_look_and_removal_stays(store: Store) -> None:
    """S33: a reader finds unused prompts; the write that removes them checks again."""
    await store.write(new_session, "s_1", kind="ephemeral")
    await store.write(sessions.delete, "s_1")
    unused, after = await store.read(maintenance.unused_prompts, b"")
    assert len(unused) == 1 and after is None
    await store.write(new_session, "s_2")
    assert await store.write(maintenance.drop_prompts, unused) == 0
    row = await store.read(sessions.get, "s_2")
    assert row is not None and row.prefix is not None and (await store.read(sessions.prefix, row.prefix)).prompt


async def test_a_long_transcript_is_removed_a_piece_at_a_time(store: Store) -> None:
    """L20, B3: with its words in the index, without anything of another session, and only after the end hooks."""

    def write(db: Db) -> None:
        new_session(db, "s_long")
        new_session(db, "s_other")
        for number in range(7):
            complete_turn(db, "s_long", f"t_{number}", "a long story")
        complete_turn(db, "s_other", "t_other", "a long story")

    await store.write(write)
    await store.write(search_index.index)
    assert await store.write(sessions.delete_messages, "s_long", 5) == 0
    await store.write(sessions.end, "s_long", reason="delete", hooks=("memory",), now=3.0)
    await store.write(sessions.mark_for_deletion, "s_long")
    assert await store.write(sessions.delete_messages, "s_long", 5) == 0
    await store.write(sessions.finish_hook, "s_long", "memory", 4.0)
    assert await store.write(sessions.delete_messages, "s_long", 5) == 5
    assert [row.seq for row in await store.read(messages.page, "s_long")] == list(range(6, 15))
    assert await maintenance.delete_session(store, "s_long")
    assert not await maintenance.delete_session(store, "s_long")
    assert await store.read(count, "messages") == await store.read(count, "message_terms") == 2
    assert await sessions_with(store, "story", principal=OWNER) == ["s_other"]
    assert await store.integrity() == []


async def test_rows_that_get_the_numbers_of_removed_ones_are_found_by_search(store: Store) -> None:
    """The mark of the index is lowered with the last row, in whatever way that is removed."""
    await store.write(new_session, "s_1")
    await store.write(complete_turn, "s_1", "t_1", "the first words")
    await store.write(search_index.index)
    await store.write(sessions.end, "s_1", reason="new", hooks=(), now=3.0)
    assert await store.write(sessions.delete_messages, "s_1", 10) == 2
    await store.write(new_session, "s_2")
    await store.write(complete_turn, "s_2", "t_2", "the second words")
    assert await sessions_with(store, "second", principal=OWNER) == ["s_2"]


async def test_deliveries_expire_and_recover_a_bounded_number_at_a_time(store: Store) -> None:
    """S20, S21, L20: an expired delivery is not sent even if it has not been closed yet."""

    def write(db: Db) -> None:
        for number in range(7):
            outbox.prepare(
                db,
                id=f"o_{number}",
                session=None,
                turn=None,
                channel="mail",
                target="x",
                body=b"",
                now=1.0,
                expires=5.0 if number < 5 else 100.0,
            )

    await store.write(write)
    assert [row.id for row in await store.write(outbox.claim_due, 6.0, 2)] == ["o_5", "o_6"]
    assert await store.read(outbox.counts) == {"dead": 2, "prepared": 3, "sending": 2}
    assert await store.write(outbox.recover, 7.0, 1) == 1
    assert await store.write(outbox.recover, 7.0, 1) == 1
    assert await store.write(outbox.recover, 7.0, 1) == 0


async def test_maintenance_stops_when_the_store_fails(store: Store) -> None:
    """The error reaches the timer, which reports it and tries again later."""
    await store.close()
    with pytest.raises(StoreFailed):
        await maintenance.tidy(store, 1.0)


async def test_a_check_between_searches_and_writes_finds_no_damage_where_there_is_none(tmp_path: Path) -> None:
    """L18: segments of the index that were merged since the last search are not reported as damage."""

    def find(db: Db) -> None:
        db.execute("SELECT rowid FROM message_terms WHERE message_terms MATCH 'word'").fetchall()

    def add(db: Db, number: int) -> None:
        db.execute("INSERT INTO message_terms(rowid, terms) VALUES(?, ?)", (number, f"word w{number}"))

    async with Store.open(tmp_path / "tidegate.db", readers=1) as store:
        for number in range(1, 40):
            await store.write(add, number)
            assert await store.integrity() == []
            await store.read(find)
