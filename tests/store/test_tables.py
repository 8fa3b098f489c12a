"""Receipts, settings, the outbox, principals and keys."""

import pytest

from tests.store.rows import OWNER, count, new_session, new_turn
from tidegate.errors import Conflict
from tidegate.store import IntentRow, Store, intents, outbox, principals, receipts, settings
from tidegate.values import Outcome, Receipt

pytestmark = pytest.mark.anyio

KEY = Receipt(source="idempotency", key="k", digest=b"body", keep=100.0)


async def test_a_receipt_holds_for_its_time_under_its_principal(store: Store) -> None:
    """X06: the same key of another principal is another key."""
    await store.write(receipts.put, OWNER, KEY, "t_1", 10.0)
    found = await store.read(receipts.find, OWNER, "idempotency", "k", 50.0)
    assert found is not None and (found.turn, found.digest, found.expires) == ("t_1", b"body", 110.0)
    assert await store.read(receipts.find, "p_other", "idempotency", "k", 50.0) is None
    assert await store.read(receipts.find, OWNER, "channel:mail", "k", 50.0) is None
    assert await store.read(receipts.find, OWNER, "idempotency", "k", 110.0) is None


async def test_a_receipt_put_again_leads_to_the_newer_turn_without_the_old_outcome(store: Store) -> None:
    await store.write(receipts.put, OWNER, KEY, "t_1", 10.0)
    await store.write(receipts.finish, "t_1", Outcome(turn="t_1", session="s", state="failed"))
    await store.write(receipts.put, OWNER, KEY, "t_2", 20.0)
    found = await store.read(receipts.find, OWNER, "idempotency", "k", 50.0)
    assert found is not None and (found.turn, found.outcome, found.at) == ("t_2", None, 20.0)
    assert await store.write(receipts.finish, "t_1", Outcome(turn="t_1", session="s", state="failed")) == 0


async def test_a_principal_that_fills_the_receipts_displaces_only_its_own(store: Store) -> None:
    """H17, L21: beyond the bound, receipts of the principal with the most are removed, even if others expire sooner."""
    await store.write(receipts.put, "p_quiet", Receipt(source="retry", key="k", digest=b"", keep=5.0), "t_0", 0.0)
    for number in range(30):
        receipt = Receipt(source="idempotency", key=str(number), digest=b"", keep=100.0)
        await store.write(receipts.put, OWNER, receipt, f"t_{number}", 0.0)
    assert await store.write(receipts.prune, 1.0, 10) == 21
    assert await store.read(receipts.find, "p_quiet", "retry", "k", 1.0) is not None
    assert await store.read(count, "receipts") == 10


async def test_receipts_are_bounded_by_time_and_by_number(store: Store) -> None:
    """L21: the next to expire are removed first, a bounded number at a time."""
    for number in range(30):
        receipt = Receipt(source="idempotency", key=str(number), digest=b"", keep=10.0 + number)
        await store.write(receipts.put, OWNER, receipt, f"t_{number}", 0.0)
    assert await store.write(receipts.prune, 14.5, 100) == 5
    assert await store.write(receipts.prune, 14.5, 100) == 0
    assert await store.write(receipts.prune, 14.5, 10) == 15
    assert await store.read(receipts.find, OWNER, "idempotency", "29", 14.5) is not None
    assert await store.read(receipts.find, OWNER, "idempotency", "19", 14.5) is None
    assert await store.read(count, "receipts") == 10


async def test_settings_have_source_and_expiry_and_the_operator_sees_and_clears_them(store: Store) -> None:
    """S05, S06: one record per setting, listed, cleared, and gone after its time."""
    await store.write(new_session, "s_1")
    await store.write(settings.put, "s_1", "model", "slow", "command", 1.0)
    await store.write(settings.put, "s_1", "model", "fast", "page", 2.0)
    await store.write(settings.put, "s_1", "reasoning", {"effort": ["high", None]}, "command", 3.0, 10.0)
    held = await store.read(settings.get_all, "s_1", 5.0)
    assert [(one.key, one.value, one.source, one.expires) for one in held] == [
        ("model", "fast", "page", None),
        ("reasoning", {"effort": ["high", None]}, "command", 10.0),
    ]
    assert [one.key for one in await store.read(settings.get_all, "s_1", 10.0)] == ["model"]
    assert [one.key for one in await store.read(settings.list_all, 5.0)] == ["reasoning", "model"]
    assert await store.write(settings.expire, 10.0, 100) == 1
    assert await store.write(settings.clear, "s_1", "model") == 1
    assert await store.write(settings.clear, "s_1") == 0


