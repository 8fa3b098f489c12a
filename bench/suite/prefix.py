"""Prefix reuse: the share of a conversation's requests that start with its complete previous request, as counted by the
model server. For plain turns, turns with tools, sessions that are unloaded between turns, and a gateway that is stopped
or killed between turns."""

from typing import Any

from bench.report import Figure
from bench.suite import Bench

TOOLS = ("clock",)
TOOL_CALL = "[tool clock {}]"
GOAL = 100.0
APIS = ("openai-chat", "openai-responses", "anthropic")


def count(bench: Bench) -> tuple[float, dict[str, Any]]:
    """The model's counts since the last call."""
    stats = bench.model.call("GET", "/stats")
    bench.model.call("POST", "/reset")
    return 100.0 * stats["reuse"], stats


def simple(bench: Bench, api: str, name: str, *, residents: int | None = None, tool: bool = False) -> None:
    scale = bench.scale
    limits = {} if residents is None else {"residents": residents}
    with bench.make_measured(limits=limits, tools=TOOLS, api=api) as subject:
        bench.drive(
            subject,
            f"prefix-{api}-{name}",
            sessions=scale.prefix_sessions,
            turns=scale.prefix_turns,
            filler=40,
            in_flight=1,
            tool_every=2 if tool else 0,
            tool=TOOL_CALL,
            stream_every=3,
        )


def restarted(bench: Bench, api: str) -> None:
    """One turn per session in each run of the gateway; runs end by SIGTERM and SIGKILL alternately."""
    scale = bench.scale
    subject = bench.make_measured(tools=TOOLS, api=api)
    try:
        for life in range(scale.prefix_turns):
            subject.start()
            for session in range(scale.prefix_sessions):
                call = TOOL_CALL if session % 2 else ""
                subject.ask(f"Life {life} of {session}. {call}", f"prefix-{api}-restart-{session}")
            if life % 2:
                subject.kill()
            else:
                subject.stop()
    finally:
        subject.stop()


def run(bench: Bench) -> list[Figure]:
    return [measure(bench, api) for api in APIS]


def measure(bench: Bench, api: str) -> Figure:
    bench.model.call("POST", "/reset")
    taken: dict[str, float] = {}
    detail: dict[str, Any] = {}
    for name in ("plain", "tool", "unload", "restart"):
        bench.say(f"prefix reuse, {api}: {name}")
        if name == "restart":
            restarted(bench, api)
        else:
            simple(bench, api, name, residents=1 if name == "unload" else None, tool=name != "plain")
        taken[name], detail[name] = count(bench)
    return Figure(
        name=f"prefix-{api}",
        title=f"prefix reuse, the least of four runs, {api}",
        unit="%",
        value=min(taken.values()),
        goal=f"{GOAL:g} %",
        met=min(taken.values()) >= GOAL,
        note=", ".join(f"{name} {part:.1f} %" for name, part in taken.items()),
        detail=detail,
    )
