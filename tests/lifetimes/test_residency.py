"""Residents: reused, bounded, built once, released once, and never under a running turn."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from tests.lifetimes.residents import Clock, Tenant, building, settled
from tidegate.lifetimes import Holding, Ledger, Presence, Scope, ScopeClosed, SessionEnded

pytestmark = pytest.mark.anyio

PLENTY = 1 << 30


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
async def scope(ledger: Ledger) -> AsyncIterator[Scope]:
    async with Scope("process", account=ledger.account("process")) as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def warnings() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def presence(scope: Scope, clock: Clock, warnings: list[tuple[str, dict[str, Any]]]) -> Presence:
    return Presence(
        scope,
        residents=4,
        resident_bytes=PLENTY,
        idle_ttl=3600,
        clock=clock,
        warn=lambda message, fields: warnings.append((message, fields)),
    )


async def settle_in(presence: Presence, *keys: str, busy: bool = False, weight: int = 1) -> dict[str, Tenant]:
    """One resident for each key, its turn running or not."""
    tenants = {key: Tenant(weight=weight) for key in keys}
    for key, tenant in tenants.items():
        if busy:
            presence.obtain(key).turn = f"turn of {key}"
        await presence.resident(key, tenant.signature, building(tenant))
    return tenants


def resident_keys(presence: Presence) -> set[str]:
    return {record.key for record in presence if record.resident is not None}


async def test_the_same_configuration_finds_the_same_resident(presence: Presence) -> None:
    """A1: nothing is built for the second message."""
    (tenant,) = (await settle_in(presence, "s")).values()

    async def refuse() -> Tenant:
        raise AssertionError("built again")

    assert await presence.resident("s", b"one", refuse) is tenant
    assert tenant.released == 0 and presence.stats().residents == 1


async def test_another_configuration_replaces_the_resident_and_releases_the_old(presence: Presence) -> None:
    """A1, A5: one in, one out, and no other session notices."""
    tenants = await settle_in(presence, "s", "other")
    changed = Tenant(b"two")
    assert await presence.resident("s", b"two", building(changed)) is changed
    await settled()
    assert tenants["s"].released == 1 and tenants["other"].released == 0 == changed.released
    assert presence.stats().unloads == {"changed": 1}


@pytest.mark.parametrize("reason", ["model", "provider", "toolset", "fallback", "undo", "new", "reset", "expiry"])
async def test_every_path_out_releases_exactly_once(presence: Presence, ledger: Ledger, reason: str) -> None:
    """A5, L01: for every reason there is one removal, and the ledger is as before."""
    tenants = await settle_in(presence, "s", "other")
    assert presence.unload("s", reason=reason)
    assert not presence.unload("s", reason=reason)
    await settled()
    assert tenants["s"].released == 1 and tenants["other"].released == 0
    assert presence.stats().unloads == {reason: 1}
    assert ledger.totals()["resident"].count == 1 and presence.get("s") is None


async def test_unloading_a_certain_instance_spares_its_successor(presence: Presence) -> None:
    """A8: the instance counts, not its key."""
    (old,) = (await settle_in(presence, "s")).values()
    new = Tenant(b"two")
    await presence.resident("s", b"two", building(new))
    assert not presence.unload("s", reason="late", only=old)
    await settled()
    assert old.released == 1 and new.released == 0


async def test_beyond_the_number_the_least_recently_used_goes(presence: Presence) -> None:
    """A6: a hit renews the place."""
    tenants = await settle_in(presence, "a", "b", "c", "d")
    await presence.resident("a", b"one", building(Tenant()))
    await settle_in(presence, "e")
    await settled()
    assert resident_keys(presence) == {"a", "c", "d", "e"} and tenants["b"].released == 1


async def test_beyond_the_bytes_the_least_recently_used_go(scope: Scope, ledger: Ledger) -> None:
    """A6, L03: as many of the oldest as are needed, and no more; growth counts too."""
    presence = Presence(scope, residents=100, resident_bytes=100)
    tenants = await settle_in(presence, "a", "b", "c", "d", weight=25)
    await settle_in(presence, "e", weight=30)
    await settled()
    assert resident_keys(presence) == {"c", "d", "e"} and presence.stats().resident_bytes == 80
    tenants["d"].weight = 50
    record = presence.get("d")
    assert record is not None
    presence.reweigh(record)
    await settled()
    assert resident_keys(presence) == {"d", "e"}
    assert presence.stats().resident_bytes == 80 == ledger.totals()["resident"].bytes
    assert presence.stats().unloads == {"bytes": 3}


async def test_a_newcomer_too_heavy_for_the_budget_works_its_turn_and_then_leaves(scope: Scope) -> None:
    """A6, A12, L03: its builder can use it; it does not stay."""
    presence = Presence(scope, residents=100, resident_bytes=100)
    record = presence.obtain("s")
    record.turn = "turn"
    giant = Tenant(weight=1000)
    assert await presence.resident("s", b"one", building(giant)) is giant
    await settled()
    assert giant.released == 0
    presence.turn_ended(record)
    await settled()
    assert giant.released == 1 and len(presence) == 0 and presence.stats().resident_bytes == 0


async def test_the_sweep_unloads_what_was_idle_and_nothing_in_mid_turn(presence: Presence, clock: Clock) -> None:
    """A7: however stale the time of a running one looks."""
    tenants = await settle_in(presence, "idle", "used", "busy")
    busy = presence.obtain("busy")
    busy.turn, busy.used = "turn", 0.0
    clock.now += 3000
    await presence.resident("used", b"one", building(Tenant()))
    clock.now += 601
    assert presence.sweep() == 1
    await settled()
    assert [tenants[key].released for key in ("idle", "used", "busy")] == [1, 0, 0]
    assert presence.stats().unloads == {"idle": 1}
    presence.turn_ended(busy)
    assert presence.sweep() == 0
    clock.now += 3601
    assert presence.sweep() == 2 and len(presence) == 0


async def test_when_memory_is_short_the_least_recently_used_idle_ones_go_until_it_is_enough(scope: Scope) -> None:
    """A6, A7, L03: never one whose turn runs or waits, and no more than are needed."""
    presence = Presence(scope, residents=100, resident_bytes=PLENTY)
    tenants = await settle_in(presence, "a", "busy", "next", "b", "c", "d", weight=10)
    presence.obtain("busy").turn = "turn"
    presence.obtain("next").waiting.append("turn")
    assert presence.relieve(15) == (2, 20)
    await settled()
    assert resident_keys(presence) == {"busy", "next", "c", "d"}
    assert presence.relieve(0) == (0, 0)
    assert presence.relieve(1000) == (2, 20), "all that is idle"
    await settled()
    assert resident_keys(presence) == {"busy", "next"} and presence.stats().unloads == {"pressure": 4}
    assert [key for key, tenant in tenants.items() if tenant.released] == ["a", "b", "c", "d"]


async def test_what_a_one_shot_turn_works_on_is_on_the_books_until_it_ends(presence: Presence, ledger: Ledger) -> None:
    """L99, B5: by session, although nobody keeps it."""
    presence.set_temporary("nobody", Tenant())
    record = presence.obtain("s")
    record.turn = "turn"
    passing = Tenant(weight=30)
    presence.set_temporary("s", passing)
    passing.weight = 40
    assert ledger.read().owners == {"session s": {"one-shot": Holding(1, 40)}}
    presence.turn_ended(record)
    assert ledger.owners() == [] and passing.released == 0 and len(presence) == 0


async def test_a_busy_one_in_the_excess_window_is_passed_over_and_no_newer_one_pays(
    presence: Presence, warnings: list[tuple[str, dict[str, Any]]]
) -> None:
    """A8: over the cap for a while, with a warning and a count; the next insert looks again."""
    tenants = await settle_in(presence, "a", "b", "c", "d")
    oldest = presence.obtain("a")
    oldest.turn = "turn"
    await settle_in(presence, "e")
    await settled()
    assert resident_keys(presence) == {"a", "b", "c", "d", "e"}
    assert presence.stats().over_cap_mid_turn == 1
    assert "turns are running" in warnings[0][0] and warnings[0][1]["residents"] == 5
    await settle_in(presence, "f")
    await settled()
    assert resident_keys(presence) == {"a", "c", "d", "e", "f"} and presence.stats().over_cap_mid_turn == 2
    assert len(warnings) == 1, "one warning for one spell over the cap"
    presence.turn_ended(oldest)
    await settled()
    assert resident_keys(presence) == {"a", "d", "e", "f"} and tenants["a"].released == 0
    assert tenants["b"].released == tenants["c"].released == 1


@pytest.mark.parametrize("over", ["its turn ends", "its session ends", "it is replaced", "another one is unloaded"])
async def test_there_is_a_warning_each_time_the_cap_is_exceeded(
    presence: Presence, clock: Clock, warnings: list[tuple[str, dict[str, Any]]], over: str
) -> None:
    """A8: however it was over the last time; every look counts."""
    await settle_in(presence, "a", "b", "c", "d")
    for times in (1, 2, 3):
        oldest, *_, newest = sorted((each for each in presence if each.resident), key=lambda each: each.used)
        oldest.turn = "turn"
        clock.now += 1
        await settle_in(presence, f"newcomer {times}")
        assert presence.stats().residents == 5
        assert (len(warnings), presence.stats().over_cap_mid_turn) == (times, times)
        if over == "its session ends":
            presence.drop(oldest.key)
        elif over == "it is replaced":
            presence.unload(oldest.key, reason="changed")
        elif over == "another one is unloaded":
            presence.unload(newest.key, reason="idle")
        clock.now += 1
        presence.turn_ended(oldest)
        await settled()
        assert presence.stats().residents == 4


async def test_there_is_a_warning_each_time_the_bytes_are_exceeded(scope: Scope) -> None:
    """A8, L03: a running one that grows, shrinks and grows again is over the budget twice."""
    warnings: list[str] = []
    presence = Presence(scope, residents=4, resident_bytes=100, warn=lambda message, fields: warnings.append(message))
    (tenant,) = (await settle_in(presence, "a", busy=True, weight=50)).values()
    record = presence.obtain("a")
    for times in (1, 2, 3):
        for weight in (101, 102):
            tenant.weight = weight
            presence.reweigh(record)
        assert len(warnings) == times
        assert presence.stats().over_cap_mid_turn == 2 * times
        tenant.weight = 100
        presence.reweigh(record)


async def test_a_busy_one_in_the_window_of_bytes_is_passed_over_too(scope: Scope) -> None:
    """A8, L03: its bytes count as freed, so that no newer one is unloaded in its place."""
    presence = Presence(scope, residents=100, resident_bytes=100)
    await settle_in(presence, "a", busy=True, weight=40)
    await settle_in(presence, "b", "c", weight=30)
    await settle_in(presence, "d", weight=35)
    await settled()
    assert resident_keys(presence) == {"a", "b", "c", "d"} and presence.stats().resident_bytes == 135


async def test_four_busy_of_four_and_a_newcomer_make_five(presence: Presence) -> None:
    """A11: nobody is torn down."""
    tenants = await settle_in(presence, "a", "b", "c", "d", busy=True)
    tenants |= await settle_in(presence, "e")
    await settled()
    assert presence.stats().residents == 5 and not any(tenant.released for tenant in tenants.values())


async def test_parallel_inserters_settle_at_the_cap(scope: Scope, ledger: Ledger) -> None:
    """A11: eight of them, twenty inserts each, sixteen places."""
    presence = Presence(scope, residents=16, resident_bytes=PLENTY)
    tenants: list[Tenant] = []

    async def insert(number: int) -> None:
        for count in range(20):
            tenant = Tenant()
            tenants.append(tenant)
            await presence.resident(f"s_{number}_{count}", b"one", building(tenant))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(insert, number)
        await settled()
    assert presence.stats().residents == 16 == len(presence) == ledger.totals()["resident"].count
    assert sum(tenant.released for tenant in tenants) == 160 - 16
    assert max(tenant.released for tenant in tenants) == 1


async def test_a_hundred_first_messages_build_one(presence: Presence) -> None:
    """A9, L25: single flight."""
    go = asyncio.Event()
    built: list[Tenant] = []

    async def build() -> Tenant:
        built.append(Tenant())
        await go.wait()
        return built[-1]

    answers: list[Tenant] = []

    async def message() -> None:
        answers.append(await presence.resident("s", b"one", build))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(message)
            await anyio.wait_all_tasks_blocked()
            go.set()
    assert len(built) == 1 and answers == built * 100


async def test_a_failing_construction_is_tried_once_for_all_who_wait(presence: Presence) -> None:
    """L25, L23: the failure reaches everybody, nothing stays, and the next message tries again."""
    tries: list[int] = []

    async def fail() -> Tenant:
        tries.append(1)
        await asyncio.sleep(0)
        raise ValueError("no model")

    with anyio.fail_after(5):
        ends = await asyncio.gather(*(presence.resident("s", b"one", fail) for _ in range(20)), return_exceptions=True)
        assert len(tries) == 1 and all(isinstance(end, ValueError) for end in ends)
        assert len(presence) == 0
        await settle_in(presence, "s")


async def test_a_cancelled_builder_hands_over(presence: Presence) -> None:
    """A9, L23: the first message is stopped while it builds, and the second is not."""
    go = asyncio.Event()
    tenant = Tenant()

    async def build() -> Tenant:
        await go.wait()
        return tenant

    with anyio.fail_after(5):
        first, second = (asyncio.ensure_future(presence.resident("s", b"one", build)) for _ in range(2))
        await settled()
        first.cancel()
        await asyncio.wait({first})
        go.set()
        assert await second is tenant
    assert first.cancelled() and presence.stats().residents == 1


async def test_a_resident_under_construction_is_not_yet_there(presence: Presence) -> None:
    """A9: it blocks no unloading of others and cannot be unloaded itself."""
    go = asyncio.Event()
    late = Tenant()

    async def build() -> Tenant:
        await go.wait()
        return late

    tenants = await settle_in(presence, "a", "b", "c", "d")
    under_way = asyncio.ensure_future(presence.resident("slow", b"one", build))
    await settled()
    assert not presence.unload("slow", reason="model") and presence.stats().residents == 4
    await settle_in(presence, "e")
    await settled()
    assert tenants["a"].released == 1 and "slow" in {record.key for record in presence}
    go.set()
    with anyio.fail_after(5):
        assert await under_way is late
    assert late.released == 0 and resident_keys(presence) == {"c", "d", "e", "slow"}


async def test_another_configuration_waits_for_the_construction_and_then_replaces_it(presence: Presence) -> None:
    """A5, A9: the last word is the newest configuration."""
    old, new = Tenant(b"one"), Tenant(b"two")
    with anyio.fail_after(5):
        first = asyncio.ensure_future(presence.resident("s", b"one", building(old)))
        second = asyncio.ensure_future(presence.resident("s", b"two", building(new)))
        assert await second is new and await first is old
        await settled()
    assert old.released == 1 and new.released == 0


async def test_a_session_that_ends_during_construction_keeps_nothing(presence: Presence, ledger: Ledger) -> None:
    """L09, B7: a late resident is released at once, and the waiting message gets the error."""
    tenant = Tenant()
    with anyio.fail_after(5):
        asked = asyncio.ensure_future(presence.resident("s", b"one", building(tenant)))
        await asyncio.sleep(0)
        assert presence.drop("s")
        with pytest.raises(SessionEnded):
            await asked
        await settled()
    assert tenant.released == 1 and len(presence) == 0 and ledger.totals()["resident"].count == 0


async def test_a_slow_release_blocks_nobody(presence: Presence) -> None:
    """A10: other sessions, and the same one, go on while it takes its time."""
    (slow,) = (await settle_in(presence, "s")).values()
    slow.gate = asyncio.Event()
    presence.unload("s", reason="model")
    with anyio.fail_after(5):
        fresh = (await settle_in(presence, "s", "other"))["s"]
        await settled()
    assert slow.released == 1 and fresh.released == 0 and presence.stats().residents == 2
    slow.gate.set()


async def test_a_failing_release_is_reported_with_its_session() -> None:
    """A10: by name, and nothing else is disturbed."""
    reported: list[tuple[str, str]] = []
    with anyio.fail_after(5):
        async with Scope("process", on_error=lambda name, error: reported.append((name, str(error)))) as scope:
            presence = Presence(scope, residents=4, resident_bytes=PLENTY)
            (broken,) = (await settle_in(presence, "s_7")).values()
            broken.failure = ValueError("client would not close")
            presence.unload("s_7", reason="model")
            await settled()
    assert reported == [("process / release of the resident of session s_7", "client would not close")]


async def test_one_replaced_in_mid_turn_is_released_when_the_turn_ends(presence: Presence, ledger: Ledger) -> None:
    """A8, V20: the instance that runs is safe, whatever happens to its key."""
    (running,) = (await settle_in(presence, "s", busy=True)).values()
    record = presence.obtain("s")
    assert presence.unload("s", reason="model")
    replacement = Tenant(b"two")
    await presence.resident("s", b"two", building(replacement))
    await settled()
    assert running.released == 0 and ledger.totals()["resident"].count == 2
    presence.turn_ended(record)
    await settled()
    assert running.released == 1 and replacement.released == 0 and ledger.totals()["resident"].count == 1


async def test_a_session_that_ends_in_mid_turn_releases_with_its_turn(presence: Presence) -> None:
    """B3, V20: the record has left the map, and what ran on it still gets its end."""
    (running,) = (await settle_in(presence, "s", busy=True)).values()
    record = presence.obtain("s")
    presence.drop("s")
    await settled()
    assert running.released == 0 and presence.get("s") is None
    successor = presence.obtain("s")
    successor.turn = "of the next session"
    presence.turn_ended(record)
    await settled()
    assert running.released == 1 and presence.get("s") is successor and successor.busy


async def test_the_end_of_a_turn_is_idempotent_and_keeps_what_outlives_it(presence: Presence) -> None:
    """B7, L23: twice, for another turn, or for a session that has none, it changes nothing."""
    (tenant,) = (await settle_in(presence, "s", busy=True)).values()
    record = presence.obtain("s")
    record.held, record.waiting = 1, record.waiting
    record.waiting.append("next message")
    presence.turn_ended(record, "an earlier turn")
    assert record.busy
    presence.turn_ended(record, "turn of s")
    presence.turn_ended(record, "turn of s")
    presence.turn_ended(record)
    assert not record.busy and record.resident is tenant and list(record.waiting) == ["next message"]
    assert record.held == 1 and presence.get("s") is record and tenant.released == 0
    record.turn = "the next turn"
    presence.turn_ended(record, "turn of s")
    assert record.turn == "the next turn"
    presence.turn_ended(presence.obtain("nobody"))
    assert presence.get("nobody") is None


async def test_a_record_stays_only_while_something_is_present(presence: Presence, ledger: Ledger) -> None:
    """B5, L02: the map has no entry for a session of which nothing is left."""
    record = presence.obtain("s")
    record.turn = "turn"
    presence.turn_ended(record)
    assert len(presence) == 0
    record = presence.obtain("s")
    record.held = 1
    await presence.resident("s", b"one", building(Tenant()))
    presence.unload("s", reason="idle")
    assert presence.get("s") is record
    record.held = 0
    assert presence.sweep() == 0 and len(presence) == 0
    await settled()
    assert ledger.owners() == []


async def test_after_an_unload_the_next_message_builds_a_working_one(presence: Presence) -> None:
    """A12: the same session, a fresh resident."""
    first = (await settle_in(presence, "s"))["s"]
    presence.unload("s", reason="idle")
    second = (await settle_in(presence, "s"))["s"]
    await settled()
    assert first.released == 1 and second.released == 0 and presence.stats().residents == 1


async def test_a_resident_always_has_a_time_of_last_use(presence: Presence, clock: Clock) -> None:
    """A13: there is none to be missing."""
    assert presence.obtain("s").used == clock.now
    clock.now += 5
    await settle_in(presence, "s")
    assert presence.obtain("s").used == clock.now


async def test_closing_the_scope_releases_every_resident_and_waits_for_it(ledger: Ledger) -> None:
    """F1, L01, L06: also what was in mid-turn, and what was already on its way out."""
    scope = Scope("process", account=ledger.account("process"))
    presence = Presence(scope, residents=10, resident_bytes=PLENTY)
    tenants = await settle_in(presence, "a", "b")
    tenants |= await settle_in(presence, "busy", busy=True)
    presence.unload("busy", reason="model")
    await presence.resident("busy", b"two", building(Tenant(b"two")))
    leaving = (await settle_in(presence, "leaving"))["leaving"]
    leaving.gate = asyncio.Event()
    presence.unload("leaving", reason="model")
    await settled()
    closing = asyncio.ensure_future(scope.close())
    await settled()
    assert not closing.done()
    leaving.gate.set()
    with anyio.fail_after(5):
        await closing
    assert all(tenant.released == 1 for tenant in tenants.values()) and leaving.released == 1
    assert len(presence) == 0 and ledger.totals()["resident"].count == 0 and ledger.owners() == []
    with pytest.raises(ScopeClosed):
        await presence.resident("late", b"one", building(Tenant()))
    assert len(presence) == 0


async def test_failures_of_the_last_releases_are_collected() -> None:
    """A10, F2: one that fails keeps no other from being released, and is named."""
    scope = Scope("process")
    presence = Presence(scope, residents=10, resident_bytes=PLENTY)
    tenants = await settle_in(presence, "a", "b", "c")
    tenants["b"].failure = ValueError("stuck client")
    with anyio.fail_after(5), pytest.raises(ExceptionGroup) as caught:
        await scope.close()
    assert all(tenant.released == 1 for tenant in tenants.values())
    (group,) = caught.value.exceptions
    assert isinstance(group, ExceptionGroup)
    assert "session b" in group.exceptions[0].__notes__[0]


async def test_nothing_keeps_an_unloaded_resident_or_a_dropped_record_alive(presence: Presence) -> None:
    """L07: weak references die at once, also of the neighbours in the order of use."""
    await settle_in(presence, "before")
    tenants = await settle_in(presence, "s")
    await settle_in(presence, "after")
    record = presence.get("s")
    assert record is not None
    remembered: list[weakref.ref[Any]] = [weakref.ref(record), weakref.ref(tenants.pop("s"))]
    del record
    presence.drop("s")
    await settled()
    gc.collect()
    assert [ref() for ref in remembered] == [None, None]
    assert resident_keys(presence) == {"before", "after"}


async def test_what_was_built_after_the_end_is_released_by_its_builder() -> None:
    """L09, F1: a construction that outlives the gateway's scope leaves nothing open."""
    scope = Scope("process")
    presence = Presence(scope, residents=4, resident_bytes=PLENTY)
    go, late = asyncio.Event(), Tenant()

    async def build() -> Tenant:
        await go.wait()
        return late

    with anyio.fail_after(5):
        asked = asyncio.ensure_future(presence.resident("s", b"one", build))
        await settled()
        await scope.close()
        go.set()
        with pytest.raises((SessionEnded, ScopeClosed)):
            await asked
    assert late.released == 1 and scope.account.ledger.owners() == []