async def prepare(store: Store, id: str, *, now: float = 1.0, expires: float = 100.0, channel: str = "mail") -> bool:
    return await store.write(
        outbox.prepare,
        id=id,
        session=None,
        turn=None,
        channel=channel,
        target="anna",
        body=b"hello",
        now=now,
        expires=expires,
    )


async def test_a_delivery_has_one_identity_and_is_claimed_by_one_sender(store: Store) -> None:
    """S22, S23: it exists once if prepared twice, is claimed once, and sent once."""
    assert await prepare(store, "o_1")
    assert not await prepare(store, "o_1")
    assert await prepare(store, "o_2", now=2.0, channel="irc")
    assert [row.id for row in await store.write(outbox.claim_due, 5.0, 10, ["irc"])] == ["o_2"]
    assert [row.id for row in await store.write(outbox.claim_due, 5.0, 10)] == ["o_1"]
    assert await store.write(outbox.claim_due, 5.0, 10) == []
    assert await store.write(outbox.mark_sent, "o_1", "platform-7")
    assert not await store.write(outbox.mark_sent, "o_1", "platform-8")
    row = await store.read(outbox.get, "o_1")
    assert row is not None and (row.state, row.external, row.attempts) == ("sent", "platform-7", 1)


async def test_failed_deliveries_are_tried_again_and_end_as_dead_letters(store: Store) -> None:
    """S21: attempts, expiry and permanent errors are bounded and visible."""
    for id in ("o_1", "o_2", "o_3"):
        await prepare(store, id)
    await store.write(outbox.claim_due, 5.0, 10)
    assert await store.write(outbox.mark_failed, "o_1", error="503", due=9.0, attempts=2) == "prepared"
    assert await store.write(outbox.mark_failed, "o_2", error="gone", due=9.0, attempts=5, permanent=True) == "dead"
    assert await store.write(outbox.mark_failed, "o_3", error="503", due=100.0, attempts=5) == "dead"
    assert await store.write(outbox.mark_failed, "o_3", error="503", due=9.0, attempts=5) is None
    assert await store.write(outbox.claim_due, 8.0, 10) == []
    assert [row.attempts for row in await store.write(outbox.claim_due, 9.0, 10)] == [2]
    assert await store.write(outbox.mark_failed, "o_1", error="503", due=19.0, attempts=2) == "dead"
    assert await store.read(outbox.counts) == {"dead": 3}
    assert await store.write(outbox.purge, 5.0, 10) == 3


async def test_interrupted_deliveries_are_unknown_and_expired_ones_are_dead(store: Store) -> None:
    """S20, S21: no silent resend of old messages after a restart."""
    await prepare(store, "o_1")
    await prepare(store, "o_2", expires=7.0)
    (first, _) = await store.write(outbox.claim_due, 5.0, 10)
    assert await store.write(outbox.mark_unknown, first.id, "timed out", 6.0)
    assert await store.write(outbox.recover, 6.0, 100, ("another",)) == 0
    assert await store.write(outbox.recover, 6.0, 100) == 1
    again = await store.write(outbox.claim_due, 8.0, 10)
    assert [row.id for row in again] == ["o_1"]
    assert await store.read(outbox.counts) == {"dead": 1, "sending": 1}


async def test_an_intent_stays_open_until_its_result_and_cannot_begin_twice(store: Store) -> None:
    """F4, S17: a tool with effects that had begun is known to have begun."""
    await store.write(new_session, "s_1")
    await store.write(new_turn, "s_1", "t_1")
    await store.write(intents.begin, "t_1", "tool-0-0", "write_file", 1.0)
    with pytest.raises(Conflict):
        await store.write(intents.begin, "t_1", "tool-0-0", "write_file", 2.0)
    await store.write(intents.begin, "t_1", "tool-0-1", "clock", 1.0, read_only=True, repeatable=True)
    writing, reading = IntentRow("write_file", False, False), IntentRow("clock", True, True)
    assert await store.read(intents.open_of, "t_1") == {"tool-0-0": writing, "tool-0-1": reading}
    await store.write(intents.clear, "t_1", "tool-0-0")
    assert await store.read(intents.open_of, "t_1") == {"tool-0-1": reading}
    await store.write(intents.clear_turn, "t_1")
    assert await store.read(intents.open_of, "t_1") == {}


