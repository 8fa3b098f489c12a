"""The cost of reloading an unloaded conversation: turns in conversations of 400 messages, resident and reloaded for
every turn, in two gateways with the same transcripts that are measured in alternation.

The reloading gateway keeps one resident, and each turn is in another conversation; its additional CPU time is the cost
of the reload. The cost per message is the difference between conversations of 400 and of 40 messages, one turn after
another. At the end many turns are in flight, so that unloads and reloads happen next to other turns.
"""

import asyncio
import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.prose import Prose
from bench.readings import median
from bench.report import Figure
from bench.subjects import Gateway, Limits
from bench.suite import Bench
from tidegate.store import Db, Store, messages
from tidegate.values import Message, ToolCall, Usage

SHORT, LONG = 40, 400
"""Messages of a conversation."""
TURNS = 5
"""Turns in each conversation, the first of which is not measured: so few that its length hardly changes."""
WORDS, ANSWER_WORDS, RESULT_WORDS = 25, 50, 300
TOOL_EVERY = 10
PREFIX_TOKENS, MESSAGE_TOKENS = 100, 60
WINDOW = 10_000_000
"""So large that nothing is summarised and all messages are sent."""
GOAL_US = 1.0
"""CPU time per message: messages are read back, not encoded again. Includes a margin for noise."""
GOAL_LOAD = 2.5
"""CPU time per turn under load, relative to a resident one: a reload costs no more than a turn and a half."""
KEPT: Limits = {"residents": 100_000, "resident_bytes": 1 << 30}
"""So that nothing is unloaded."""
US, MS = 1_000_000.0, 1000.0


def run(bench: Bench) -> list[Figure]:
    if bench.subject != "gateway":
        return []
    home = prepare(bench)
    cpu: dict[tuple[str, int], list[float]] = {}
    latency: dict[tuple[str, int], list[float]] = {}
    with copied(bench, home, KEPT) as resident, copied(bench, home, {"residents": 1}) as reloaded:
        subjects: Mapping[str, Gateway] = {"resident": resident, "reloaded": reloaded}
        for repeat in range(bench.scale.repeats):
            bench.say(f"reload: repeat {repeat + 1} of {bench.scale.repeats}")
            for name, subject in list(subjects.items())[:: -1 if repeat % 2 else 1]:
                for length in (SHORT, LONG):
                    taken = drive(bench, subject, repeat, length)
                    cpu.setdefault((name, length), []).append(cpu_of(taken))
                    latency.setdefault((name, length), []).append(taken["p50"])
        bench.say("reload: under load")
        loaded = {name: drive_all(bench, subject) for name, subject in subjects.items()}
    return [*figures(cpu, latency), under_load(bench, loaded)]


def figures(cpu: dict[tuple[str, int], list[float]], latency: dict[tuple[str, int], list[float]]) -> list[Figure]:
    cost = {length: median(cpu["reloaded", length]) - median(cpu["resident", length]) for length in (SHORT, LONG)}
    each = (cost[LONG] - cost[SHORT]) / (LONG - SHORT) * US
    detail = {f"{name} {length}": values for (name, length), values in cpu.items()}
    return [
        Figure(
            name="reload-cpu",
            title="CPU per message of a reloaded conversation",
            unit="µs",
            value=each,
            goal=f"≤ {GOAL_US:g} µs",
            met=each <= GOAL_US,
            note=", ".join(f"{length} messages {spent * MS:.2f} ms" for length, spent in cost.items()),
            detail=detail,
        ),
        Figure(
            name="reload-latency",
            title=f"turn after {LONG} reloaded messages, against resident ones, p50",
            unit="ms",
            value=median(latency["reloaded", LONG]) * MS,
            floor=median(latency["resident", LONG]) * MS,
            detail={f"{name} {length}": values for (name, length), values in latency.items()},
        ),
    ]


def under_load(bench: Bench, taken: dict[str, dict[str, Any]]) -> Figure:
    reloaded, resident = cpu_of(taken["reloaded"]) * MS, cpu_of(taken["resident"]) * MS
    return Figure(
        name="reload-load",
        title=f"CPU per turn after {LONG} reloaded messages, against resident ones, "
        f"{bench.scale.load_in_flight} in flight",
        unit="ms",
        value=reloaded,
        floor=resident,
        goal=f"≤ {GOAL_LOAD:g} ×",
        met=reloaded <= GOAL_LOAD * resident,
        note=", ".join(f"{name} p50 {one['p50'] * MS:.1f} ms" for name, one in taken.items()),
    )


def cpu_of(taken: dict[str, Any]) -> float:
    """CPU seconds per turn."""
    return float(taken["cpu"]["subject"] / taken["turns"])


def label(length: int) -> str:
    return f"reload-{length}"


def drive(bench: Bench, subject: Gateway, repeat: int, length: int) -> dict[str, Any]:
    """Turns in conversations that were not used before, one at a time and round robin."""
    count = bench.scale.reload_sessions
    return bench.drive(
        subject, label(length), first=repeat * count, sessions=count, turns=TURNS, warmup=count, filler=80
    )


def drive_all(bench: Bench, subject: Gateway) -> dict[str, Any]:
    """Turns in all long conversations, many at once."""
    count = bench.scale.reload_sessions * bench.scale.repeats
    in_flight = bench.scale.load_in_flight
    return bench.drive(subject, label(LONG), sessions=count, turns=TURNS, warmup=count, filler=80, in_flight=in_flight)


def copied(bench: Bench, home: Path, limits: Limits) -> Gateway:
    """A gateway over a copy of the prepared home."""
    folder = bench.place("gateway")
    shutil.copytree(home, folder, dirs_exist_ok=True)
    return Gateway(folder, bench.model.url, limits=limits, tools=("clock",), window=WINDOW)


def prepare(bench: Bench) -> Path:
    """A home folder with conversations of both lengths. Each starts with a turn and is then extended in the store."""
    folder = bench.place("gateway")
    count = bench.scale.reload_sessions * bench.scale.repeats
    names = {f"{label(length)}-{number}": length for length in (SHORT, LONG) for number in range(count)}
    with Gateway(folder, bench.model.url, tools=("clock",), window=WINDOW) as subject:
        for name in names:
            subject.ask("Hello.", name)
    asyncio.run(lengthen(folder / "tidegate.db", names))
    return folder


async def lengthen(path: Path, names: dict[str, int]) -> None:
    prose = Prose()

    def write(db: Db) -> None:
        for name, length in names.items():
            found: Any = db.execute("SELECT id FROM sessions WHERE name = ?", (name,)).get
            for message in conversation(prose, length - 2):
                messages.append(db, session=found, turn=None, step=None, message=message, now=1.0)

    async with Store.open(path) as store:
        await store.write(write)


def conversation(prose: Prose, length: int) -> list[Message]:
    said: list[Message] = []
    for number in itertools.count(1):
        if len(said) >= length:
            break
        usage = Usage(input=PREFIX_TOKENS + len(said) * MESSAGE_TOKENS, output=MESSAGE_TOKENS)
        said.append(Message(role="user", text=prose.text(WORDS)))
        if number % TOOL_EVERY == 0:
            call = ToolCall(id=f"call_{number}", name="clock", arguments='{"zone": "Europe/Berlin"}')
            said.append(Message(role="assistant", calls=(call,), finish="tool_calls", model="scripted", usage=usage))
            said.append(Message(role="tool", call_id=call.id, name=call.name, text=prose.text(RESULT_WORDS)))
        text = prose.text(ANSWER_WORDS)
        said.append(Message(role="assistant", text=text, finish="stop", model="scripted", usage=usage))
    return said
