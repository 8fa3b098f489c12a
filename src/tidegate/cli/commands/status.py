"""`tidegate status`: shows the state of the running gateway."""

import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from tidegate.cli.commands.usage import spending
from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import local_time, plural, print_json, print_table, size, span
from tidegate.gateway import ask
from tidegate.status_report import (
    Holding,
    McpStatus,
    MemoryBreakdown,
    ModelStatus,
    OwnerHolding,
    Readiness,
    RecorderStatus,
    ReplayerStatus,
    SearchStatus,
    StatusReport,
    WorkspacesStatus,
)

_KINDS_SHOWN = 2  # per owner in the table; the JSON output has all of them


@click.command("status")
@home_option
@json_option
@click.option("--memory", is_flag=True, help="Show memory usage by kind and owner.")
@click.option("--link", is_flag=True, help="Print a new one-time link to the chat page instead.")
def command(home: Path, as_json: bool, memory: bool, link: bool) -> None:
    """Show the state of the running gateway."""
    if link:
        made = ask(home, {"do": "code"})
        if as_json:
            print_json(made)
        else:
            print(made["link"])
            print(f"The link works once, until {local_time(made['expires'])}.", file=sys.stderr)
        return
    found = ask(home, {"do": "status", "memory": memory})
    if as_json:
        print_json(found)
        return
    _print_facts(read_status(found))
    if memory:
        _print_memory(msgspec.convert(found["memory"], MemoryBreakdown))


def read_status(found: dict[str, Any]) -> StatusReport:
    return msgspec.convert(found, StatusReport)


def _print_facts(status: StatusReport) -> None:
    turns, sessions, memory, connections = status.turns, status.sessions, status.memory, status.connections
    day, *budgets = status.budgets
    day_limit = f"of {day.tokens_limit:,} (limits.day_tokens)" if day.tokens_limit else "(no limit)"
    facts = [
        ("gateway", f"{status.address}, pid {status.pid}, version {status.version}"),
        ("home", status.home),
        ("health", _health(status.health)),
        ("up", span(status.uptime)),
        *((f"agent {agent.agent}", agent.title) for agent in status.agents),
        *((f"model {name}", text) for name, state in status.model_states.items() if (text := _model_state(state))),
        ("turns", f"{turns.running} running, {turns.waiting} waiting, {turns.asking} waiting for a person, "
                  f"{turns.delegating} waiting for other agents; "
                  f"{turns.answered} answered, {turns.failed} failed, {turns.stopped} stopped so far"),
        ("tokens", f"{day.tokens:,} {day_limit} since midnight UTC"),
        *(("budget", f"{spending(budget)} ({budget.setting}), {budget.used:.0%}") for budget in budgets),
        ("in memory", f"{plural(sessions.residents, 'conversation')}, {size(sessions.resident_bytes)}"),
        ("connections", f"{connections.open} of {connections.limit:,}; {connections.descriptors} of "
                        f"{connections.descriptors_limit:,} descriptors"),
        ("process", f"{size(memory.anonymous + memory.swap)} private, {size(memory.rss)} resident"),
        ("audit log", plural(status.audit.rows, "row")),
        ("commands", commands(status.workspaces)),
        *((f"server {server.name}", mcp_state(server)) for server in status.mcp),
    ]  # fmt: skip
    if status.search.unindexed or status.search.former:
        facts.append(("search", _search(status.search)))
    if (found := status.search.vectors) is not None:
        waiting = f"; {plural(found.waiting, 'conversation')} with messages that wait for one" if found.waiting else ""
        facts.append(("vectors", f"{size(found.bytes)} of {size(found.limit)}, by {found.model}{waiting}"))
    if any(status.context.values()):
        facts.append(("windows", _compactions(status.context)))
    if isinstance(status.tape, RecorderStatus):
        facts.append(("records", _recording(status.tape)))
    elif status.tape is not None:
        facts.append(("replays", _replay(status.tape)))
    facts += [("warning", text) for text in _warnings(status)]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name:>{width}}: {value}")


def _search(search: SearchStatus) -> str:
    parts = [f"about {plural(search.unindexed, 'message')} not indexed yet"] if search.unindexed else []
    if search.former:
        parts.append(f"about {plural(search.former, 'message')} from an earlier version still to be reindexed")
    return "; ".join(parts)


def _warnings(status: StatusReport) -> list[str]:
    warnings = [status.workspaces.warning] if status.workspaces.warning else []
    if status.search.vectors is not None and status.search.vectors.problem:
        warnings.append(f"messages get no vectors: {status.search.vectors.problem}")
    warnings += [f"the {each.kind} plug-in {each.name!r}: {each.fault}" for each in status.plugins if each.fault]
    warnings += [f"{name}: {check.detail}" for name, check in status.health.checks.items() if not check.ok]
    return warnings + [
        f"the maintenance task {task.name!r} failed in its last run: {task.error}"
        for task in status.chores
        if task.error
    ]


