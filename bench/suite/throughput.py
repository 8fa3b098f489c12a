"""Turns per second and CPU per turn: 64 sessions, 16 turns in flight, plain and streamed.

The load driver and the model run on the same cores, so turns per second are a figure of all three together. CPU time is
that of the measured process alone.
"""

from typing import Any

from bench.readings import median, spread
from bench.report import Figure
from bench.suite import Bench

GOAL_PART = 0.5
GOAL_CPU_MS = 1.0
MS = 1000.0


def measure(bench: Bench, *, stream: bool) -> dict[str, list[dict[str, Any]]]:
    scale = bench.scale
    taken: dict[str, list[dict[str, Any]]] = {"floor": [], "gateway": []}
    kind = "streamed" if stream else "plain"
    with bench.both(limits={"turns": max(64, scale.load_in_flight)}) as subjects:
        for repeat in range(scale.repeats):
            bench.say(f"throughput, {kind}: repeat {repeat + 1} of {scale.repeats}")
            for name, subject in bench.in_turn(subjects, repeat):
                taken[name].append(
                    bench.drive(
                        subject,
                        f"{kind}-{repeat}",
                        sessions=scale.load_sessions,
                        turns=scale.load_turns,
                        filler=80,
                        in_flight=scale.load_in_flight,
                        warmup=scale.load_sessions,
                        stream_every=1 if stream else 0,
                    )
                )
    return taken


def per_second(runs: list[dict[str, Any]]) -> list[float]:
    return [run["turns"] / run["seconds"] for run in runs]


def cpu_ms(runs: list[dict[str, Any]]) -> list[float]:
    return [run["cpu"]["subject"] / run["turns"] * MS for run in runs]


def figures(taken: dict[str, list[dict[str, Any]]], kind: str, suffix: str, *, goal: bool) -> list[Figure]:
    rate = {name: per_second(runs) for name, runs in taken.items()}
    cpu = {name: cpu_ms(runs) for name, runs in taken.items()}
    rate_floor, rate_gateway, cpu_gateway = median(rate["floor"]), median(rate["gateway"]), median(cpu["gateway"])
    return [
        Figure(
            name=f"throughput{suffix}",
            title=f"{kind} turns per second",
            unit="/s",
            value=rate_gateway,
            floor=rate_floor,
            goal="≥ ½ floor" if goal else "",
            met=rate_gateway >= GOAL_PART * rate_floor if goal else None,
            detail=rate,
        ),
        Figure(
            name=f"cpu{suffix}",
            title=f"CPU per {kind} turn",
            unit="ms",
            value=cpu_gateway,
            floor=median(cpu["floor"]),
            goal=f"≤ {GOAL_CPU_MS:g} ms" if goal else "",
            met=cpu_gateway <= GOAL_CPU_MS if goal else None,
            detail=cpu,
        ),
    ]


def run(bench: Bench) -> list[Figure]:
    plain = measure(bench, stream=False)
    bench.spreads["throughput"] = spread(per_second(plain["floor"]))
    streamed = measure(bench, stream=True)
    return figures(plain, "plain", "", goal=True) + figures(streamed, "streamed", "_stream", goal=False)
