"""Figures and reports: JSON for machines, a table for people.

A figure is one number of the gateway with, if there is one, the same number of the floor, its goal and whether the goal
is met. Rendering reads only the JSON, so that a table can be made from an old file.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

SCHEMA = 1


class Figure(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`met` is None if there is no goal. `detail` holds the individual measurements."""

    name: str
    title: str
    unit: str
    value: float | None
    floor: float | None = None
    goal: str = ""
    met: bool | None = None
    note: str = ""
    detail: dict[str, Any] = {}


class Environment(msgspec.Struct, kw_only=True):
    cores: int
    python: str
    system: str
    load: float
    """Other work on the machine at the start of the run: the one-minute load average."""
    noise: float | None = None
    """Spread of the floor's repeats: (largest - smallest) / median of its latency."""


class Report(msgspec.Struct, kw_only=True):
    schema: int = SCHEMA
    subject: str
    scale: str
    at: str
    seconds: float = 0.0
    environment: Environment
    figures: list[Figure] = []

    @property
    def missed(self) -> list[str]:
        return [figure.name for figure in self.figures if figure.met is False]


def number(value: float | None, unit: str) -> str:
    """A value with its unit, rounded to a suitable number of digits."""
    if value is None:
        return "–"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def verdict(figure: Figure) -> str:
    return {True: "met", False: "MISSED", None: ""}[figure.met]


def rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for figure in figures:
        ratio = f"{figure.value / figure.floor:.2f} ×" if figure.value is not None and figure.floor else ""
        floor = number(figure.floor, figure.unit)
        found.append((figure.title, floor, number(figure.value, figure.unit), ratio, figure.goal, verdict(figure)))
    return found


HEAD = ("figure", "floor", "gateway", "ratio", "goal", "")


def environment_line(report: Report) -> str:
    place = report.environment
    noise = "" if place.noise is None else f"; repeats of the floor spread over {place.noise:.0%}"
    return (
        f"{place.cores} cores shared by model, driver and measured process; Python {place.python}; {place.system}; "
        f"load {place.load:.2f} at the start{noise}; {report.scale} run of {report.at}, {report.seconds:.0f} s."
    )


def text_table(report: Report) -> str:
    """The table for a terminal: aligned columns, notes below."""
    table = [HEAD, *rows(report.figures)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines += [f"  {figure.title}: {figure.note}" for figure in report.figures if figure.note]
    return "\n".join([*lines, "", environment_line(report)])


def markdown_table(report: Report) -> str:
    """The table for the documentation."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    lines += [f"| {' | '.join(row)} |" for row in rows(report.figures)]
    return "\n".join([*lines, "", environment_line(report)])
