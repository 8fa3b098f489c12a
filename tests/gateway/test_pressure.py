"""Unloading when memory is short."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lifetimes.residents import Clock, Tenant, building, settled
from tests.logs import capture_logs
from tidegate.gateway.process_memory.memory_limit import MemoryLimit
from tidegate.gateway.process_memory.pressure import GROWN, LOW, REST_SECONDS, STALLED, MemoryPressure
from tidegate.lifetimes import Presence, Scope
from tidegate.status_report import PressureStatus

pytestmark = pytest.mark.anyio

CEILING = 1000


class Memory:
    """The process's memory as the kernel would report it: the weight of residents, and the rest."""

    def __init__(self, presence: Presence, root: Path) -> None:
        self.presence = presence
        self.other = 0
        self.free = 0
        self.clock = Clock()
        self.trims = 0
        self._root = root
        self.stalled(0.0)
        ceiling = MemoryLimit(CEILING, root=root)
        self.pressure = MemoryPressure(
            presence, ceiling, private=self.private, give_back=self.give_back, clock=self.clock
        )

    def private(self) -> int:
        return self.presence.stats().resident_bytes + self.other + self.free

    def stalled(self, per_cent: float) -> None:
        file = self._root / "proc/pressure/memory"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"some avg10={per_cent:.2f} avg60=0.00 avg300=0.00 total=0\n")

    async def give_back(self) -> None:
        self.trims += 1
        self.free = 0

    async def look(self) -> list[dict[str, Any]]:
        """One check; returns the log lines."""
        with capture_logs() as logged:
            await self.pressure.check()
        await settled()
        return list(logged)


@pytest.fixture
async def presence() -> AsyncIterator[Presence]:
    async with Scope("process") as scope:
        yield Presence(scope, residents=1000, resident_bytes=1 << 40)


@pytest.fixture
def memory(presence: Presence, tmp_path: Path) -> Memory:
    return Memory(presence, tmp_path)


async def _settle_in(presence: Presence, count: int, weight: int = 100) -> list[Tenant]:
    tenants = [Tenant(weight=weight) for _ in range(count)]
    for number, tenant in enumerate(tenants):
        await presence.resident(f"s_{number}", b"one", building(tenant))
    return tenants


async def test_below_the_ceiling_nothing_happens(memory: Memory, presence: Presence) -> None:
    """A6, P15: not even close to it."""
    await _settle_in(presence, 10)
    assert await memory.look() == []
    assert memory.private() == CEILING
    assert memory.trims == 0
    assert not memory.pressure.short


async def test_above_the_ceiling_the_least_recently_used_are_unloaded_down_to_the_lower_mark(
    memory: Memory, presence: Presence
) -> None:
    """A6, L03, P15: as many as are needed, with one line of the log that has the numbers."""
    tenants = await _settle_in(presence, 11)
    (line,) = await memory.look()
    assert [tenant.released for tenant in tenants] == [1, 1, *[0] * 9]
    assert presence.stats().unloads == {"pressure": 2}
    assert line["level"] == "warning"
    assert (line["private"], line["ceiling"], line["unloaded"], line["freed"]) == (1100, CEILING, 2, 200)
    assert line["private_now"] == 900
    assert memory.pressure.report() == PressureStatus(ceiling=CEILING, short=True, spells=1)


async def test_free_memory_of_the_allocator_is_returned_first(memory: Memory, presence: Presence) -> None:
    """L22, P15: nobody is unloaded for memory that nobody uses."""
    await _settle_in(presence, 5)
    memory.free = 900
    assert await memory.look() == []
    assert presence.stats().residents == 5
    assert memory.trims == 1
    assert not memory.pressure.short


async def test_unloading_that_does_not_help_is_paused_unless_memory_grows(memory: Memory, presence: Presence) -> None:
    """A6, P15: it does not thrash: a reloaded conversation stays for a while."""
    memory.other = CEILING + 1
    await _settle_in(presence, 3)
    await memory.look()
    assert presence.stats().residents == 0
    await _settle_in(presence, 2, weight=int(GROWN * CEILING / 2))
    assert await memory.look() == []
    assert presence.stats().residents == 2, "it rests"
    memory.clock.now += REST_SECONDS
    assert await memory.look() == []
    assert presence.stats().residents == 0
    await _settle_in(presence, 3, weight=int(GROWN * CEILING / 2))
    assert await memory.look() == []
    assert presence.stats().residents == 0, "it has grown, and does not wait"


