"""`tidegate status`: what the running gateway does and holds."""

from pathlib import Path
from typing import Any

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import counted, print_json, print_table, size, span
from tidegate.gateway import ask


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
    held = status["memory"]
    facts = [
        ("gateway", f"{status['address']}, pid {status['pid']}, version {status['version']}"),
        ("home", status["home"]),
        ("up", span(status["uptime"])),
        ("turns", f"{turns['running']} running, {turns['waiting']} waiting; {turns['answered']} answered, "
                  f"{turns['failed']} failed, {turns['stopped']} stopped since the start"),
        ("in memory", f"{counted(sessions['residents'], 'conversation')}, {size(sessions['resident_bytes'])}"),
        ("process", f"{size(held['anonymous'] + held['swap'])} of its own, {size(held['rss'])} resident"),
    ]  # fmt: skip
    facts[3:3] = [(f"agent {agent['agent']}", _model(agent)) for agent in status["agents"]]
    for name, value in facts:
        print(f"{name:>10}: {value}")
    for chore in status["chores"]:
        if chore.get("error"):
            print(f"{'warning':>10}: the chore {chore['name']!r} failed last time: {chore['error']}")


def _model(agent: dict[str, Any]) -> str:
    return "the built-in demo model" if agent["demo"] else f"{agent['model']} at {agent['host']}"


def _print_memory(memory: dict[str, Any]) -> None:
    native = memory["allocator"]
    kinds_held = [(kind, held["bytes"]) for kind, held in memory["kinds"].items() if kind != "base" and held["bytes"]]
    rows = [
        ("private (RssAnon + VmSwap), made of:", size(memory["private"])),
        ("  base, when the gateway stood ready", size(memory["base"])),
        *((f"  {kind}", size(held)) for kind, held in kinds_held),
        ("  free, kept by the allocator", size(native.get("free", 0))),
        ("  unexplained", size(memory["unexplained"])),
        ("resident (VmRSS)", size(memory["rss"])),
        ("resident at most so far (VmHWM)", size(memory["peak"])),
        ("explained", f"{memory['explained']:.0%}"),
        ("threads, descriptors", f"{memory['threads']}, {memory['descriptors']}"),
    ]
    print()
    print_table(("memory", ""), rows, empty="")
    print()
    kinds = [(kind, *_holding(held)) for kind, held in memory["kinds"].items() if any(held.values())]
    print_table(("kind", "count", "bytes", "descriptors", "children"), kinds, empty="Nothing is held by name.")
    if memory["owners"]:
        print()
        owners = [(held["owner"], *_holding(held)) for held in memory["owners"]]
        print_table(("owner", "count", "bytes", "descriptors", "children"), owners, empty="")


def _holding(held: dict[str, Any]) -> tuple[Any, ...]:
    return held["count"], size(held["bytes"]), held["fds"], held["children"]
