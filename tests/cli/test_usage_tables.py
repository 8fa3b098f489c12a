"""The tables of `tidegate usage`, without a gateway."""

import pytest
from msgspec.structs import replace

from tidegate.cli.commands.usage import fill_gaps, print_usage, spending
from tidegate.cli.output import bar
from tidegate.status_report import BudgetView


def used(**fields: object) -> dict[str, object]:
    numbers = dict.fromkeys(("calls", "input", "cached", "written", "output", "reasoning", "cost", "estimated"), 0)
    return {"key": "", "name": "", **numbers, **fields}


def test_the_numbers_of_a_table_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        used(key="2026-11-01", calls=1, input=10, output=2, cost=0.5),
        used(key="2026-11-03", calls=12, input=10_000, cached=2_500, output=200, cost=1.0, estimated=3),
    ]
    total = used(calls=13, input=10_010, cached=2_500, output=202, cost=1.5, estimated=3)
    print_usage({"by": "day", "rows": rows, "total": total, "more": False})
    assert capsys.readouterr().out.splitlines() == [
        "day         calls   input  cached       output   cost  by cost",
        "2026-11-01      1      10       0   0%       2  $0.50  ████████████",
        "2026-11-02      0       0       0            0  $0.00",
        "2026-11-03     12  10,000   2,500  25%     200  $1.00  ████████████████████████",
        "total          13  10,010   2,500  25%     202  $1.50",
        "Estimated for 3 of 13 calls, since the provider did not count their tokens.",
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
def test_periods_without_usage_are_shown_too(by: str, given: list[str], shown: list[str]) -> None:
    assert [row["key"] for row in fill_gaps(by, [used(key=key) for key in given])] == shown


def test_a_long_gap_is_not_filled_for_ever() -> None:
    rows = [used(key="1999-01-01 00:00"), used(key="2026-01-01 00:00")]
    assert len(list(fill_gaps("hour", rows))) == 1002


def test_a_small_share_has_a_visible_bar() -> None:
    assert [bar(share, 2) for share in (0.0, 0.001, 0.25, 0.5, 1.0)] == ["", "▏", "▌", "█", "██"]


def test_spending_is_shown_in_the_units_of_the_limits() -> None:
    budget = BudgetView(
        setting="b", per="gateway", each="month", key="", name="", tokens=1500, tokens_limit=2000, money=0.25,
        money_limit=10.0, used=0.75, opens=None,
    )  # fmt: skip
    assert spending(budget) == "1,500 of 2,000 tokens, $0.25 of $10.00 this month"
    assert spending(replace(budget, tokens_limit=None)) == "$0.25 of $10.00 this month"
    assert spending(replace(budget, tokens_limit=None, money_limit=None, each="day")) == "1,500 tokens today"