async def test_between_the_marks_nothing_is_unloaded_and_a_spell_is_logged_once(
    memory: Memory, presence: Presence
) -> None:
    """A6, P15: it does not thrash, and one line tells of a spell however long it is."""
    await _settle_in(presence, 11)
    assert len(await memory.look()) == 1
    memory.other = 150
    assert await memory.look() == []
    assert presence.stats().residents == 7, "still short: again, without another line"
    memory.other = CEILING - 700
    memory.clock.now += REST_SECONDS
    assert await memory.look() == []
    assert presence.stats().residents == 7
    assert memory.pressure.short
    memory.other = 0
    assert await memory.look() == []
    assert not memory.pressure.short
    memory.other = CEILING
    assert len(await memory.look()) == 1
    assert memory.pressure.spells == 2


async def test_if_unloading_all_idle_conversations_is_not_enough_the_log_says_what_to_do(
    memory: Memory, presence: Presence
) -> None:
    """P15, A11: nobody in mid-turn pays for it."""
    tenants = await _settle_in(presence, 3)
    presence.obtain("s_1").turn = "turn"
    memory.other = 5 * CEILING
    (line,) = await memory.look()
    assert "limits.memory_bytes" in line["event"]
    assert line["unloaded"] == 2
    assert [tenant.released for tenant in tenants] == [1, 0, 1]


async def test_if_the_kernel_reports_waiting_for_memory_half_are_unloaded(memory: Memory, presence: Presence) -> None:
    """A6, P15: independent of the ceiling; and half of the rest if the shortage continues."""
    await _settle_in(presence, 8)
    memory.stalled(STALLED - 1)
    assert await memory.look() == []
    memory.stalled(STALLED)
    (line,) = await memory.look()
    assert line["stalled"] == STALLED
    assert line["unloaded"] == 4
    memory.clock.now += REST_SECONDS
    await memory.look()
    assert presence.stats().residents == 2
    memory.stalled(STALLED * 0.7)
    await memory.look()
    assert memory.pressure.short, "it is not over yet"
    memory.stalled(0.0)
    await memory.look()
    assert not memory.pressure.short


@given(
    weights=st.lists(st.integers(0, 500), max_size=12),
    busy=st.sets(st.integers(0, 11)),
    waiting=st.sets(st.integers(0, 11)),
    other=st.integers(0, 3000),
    stalled=st.sampled_from([0.0, 5.0, 50.0]),
)
async def test_a_resident_with_a_running_turn_is_never_unloaded(
    tmp_path_factory: pytest.TempPathFactory,
    weights: list[int],
    busy: set[int],
    waiting: set[int],
    other: int,
    stalled: float,
) -> None:
    """A8, A11, P15: running and waiting turns keep their resident, and idle ones are unloaded oldest first."""
    async with Scope("process") as scope:
        presence = Presence(scope, residents=1000, resident_bytes=1 << 40)
        memory = Memory(presence, tmp_path_factory.getbasetemp())
        memory.other = other
        memory.stalled(stalled)
        tenants = []
        for number, weight in enumerate(weights):
            tenants.append(Tenant(weight=weight))
            await presence.resident(f"s_{number}", b"one", building(tenants[-1]))
            record = presence.obtain(f"s_{number}")
            record.turn = "turn" if number in busy else None
            if number in waiting:
                record.waiting.append("turn")
        was_short = memory.private() > CEILING
        await memory.look()
        idle = [number for number in range(len(tenants)) if number not in busy | waiting]
        gone = [number for number, tenant in enumerate(tenants) if tenant.released]
        assert gone == idle[: len(gone)]
        if was_short and len(gone) < len(idle):
            assert memory.private() <= LOW * CEILING
        for number in waiting:
            if (record := presence.get(f"s_{number}")) is not None:
                record.waiting.clear()
