"""The arithmetic of the benchmark, on numbers with known results."""

import os
from pathlib import Path

import pytest

from bench.readings import Line, census, cpu_seconds, fit, median, memory, quantile, spread
from bench.report import Environment, Figure, Report, text_table
from bench.suite.slope import level


def test_quantiles_are_interpolated_between_neighbours() -> None:
    """L22: percentiles are interpolated."""
    assert quantile([1, 2, 3, 4, 5], 0.5) == 3
    assert quantile([1, 2], 0.5) == 1.5
    assert quantile([7], 0.95) == 7
    assert quantile(list(range(101)), 0.95) == 95


def test_spread_is_relative_to_the_median() -> None:
    """L22: noise is reported relative to the measured value."""
    assert spread([9, 10, 11]) == pytest.approx(0.2)
    assert median([3, 1, 2]) == 2


def test_a_line_through_points_of_a_line_is_that_line() -> None:
    """L22: the slope is exact without noise."""
    line = fit([0, 1, 2, 3], [5, 7, 9, 11])
    assert line.slope == pytest.approx(2)
    assert line.start == pytest.approx(5)
    assert line.noise == pytest.approx(0)


def test_a_leak_is_not_level_but_noise_is() -> None:
    """F5, L22: a slope beyond the noise misses the goal; fluctuation and falling memory do not."""
    assert not level(Line(slope=0.5, start=40_000, noise=30), turns=4_000)
    assert level(Line(slope=0.02, start=40_000, noise=100), turns=4_000)
    assert level(Line(slope=-0.5, start=40_000, noise=30), turns=4_000)


def test_the_resources_of_a_process_are_read_from_the_kernel(tmp_path: Path) -> None:
    """F5, L06: descriptors, threads and files of a process are counted from outside."""
    before = census(os.getpid(), tmp_path)
    with (tmp_path / "left behind").open("w"):
        during = census(os.getpid(), tmp_path)
    assert during["descriptors"] == before["descriptors"] + 1
    assert during["temporary files"] == before["temporary files"] + 1
    assert memory(os.getpid()).rss >= memory(os.getpid()).anon > 0
    assert cpu_seconds(os.getpid()) > 0


def test_a_missed_goal_is_shown_as_missed() -> None:
    """L22: the table never hides a missed goal."""
    report = Report(
        subject="gateway",
        scale="tiny",
        at="2026-01-01T00:00:00+00:00",
        environment=Environment(cores=2, python="3.11", system="Linux", load=0.0),
        figures=[
            Figure(name="a", title="first", unit="ms", value=1.0, floor=2.0, goal="≤ 2 × floor", met=True),
            Figure(name="b", title="second", unit="MB", value=51.0, goal="≤ 50 MB", met=False),
        ],
    )
    lines = text_table(report).splitlines()
    assert lines[2].endswith("met") and "0.50 ×" in lines[2]
    assert lines[3].endswith("MISSED")
    assert report.missed == ["b"]
