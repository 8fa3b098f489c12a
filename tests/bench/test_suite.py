"""A small run of the whole benchmark, with the floor measured against itself: its output is readable."""

import json
import xml.etree.ElementTree as Tree
from pathlib import Path

import msgspec
import pytest

from bench.__main__ import main
from bench.report import Report
from bench.suite import FIGURES

NEEDS_GATEWAY = {"kill", "orphans", "prefix"}
"""Figures without meaning for the floor, which keeps nothing when it ends."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of one tiny run with all figures that apply to the floor."""
    folder = tmp_path_factory.mktemp("results")
    chosen = [part for name in FIGURES if name not in NEEDS_GATEWAY for part in ("--only", name)]
    assert main(["--scale", "tiny", "--subject", "floor", "--results", str(folder), *chosen]) == 0
    return folder


@pytest.fixture
def report(results: Path) -> Report:
    (file,) = results.glob("*.json")
    return msgspec.json.decode(file.read_bytes(), type=Report)


@pytest.mark.slow
def test_every_figure_is_taken_and_has_a_number(report: Report) -> None:
    """F5: all figures of memory and its slope are present."""
    names = {figure.name for figure in report.figures}
    assert {"idle_rss", "start", "latency_p50", "throughput", "cpu", "resident", "slope"} <= names
    assert all(figure.value is not None for figure in report.figures)
    assert all(figure.met is not None for figure in report.figures if figure.goal)


@pytest.mark.slow
def test_the_report_says_where_it_was_taken(report: Report) -> None:
    """L22: the report names the machine and the noise of the run."""
    assert report.environment.cores >= 1
    assert report.environment.noise is not None
    assert report.subject == "floor"


@pytest.mark.slow
def test_memory_over_turns_is_drawn_as_well_formed_svg(results: Path) -> None:
    """L22: the plot is valid XML with both curves."""
    (file,) = results.glob("*.svg")
    root = Tree.fromstring(file.read_text())
    assert root.tag.endswith("svg")
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2


@pytest.mark.slow
def test_an_earlier_result_is_rendered_as_a_table(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """L22: the table in the documentation is rendered from a result, not written manually."""
    (file,) = results.glob("*.json")
    assert main(["--table", str(file)]) == 0
    table = capsys.readouterr().out
    assert table.startswith("| figure | floor | gateway |")
    assert all(figure["title"] in table for figure in json.loads(file.read_text())["figures"])