async def test_a_resident_with_another_signature_than_asked_for_is_refused(presence: Presence) -> None:
    """A1: it would be built again for every message."""
    wrong = Tenant(b"two")
    with pytest.raises(ValueError, match="different signature"):
        await presence.resident("s", b"one", building(wrong))
    await settled()
    assert wrong.released == 1 and len(presence) == 0


async def test_who_attends_keeps_the_record_but_not_the_resident(presence: Presence) -> None:
    """B5, L02: a watcher of a session is no reason to keep it in memory, and leaves no entry when it goes."""
    with presence.keep_present("s") as record:
        (tenant,) = (await settle_in(presence, "s")).values()
        presence.unload("s", reason="idle")
        await settled()
        assert tenant.released == 1 and presence.get("s") is record
        news, ignored = record.expect(), record.expect()
        ignored.cancel()
        record.notify()
        assert news.done() and record.watchers == ()
    assert len(presence) == 0


async def test_the_end_of_a_session_is_told_to_who_attends(presence: Presence) -> None:
    """L31: nobody waits for news of a session that is gone."""
    with presence.keep_present("s") as record:
        news = record.expect()
        presence.drop("s")
        with anyio.fail_after(5):
            await news
    assert len(presence) == 0


async def test_reasons_are_counted_within_a_bound(presence: Presence) -> None:
    """L04: a metric by reason cannot grow for ever."""
    for number in range(100):
        await settle_in(presence, "s")
        presence.unload("s", reason=f"reason {number}")
    unloads = presence.stats().unloads
    assert sum(unloads.values()) == 100 and len(unloads) == 33 and unloads["other"] == 68


