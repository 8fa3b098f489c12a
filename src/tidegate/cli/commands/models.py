"""`tidegate models`: the configured models, their properties, and the agents that use them.

It does not need a running gateway and sends no requests. It shows how many keys a model has, but never a key or its
source.
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
    from tidegate.models import Facts

_HEADS = ("name", "api", "model", "window", "input", "thinking", "$ per million", "keys", "agents")


@click.command("models")
@home_option
@json_option
def command(home: Path, as_json: bool) -> None:
    """List the configured models, their properties, and the agents that use them."""
    rows = list(_rows(settings(home)))
    if as_json:
        print_json(rows)
        return
    print_table(_HEADS, [_cells(row) for row in rows], empty="There are no models.")
    if unknown := [row["name"] for row in rows if not row["known"]]:
        print(
            f"\nNot in the catalogue, so safe defaults apply: {', '.join(unknown)}. "
            f"{command_hint(home, 'doctor')} shows which settings to add."
        )


def _rows(config: "Config") -> Iterator[dict[str, Any]]:
    from tidegate.models import Catalog

    catalogue = Catalog.shipped()
    for name, model in config.models.items():
        facts = catalogue.facts_of(model)
        yield {
            "name": name,
            "kind": model.kind,
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
            "recall": config.context.embeddings == name,
        }


def _prices(facts: "Facts") -> dict[str, Any] | None:
    """Returns prices in dollars per million tokens. null means the same price as for `input`."""
    if facts.prices is None:
        return None
    prices = facts.prices
    found: dict[str, Any] = {
        "input": prices.input,
        "output": prices.output,
        "cached": prices.cached,
        "written": prices.written,
    }
    if prices.minute:
        found["minute"] = prices.minute
    if prices.characters:
        found["characters"] = prices.characters
    if prices.long is not None:
        found["long"] = {"over": prices.long, "input_times": prices.long_input, "output_times": prices.long_output}
    return found


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    media = [word for word, supported in (("images", row["vision"]), ("audio", row["audio"])) if supported]
    efforts = row["efforts"]
    spread = "" if not efforts else f" {efforts[0]}…{efforts[-1]}" if len(efforts) > 1 else f" {efforts[0]}"
    used = [*row["agents"], *(f"{agent} (fallback)" for agent in row["fallback_of"])]
    used += ["searches"] if row["recall"] else []
    sounds = row["kind"] == "transcription"
    return (
        row["name"], row["api"], row["model"], f"{row['window']:,}" if row["kind"] in ("chat", "embeddings") else "",
        "audio" if sounds else ", ".join(["text", *media]),
        f"{row['thinking']}{spread}" if row["kind"] == "chat" else "", _price(row["prices"]), row["keys"] or "",
        ", ".join(used),
    )  # fmt: skip


def _price(prices: dict[str, Any] | None) -> str:
    if prices is None:
        return "unknown"
    if "minute" in prices:
        return f"{prices['minute']:g} per minute"
    if "characters" in prices:
        return f"{prices['characters']:g} per million characters"
    if not (prices["input"] or prices["output"]):
        return "free"
    cached = "" if prices["cached"] is None else f", {prices['cached']:g} cached"
    return f"{prices['input']:g} in, {prices['output']:g} out{cached}"
