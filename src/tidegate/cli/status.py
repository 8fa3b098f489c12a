"""`tidegate status`: what the running gateway does and holds."""

from pathlib import Path
from typing import Any

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import counted, print_json, print_table, size, span
from tidegate.gateway import ask

_KINDS_SHOWN = 2  # of each owner, in its line of the table; JSON has them all


@click.command("status")
@home_option
@json_option
@click.option("--memory", is_flag=True, help="Say what the memory is made of, and who holds it.")
@click.option("--link", is_flag=True, help="Print a new one-time link to the chat page instead.")
def command(home: Path, as_json: bool, memory: bool, link: bool) -> None:
    """Show what the running gateway does and holds."""
    if link:
        made = ask(home, {"do": "code"})
        print_json(made) if as_json else print(made["link"])
        return
    status = ask(home, {"do": "status", "memory": memory})
    if as_json:
        print_json(status)
        return
    _print_facts(status)
    if memory:
        _print_memory(status["memory"])


def _print_facts(status: dict[str, Any]) -> None:
    turns, sessions = status["turns"], status["sessions"]
    held, budget = status["memory"], status["budget"]
    most = f"of {budget['limit']:,} (limits.day_tokens)" if budget["limit"] else "(no limit)"
    facts = [
        ("gateway", f"{status['address']}, pid {status['pid']}, version {status['version']}"),
        ("home", status["home"]),
        ("up", span(status["uptime"])),
        ("turns", f"{turns['running']} running, {turns['waiting']} waiting, {turns['asking']} asking a person; "
                  f"{turns['answered']} answered, {turns['failed']} failed, {turns['stopped']} stopped so far"),
        ("tokens", f"{budget['spent']:,} {most} since midnight UTC"),
        ("in memory", f"{counted(sessions['residents'], 'conversation')}, {size(sessions['resident_bytes'])}"),
        ("process", f"{size(held['anonymous'] + held['swap'])} of its own, {size(held['rss'])} resident"),
    ]  # fmt: skip
    facts.append(("commands", commands(status["workspaces"])))
    facts[3:3] = [(f"agent {agent['agent']}", _model(agent)) for agent in status["agents"]]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name:>{width}}: {value}")
    if status["workspaces"]["warning"]:
        print(f"{'warning':>{width}}: {status['workspaces']['warning']}")
    for chore in status["chores"]:
        if chore.get("error"):
            print(f"{'warning':>{width}}: the chore {chore['name']!r} failed last time: {chore['error']}")


def commands(found: dict[str, Any]) -> str:
    """Where the agents' commands run, and what holds their limits. `found` is what the gateway says of workspaces."""
    if found["problem"]:
        return str(found["problem"])
    return f"{found['backend']}; {found['limits'] or 'what holds their limits is found out with the first one'}"


def _model(agent: dict[str, Any]) -> str:
    return "the built-in demo model" if agent["demo"] else f"{agent['model']} at {agent['host']}"


def _print_memory(memory: dict[str, Any]) -> None:
    kinds = sorted(memory["kinds"].items(), key=lambda kind: -kind[1]["bytes"])
    rows = [
        ("private (RssAnon + VmSwap), made of:", size(memory["private"])),
        *((f"  {kind}", size(held["bytes"])) for kind, held in kinds if held["bytes"]),
        ("  unexplained", size(memory["unexplained"])),
        ("explained", f"{memory['explained']:.0%}"),
        ("grown since it stood ready", f"{size(memory['growth'])}, {memory['growth_explained']:.0%} of it explained"),
        ("ceiling, above which idle ones are unloaded", size(memory["ceiling"])),
        ("resident (VmRSS)", size(memory["rss"])),
        ("resident at most so far (VmHWM)", size(memory["peak"])),
        ("threads, descriptors", f"{memory['threads']}, {memory['descriptors']}"),
    ]
    print()
    print_table(("memory", ""), rows, empty="")
    print()
    held_kinds = [(kind, *_holding(held)) for kind, held in kinds if any(held.values())]
    print_table(("kind", "count", "bytes", "descriptors", "children"), held_kinds, empty="Nothing is held by name.")
    print()
    owners = [(held["owner"], *_holding(held), _made_of(held["kinds"])) for held in memory["owners"]]
    print_table(("owner", "count", "bytes", "descriptors", "children", "mostly"), owners, empty="")


def _holding(held: dict[str, Any]) -> tuple[Any, ...]:
    return held["count"], size(held["bytes"]), held["fds"], held["children"]


def _made_of(kinds: dict[str, Any]) -> str:
    """The largest kinds of what an owner holds."""
    largest = sorted(kinds.items(), key=lambda kind: -kind[1]["bytes"])[:_KINDS_SHOWN]
    return ", ".join(f"{kind} {size(held['bytes'])}" for kind, held in largest if held["bytes"])
