"""`tidegate usage`: tokens and cost, as a table or as JSON."""

import json
from pathlib import Path

from tests.cli.test_conversations import one_sentence
from tests.gateway.process import GatewayProcess, tidegate


def test_usage_is_a_table_with_its_total(running: GatewayProcess) -> None:
    """F3, X22: by model unless another grouping is requested; JSON has the same numbers."""
    running.say("say hello")
    found = json.loads(tidegate("usage", "--json", home=running.home).stdout)
    (row,) = found["rows"]
    assert (found["by"], row["key"], row["cost"]) == ("model", "demo", 0)
    lines = tidegate("usage", home=running.home).stdout.splitlines()
    assert lines[0].split() == ["model", "calls", "input", "cached", "output", "cost"]
    assert lines[1].split()[:2] == ["demo", f"{row['calls']:,}"] and lines[1].endswith("$0.00")
    assert len(lines) == 2 or "Estimated" in lines[2]
    by_day = tidegate("usage", "--by", "day", home=running.home).stdout.splitlines()
    assert by_day[0].endswith("by tokens") and "█" in by_day[1]
    assert "(none)" in tidegate("usage", "--by", "job", home=running.home).stdout
    assert "owner" in tidegate("usage", "--by", "principal", home=running.home).stdout
    nothing = tidegate("usage", "--until", "2020-01-01", "--since", "2019-01-01", home=running.home).stdout
    assert nothing == "No model was called in this period.\n"


def test_an_invalid_time_is_reported_in_one_sentence(running: GatewayProcess, nobody: Path) -> None:
    """F3: as is a gateway that is not running."""
    assert "since must be a time span like 7d" in one_sentence(tidegate("usage", "--since", "soon", home=running.home))
    assert "until" in one_sentence(tidegate("usage", "--until", "9x", home=running.home))
    assert "No gateway is running" in one_sentence(tidegate("usage", home=nobody))
    wrong = tidegate("usage", "--by", "colour", home=running.home)
    assert wrong.returncode == 2 and "'colour' is not one of 'model'" in wrong.stderr


def test_budgets_are_shown_with_their_spending(running: GatewayProcess) -> None:
    """X22: those of the whole gateway are also shown by `status`."""
    found = json.loads(tidegate("usage", "--budgets", "--json", home=running.home).stdout)
    assert [budget["setting"] for budget in found["budgets"]] == ["limits.day_tokens"]
    line = tidegate("usage", "--budgets", home=running.home).stdout.splitlines()[1]
    assert "limits.day_tokens" in line and "0 of 20,000,000 tokens today" in line
    assert "0 of 20,000,000 (limits.day_tokens) since midnight UTC" in tidegate("status", home=running.home).stdout
