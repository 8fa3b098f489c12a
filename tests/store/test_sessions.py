"""Sessions: names, owners, frozen prompts, the one end, and what a delete leaves."""

import random

import pytest

from tests.store.rows import (
    OWNER,
    answered,
    ask,
    complete_turn,
    count,
    new_session,
    new_turn,
    sessions_with,
    user_message,
)
from tidegate.errors import Conflict, NotFound
from tidegate.store import (
    Db,
    Store,
    approvals,
    intents,
    maintenance,
    messages,
    outbox,
    receipts,
    search_index,
    sessions,
    settings,
    turns,
    usage,
)
from tidegate.values import Outcome, Prefix, Receipt, Usage

pytestmark = pytest.mark.anyio

OTHER = "p_other"
PREFIX = Prefix(prompt="You are kind.")
RUDE = Prefix(prompt="You are rude.")


def size(db: Db) -> int:
    return int(db.execute("PRAGMA page_count").get) * int(db.execute("PRAGMA page_size").get)


def furnish(db: Db, session: str, turn: str) -> None:
    """Everything that can hang on a session."""
    settings.put(db, session, "model", "fast", "command", 1.0)
    ask(db, session, f"ap_{session}", turn=turn)
    intents.begin(db, turn, "tool-0", "write_file", 1.0)
    receipts.put(db, OWNER, Receipt(source="idempotency", key=f"k_{session}", digest=b"d"), turn, 1.0)
    usage.add(
        db,
        session=session,
        principal=OWNER,
        agent="main",
        channel="http",
        model="m",
        turn=turn,
        tokens=Usage(input=1, output=2),
        now=1.0,
    )
    outbox.prepare(
        db,
        id=f"o_{session}",
        session=session,
        turn=turn,
        channel="mail",
        target="x",
        body=b"b",
        now=1.0,
        expires=9.0,
    )
    sessions.refreeze(db, session, Prefix(prompt="Only here."), 1)


async def test_a_live_name_leads_to_one_session_of_its_own_principal(store: Store) -> None:
    """X06: a name is looked up under its principal only."""
    await store.write(new_session, "s_1", name="work")
    await store.write(new_session, "s_2", name="work", principal=OTHER)
    with pytest.raises(Conflict):
        await store.write(new_session, "s_3", name="work")
    mine = await store.read(sessions.live_by_name, OWNER, "work")
    theirs = await store.read(sessions.live_by_name, OTHER, "work")
    assert mine is not None and theirs is not None
    assert (mine.id, theirs.id) == ("s_1", "s_2")
    assert await store.read(sessions.live_by_name, "p_none", "work") is None


async def test_another_principals_session_turn_and_outcome_cannot_be_found(store: Store) -> None:
    """X06: every lookup for a caller is limited to their principal."""
    await store.write(new_session, "s_1", name="work")
    await store.write(complete_turn, "s_1", "t_1", "hello secret")
    assert await store.read(sessions.owned, "s_1", OTHER) is None
    assert await store.read(turns.outcome_for, "t_1", OTHER) is None
    assert await store.read(sessions.listing, principal=OTHER) == []
    assert await sessions_with(store, "secret", principal=OTHER) == []
    assert await store.read(sessions.owned, "s_1", OWNER) is not None
    assert await store.read(turns.outcome_for, "t_1", OWNER) is not None
    assert len(await sessions_with(store, "secret", principal=OWNER)) == 1


async def test_a_session_id_is_only_ever_a_value(store: Store) -> None:
    """X07: a path or a piece of SQL as an id finds and changes nothing."""
    await store.write(new_session, "s_1")
    for id in ("../../etc/passwd", "' OR 1=1 --", "s_%", "\x00"):
        assert await store.read(sessions.get, id) is None
        assert not await store.write(sessions.delete, id)
        assert not await store.write(sessions.end, id, reason="x", hooks=(), now=1.0)
    assert await store.read(count, "sessions") == 1


