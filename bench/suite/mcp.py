"""MCP servers: the cost of a call beside the SDK's own client, the memory of many servers, and what a kill leaves.

The SDK is an extra. Without it, there are no figures.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.mcp_client import PYTHON, SERVER
from bench.readings import median, memory
from bench.report import Figure
from bench.subjects import Gateway
from bench.suite import Bench
from tidegate.gateway import ask
from tidegate.workspaces.processes.children import find_program

CALL_GOAL = 1.2
MEMORY_GOAL_MB = 10.0
BESIDE_GOAL = 1.5
BESIDE_TURNS = 200
FLOOD_SECONDS = 2.0  # until the server floods; it begins a second after its start
LEFT_SECONDS = 2.0
MB = 1024.0 * 1024.0
WAIT = 120.0


def run(bench: Bench) -> list[Figure]:
    if bench.subject != "gateway" or importlib.util.find_spec("mcp") is None or find_program("bwrap") is None:
        return []
    return [_calls(bench), *_many(bench), _beside(bench), _cycles(bench)]


def _calls(bench: Bench) -> Figure:
    bench.say("MCP: calls beside the SDK's own client")
    found = _client("calls", bench.scale.mcp_calls)
    ratio = found["gateway"] / found["sdk"]
    return Figure(
        name="mcp_call",
        title="a call of an MCP tool, beside the SDK's own client",
        unit="×",
        value=ratio,
        goal=f"≤ {CALL_GOAL:g} ×",
        met=ratio <= CALL_GOAL,
        note=f"{found['gateway']:.0f} µs and {found['sdk']:.0f} µs",
        detail=found,
    )


def _many(bench: Bench) -> list[Figure]:
    count = bench.scale.mcp_servers
    bench.say(f"MCP: {count} servers")
    sdk = _client("imported")["sdk"] / MB
    none = _gateway(bench, 0)
    with none:
        time.sleep(bench.scale.settle)
        bare = memory(none.pid).anon / MB
    mark = f"mark-{os.urandom(6).hex()}"
    many = _gateway(bench, count, mark)
    with many:
        limit = time.monotonic() + WAIT
        while sum(each["state"] == "ready" for each in ask(many.folder, {"do": "status"})["mcp"]) < count:
            if time.monotonic() > limit:
                raise TimeoutError("the servers did not become ready")
            time.sleep(0.2)
        time.sleep(bench.scale.settle)
        full = memory(many.pid).anon / MB
        started = len(_marked(mark))
        many.kill()
        time.sleep(LEFT_SECONDS)
        left = len(_marked(mark))
    extra = full - bare - sdk
    return [
        Figure(
            name="mcp_memory",
            title=f"memory of the gateway with {count} connected MCP servers, beside the SDK's import",
            unit="MB",
            value=extra,
            goal=f"≤ +{MEMORY_GOAL_MB:g} MB",
            met=extra <= MEMORY_GOAL_MB,
            note=f"{bare:.1f} MB without, {sdk:.1f} MB for the import, {full:.1f} MB with",
            detail={"bare": bare, "sdk": sdk, "full": full},
        ),
        Figure(
            name="mcp_left",
            title=f"processes of {count} MCP servers left {LEFT_SECONDS:g} s after `kill -9`",
            unit="",
            value=float(left),
            goal="0",
            met=left == 0 and started >= count,
            note=f"{started} before",
        ),
    ]


def _beside(bench: Bench) -> Figure:
    """A plain turn while an MCP server floods both of its outputs, beside one while it is good. The gateways alternate,
    and each flooding server is a fresh one, since it is given up after a while."""
    bench.say("MCP: turns beside a server that floods its outputs")
    taken: dict[str, list[float]] = {"good": [], "flood": []}
    states: dict[str, str] = {}
    for _ in range(max(3, bench.scale.repeats)):
        for kind, times in taken.items():
            made = _gateway(bench, 1, kind)
            with made:
                made.ask("Hello.", session="beside")
                time.sleep(FLOOD_SECONDS)
                states[kind] = ask(made.folder, {"do": "status"})["mcp"][0]["state"]
                for number in range(BESIDE_TURNS):
                    began = time.perf_counter()
                    made.ask(f"Hello {number}.", session="beside")
                    times.append(time.perf_counter() - began)
    good, flood = median(taken["good"]), median(taken["flood"])
    return Figure(
        name="mcp_beside",
        title="a turn beside an MCP server that floods its outputs, beside one with a good server",
        unit="×",
        value=flood / good,
        goal=f"≤ {BESIDE_GOAL:g} ×",
        met=flood / good <= BESIDE_GOAL,
        note=f"{flood * 1000:.1f} ms and {good * 1000:.1f} ms",
        detail=states,
    )


def _cycles(bench: Bench) -> Figure:
    count = bench.scale.mcp_cycles
    bench.say(f"MCP: {count} starts and stops")
    found = _client("cycles", count)
    early, late = found["early"], found["late"]
    grown = [name for name in ("descriptors", "tasks", "children") if late[name] > early[name]]
    return Figure(
        name="mcp_cycles",
        title=f"descriptors, tasks and processes more after {count} starts and stops of an MCP server",
        unit="",
        value=float(sum(late[name] - early[name] for name in ("descriptors", "tasks", "children"))),
        goal="0",
        met=not grown,
        note=f"memory {(late['private'] - early['private']) / MB:+.1f} MB since the first tenth",
        detail=found,
    )


def _client(*arguments: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.mcp_client", *map(str, arguments)], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _gateway(bench: Bench, count: int, mark: str = "") -> Gateway:
    made = Gateway(bench.place("gateway"), bench.model.url)
    text = "".join(
        f"[mcp.s{number}]\ncommand = {json.dumps(PYTHON)}\nargs = {json.dumps(['-c', SERVER, mark])}\n"
        'start = "eager"\nnetwork = false\n'
        for number in range(count)
    )
    with (made.folder / "tidegate.toml").open("a") as file:
        file.write(text)
    return made


def _marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