async def test_a_key_is_found_by_its_digest_until_it_is_revoked_or_expires(store: Store) -> None:
    """X01, X05: a key is valid only for its kind; a revoked one stays known and refused."""
    owner = await store.write(principals.add, name="owner", role="owner", agents=None, now=1.0)
    guest = await store.write(principals.add, name="guest", role="member", agents=("main",), now=2.0)
    with pytest.raises(Conflict, match="owner"):
        await store.write(principals.add, name="owner", role="member", agents=None, now=3.0)
    first = await store.write(principals.add_key, owner.id, "key", b"d1" * 16, "laptop", 1.0, None)
    second = await store.write(principals.add_key, guest.id, "cookie", b"d2" * 16, "", 1.0, 10.0, b"p2" * 16)
    browser = (b"d2" * 16, "cookie")
    assert await store.read(principals.authenticate, b"d1" * 16, "key", 5.0) == (first, owner)
    assert await store.read(principals.authenticate, b"d1" * 16, "cookie", 5.0) is None
    assert await store.read(principals.authenticate, *browser, 9.0, b"p2" * 16) == (second, guest)
    assert await store.read(principals.authenticate, *browser, 9.0, b"p1" * 16) is None
    assert await store.read(principals.authenticate, *browser, 9.0) is None
    assert await store.read(principals.authenticate, *browser, 10.0, b"p2" * 16) is None
    assert await store.write(principals.revoke, "cookie", 6.0, id=first) == []
    assert await store.write(principals.revoke, "key", 6.0, id=first, principal=guest.id) == []
    assert await store.write(principals.revoke, "key", 6.0, id=first) == [first]
    assert await store.write(principals.revoke, "key", 7.0, id=first) == []
    assert await store.write(principals.revoke, "cookie", 11.0) == []
    assert await store.read(principals.authenticate, b"d1" * 16, "key", 7.0) is None
    assert await store.read(principals.key_exists, b"d1" * 16)
    assert not await store.read(principals.key_exists, b"d3" * 16)
    assert await store.read(principals.by_name, "guest") == guest
    assert [row.name for row in await store.read(principals.listing)] == ["owner", "guest"]
    (listed,) = await store.read(principals.list_keys, owner.id)
    assert (listed.label, listed.revoked) == ("laptop", 6.0)
    assert await store.write(principals.prune_keys, 20.0, 100) == 1


async def test_a_one_time_code_works_once_and_in_time(store: Store) -> None:
    """X04: a used or expired code signs nobody in."""
    owner = await store.write(principals.add, name="owner", role="owner", agents=None, now=1.0)
    for digest in (b"c1", b"c2"):
        await store.write(principals.add_key, owner.id, "code", digest, "", 1.0, 10.0)
    await store.write(principals.add_key, owner.id, "key", b"k1", "", 1.0, None)
    assert await store.write(principals.use_code, b"c1", 5.0) == owner
    assert await store.write(principals.use_code, b"c1", 5.0) is None
    assert await store.write(principals.use_code, b"c2", 10.0) is None
    assert [await store.read(principals.code_state, code) for code in (b"c1", b"c2", b"k1", b"c3")] == [
        "used", "expired", "unknown", "unknown",
    ]  # fmt: skip
    assert await store.write(principals.use_code, b"k1", 5.0) is None
    assert await store.read(principals.authenticate, b"c2", "key", 5.0) is None


async def test_the_use_of_a_key_is_noted_to_the_minute(store: Store) -> None:
    owner = await store.write(principals.add, name="owner", role="owner", agents=None, now=1.0)
    await store.write(principals.add_key, owner.id, "key", b"k1", "", 1.0)
    for now, used in ((5.0, 5.0), (50.0, 5.0), (66.0, 66.0)):
        await store.write(principals.mark_used, b"k1", now)
        (key,) = await store.read(principals.list_keys)
        assert key.used == used
