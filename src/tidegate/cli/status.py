"""`tidegate status`: what the running gateway does and holds."""

import sys
import time
from pathlib import Path
from typing import Any

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import counted, print_json, print_table, size, span, when
from tidegate.cli.usage import spent_of
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
        if as_json:
            print_json(made)
        else:
            print(made["link"])
            print(f"The link works once, until {when(made['expires'])}.", file=sys.stderr)
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
    held, (day, *budgets) = status["memory"], status["budgets"]
    connections = status["connections"]
    most = f"of {day['tokens_limit']:,} (limits.day_tokens)" if day["tokens_limit"] else "(no limit)"
    facts = [
        ("gateway", f"{status['address']}, pid {status['pid']}, version {status['version']}"),
        ("home", status["home"]),
        ("health", _health(status["health"])),
        ("up", span(status["uptime"])),
        ("turns", f"{turns['running']} running, {turns['waiting']} waiting, {turns['asking']} asking a person, "
                  f"{turns['delegating']} waiting for other agents; "
                  f"{turns['answered']} answered, {turns['failed']} failed, {turns['stopped']} stopped so far"),
        ("tokens", f"{day['tokens']:,} {most} since midnight UTC"),
        *(("budget", f"{spent_of(budget)} ({budget['setting']}), {budget['used']:.0%}") for budget in budgets),
        ("in memory", f"{counted(sessions['residents'], 'conversation')}, {size(sessions['resident_bytes'])}"),
        ("connections", f"{connections['open']} of {connections['limit']:,}; {connections['descriptors']} of "
                        f"{connections['descriptors_limit']:,} descriptors"),
        ("process", f"{size(held['anonymous'] + held['swap'])} of its own, {size(held['rss'])} resident"),
        ("audit log", counted(status["audit"]["rows"], "row")),
    ]  # fmt: skip
    facts.append(("commands", commands(status["workspaces"])))
    if any(status["context"].values()):
        facts.append(("windows", _compactions(status["context"])))
    if status["tape"] is not None:
        facts.append((status["tape"]["does"], _recording(status["tape"])))
    facts[4:4] = [
        *((f"agent {agent['agent']}", _model(agent)) for agent in status["agents"]),
        *((f"model {name}", told) for name, state in status["model_states"].items() if (told := _state(state))),
    ]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name:>{width}}: {value}")
    if status["workspaces"]["warning"]:
        print(f"{'warning':>{width}}: {status['workspaces']['warning']}")
    for name, check in status["health"]["checks"].items():
        if not check["ok"]:
            print(f"{'warning':>{width}}: {name}: {check['detail']}")
    for chore in status["chores"]:
        if chore.get("error"):
            print(f"{'warning':>{width}}: the chore {chore['name']!r} failed last time: {chore['error']}")


def _health(health: dict[str, Any]) -> str:
    wrong = [name for name, check in health["checks"].items() if not check["ok"]]
    return f"NOT READY ({', '.join(wrong)}; see the warnings below)" if wrong else "ready"


def commands(found: dict[str, Any]) -> str:
    """Where the agents' commands run, and what holds their limits. `found` is what the gateway says of workspaces."""
    if found["problem"]:
        return str(found["problem"])
    told = f"{found['backend']}; {found['limits'] or 'what holds their limits is found out with the first one'}"
    return f"{told}; not counted: {', '.join(found['uncounted'])}" if found["uncounted"] else told


def _compactions(counts: dict[str, int]) -> str:
    """How often conversations were made to fit, and how."""
    words = {
        "summary": "made to fit by a summary", "excerpts": "by excerpts", "cut": "by a list", "media": "without media",
        "useless": "summaries of no use",
    }  # fmt: skip
    return ", ".join(f"{count} {words[how]}" for how, count in counts.items() if count)


def _state(state: dict[str, Any]) -> str:
    """What is to be said of a model: nothing, when it has one key and nothing went wrong."""
    told = []
    if state["keys"] > 1:
        told.append(f"{state['keys']} keys, {state['keys_resting']} resting")
    if state["rests_until"] is not None:
        moment = time.strftime("%H:%M:%S", time.localtime(state["rests_until"]))
        told.append(f"left alone until {moment} ({state['rests_because']})")
    if state["failures"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(state["failures"].items()))
        told.append(f"failed requests: {kinds}")
    if state["fallbacks"]:
        told.append(f"stepped in {counted(state['fallbacks'], 'time')}")
    return "; ".join(told)


def _recording(recording: dict[str, Any]) -> str:
    exchanges = counted(recording["exchanges"], "exchange")
    if recording["does"] == "replays":
        return f"{recording['file']}, {exchanges}; {recording['replayed']} replayed, {recording['unknown']} asked that it does not hold"
    stopped = f"; stopped: {recording['stopped']}" if recording["stopped"] else ""
    return f"{recording['file']}, {exchanges}, {size(recording['bytes'])}{stopped}"


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
