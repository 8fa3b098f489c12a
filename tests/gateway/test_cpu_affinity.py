"""The gateway on one core, and off it when it is crowded."""

import os
from collections.abc import Iterator

import pytest

from tidegate.gateway import cpu_affinity
from tidegate.gateway.cpu_affinity import CpuAffinity

ALL = os.sched_getaffinity(0)
needs_two = pytest.mark.skipif(len(ALL) < 2, reason="there is only one core to choose from")


@pytest.fixture
def core() -> Iterator[CpuAffinity]:
    made = CpuAffinity()
    yield made
    made.unpin()


@needs_two
def test_the_gateway_pins_itself_to_one_core_and_releases_all_at_exit(core: CpuAffinity) -> None:
    """P15: every thread of the process, and all of them again at the end."""
    core.check()
    assert len(os.sched_getaffinity(0)) == 1
    core.unpin()
    assert os.sched_getaffinity(0) == ALL


@needs_two
@pytest.mark.parametrize(("idle", "left"), [(90, True), (10, False)])
def test_a_crowded_core_is_left_only_while_another_is_free(
    core: CpuAffinity, monkeypatch: pytest.MonkeyPatch, idle: int, left: bool
) -> None:
    """P15: waiting for more than its share lets the scheduler in, where there is somewhere to go; calm is kept."""
    times = iter([(0, 0), (100, 10), (200, 90), (300, 95)])
    looks = iter(range(4))

    def idle_times() -> dict[int, tuple[int, int]]:
        look = next(looks)
        return {number: (idle * look, 100 * look) for number in ALL}

    monkeypatch.setattr(cpu_affinity, "_times", lambda: next(times))
    monkeypatch.setattr(cpu_affinity, "_idle_times", idle_times)
    allowed: list[int] = []
    for _ in range(4):
        core.check()
        allowed.append(len(os.sched_getaffinity(0)))
    assert allowed == ([1, 1, len(ALL), 1] if left else [1, 1, 1, 1])
