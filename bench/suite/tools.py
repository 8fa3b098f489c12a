"""Tools: the cost of a tool call, and what long output and background processes leave behind.

- `read_file` against a plain turn of the same session: one more model call, two more commits, one file read.
- A session whose tool prints 200 KB in every turn: growth of memory, and bytes on disk per byte of output.
- Sessions with one background process each, ended: all counts return to their initial values.
- A tool that prints 1 GB: peak memory.
"""

import base64
import json
import random
import time
from collections.abc import Mapping
from typing import Any

from bench.readings import census, median, memory, peak_memory, reset_peak
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
"""Turns before the first reading of memory, to import everything and fill the allocator's arenas."""
READINGS = 10
FILLING = 100
FILLING_BYTES = 48 * 1024
"""Conversations of one long message each, so that the store's page caches, which are bounded, are full before that too.
They stay in memory: memory that they freed would hide growth."""
BACK_WITHIN = 90.0
"""Seconds. The thread pool ends threads after ten idle seconds, but only at its next use, which a periodic task causes
once a minute."""
LOOK_EVERY = 0.1

MILLION = 1e6


def run(bench: Bench) -> list[Figure]:
    if bench.subject != "gateway":
        return []
    return [*reading(bench), *printing(bench), *processes(bench), *gigabyte(bench)]


def reading(bench: Bench) -> list[Figure]:
    bench.say("tools: read_file against a plain turn")
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
            note=f"plain {plain:.2f} ms, with the tool {tool:.2f} ms, including one more model call",
            detail=dict(timed),
        )
    ]


def printing(bench: Bench) -> list[Figure]:
    turns = bench.scale.tool_outputs
    bench.say(f"tools: {turns} turns whose tool prints {OUTPUT_BYTES // 1000} KB")
    with bench.make("gateway", tools=("terminal",)) as subject:
        fill_caches(subject)
        before, parts = _print(subject, WARM), _parts(subject)
        grown = _print(subject, turns) - before
        grown_parts = {kind: size - parts.get(kind, 0) for kind, size in _parts(subject).items()}
        before_more, more = on_disk(subject), max(1, turns // 4)
        _print(subject, more)
        share = (on_disk(subject) - before_more) / (more * OUTPUT_BYTES)
    return [
        Figure(
            name="output_memory",
            title=f"memory after {turns} × 200 KB of output",
            unit="MB",
            value=grown / MILLION,
            goal="≤ 2 MB",
            met=grown <= GROWTH_GOAL,
            note=f"{grown_parts['resident'] / MILLION:.2f} MB are the encoded conversation; "
            f"the store's {parts['store'] / MILLION:.1f} MB of pages were full before",
            detail=grown_parts,
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
    count = bench.scale.tool_processes
    bench.say(f"tools: {count} sessions with a background process each, ended")
    with bench.make("gateway", limits={"residents": 16}, tools=("terminal",)) as subject:
        subject.ask(START, "warm")
        _end_all(subject)
        before = census(subject.pid)
        bench.drive(subject, "runner", sessions=count, turns=1, in_flight=16, tool_every=1, tool=START)
        during = census(subject.pid)
        _end_all(subject)
        ended = time.perf_counter()
        while (left := _left(before, after := census(subject.pid))) and time.perf_counter() < ended + BACK_WITHIN:
            time.sleep(LOOK_EVERY)
        took = time.perf_counter() - ended
    return [
        Figure(
            name="processes_left",
            title=f"left behind by {count} sessions with a process each",
            unit="",
            value=float(sum(left.values())),
            goal="0",
            met=not left,
            note=", ".join(f"{kind} {change:+d}" for kind, change in left.items()) or f"nothing, after {took:.1f} s",
            detail={"before": before, "during": during, "after": after, "seconds": took},
        )
    ]


def gigabyte(bench: Bench) -> list[Figure]:
    size = bench.scale.tool_bytes
    bench.say(f"tools: a tool that prints {size / MILLION:,.0f} MB")
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
            title=f"peak memory while a tool prints {size / 1e9:g} GB",
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


def _left(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Counts that are higher than before, without the driver's connections."""
    kinds = [kind for kind in {**before, **after} if kind.startswith(("threads", "children", "descriptors "))]
    changes = {kind: after.get(kind, 0) - before.get(kind, 0) for kind in kinds if "socket" not in kind}
    return {kind: change for kind, change in changes.items() if change > 0}


def fill_caches(subject: Any) -> None:
    """Fill the store's page caches with conversations of one long message each, which stay in memory."""
    noise = random.Random(0)
    for number in range(FILLING):
        subject.ask(base64.b64encode(noise.randbytes(FILLING_BYTES)).decode(), f"filling-{number}")


def _print(subject: Any, turns: int) -> float:
    """Anonymous memory after so many turns: the median of the last readings, because the allocator's free memory
    varies."""
    readings = []
    for _ in range(turns):
        subject.ask(PRINT, "printer")
        readings.append(float(memory(subject.pid).anon))
    return median(readings[-READINGS:])


def _parts(subject: Any) -> dict[str, int]:
    """The gateway's own account of its memory: bytes by kind."""
    kinds = subject.call("GET", "/api/status")["memory"]["kinds"]
    return {kind: held["bytes"] for kind, held in kinds.items()}


def on_disk(subject: Any) -> int:
    """Bytes of the database and the spool. The gateway is restarted, so that the database has no write-ahead log, which
    is checkpointed only now and then and can be up to a fifth of the bytes written here."""
    assert isinstance(subject, Gateway)
    subject.stop()
    files = [subject.database, *(subject.folder / "spool").rglob("*")]
    size = sum(file.stat().st_size for file in files if file.is_file())
    subject.start()
    return size
