"""`tidegate usage`: what was used and cost, as a table or as JSON."""

import json
from pathlib import Path

import pytest

from tests.cli.test_conversations import one_sentence
from tests.gateway.process import GatewayProcess, tidegate
from tidegate.cli.output import bar
from tidegate.cli.usage import _print_usage, _without_gaps, spent_of


def used(**fields: object) -> dict[str, object]:
    numbers = dict.fromkeys(("calls", "input", "cached", "written", "output", "reasoning", "cost", "estimated"), 0)
    return {"key": "", "name": "", **numbers, **fields}


def test_what_was_used_is_a_table_with_its_total(running: GatewayProcess) -> None:
    """F3, X22: by model, unless asked otherwise; the same as JSON."""
    running.say("say hello")
    found = json.loads(tidegate("usage", "--json", home=running.home).stdout)
    (row,) = found["rows"]
    assert (found["by"], row["key"], row["cost"]) == ("model", "demo", 0)
    lines = tidegate("usage", home=running.home).stdout.splitlines()
    assert lines[0].split() == ["model", "calls", "input", "cached", "output", "cost"]
    assert lines[1].split()[:2] == ["demo", f"{row['calls']:,}"] and lines[1].endswith("$0.00")
    assert len(lines) == 2 or "estimated" in lines[2]
    by_day = tidegate("usage", "--by", "day", home=running.home).stdout.splitlines()
    assert by_day[0].endswith("by tokens") and "█" in by_day[1]
    assert "(none)" in tidegate("usage", "--by", "job", home=running.home).stdout
    assert "owner" in tidegate("usage", "--by", "principal", home=running.home).stdout
    nothing = tidegate("usage", "--until", "2020-01-01", "--since", "2019-01-01", home=running.home).stdout
    assert nothing == "No model was asked in this time.\n"


def test_a_wrong_time_is_one_sentence(running: GatewayProcess, nobody: Path) -> None:
    """F3: as is a gateway that does not run."""
    assert "since must be a time span like 7d" in one_sentence(tidegate("usage", "--since", "soon", home=running.home))
    assert "until" in one_sentence(tidegate("usage", "--until", "9x", home=running.home))
    assert "No gateway runs" in one_sentence(tidegate("usage", home=nobody))
    wrong = tidegate("usage", "--by", "colour", home=running.home)
    assert wrong.returncode == 2 and "'colour' is not one of 'model'" in wrong.stderr


def test_budgets_are_shown_with_what_is_spent_of_them(running: GatewayProcess) -> None:
    """X22: those of the whole gateway by `status` too."""
    found = json.loads(tidegate("usage", "--budgets", "--json", home=running.home).stdout)
    assert [budget["setting"] for budget in found["budgets"]] == ["limits.day_tokens"]
    line = tidegate("usage", "--budgets", home=running.home).stdout.splitlines()[1]
    assert "limits.day_tokens" in line and "0 of 20,000,000 tokens today" in line
    assert "0 of 20,000,000 (limits.day_tokens) since midnight UTC" in tidegate("status", home=running.home).stdout


def test_the_numbers_of_a_table_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        used(key="2026-11-01", calls=1, input=10, output=2, cost=0.5),
        used(key="2026-11-03", calls=12, input=10_000, cached=2_500, output=200, cost=1.0, estimated=3),
    ]
    total = used(calls=13, input=10_010, cached=2_500, output=202, cost=1.5, estimated=3)
    _print_usage({"by": "day", "rows": rows, "total": total, "more": False})
    assert capsys.readouterr().out.splitlines() == [
        "day         calls   input  cached       output   cost  by cost",
        "2026-11-01      1      10       0   0%       2  $0.50  ████████████",
        "2026-11-02      0       0       0            0  $0.00",
        "2026-11-03     12  10,000   2,500  25%     200  $1.00  ████████████████████████",
        "total          13  10,010   2,500  25%     202  $1.50",
        "Of 3 of 13 calls the provider did not count the tokens: estimated.",
    ]


@pytest.mark.parametrize(
    ("by", "given", "shown"),
    [
        ("day", ["2026-02-27", "2026-03-01"], ["2026-02-27", "2026-02-28", "2026-03-01"]),
        ("month", ["2025-11", "2026-02"], ["2025-11", "2025-12", "2026-01", "2026-02"]),
        (
            "hour",
            ["2026-11-01 23:00", "2026-11-02 01:00"],
            ["2026-11-01 23:00", "2026-11-02 00:00", "2026-11-02 01:00"],
        ),
        ("day", [], []),
        ("day", ["2026-02-27"], ["2026-02-27"]),
    ],
)
def test_times_in_which_nothing_was_used_are_shown_too(by: str, given: list[str], shown: list[str]) -> None:
    assert [row["key"] for row in _without_gaps(by, [used(key=key) for key in given])] == shown


def test_a_long_gap_is_not_filled_for_ever() -> None:
    rows = [used(key="1999-01-01 00:00"), used(key="2026-01-01 00:00")]
    assert len(list(_without_gaps("hour", rows))) == 1002


def test_a_bar_shows_what_is_not_nothing() -> None:
    assert [bar(share, 2) for share in (0.0, 0.001, 0.25, 0.5, 1.0)] == ["", "▏", "▌", "█", "██"]


def test_what_is_spent_is_told_in_the_units_of_its_limits() -> None:
    budget = {"tokens": 1500, "tokens_limit": 2000, "money": 0.25, "money_limit": 10.0, "each": "month"}
    assert spent_of(budget) == "1,500 of 2,000 tokens, $0.25 of $10.00 this month"
    assert spent_of({**budget, "tokens_limit": None}) == "$0.25 of $10.00 this month"
    assert spent_of({**budget, "tokens_limit": None, "money_limit": None, "each": "day"}) == "1,500 tokens today"
