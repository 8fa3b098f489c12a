"""After many sessions have come and gone, everything countable in the gateway is back at its baseline."""

import asyncio
import json
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bench.children import drive
from bench.readings import census
from bench.subjects import Gateway, ScriptedModel
from bench.suite.prefix import TOOL_CALL, TOOLS
from tests.crash.visitors import Visitors

THREADS = "kernel: threads"

SESSIONS = 2_000
ROUND = 200
"""Sessions of one round, half of them ephemeral and half named, in addition to those of the visitors."""
VISITS = 48
RESIDENTS = 16
"""Far below the sessions of a round, so that most are unloaded before they end."""
STILL = 1.5
"""Seconds without a change before a census counts as settled; longer than the pools keep unused entries."""
SETTLE_WITHIN = 40.0


def held(gateway: Gateway, watcher: HTTPConnection) -> dict[str, int]:
    """The census of the gateway and of the kernel. The watcher's connection stays open, because a connection that was
    just closed could be in any state."""
    watcher.request("GET", "/api/status", headers=gateway.headers)
    inside: dict[str, int] = json.loads(watcher.getresponse().read())["census"]
    outside = census(gateway.pid, gateway.temporary)
    return {**inside, **{f"kernel: {name}": count for name, count in outside.items()}}


def settled(gateway: Gateway, wanted: dict[str, int] | None = None) -> dict[str, int]:
    """The census once it has stopped changing or equals the wanted one, or at the deadline."""
    deadline = time.monotonic() + SETTLE_WITHIN
    with closing(HTTPConnection(urlsplit(gateway.url).netloc, timeout=SETTLE_WITHIN)) as watcher:
        now, since = held(gateway, watcher), time.monotonic()
        while time.monotonic() < deadline and now != wanted:
            time.sleep(0.1)
            again = held(gateway, watcher)
            if again != now:
                now, since = again, time.monotonic()
            elif wanted is None and time.monotonic() - since > STILL:
                break
    return now


def come_and_go(gateway: Gateway, number: int) -> int:
    """One round: sessions of every kind, ended in every way. Returns their number."""
    half = ROUND // 2
    common = {"url": gateway.url, "headers": gateway.headers, "in_flight": 8, "stream_every": 3, "tool_every": 5}
    drive({**common, "label": f"once-{number}", "sessions": half, "turns": 1, "ephemeral": True, "tool": TOOL_CALL})
    drive({**common, "label": f"named-{number}", "sessions": half, "turns": 2, "tool": TOOL_CALL})
    asyncio.run(Visitors(gateway.url, gateway.headers, f"visit-{number}").come(VISITS))
    while listed := gateway.call("GET", "/api/sessions")["sessions"]:
        for place, session in enumerate(listed):
            if place % 2:
                gateway.call("POST", f"/api/sessions/{session['id']}/end")
            else:
                gateway.call("DELETE", f"/api/sessions/{session['id']}")
    return 2 * half


@pytest.mark.slow
def test_after_two_thousand_sessions_the_census_equals_the_baseline(tmp_path: Path) -> None:
    """F5, B5, L01, L02, L04, L06, L08, L31: tasks, threads, descriptors, sockets by state, children and temporary files
    are back at their baseline, as counted by the gateway and by the kernel, after calls through every entry point:
    complete and streamed, kept and unloaded, answered, stopped, failed, abandoned, repeated under a key."""
    limits = {"connection_idle": 1, "residents": RESIDENTS}
    with ScriptedModel(tmp_path / "model") as model:
        with Gateway(tmp_path / "home", model.url, limits=limits, tools=TOOLS) as gateway:
            come_and_go(gateway, 0)
            baseline = settled(gateway)
            gone = 0
            while gone < SESSIONS:
                gone += come_and_go(gateway, gone + 1)
            after = settled(gateway, baseline)
            unloads = gateway.call("GET", "/api/status")["sessions"]["unloads"]
            assert unloads["count"] > gone // 4, unloads
        assert model.call("GET", "/stats")["refused"] == 0
    names = {*baseline, *after}
    changed = {name: (baseline.get(name), after.get(name)) for name in names if baseline.get(name) != after.get(name)}
    if after[THREADS] < baseline[THREADS]:
        del changed[THREADS]  # threads that were idle for long have ended
    assert changed == {}, "before and after"
