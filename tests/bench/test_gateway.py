"""A small benchmark run of the gateway: both columns of its table have numbers."""

import math
import xml.etree.ElementTree as Tree
from pathlib import Path

import msgspec
import pytest

from bench.__main__ import main
from bench.report import Report, markdown_table
from bench.suite.prefix import APIS


@pytest.mark.slow
def test_the_gateway_is_measured_beside_the_floor_and_repeats_every_prefix(tmp_path: Path) -> None:
    """P16, S32: for plain turns, tools, unloads, and stops and kills between turns, as counted by the model server."""
    assert main(["--scale", "tiny", "--only", "latency", "--only", "prefix", "--results", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*.json")
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    assert report.subject == "gateway"
    figures = {figure.name: figure for figure in report.figures}
    for api in APIS:
        prefix = figures.pop(f"prefix-{api}")
        assert (prefix.value, prefix.met) == (100.0, True)
        assert prefix.detail is not None and set(prefix.detail) == {"plain", "tool", "unload", "restart"}
        assert all(counted["followups"] and not counted["refused"] for counted in prefix.detail.values())
    assert {"latency_p50", "latency_stream_p50", "latency_first_p50"} <= set(figures)
    for figure in figures.values():
        assert figure.value is not None and math.isfinite(figure.value), figure.name
        assert figure.floor is not None and math.isfinite(figure.floor), figure.name
    for row in markdown_table(report).splitlines():
        if "added latency" in row:
            floor, gateway = [cell.strip() for cell in row.split("|")[2:4]]
            assert any(map(str.isdigit, floor)) and any(map(str.isdigit, gateway)), row


@pytest.mark.slow
def test_kills_during_the_start_of_a_sandbox_are_counted(tmp_path: Path) -> None:
    """L14: no kill leaves processes or control groups behind."""
    assert main(["--scale", "tiny", "--only", "orphans", "--results", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*.json")
    figures = {one.name: one for one in msgspec.json.decode(file.read_bytes(), type=Report).figures}
    assert figures["orphans"].met and figures["sandbox_start"].value


@pytest.mark.slow
def test_a_long_conversation_and_a_search_are_measured(tmp_path: Path) -> None:
    """S35, S32: no request exceeds the window, and between compactions every request starts with the previous one."""
    assert (
        main(
            ["--scale", "tiny", "--only", "context", "--only", "recall", "--only", "search", "--results", str(tmp_path)]
        )
        == 0
    )
    (file,) = tmp_path.glob("*.json")
    figures = {one.name: one for one in msgspec.json.decode(file.read_bytes(), type=Report).figures}
    compactions = figures["context_compactions"].value
    assert compactions is not None and compactions >= 1
    assert figures["context_largest"].met and figures["context_prefix"].met
    for name in ("cpu", "sent", "memory", "disk", "short", "summaries"):
        value = figures[f"context_{name}"].value
        assert value is not None and math.isfinite(value), name
    for rule in ("recall_10", "recall_index", "recall_disk"):
        value = figures[rule].value
        assert value is not None and value > 0, rule
    for way in ("person", "session", "recall", "exact", "sessions"):
        value = figures[f"search_{way}"].value
        assert value is not None and value > 0, way
    (plot,) = tmp_path.glob("*.svg")
    assert len(Tree.fromstring(plot.read_text()).findall("{http://www.w3.org/2000/svg}polyline")) == 2