async def test_thousands_of_sessions_leave_nothing(presence: Presence, ledger: Ledger) -> None:
    """B5, F5, L02: the one map and the books are empty again."""
    for number in range(2000):
        record = presence.obtain(f"s_{number}")
        record.turn = "turn"
        await presence.resident(record.key, b"one", building(Tenant(weight=10)))
        presence.turn_ended(record)
        if number % 3:
            presence.drop(record.key)
    assert presence.stats().residents == len(presence) <= 4
    for record in presence:
        presence.drop(record.key)
    await settled()
    assert len(presence) == 0 and ledger.owners() == [] and presence.stats().resident_bytes == 0


# -- workspaces --------------------------------------------------------------------------------------------------------


async def test_a_workspace_keeps_its_session_present_whatever_is_unloaded(presence: Presence, clock: Clock) -> None:
    """B1, S08: the workspace of a session is on its record, and unloading does not affect it."""
    tenant = (await settle_in(presence, "s_1"))["s_1"]
    presence.set_workspace("s_1", "workspace")
    presence.unload("s_1", reason="test")
    clock.now += 1e6
    presence.sweep()
    await settled()
    record = presence.get("s_1")
    assert tenant.released == 1 and record is not None and record.workspace == "workspace"
    presence.clear_workspace("s_1")
    assert presence.get("s_1") is None
    presence.clear_workspace("s_1")


async def test_the_end_of_a_session_leaves_its_workspace_to_be_ended(presence: Presence) -> None:
    """B3: the record goes with the session; only its workspace stays, until it is ended."""
    await settle_in(presence, "s_1")
    before = presence.obtain("s_1")
    before.held += 1
    presence.set_workspace("s_1", "workspace")
    assert presence.drop("s_1")
    record = presence.get("s_1")
    assert record is not None and record is not before and record.workspace == "workspace"
    assert record.resident is None and before.workspace is None and not record.held
    presence.clear_workspace("s_1")
    assert presence.get("s_1") is None and len(presence) == 0
