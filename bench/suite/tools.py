"""The agent's hands: what a tool costs, and that long output and background processes leave nothing behind.

- `read_file` beside a plain turn of the same session: one more model call, two more commits, one file read.
- A session whose tool prints 200 KB in every turn: how much memory grows, and what lies on disk for each byte of text.
- Sessions with a background process each, ended: everything that is counted is back where it was.
- A tool that prints 1 GB: how far memory rises meanwhile.
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
"""Turns before memory is read for the first time: everything is imported, and the allocator has its arenas."""
READINGS = 10
FILLING = 100
FILLING_BYTES = 48 * 1024
"""Conversations of one long message each, so that the store's page caches, which are the process's and have their
bound, are full before that as well. They stay in memory: what they left free would hide what grows."""
BACK_WITHIN = 90.0
"""Seconds. The thread pool ends those that were idle for ten when it is used again, which a chore does each minute."""
LOOK_EVERY = 0.1

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
            note=f"{grown_parts['resident'] / MILLION:.2f} MB are the conversation, as the model is shown it; "
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
    count = bench.scale.hands_processes
    bench.say(f"hands: {count} sessions with a background process each, ended")
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
            title=f"left of {count} sessions with a process each",
            unit="",
            value=float(sum(left.values())),
            goal="0",
            met=not left,
            note=", ".join(f"{kind} {change:+d}" for kind, change in left.items()) or f"nothing, after {took:.1f} s",
            detail={"before": before, "during": during, "after": after, "seconds": took},
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


def _left(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What there is more of than at first. Connections of the driver come and go, and are not meant."""
    kinds = [kind for kind in {**before, **after} if kind.startswith(("threads", "children", "descriptors "))]
    changes = {kind: after.get(kind, 0) - before.get(kind, 0) for kind in kinds if "socket" not in kind}
    return {kind: change for kind, change in changes.items() if change > 0}


def fill_caches(subject: Any) -> None:
    """By conversations of a long message each, which stay in memory."""
    noise = random.Random(0)
    for number in range(FILLING):
        subject.ask(base64.b64encode(noise.randbytes(FILLING_BYTES)).decode(), f"filling-{number}")


def _print(subject: Any, turns: int) -> float:
    """Own memory after so many turns, the median over the last ones: what the allocator keeps free comes and goes."""
    readings = []
    for _ in range(turns):
        subject.ask(PRINT, "printer")
        readings.append(float(memory(subject.pid).anon))
    return median(readings[-READINGS:])


def _parts(subject: Any) -> dict[str, int]:
    """What the gateway itself says that its memory is made of: bytes by kind."""
    kinds = subject.call("GET", "/api/status")["memory"]["kinds"]
    return {kind: held["bytes"] for kind, held in kinds.items()}


def on_disk(subject: Any) -> int:
    """All that the gateway keeps, the database and the spool. It is started anew: the database has no log then, which
    is moved into it now and again and counts for up to a fifth of what is written here."""
    assert isinstance(subject, Gateway)
    subject.stop()
    files = [subject.database, *(subject.folder / "spool").rglob("*")]
    size = sum(file.stat().st_size for file in files if file.is_file())
    subject.start()
    return size
