"""The benchmark runs, small, and what it writes can be read. The floor is measured against itself."""

import json
import xml.etree.ElementTree as Tree
from pathlib import Path

import msgspec
import pytest

from bench.__main__ import main
from bench.report import Report
from bench.suite import FIGURES

NEEDS_GATEWAY = {"kill", "orphans", "prefix"}
"""Figures that have no meaning for the floor: it forgets everything when it ends."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one tiny run of everything that the floor can be measured by."""
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
    """F5: the figures by which memory and its slope are watched are all there."""
    names = {figure.name for figure in report.figures}
    assert {"idle_rss", "start", "latency_p50", "throughput", "cpu", "resident", "slope"} <= names
    assert all(figure.value is not None for figure in report.figures)
    assert all(figure.met is not None for figure in report.figures if figure.goal)


@pytest.mark.slow
def test_the_report_says_where_it_was_taken(report: Report) -> None:
    """L22: a figure without its machine and its noise says nothing."""
    assert report.environment.cores >= 1
    assert report.environment.noise is not None
    assert report.subject == "floor"


@pytest.mark.slow
def test_memory_over_turns_is_drawn_as_well_formed_svg(results: Path) -> None:
    """L22: the plot can be opened."""
    (file,) = results.glob("*.svg")
    root = Tree.fromstring(file.read_text())
    assert root.tag.endswith("svg")
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2


@pytest.mark.slow
def test_an_earlier_result_is_rendered_as_a_table(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """L22: the table of the documentation comes from a result, not from a hand."""
    (file,) = results.glob("*.json")
    assert main(["--table", str(file)]) == 0
    table = capsys.readouterr().out
    assert table.startswith("| figure | floor | gateway |")
    assert all(figure["title"] in table for figure in json.loads(file.read_text())["figures"])
