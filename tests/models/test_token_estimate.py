"""Token estimates, learnt from the provider's counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.models.formats.token_counts import LEAST_BYTES, TOKENS_PER_BYTE, TokenEstimate

sizes = st.integers(0, 50_000_000)
requests = st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(-5, 4_000_000)), max_size=40)
RATES = {"prose": 0.22, "code": 0.3, "JSON": 0.34, "a script of long words": 0.16, "a script of rare signs": 0.5}


def taught(counts: list[tuple[int, int]]) -> TokenEstimate:
    token_estimate = TokenEstimate()
    for size, tokens in counts:
        token_estimate.learn(size, tokens)
    return token_estimate


def test_before_the_first_count_a_token_is_four_bytes() -> None:
    token_estimate = TokenEstimate()
    assert [token_estimate.tokens(size) for size in (0, 1, 4, 5, 4000)] == [0, 1, 1, 2, 1000]


@given(requests, sizes)
def test_an_estimate_stays_within_bounds_for_any_counts(counts: list[tuple[int, int]], size: int) -> None:
    """An implausible count, such as one that includes pictures, changes nothing."""
    assert size // 16 <= taught(counts).tokens(size) <= 2 * size


@given(requests, sizes, sizes)
def test_a_longer_text_never_has_fewer_tokens(counts: list[tuple[int, int]], one: int, other: int) -> None:
    token_estimate = taught(counts)
    shorter, longer = sorted((one, other))
    assert token_estimate.tokens(shorter) <= token_estimate.tokens(longer)


@given(requests, st.floats(0.07, 1.9))
def test_the_estimate_converges_to_a_constant_rate(counts: list[tuple[int, int]], rate: float) -> None:
    token_estimate = taught(counts)
    for _ in range(40):
        token_estimate.learn(100_000, round(100_000 * rate))
    assert token_estimate.tokens(1_000_000) == pytest.approx(1_000_000 * rate, rel=0.01)


@given(st.lists(st.tuples(st.integers(LEAST_BYTES, 100_000), st.floats(0.1, 1.0)), min_size=1, max_size=30))
def test_an_estimate_is_between_the_lowest_and_the_highest_counted_rate(counts: list[tuple[int, float]]) -> None:
    token_estimate = taught([(size, round(size * rate)) for size, rate in counts])
    found = [round(size * rate) / size for size, rate in counts]
    estimate = token_estimate.tokens(10_000_000) / 10_000_000
    assert min(TOKENS_PER_BYTE, *found) - 1e-6 <= estimate <= max(TOKENS_PER_BYTE, *found) + 1e-6


@pytest.mark.parametrize("rate", RATES.values(), ids=RATES)
def test_four_counts_leave_a_fifth_of_the_first_error(rate: float) -> None:
    """Ten leave a twentieth: a conversation that nears the window has had more."""
    size = 40_000
    token_estimate = TokenEstimate()
    first = abs(token_estimate.tokens(size) - size * rate)
    errors = []
    for _ in range(10):
        token_estimate.learn(size, round(size * rate))
        errors.append(abs(token_estimate.tokens(size) - size * rate))
    assert errors[3] <= first / 5 + 1
    assert errors[9] <= first / 18 + 1
    assert first <= size * rate * 0.6


def test_alternating_texts_are_not_underestimated() -> None:
    """A mean of bytes per token would underestimate: half of 2 and half of 6 bytes are 3 on average, not 4."""
    token_estimate = TokenEstimate()
    for _ in range(50):
        token_estimate.learn(6_000, 3_000)
        token_estimate.learn(6_000, 1_000)
    assert 2_000 * 0.85 < token_estimate.tokens(6_000) < 2_000 * 1.15


def test_one_odd_request_changes_little() -> None:
    token_estimate = taught([(50_000, 12_500)] * 20)
    token_estimate.learn(50_000, 50_000)
    assert token_estimate.tokens(100_000) <= 40_001


def test_short_requests_and_impossible_counts_are_not_learnt_from() -> None:
    token_estimate = taught([(LEAST_BYTES - 1, 400), (10_000, 0), (10_000, -1), (1_000_000, 900), (1_000, 100_000)])
    assert token_estimate.tokens(4_000) == 1_000
