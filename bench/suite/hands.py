"""The agent's hands: what a tool costs, and that long output and background processes leave nothing behind.

- `read_file` beside a plain turn of the same session: one more model call, two more commits, one file read.
- A session whose tool prints 200 KB in every turn: how much memory grows, and what lies on disk for each byte of text.
- Sessions with a background process each, ended: everything that is counted is back where it was.
- A tool that prints 1 GB: how far memory rises meanwhile.
"""

import json
from typing import Any

from bench.readings import census, memory, peak_memory, reset_peak
from bench.report import Figure
from bench.subjects import Gateway
from bench.suite import Bench

OUTPUT_BYTES = 200_000
PRINT = (
    "[tool terminal " + json.dumps({"command": f"head -c {OUTPUT_BYTES * 74 // 100} /dev/urandom | base64 -w 76"}) + "]"
)
READ = "[tool read_file " + json.dumps({"path": "page.txt"}) + "]"
WRITE = "[tool write_file " + json.dumps({"path": "page.txt", "content": "A line of a page.\n" * 40}) + "]"
START = "[tool process " + json.dumps({"action": "start", "name": "tide", "command": "sleep 100000"}) + "]"
GROWTH_GOAL = 2_000_000
DISK_GOAL = 1.3
PEAK_GOAL = 16_000_000
WARM = 20
"""Turns before memory is read for the first time: the allocator has its arenas and the store its pages."""

MILLION = 1e6


def run(bench: Bench) -> list[Figure]:
    if bench.subject != "gateway":
        return []
    return [*reading(bench), *printing(bench), *processes(bench), *gigabyte(bench)]


def reading(bench: Bench) -> list[Figure]:
    bench.say("hands: reading a file beside a plain turn")
    turns = bench.scale.latency_turns * 4
    with bench.make("gateway", tools=("files",)) as subject:
        subject.ask(WRITE, "reader-0")
        timed: dict[str, list[float]] = {"plain": [], "tool": []}
        for repeat in range(bench.scale.repeats):
            for kind in ("plain", "tool") if repeat % 2 else ("tool", "plain"):
                taken = bench.drive(
                    subject, "reader", sessions=1, turns=turns, tool_every=1 if kind == "tool" else 0, tool=READ
                )
                timed[kind].append(taken["p50"] * 1000)
    plain, tool = min(timed["plain"]), min(timed["tool"])
    return [
        Figure(
            name="read_file",
            title="read_file turn over a plain turn, p50",
            unit="ms",
            value=tool - plain,
            note=f"plain {plain:.2f} ms, with the tool {tool:.2f} ms, of which one more model call",
            detail=dict(timed),
        )
    ]


def printing(bench: Bench) -> list[Figure]:
    turns = bench.scale.hands_outputs
    bench.say(f"hands: {turns} turns whose tool prints {OUTPUT_BYTES // 1000} KB")
    with bench.make("gateway", tools=("terminal",)) as subject:
        for _ in range(WARM):
            subject.ask(PRINT, "printer")
        before, on_disk = memory(subject.pid).anon, _on_disk(subject)
        for _ in range(turns):
            subject.ask(PRINT, "printer")
        grown = memory(subject.pid).anon - before
        share = (_on_disk(subject) - on_disk) / (turns * OUTPUT_BYTES)
    return [
        Figure(
            name="output_memory",
            title=f"memory after {turns} × 200 KB of output",
            unit="MB",
            value=grown / MILLION,
            goal="≤ 2 MB",
            met=grown <= GROWTH_GOAL,
        ),
        Figure(
            name="output_disk",
            title="disk per byte of output",
            unit="×",
            value=share,
            goal="≤ 1.3 ×",
            met=share <= DISK_GOAL,
        ),
    ]


def processes(bench: Bench) -> list[Figure]:
    count = bench.scale.hands_processes
    bench.say(f"hands: {count} sessions with a background process each, ended")
    with bench.make("gateway", limits={"residents": 16}, tools=("terminal",)) as subject:
        subject.ask(START, "warm")
        _end_all(subject)
        before = census(subject.pid)
        bench.drive(subject, "runner", sessions=count, turns=1, in_flight=16, tool_every=1, tool=START)
        during = census(subject.pid)
        _end_all(subject)
        after = census(subject.pid)
    kinds = [kind for kind in (before | after) if kind.startswith(("threads", "children", "descriptors"))]
    left = {kind: after.get(kind, 0) - before.get(kind, 0) for kind in kinds if "socket" not in kind}
    left = {kind: change for kind, change in left.items() if change and kind != "descriptors"}
    return [
        Figure(
            name="processes_left",
            title=f"left of {count} sessions with a process each",
            unit="",
            value=float(sum(map(abs, left.values()))),
            goal="0",
            met=not left,
            note=", ".join(f"{kind} {change:+d}" for kind, change in left.items()),
            detail={"before": before, "during": during, "after": after},
        )
    ]


def gigabyte(bench: Bench) -> list[Figure]:
    size = bench.scale.hands_bytes
    bench.say(f"hands: a tool that prints {size / MILLION:,.0f} MB")
    text = "[tool terminal " + json.dumps({"command": f"head -c {size} /dev/zero | tr '\\0' x | fold -w 100"}) + "]"
    with bench.make("gateway", tools=("terminal",)) as subject:
        subject.ask(PRINT, "giant")
        before = memory(subject.pid).rss
        reset_peak(subject.pid)
        subject.ask(text, "giant")
        risen = peak_memory(subject.pid) - before
    return [
        Figure(
            name="output_peak",
            title=f"memory's peak while a tool prints {size / 1e9:g} GB",
            unit="MB",
            value=risen / MILLION,
            goal="≤ 16 MB",
            met=risen <= PEAK_GOAL,
        )
    ]


def _end_all(subject: Any) -> None:
    while found := subject.call("GET", "/api/sessions?limit=200")["sessions"]:
        for session in found:
            subject.call("POST", f"/api/sessions/{session['id']}/end")


def _on_disk(subject: Any) -> int:
    """All that the gateway keeps: the database with its log as far as it is used, and the spool."""
    assert isinstance(subject, Gateway)
    files = [subject.database, *(subject.folder / "spool").rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())
