"""Presence against the simplest description of its rules, over any sequence of what can happen to sessions."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lifetimes.residents import Clock, Tenant, settled
from tests.project.quick import example_count
from tidegate.lifetimes import Ledger, Presence, Present, Scope

CAP, BUDGET, AGE = 3, 30, 100.0
KEYS = st.integers(0, 6).map("s_{}".format)
WEIGHTS = st.integers(0, 20)


class PresenceMachine(RuleBasedStateMachine):
    """A6, A7, A8, A10, B7, L01, L02, L03: bounds, order, mid-turn and release, in any order of events.

    The description is a list of (key, tenant) from the least to the most recently used, and the set of running turns
    with every tenant that was handed to them and that they need. Those of a turn that waits for a person may leave.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.ledger = Ledger()
        self.scope = Scope("process", account=self.ledger.account("process"))
        self.presence = Presence(
            self.scope,
            residents=CAP,
            resident_bytes=BUDGET,
            idle_ttl=AGE,
            clock=self.clock,
            warn=lambda *_: None,
        )
        self.presence.is_waiting = lambda turn: any(record.turn is turn for record in self.asking.values())
        self.asking: dict[str, Present] = {}
        self.order: list[tuple[str, Tenant]] = []
        self.used: dict[Tenant, float] = {}
        self.turns: dict[str, Present] = {}
        self.given: dict[str, list[Tenant]] = {}
        self.tenants: list[Tenant] = []

    def teardown(self) -> None:
        self.runner.run(self.scope.close())
        self.runner.close()
        assert all(tenant.released == 1 for tenant in self.tenants)
        assert len(self.presence) == 0 and self.ledger.owners() == []

    # -- the description -----------------------------------------------------------------------------------------------

    def there(self, key: str) -> Tenant | None:
        return next((tenant for owner, tenant in self.order if owner == key), None)

    def leave(self, key: str) -> None:
        self.order = [entry for entry in self.order if entry[0] != key]
        if key in self.asking:
            self.given[key] = []

    def works(self, key: str) -> bool:
        return key in self.turns and key not in self.asking

    def use(self, key: str, tenant: Tenant) -> None:
        self.leave(key)
        self.order.append((key, tenant))
        self.used[tenant] = self.clock.now
        if key in self.turns:
            self.given[key].append(tenant)

    def shrink(self, newcomer: str | None = None) -> None:
        too_many = len(self.order) - CAP
        too_heavy = sum(tenant.weight for _, tenant in self.order) - BUDGET
        window: list[str] = []
        freed = 0
        for key, tenant in self.order:
            if len(window) >= too_many and freed >= too_heavy:
                break
            window.append(key)
            freed += tenant.weight
        for key in window:
            if not self.works(key) and key != newcomer:
                self.leave(key)

    # -- what can happen -----------------------------------------------------------------------------------------------

    async def ask(self, key: str, signature: bytes, weight: int) -> tuple[Tenant, bool]:
        built: list[Tenant] = []

        async def build() -> Tenant:
            built.append(Tenant(signature, weight))
            return built[0]

        tenant = await self.presence.resident(key, signature, build)
        await settled()
        return tenant, bool(built)

    @rule(key=KEYS, signature=st.sampled_from([b"one", b"two"]), weight=WEIGHTS)
    def a_resident_is_wanted(self, key: str, signature: bytes, weight: int) -> None:
        before = self.there(key)
        tenant, built = self.runner.run(self.ask(key, signature, weight))
        assert built == (before is None or before.signature != signature)
        assert built or tenant is before
        self.use(key, tenant)
        if built:
            self.tenants.append(tenant)
            self.shrink(newcomer=key)

    @rule(key=KEYS, signature=st.sampled_from([b"one", b"two"]), weight=WEIGHTS)
    def a_turn_begins(self, key: str, signature: bytes, weight: int) -> None:
        if key not in self.turns:
            record = self.presence.obtain(key)
            record.turn = object()
            self.turns[key] = record
            running = self.there(key)
            self.given[key] = [] if running is None else [running]
            self.a_resident_is_wanted(key, signature, weight)

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), twice=st.booleans())
    def a_turn_ends(self, data: st.DataObject, twice: bool) -> None:
        self.end_turn(data.draw(st.sampled_from(sorted(self.turns))), twice)

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def a_turn_asks_or_is_answered(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.turns)))
        if key in self.asking:
            del self.asking[key]
            return
        record = self.asking[key] = self.turns[key]
        resident = self.there(key)
        self.given[key] = [] if resident is None else [resident]
        self.shrink()

        async def asks() -> None:
            self.presence.turn_waits(record)
            await settled()

        self.runner.run(asks())

    @rule(key=KEYS)
    def it_is_unloaded(self, key: str) -> None:
        async def unload() -> bool:
            gone = self.presence.unload(key, reason="command")
            await settled()
            return gone

        assert self.runner.run(unload()) == (self.there(key) is not None)
        self.leave(key)

    @rule(key=KEYS)
    def its_session_ends(self, key: str) -> None:
        if key in self.turns:  # the turn is cancelled first
            self.end_turn(key, twice=False)

        async def drop() -> None:
            self.presence.drop(key)
            await settled()

        self.runner.run(drop())
        self.leave(key)
        assert self.presence.get(key) is None

    def end_turn(self, key: str, twice: bool) -> None:
        record = self.turns.pop(key)
        self.given.pop(key)
        self.asking.pop(key, None)
        resident = self.there(key)
        if resident is not None:
            self.use(key, resident)
            self.shrink()

        async def end() -> None:
            for _ in range(1 + twice):
                self.presence.turn_ended(record)
            await settled()

        self.runner.run(end())

    @rule(key=KEYS, weight=WEIGHTS)
    def it_grows_or_shrinks(self, key: str, weight: int) -> None:
        tenant, record = self.there(key), self.presence.get(key)
        if tenant is not None and record is not None:
            tenant.weight = weight

            async def reweigh() -> None:
                self.presence.reweigh(record)
                await settled()

            self.runner.run(reweigh())
            self.shrink()

    @rule(wanted=st.integers(0, 50))
    def memory_is_short(self, wanted: int) -> None:
        async def relieve() -> tuple[int, int]:
            went = self.presence.relieve(wanted)
            await settled()
            return went

        gone: list[Tenant] = []
        for key, tenant in list(self.order):
            if sum(each.weight for each in gone) >= wanted:
                break
            if not self.works(key):
                gone.append(tenant)
                self.leave(key)
        assert self.runner.run(relieve()) == (len(gone), sum(tenant.weight for tenant in gone))

    @rule(seconds=st.floats(0, 150))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

        async def sweep() -> int:
            swept = self.presence.sweep()
            await settled()
            return swept

        old = [k for k, t in self.order if not self.works(k) and self.clock.now - self.used[t] > AGE]
        assert self.runner.run(sweep()) == len(old)
        for key in old:
            self.leave(key)

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def the_same_residents_are_there(self) -> None:
        residents = {record.key: record.resident for record in self.presence if record.resident is not None}
        assert residents == dict(self.order)
        stats = self.presence.stats()
        assert stats.residents == len(self.order)
        assert stats.resident_bytes == sum(tenant.weight for _, tenant in self.order)
        assert stats.busy == len(self.turns)

    @invariant()
    def a_record_is_there_only_for_what_is_present(self) -> None:
        assert {record.key for record in self.presence} == self.turns.keys() | {key for key, _ in self.order}

    @invariant()
    def what_left_was_released_once_and_what_runs_was_not(self) -> None:
        running = [tenant for tenants in self.given.values() for tenant in tenants]
        alive = {id(tenant) for tenant in running} | {id(tenant) for _, tenant in self.order}
        for tenant in self.tenants:
            assert tenant.released == (id(tenant) not in alive)
        assert self.ledger.totals().get("resident") is None or self.ledger.totals()["resident"].count == len(alive)


PresenceMachine.TestCase.settings = settings(max_examples=example_count(60), stateful_step_count=40)
TestPresence = PresenceMachine.TestCase
