"""Cooldowns after failures."""

import pytest

from tidegate.errors import ModelFailed, ModelKind
from tidegate.models.http.cooldown import COOLDOWN_SECONDS, LONGEST_COOLDOWN, SHORTEST_COOLDOWN, Cooldowns


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def failure(kind: ModelKind = "overloaded", after: float | None = None) -> ModelFailed:
    return ModelFailed("It failed.", kind=kind, retryable=True, retry_after=after)


@pytest.mark.parametrize("kind", sorted(COOLDOWN_SECONDS))
def test_a_cooldown_ends_exactly_at_its_time(kind: ModelKind) -> None:
    clock = Clock()
    cooldowns = Cooldowns(clock)
    seconds = cooldowns.begin("main", failure(kind))
    assert seconds == COOLDOWN_SECONDS[kind]
    clock.now += seconds - 0.5
    rest = cooldowns.of("main")
    assert rest is not None and rest.why == kind
    assert cooldowns.wait("main") == 0.5
    assert cooldowns.of("other") is None
    clock.now += 0.5
    assert cooldowns.of("main") is None
    assert cooldowns.wait("main") == 0


@pytest.mark.parametrize("kind", ["context", "content", "invalid", "protocol"])
def test_failures_caused_by_the_conversation_start_no_cooldown(kind: ModelKind) -> None:
    cooldowns = Cooldowns(Clock())
    assert cooldowns.begin("main", failure(kind, 30.0)) is None
    assert cooldowns.of("main") is None


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [(7.0, 7.0), (0.0, SHORTEST_COOLDOWN), (1e12, LONGEST_COOLDOWN), (float("inf"), LONGEST_COOLDOWN)],
)
def test_the_endpoints_retry_after_is_used_within_bounds(asked: float, seconds: float) -> None:
    cooldowns = Cooldowns(Clock())
    assert cooldowns.begin("main", failure("quota", asked)) == seconds
    assert cooldowns.wait("main") == seconds


def test_a_clock_that_is_set_back_does_not_prolong_a_cooldown() -> None:
    clock = Clock()
    cooldowns = Cooldowns(clock)
    cooldowns.begin("main", failure())
    clock.now -= 2 * LONGEST_COOLDOWN
    assert cooldowns.of("main") is None


def test_success_ends_a_cooldown() -> None:
    cooldowns = Cooldowns(Clock())
    cooldowns.begin("main", failure())
    cooldowns.end("main")
    cooldowns.end("main")
    assert cooldowns.of("main") is None
