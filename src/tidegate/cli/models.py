"""`tidegate models`: the configured models, what is known of them, and who uses them.

Guarantee: it needs no running gateway and asks no endpoint; of keys it says how many there are, never what or where.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import print_json, print_table
from tidegate.gateway import command_hint, settings

if TYPE_CHECKING:
    from tidegate.config import Config
    from tidegate.models.catalog.facts import Facts

_HEADS = ("name", "api", "model", "window", "takes", "thinking", "$ per million", "keys", "agents")


@click.command("models")
@home_option
@json_option
def command(home: Path, as_json: bool) -> None:
    """List the configured models, what is known of them, and which agents use them."""
    rows = list(_rows(settings(home)))
    if as_json:
        print_json(rows)
        return
    print_table(_HEADS, [_cells(row) for row in rows], empty="There are none.")
    if unknown := [row["name"] for row in rows if not row["known"]]:
        print(
            f"\nNot in the catalogue, so that what is safe holds: {', '.join(unknown)}. "
            f"{command_hint(home, 'doctor')} says what to set."
        )


def _rows(config: "Config") -> Iterator[dict[str, Any]]:
    from tidegate.models.catalog.catalog import Catalogue

    catalogue = Catalogue.shipped()
    for name, model in config.models.items():
        facts = catalogue.facts_of(model)
        yield {
            "name": name,
            "api": model.api,
            "model": model.model,
            "known": facts.known,
            "window": facts.window,
            "output": facts.output,
            "vision": facts.vision,
            "audio": facts.audio,
            "thinking": facts.thinking,
            "efforts": list(facts.efforts),
            "prices": _prices(facts),
            "keys": len(model.references),
            "agents": [agent for agent, its in config.agents.items() if its.model == name],
            "fallback_of": [agent for agent, its in config.agents.items() if name in its.fallback],
        }


def _prices(facts: "Facts") -> dict[str, Any] | None:
    """Dollars for a million tokens; what is null costs as much as `input` does."""
    if facts.prices is None:
        return None
    prices = facts.prices
    told: dict[str, Any] = {
        "input": prices.input,
        "output": prices.output,
        "cached": prices.cached,
        "written": prices.written,
    }
    if prices.long is not None:
        told["long"] = {"over": prices.long, "input_times": prices.long_input, "output_times": prices.long_output}
    return told


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    takes = [word for word, can in (("pictures", row["vision"]), ("sounds", row["audio"])) if can]
    efforts = row["efforts"]
    spread = "" if not efforts else f" {efforts[0]}…{efforts[-1]}" if len(efforts) > 1 else f" {efforts[0]}"
    used = [*row["agents"], *(f"{agent} (fallback)" for agent in row["fallback_of"])]
    return (
        row["name"], row["api"], row["model"], f"{row['window']:,}", ", ".join(["text", *takes]),
        f"{row['thinking']}{spread}", _price(row["prices"]), row["keys"] or "", ", ".join(used),
    )  # fmt: skip


def _price(prices: dict[str, Any] | None) -> str:
    if prices is None:
        return "not known"
    if not (prices["input"] or prices["output"]):
        return "nothing"
    cached = "" if prices["cached"] is None else f", {prices['cached']:g} cached"
    return f"{prices['input']:g} in, {prices['output']:g} out{cached}"
