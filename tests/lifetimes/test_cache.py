"""The bounded cache stays within every one of its bounds, whatever is put into it."""

import asyncio
import random
import threading

import anyio
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.logs import capture_logs
from tidegate.lifetimes import BoundedCache, CacheStats


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.slow
def test_a_flood_of_keys_leaves_the_cap() -> None:
    """L04: a million fuzzed keys of several types, and never one entry too many."""
    cache: BoundedCache[object, int] = BoundedCache("flood", cap=64, max_bytes=4096, weigh=lambda value: value % 100)
    chance = random.Random(4)
    for number in range(1_000_000):
        key = chance.getrandbits(64)
        cache.put((key, "in a tuple") if number % 3 else str(key), number)
        if not number % 10_000:
            assert len(cache) <= 64 and cache.bytes <= 4096
    assert len(cache) <= 64 and cache.bytes <= 4096
    stats = cache.stats()
    assert stats.evictions == 1_000_000 - len(cache) and stats.cap == 64


def test_the_least_recently_used_goes_first_and_a_hit_renews() -> None:
    """A6, L04: order is by use, not by age."""
    cache: BoundedCache[str, int] = BoundedCache("order", cap=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_bytes_are_bounded_and_what_is_too_heavy_is_not_kept() -> None:
    """L03: a value heavier than the whole cache is refused to the caller's face."""
    cache: BoundedCache[str, bytes] = BoundedCache("heavy", cap=10, max_bytes=10, weigh=len)
    assert cache.put("a", b"12345") and cache.put("b", b"12345")
    assert cache.put("c", b"1") and cache.get("a") is None and cache.bytes == 6
    assert not cache.put("c", b"x" * 11)
    assert cache.get("c") is None and cache.bytes == 5


def test_nothing_older_than_its_age_is_given() -> None:
    """L04: age is looked at on reading and by the sweep; a hit does not make a value younger."""
    clock = Clock()
    cache: BoundedCache[str, int] = BoundedCache("old", cap=10, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now = 6
    cache.put("b", 2)
    assert cache.get("a") == 1
    clock.now = 10
    assert cache.get("a") is None and len(cache) == 1
    clock.now = 16
    assert cache.sweep() == 1 and len(cache) == 0
    assert BoundedCache[str, int]("ageless", cap=1).sweep() == 0


def test_each_removed_entry_is_reported_once() -> None:
    """L01: replaced, discarded, cleared, too many or too old: there is one way out."""
    gone: list[tuple[str, int]] = []
    clock = Clock()
    cache: BoundedCache[str, int] = BoundedCache(
        "told", cap=2, ttl=5, clock=clock, on_evict=lambda *left: gone.append(left)
    )
    cache.put("a", 1)
    cache.put("a", 1)
    assert gone == []
    cache.put("a", 2)
    cache.put("b", 3)
    cache.put("c", 4)
    assert cache.discard("c") and not cache.discard("c")
    clock.now = 5
    assert cache.get("b") is None
    cache.put("d", 5)
    cache.clear()
    assert gone == [("a", 1), ("a", 2), ("c", 4), ("b", 3), ("d", 5)]


def test_a_failing_listener_is_logged_and_disturbs_nobody() -> None:
    """A10: a put does not raise the failure of another entry's removal; the log has it."""

    def fail(key: str, value: int) -> None:
        raise ValueError(key)

    cache: BoundedCache[str, int] = BoundedCache("fragile", cap=1, on_evict=fail)
    with capture_logs() as logged:
        cache.put("a", 1)
        cache.put("b", 2)
    assert cache.get("b") == 2 and len(cache) == 1
    assert "cache fragile" in logged[0]["event"] and "ValueError('a')" in str(logged)


@pytest.mark.parametrize(
    "key",
    [object(), threading.Lock(), Clock(), type, ("a", object())],
    ids=["object", "lock", "clock", "type", "tuple"],
)
def test_a_key_that_never_comes_again_is_refused(key: object) -> None:
    """L04: the identity of an object, a loop or a thread cannot be a key."""
    cache: BoundedCache[object, int] = BoundedCache("values", cap=2)
    with pytest.raises(TypeError, match="keyed by values"):
        cache.put(key, 1)
    assert len(cache) == 0


def test_a_cache_cannot_be_made_without_its_bounds() -> None:
    """A13, L04: no cap, no cache; no way to weigh, no bound in bytes."""
    with pytest.raises(TypeError):
        BoundedCache("unbounded")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="cap of at least 1"):
        BoundedCache("empty", cap=0)
    with pytest.raises(ValueError, match="weigh"):
        BoundedCache("weightless", cap=1, max_bytes=1)


def test_the_numbers_of_a_cache_are_ready_for_a_metric() -> None:
    """L04: size, cap, bytes, hits, misses and evictions."""
    cache: BoundedCache[str, bytes] = BoundedCache("seen", cap=1, weigh=len)
    cache.put("a", b"12")
    cache.put("b", b"123")
    cache.get("a")
    cache.get("b")
    assert cache.stats() == CacheStats(name="seen", size=1, cap=1, bytes=3, hits=1, misses=1, evictions=1)


@pytest.mark.anyio
async def test_a_value_is_made_once_for_all_who_ask() -> None:
    """L25: a hundred callers, one construction."""
    cache: BoundedCache[str, str] = BoundedCache("single", cap=4)
    go = asyncio.Event()
    made: list[str] = []

    async def make() -> str:
        made.append("made")
        await go.wait()
        return "value"

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            answers: list[str] = []

            async def ask() -> None:
                answers.append(await cache.get_or_make("key", make))

            for _ in range(100):
                group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            go.set()
    assert made == ["made"] and answers == ["value"] * 100
    assert await cache.get_or_make("key", make) == "value" and made == ["made"]


@pytest.mark.anyio
async def test_a_failing_construction_is_tried_once_and_not_kept() -> None:
    """L25: everyone who waited gets the failure; the next one tries again."""
    cache: BoundedCache[str, str] = BoundedCache("failing", cap=4)
    tries: list[int] = []

    async def fail() -> str:
        tries.append(1)
        await asyncio.sleep(0)
        raise ValueError("no")

    async def work() -> str:
        return "yes"

    with anyio.fail_after(5):
        ends = await asyncio.gather(*(cache.get_or_make("key", fail) for _ in range(10)), return_exceptions=True)
        assert tries == [1] and all(isinstance(end, ValueError) for end in ends)
        assert await cache.get_or_make("key", work) == "yes"


@pytest.mark.anyio
async def test_a_cancelled_maker_hands_over_to_one_who_waits() -> None:
    """L25, L23: nobody's cancellation is anybody else's."""
    cache: BoundedCache[str, str] = BoundedCache("handed over", cap=4)
    tries: list[int] = []
    go = asyncio.Event()

    async def make() -> str:
        tries.append(1)
        await go.wait()
        return f"by maker {len(tries)}"

    with anyio.fail_after(5):
        asked = [asyncio.ensure_future(cache.get_or_make("key", make)) for _ in range(3)]
        await asyncio.sleep(0)
        asked[0].cancel()
        await asyncio.wait({asked[0]})
        go.set()
        assert await asyncio.gather(*asked[1:]) == ["by maker 2", "by maker 2"]
    assert asked[0].cancelled() and len(tries) == 2


class CacheMachine(RuleBasedStateMachine):
    """L03, L04: a cache and the simplest description of it agree after any sequence of uses."""

    CAP, BUDGET, AGE = 4, 20, 10.0

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.gone: list[int] = []
        self.cache: BoundedCache[int, list[int]] = BoundedCache(
            "model",
            cap=self.CAP,
            max_bytes=self.BUDGET,
            weigh=lambda value: value[0],
            ttl=self.AGE,
            clock=self.clock,
            on_evict=lambda _, value: self.gone.append(id(value)),
        )
        self.model: dict[int, tuple[list[int], float]] = {}
        self.kept: list[list[int]] = []

    @rule(key=st.integers(0, 6), weight=st.integers(0, 25))
    def put(self, key: int, weight: int) -> None:
        value = [weight]
        self.kept.append(value)
        self.model.pop(key, None)
        assert self.cache.put(key, value) == (weight <= self.BUDGET)
        if weight <= self.BUDGET:
            self.model[key] = (value, self.clock.now + self.AGE)
            while len(self.model) > self.CAP or sum(v[0] for v, _ in self.model.values()) > self.BUDGET:
                del self.model[next(iter(self.model))]

    @rule(key=st.integers(0, 6))
    def get(self, key: int) -> None:
        value, until = self.model.pop(key, (None, 0.0))
        if value is not None and until > self.clock.now:
            self.model[key] = (value, until)
            assert self.cache.get(key) is value
        else:
            assert self.cache.get(key) is None

    @rule(key=st.integers(0, 6))
    def discard(self, key: int) -> None:
        assert self.cache.discard(key) == (self.model.pop(key, None) is not None)

    @rule(seconds=st.floats(0, 12))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.model)
    @rule()
    def sweep(self) -> None:
        old = [key for key, (_, until) in self.model.items() if until <= self.clock.now]
        assert self.cache.sweep() == len(old)
        for key in old:
            del self.model[key]

    @invariant()
    def it_agrees_with_its_description(self) -> None:
        values = [value for value, _ in self.model.values()]
        assert len(self.cache) == len(values) <= self.CAP
        assert self.cache.bytes == sum(value[0] for value in values) <= self.BUDGET

    @invariant()
    def nothing_is_told_twice(self) -> None:
        assert len(self.gone) == len(set(self.gone))


TestCache = CacheMachine.TestCase
