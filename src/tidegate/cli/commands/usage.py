"""`tidegate usage`: shows the tokens and cost of model calls, and the budgets' state."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import bar, print_json, print_table
from tidegate.status_report import BudgetView
from tidegate.values import BILLION, dollars

_BY = ("model", "agent", "principal", "channel", "session", "job", "hour", "day", "month")
_FORMATS = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m"}
_BAR = 24  # characters
_MAX_ROWS = 1000  # in one response
_NOTHING = {"calls": 0, "input": 0, "cached": 0, "output": 0, "cost": 0}
_WINDOWS = {"hour": "this hour", "day": "today", "month": "this month", "total": "in all"}


@click.command("usage")
@click.option("--by", type=click.Choice(_BY), default="model", show_default=True, help="How to group the usage.")
@click.option("--since", default="30d", show_default=True, help="A time span (7d) or a UTC date (2026-11-01).")
@click.option("--until", help="The end of the period, in the same format (default: now).")
@click.option("--budgets", is_flag=True, help="Show the budgets and their spending instead.")
@home_option
@json_option
def command(by: str, since: str, until: str | None, budgets: bool, home: Path, as_json: bool) -> None:
    """Show the tokens and cost of all users' model calls. Times are UTC.

    The usage of deleted conversations is still included, but no longer assigned to a user.
    """
    from tidegate.cli.client import GatewayClient

    api = GatewayClient(home)
    if budgets:
        found = api.call("GET", "/api/budgets")
        print_json(found) if as_json else _print_budgets(found)
        return
    found = api.call("GET", "/api/usage", query={"by": by, "since": since, "until": until, "limit": _MAX_ROWS})
    print_json(found) if as_json else print_usage(found)


def print_usage(found: dict[str, Any]) -> None:
    by, rows = found["by"], found["rows"]
    timed = by in _FORMATS
    if timed and not found["more"]:
        rows = list(fill_gaps(by, rows))
    unit = "cost" if found["total"]["cost"] else "tokens"
    longest = max((_amount(row, unit) for row in rows), default=0) or 1
    table = [
        (_name(by, row), *_numbers(row), *((bar(_amount(row, unit) / longest, _BAR),) if timed else ())) for row in rows
    ]
    if len(rows) > 1:
        table.append(("total", *_numbers(found["total"]), *(("",) if timed else ())))
    heads = (by, "calls", "input", "cached", "", "output", "cost", *((f"by {unit}",) if timed else ()))
    print_table(heads, table, empty="No model was called in this period.", numbers=range(1, 7))
    if found["more"]:
        print(f"Only the {'latest' if timed else 'first'} {len(found['rows'])} rows are shown; the total includes all.")
    if estimated := found["total"]["estimated"]:
        print(
            f"Estimated for {estimated} of {found['total']['calls']} calls, since the provider did not count their "
            f"tokens."
        )


def _name(by: str, row: dict[str, Any]) -> str:
    unknown = "(deleted)" if by in ("session", "principal") else "(none)"
    return str(row.get("name") or row["key"] or unknown)


def _numbers(row: dict[str, Any]) -> tuple[str, ...]:
    share = f"{row['cached'] / row['input']:.0%}" if row["input"] else ""
    cost = dollars(round(row["cost"] * BILLION))
    return f"{row['calls']:,}", f"{row['input']:,}", f"{row['cached']:,}", share, f"{row['output']:,}", cost


def _amount(row: dict[str, Any], unit: str) -> float:
    return float(row["cost"] if unit == "cost" else row["input"] + row["output"])


def fill_gaps(by: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Inserts an empty row for each missing hour or day, up to the maximum number of rows."""
    pattern, length = _FORMATS[by], timedelta(hours=1) if by == "hour" else timedelta(days=1)
    before: datetime | None = None
    room, last = _MAX_ROWS, ""
    for row in rows:
        moment = datetime.strptime(row["key"], pattern)
        while before is not None and (before := before + length) < moment and room:
            if before.strftime(pattern) != last:
                last = before.strftime(pattern)
                room -= 1
                yield {"key": last, **_NOTHING}
        yield row
        before, last = moment, row["key"]


def _print_budgets(found: dict[str, Any]) -> None:
    budgets = msgspec.convert(found["budgets"], list[BudgetView])
    rows = [
        (budget.setting, budget.per, budget.name, spending(budget), f"{budget.used:.0%}",
         bar(min(1.0, budget.used), _BAR))
        for budget in budgets
    ]  # fmt: skip
    print_table(("budget", "per", "of", "spent", "", ""), rows, empty="There are no budgets.", numbers=(4,))
    if found["more"]:
        print(f"Only the first {len(rows)} budgets are shown.")


def spending(budget: BudgetView) -> str:
    """Returns the amount spent, the limit, and the period."""
    parts = []
    if budget.tokens_limit is not None:
        parts.append(f"{budget.tokens:,} of {budget.tokens_limit:,} tokens")
    if budget.money_limit is not None:
        spent, limit = (dollars(round(amount * BILLION)) for amount in (budget.money, budget.money_limit))
        parts.append(f"{spent} of {limit}")
    return f"{', '.join(parts) or f'{budget.tokens:,} tokens'} {_WINDOWS[budget.each]}"