async def test_the_listing_pages_from_the_last_active_and_filters(store: Store) -> None:
    for number in range(7):
        await store.write(new_session, f"s_{number}", now=float(number // 2))
    await store.write(new_session, "s_x", principal=OTHER, now=50.0)
    await store.write(sessions.end, "s_3", reason="new", hooks=(), now=9.0)
    seen: list[str] = []
    before: tuple[float, str] | None = None
    while page := await store.read(sessions.listing, principal=OWNER, limit=2, before=before):
        seen += [row.id for row in page]
        before = (page[-1].active, page[-1].id)
    assert seen == [f"s_{number}" for number in (6, 5, 4, 3, 2, 1, 0)]
    live = await store.read(sessions.listing, principal=OWNER, ended=False)
    ended = await store.read(sessions.listing, principal=OWNER, ended=True)
    assert [row.id for row in ended] == ["s_3"] and len(live) == 6
    assert len(await store.read(sessions.listing, principal=None)) == 8


async def test_a_frozen_prompt_stays_until_it_is_replaced(store: Store) -> None:
    """A4, S33: fixed when the session is created; only an explicit rebuild replaces it, and deletes the old one."""
    row = await store.write(new_session, "s_1", prefix=PREFIX)
    assert row.prefix is not None and await store.read(sessions.prefix, row.prefix) == PREFIX
    assert not await store.write(sessions.refreeze, "s_1", PREFIX, 1)
    assert await store.write(sessions.refreeze, "s_1", RUDE, 2)
    again = await store.read(sessions.get, "s_1")
    assert again is not None and again.prefix == sessions.identity(RUDE) and again.encoder == 2
    assert await store.read(count, "prefixes") == 1


async def test_a_prompt_that_many_sessions_share_is_stored_once(store: Store) -> None:
    """L20: content that is the same for all sessions is not copied."""
    for number in range(20):
        await store.write(new_session, f"s_{number}", prefix=PREFIX)
    assert await store.read(count, "prefixes") == 1
    for number in range(20):
        assert await store.read(count, "prefixes") == 1
        await store.write(sessions.delete, f"s_{number}")
    assert await store.read(count, "prefixes") == 0


async def test_a_long_prompt_of_a_session_takes_its_size_once_and_comes_back_equal(store: Store) -> None:
    """L20, S32: at most 1.3 times the text, less if it compresses well; the prefix is equal byte for byte."""
    hard, easy = random.Random(1).randbytes(1 << 20).hex(), "Be kind to \u00fc and \U0001f30a. " * 40_000
    before = await store.read(size)
    for id, extra in (("s_hard", f"  {hard}\n"), ("s_easy", easy)):
        prefix = Prefix(prompt=f"You are kind.\n\n{extra.strip()}")
        row = await store.write(new_session, id, prefix=prefix, extra=extra)
        assert row.prefix is not None and await store.read(sessions.prefix, row.prefix) == prefix
        assert row.prefix == sessions.identity(prefix)
        assert await store.read(sessions.extra, row) == extra.strip()
        assert sessions.has_extra(row, extra) and not sessions.has_extra(row, "You are kind.")
        assert row == await store.read(sessions.get, id)
    assert await store.read(size) - before < 1.3 * len(hard)


async def test_a_rebuilt_prompt_keeps_what_the_session_began_with(store: Store) -> None:
    """S33: every prompt of a session ends with the session's own part."""
    row = await store.write(new_session, "s_1", prefix=Prefix(prompt="Base.\n\nBe brief."), extra="Be brief.")
    with pytest.raises(Conflict, match="own part"):
        await store.write(sessions.refreeze, "s_1", RUDE, 1)
    await store.write(sessions.refreeze, "s_1", Prefix(prompt="Another base.\n\nBe brief."), 1)
    again = await store.read(sessions.get, "s_1")
    assert again is not None and again.prefix != row.prefix
    assert await store.read(sessions.extra, again) == "Be brief."
    with pytest.raises(Conflict, match="own part"):
        await store.write(new_session, "s_2", prefix=PREFIX, extra="Be brief.")


async def test_every_change_of_what_a_model_sees_raises_the_version(store: Store) -> None:
    """S34: a stale copy is recognised by the version, not by counting rows."""
    await store.write(new_session, "s_1")
    seen = [await store.read(sessions.version, "s_1")]
    for change in (
        lambda db: sessions.refreeze(db, "s_1", RUDE, 1),
        lambda db: (new_turn(db, "s_1", "t_1", "hi"), turns.take(db, "t_1", 2.0)),
        lambda db: messages.append(db, session="s_1", turn="t_1", step="model-0", message=user_message("x"), now=2.0),
        lambda db: messages.undo(db, "t_1", 3.0),
        lambda db: sessions.refreeze(db, "s_1", PREFIX, 1),
        lambda db: sessions.end(db, "s_1", reason="new", hooks=(), now=4.0),
    ):
        await store.write(change)
        seen.append(await store.read(sessions.version, "s_1"))
    assert seen == sorted(set(seen))
    assert await store.read(sessions.version, "s_none") == -1


async def test_changes_that_models_do_not_see_keep_the_version(store: Store) -> None:
    """S34, A1: a new title or an equal prompt makes no copy stale."""
    await store.write(new_session, "s_1", prefix=PREFIX)
    before = await store.read(sessions.version, "s_1")
    await store.write(sessions.set_title, "s_1", "t")
    await store.write(sessions.refreeze, "s_1", PREFIX, 1)
    assert await store.read(sessions.version, "s_1") == before


async def test_an_end_happens_once_with_everything_that_dies_with_the_session(store: Store) -> None:
    """B3, B5, B6, S01, S02: settings are deleted, questions cancelled, waiting turns refused, hooks pending; the
    transcript stays, with waiting messages marked as unanswered at its end."""
    await store.write(new_session, "s_1", name="work")
    await store.write(complete_turn, "s_1", "t_1", "hello")
    await store.write(furnish, "s_1", "t_1")
    await store.write(new_turn, "s_1", "t_2", "too late", now=3.0)
    assert await store.write(sessions.end, "s_1", reason="new", hooks=("memory", "trash"), now=5.0)
    assert not await store.write(sessions.end, "s_1", reason="expiry", hooks=("memory",), now=6.0)
    row = await store.read(sessions.get, "s_1")
    assert row is not None and (row.ended, row.end_reason) == (5.0, "new")
    assert await store.read(settings.get_all, "s_1", 5.0) == []
    asked = await store.read(approvals.get, "ap_s_1")
    assert asked is not None and asked.state == "cancelled"
    refused = await store.read(turns.get, "t_2")
    assert refused is not None and refused.state == "refused"
    assert refused.error is not None and refused.error.code == "session_ended"
    *_, last = await store.read(messages.page, "s_1")
    assert (last.turn, last.seq, last.message.text, last.message.unanswered) == ("t_2", 3, "too late", True)
    assert await store.read(messages.count_waiting, "t_2") == 0
    assert await store.read(sessions.pending_hooks) == [("s_1", "memory"), ("s_1", "trash")]
    assert await store.write(sessions.finish_hook, "s_1", "memory", 7.0)
    assert not await store.write(sessions.finish_hook, "s_1", "memory", 8.0)
    assert await store.read(sessions.pending_hooks) == [("s_1", "trash")]


async def test_an_ended_session_takes_nothing_more_but_the_end_of_its_running_turn(store: Store) -> None:
    """S02: reopening an ended session is impossible."""
    await store.write(new_session, "s_1", name="work")
    await store.write(new_turn, "s_1", "t_1", "hello")
    await store.write(turns.take, "t_1", 2.0)
    await store.write(sessions.end, "s_1", reason="new", hooks=(), now=3.0)
    for refused in (
        lambda db: new_turn(db, "s_1", "t_2", "more"),
        lambda db: messages.accept(db, session="s_1", turn="t_1", message=user_message("steer"), now=4.0),
        lambda db: messages.append(db, session="s_1", turn="t_1", step="model-0", message=user_message("x"), now=4.0),
        lambda db: turns.take(db, "t_1", 4.0),
        lambda db: messages.undo(db, "t_1", 4.0),
        lambda db: settings.put(db, "s_1", "model", "fast", "command", 4.0),
        lambda db: sessions.set_title(db, "s_1", "x"),
        lambda db: sessions.refreeze(db, "s_1", RUDE, 1),
        lambda db: ask(db, "s_1", "ap_1"),
    ):
        with pytest.raises(Conflict, match="ended"):
            await store.write(refused)
    await store.write(
        lambda db: messages.append(
            db, session="s_1", turn="t_1", step="model-0", message=user_message("x"), now=4.0, settling=True
        )
    )
    assert await store.write(turns.settle, "t_1", state="stopped", now=4.0)
    await store.write(new_session, "s_2", name="work")
    again = await store.read(sessions.live_by_name, OWNER, "work")
    assert again is not None and again.id == "s_2"


async def test_a_delete_leaves_nothing_but_numbers(store: Store) -> None:
    """B3: rows, indexed words, prompt, receipts, settings and questions are deleted; usage stays without names."""
    await store.write(new_session, "s_1", name="work")
    await store.write(complete_turn, "s_1", "t_1", "a secret word")
    await store.write(furnish, "s_1", "t_1")
    await store.write(new_session, "s_2")
    await store.write(complete_turn, "s_2", "t_2", "a secret word")
    await store.write(search_index.index)
    await store.write(sessions.end, "s_1", reason="delete", hooks=("memory",), now=5.0)
    assert await store.write(sessions.delete, "s_1")
    assert not await store.write(sessions.delete, "s_1")
    left = {
        table: await store.read(count, table)
        for table in ("settings", "approvals", "intents", "receipts", "endings", "outbox")
    }
    assert left == dict.fromkeys(left, 0)
    assert await store.read(count, "prefixes") == 1
    assert await store.read(count, "sessions") == await store.read(count, "turns") == 1
    assert await store.read(count, "messages") == await store.read(count, "message_terms") == 2
    assert await store.read(count, "usage") == 1
    named = "session IS NOT NULL OR principal IS NOT NULL OR turn IS NOT NULL"
    assert await store.read(count, "usage", named) == 0
    assert await sessions_with(store, "secret", principal=OWNER) == ["s_2"]
    assert await store.integrity() == []


async def test_an_ephemeral_session_leaves_its_usage_and_the_outcome_in_its_receipt(store: Store) -> None:
    """G2: a one-shot call leaves its usage and, until it expires, its idempotency record."""
    await store.write(new_session, "s_1", kind="ephemeral")
    await store.write(complete_turn, "s_1", "t_1", "hello")
    await store.write(furnish, "s_1", "t_1")
    outcome = Outcome(turn="t_1", session="s_1", state="answered", text="Good day.", finish="stop", finished=2.0)
    assert await store.write(receipts.finish, "t_1", outcome) > 2.0
    await store.write(sessions.delete, "s_1")
    found = await store.read(receipts.find, OWNER, "idempotency", "k_s_1", 2.0)
    assert found is not None and found.outcome == outcome
    assert await store.read(turns.outcome, "t_1") == outcome
    assert await store.read(turns.outcome_for, "t_1", OWNER) == outcome
    assert await store.read(turns.outcome_for, "t_1", OTHER) is None
    totals = await store.read(usage.totals, by="principal")
    assert [(total.key, total.input, total.output) for total in totals] == [(OWNER, 1, 2)]
    assert await store.read(count, "messages") == await store.read(count, "turns") == 0
    assert await maintenance.tidy(store, 3.0) == 1
    assert await store.read(count, "prefixes") == 0


async def test_expiry_never_names_a_session_that_has_work(store: Store) -> None:
    """S08: only idle sessions of that kind, the longest idle first; a queued or running turn protects its session."""
    for number, id in enumerate(("s_old", "s_queued", "s_running", "s_new")):
        await store.write(new_session, id, now=float(number))
    await store.write(new_session, "s_one_shot", kind="ephemeral", now=0.0)
    await store.write(new_turn, "s_queued", "t_1", "x", now=1.0)
    await store.write(new_turn, "s_running", "t_2", "x", now=1.0)
    await store.write(turns.take, "t_2", 1.0)
    assert await store.read(sessions.idle, kind="named", before=3.0, limit=10) == ["s_old"]
    assert await store.read(sessions.idle, kind="ephemeral", before=3.0, limit=10) == ["s_one_shot"]
    await store.write(turns.settle, "t_2", state="answered", now=9.0)
    assert await store.read(sessions.idle, kind="named", before=20.0, limit=10) == ["s_old", "s_running", "s_new"]


async def test_an_end_for_idleness_looks_once_more(store: Store) -> None:
    """S08, V05: a message that arrived since the check, or an open turn, keeps the session."""
    for id in ("s_spoken_to", "s_queued", "s_idle"):
        await store.write(new_session, id, now=1.0)
    await store.write(sessions.touch, "s_spoken_to", 9.0)
    await store.write(new_turn, "s_queued", "t_1", "x", now=1.0)
    ended = [
        await store.write(sessions.end, id, reason="expiry", hooks=("memory",), now=10.0, only_idle_since=5.0)
        for id in ("s_spoken_to", "s_queued", "s_idle")
    ]
    assert ended == [None, None, sessions.SessionEnd(())]
    assert await store.read(sessions.pending_hooks) == [("s_idle", "memory")]


async def test_activity_counts_until_the_last_row_of_a_turn(store: Store) -> None:
    await store.write(new_session, "s_1", now=1.0)
    await store.write(new_turn, "s_1", "t_1", "x", now=2.0)
    await store.write(answered, "s_1", "t_1", now=30.0)
    assert await store.read(sessions.idle, kind="named", before=30.0, limit=10) == []


async def test_retention_waits_for_the_hooks_of_the_end(store: Store) -> None:
    """B6: a transcript is not purged while a hook still needs it."""
    for id in ("s_1", "s_2"):
        await store.write(new_session, id)
        await store.write(sessions.end, id, reason="new", hooks=("memory",), now=5.0)
    await store.write(sessions.finish_hook, "s_1", "memory", 6.0)
    assert await store.read(sessions.ended_before, 100.0, 10) == ["s_1"]


async def test_changing_a_missing_session_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.write(sessions.set_title, "s_none", "x")
    with pytest.raises(NotFound):
        await store.write(settings.put, "s_none", "model", "x", "command", 1.0)