def _health(health: Readiness) -> str:
    failed = [name for name, check in health.checks.items() if not check.ok]
    return f"NOT READY ({', '.join(failed)}; see the warnings below)" if failed else "ready"


def commands(workspaces: WorkspacesStatus) -> str:
    """Describes where the agents' commands run and how their limits are enforced."""
    if workspaces.problem:
        return workspaces.problem
    text = f"{workspaces.backend}; {workspaces.limits or 'limits are determined when the first command runs'}"
    return f"{text}; not counted: {', '.join(workspaces.uncounted)}" if workspaces.uncounted else text


def mcp_state(server: McpStatus) -> str:
    """Describes the state of an MCP server."""
    parts: list[str] = [server.state]
    if server.since:
        parts[0] += f" since {local_time(server.since)}"
    if server.tools is not None:
        parts.append(plural(server.tools, "tool"))
    if server.revision:
        parts.append(f"revision {server.revision}")
    if server.pid is not None:
        parts.append(f"pid {server.pid}")
    if server.memory:
        parts.append(size(server.memory))
    if server.restarts:
        parts.append(f"restarted {plural(server.restarts, 'time')}")
    if server.error and server.state != "ready":
        parts.append(f"{server.fault}: {server.error}")
    return ", ".join(parts)


def _compactions(counts: dict[str, int]) -> str:
    """Describes how often conversations were reduced to fit their models' windows, by method."""
    words = {
        "summary": "reduced by a summary", "excerpts": "by excerpts", "cut": "by a list", "media": "by omitting media",
        "useless": "useless summaries",
    }  # fmt: skip
    return ", ".join(f"{count} {words[how]}" for how, count in counts.items() if count)


def _model_state(state: ModelStatus) -> str:
    """Describes the state of a model's keys, and its failures. Empty if there is nothing to report."""
    parts = []
    if state.keys > 1:
        parts.append(f"{state.keys} keys, {state.keys_resting} in cooldown")
    if state.rests_until is not None:
        until = time.strftime("%H:%M:%S", time.localtime(state.rests_until))
        parts.append(f"in cooldown until {until} ({state.rests_because})")
    if state.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(state.failures.items()))
        parts.append(f"failed requests: {kinds}")
    if state.fallbacks:
        parts.append(f"used as a fallback {plural(state.fallbacks, 'time')}")
    return "; ".join(parts)


def _recording(recording: RecorderStatus) -> str:
    stopped = f"; stopped: {recording.stopped}" if recording.stopped else ""
    return f"{recording.file}, {plural(recording.exchanges, 'exchange')}, {size(recording.bytes)}{stopped}"


def _replay(replay: ReplayerStatus) -> str:
    exchanges = plural(replay.exchanges, "exchange")
    return f"{replay.file}, {exchanges}; {replay.replayed} replayed, {replay.unknown} requests not in the recording"


def _print_memory(memory: MemoryBreakdown) -> None:
    kinds = sorted(memory.kinds.items(), key=lambda kind: -kind[1].bytes)
    rows = [
        ("private (RssAnon + VmSwap)", size(memory.private)),
        *((f"  {kind}", size(holding.bytes)) for kind, holding in kinds if holding.bytes),
        ("  unexplained", size(memory.unexplained)),
        ("explained", f"{memory.explained:.0%}"),
        ("growth since startup", f"{size(memory.growth)}, {memory.growth_explained:.0%} of it explained"),
        ("ceiling (above it, idle conversations are unloaded)", size(memory.ceiling)),
        ("resident (VmRSS)", size(memory.rss)),
        ("peak resident (VmHWM)", size(memory.peak)),
        ("threads, descriptors", f"{memory.threads}, {memory.descriptors}"),
    ]
    print()
    print_table(("memory", ""), rows, empty="")
    print()
    by_kind = [(kind, *_columns(holding)) for kind, holding in kinds if holding != Holding()]
    print_table(("kind", "count", "bytes", "descriptors", "children"), by_kind, empty="The ledger is empty.")
    print()
    owners = [(owner.owner, *_columns(owner), _largest_kinds(owner.kinds)) for owner in memory.owners]
    print_table(("owner", "count", "bytes", "descriptors", "children", "mostly"), owners, empty="")


def _columns(holding: Holding | OwnerHolding) -> tuple[Any, ...]:
    return holding.count, size(holding.bytes), holding.fds, holding.children


def _largest_kinds(kinds: dict[str, Holding]) -> str:
    largest = sorted(kinds.items(), key=lambda kind: -kind[1].bytes)[:_KINDS_SHOWN]
    return ", ".join(f"{kind} {size(holding.bytes)}" for kind, holding in largest if holding.bytes)
