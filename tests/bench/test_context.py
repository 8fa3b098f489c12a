"""The figures of a long conversation, computed from request traces with known results."""

from bench.prose import Prose
from bench.scripted.behaviour import Traced
from bench.suite.context import cpu_of, fifths, placed, sent_in, told_apart, turning


def traced(turn: int, tokens: int, came: str, *, summary: bool = False) -> Traced:
    return Traced(f"Message {turn} of context-0: …", summary, False, tokens, 4 * tokens, came, 5)


def test_a_smaller_request_is_a_compaction_and_any_other_change_is_a_broken_prefix() -> None:
    """S35: the reuse figure between compactions does not hide a rebuilt prompt."""
    trace = [
        traced(0, 100, "first"),
        traced(1, 200, "whole"),
        traced(1, 150, "first", summary=True),
        traced(2, 90, "changed"),
        traced(3, 95, "changed"),
        traced(4, 105, "whole"),
        traced(4, 105, "repeated"),
    ]
    compacted, broken, whole = told_apart(placed(trace))
    assert [one.turn for one in compacted] == [2]
    assert [one.turn for one in broken] == [3]
    assert whole == 2


def test_a_summary_belongs_to_the_turn_in_which_it_was_written() -> None:
    trace = [traced(7, 100, "first"), Traced("[{}]", True, False, 50, 200, "first", 9), traced(8, 60, "changed")]
    assert [one.turn for one in placed(trace)] == [7, 7, 8]
    assert sent_in(placed(trace), range(7, 9)) == (400 + 200 + 240) / 2 / 1024


def test_the_fifths_that_are_compared_do_not_overlap() -> None:
    assert fifths(1000, 60) == (range(60, 260), range(800, 1000))
    assert fifths(100, 95) == (range(60, 80), range(80, 100))


def test_the_cost_of_turns_is_taken_between_the_readings_inside() -> None:
    samples = [{"turns": turns, "cpu": turns * 0.002, "driver": turns * 0.001} for turns in range(0, 101, 5)]
    assert round(cpu_of(samples, range(20, 40)), 6) == 2.0
    assert round(cpu_of(samples, range(20, 40), "driver"), 6) == 1.0


def test_a_sawtooth_is_drawn_by_its_turning_points() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 1.0), (4.0, 2.0), (5.0, 4.0)]
    assert turning(points) == [(0.0, 1.0), (2.0, 3.0), (3.0, 1.0), (5.0, 4.0)]
    assert turning([]) == []


def test_prose_is_the_same_for_the_same_seed_and_its_common_words_are_common() -> None:
    words = Prose(3).some(20_000)
    assert words == Prose(3).some(20_000)
    vocabulary = Prose(3).words
    assert len(set(vocabulary)) == len(vocabulary) == 20_000
    counts = [words.count(word) for word in (vocabulary[0], vocabulary[50], vocabulary[5_000])]
    assert counts == sorted(counts, reverse=True) and counts[0] > 100 * max(1, counts[2])
