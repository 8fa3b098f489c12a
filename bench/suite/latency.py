"""Added latency of a plain turn: one turn at a time, the time of the complete answer minus the model's own time for the
same conversation. Without streaming, and with streaming (complete answer, and first byte of text)."""

from typing import Any

from bench.readings import median, spread
from bench.report import Figure
from bench.suite import Bench

GOAL = 2.5
MS = 1000.0


def measure(bench: Bench, *, stream: bool) -> dict[str, list[dict[str, Any]]]:
    """Results of the model, the floor and the gateway, one per repeat; the three alternate."""
    scale = bench.scale
    taken: dict[str, list[dict[str, Any]]] = {"model": [], "floor": [], "gateway": []}
    plan = {
        "sessions": scale.latency_sessions,
        "turns": scale.latency_turns,
        "window": 1,
        "filler": 80,
        "warmup": max(1, scale.latency_turns // 2),
        "stream_every": 1 if stream else 0,
    }
    kind = "streamed" if stream else "plain"
    with bench.both() as subjects:
        for repeat in range(scale.repeats):
            label = f"{kind}-{repeat}"
            bench.say(f"latency, {kind}: repeat {repeat + 1} of {scale.repeats}")
            taken["model"].append(bench.drive_direct(label, **plan))
            for name, subject in bench.in_turn(subjects, repeat):
                taken[name].append(bench.drive(subject, label, **plan))
    return taken


def added(taken: dict[str, list[dict[str, Any]]], name: str, key: str) -> list[float]:
    """Milliseconds that a subject adds to the model's time, by repeat."""
    return [(own[key] - model[key]) * MS for own, model in zip(taken[name], taken["model"], strict=True)]


def figure(taken: dict[str, list[dict[str, Any]]], name: str, title: str, key: str, *, goal: bool) -> Figure:
    floor, gateway = median(added(taken, "floor", key)), median(added(taken, "gateway", key))
    return Figure(
        name=name,
        title=title,
        unit="ms",
        value=gateway,
        floor=floor,
        goal=f"≤ {GOAL:g} × floor" if goal else "",
        met=gateway <= GOAL * floor if goal else None,
        detail={who: [run[key] * MS for run in runs] for who, runs in taken.items()},
    )


def run(bench: Bench) -> list[Figure]:
    plain = measure(bench, stream=False)
    bench.spreads["latency"] = spread([one["p50"] for one in plain["floor"]])
    streamed = measure(bench, stream=True)
    return [
        figure(plain, "latency_p50", "added latency of a plain turn, p50", "p50", goal=True),
        figure(plain, "latency_p95", "added latency of a plain turn, p95", "p95", goal=False),
        figure(streamed, "latency_stream_p50", "added latency of a streamed turn, p50", "p50", goal=False),
        figure(
            streamed,
            "latency_first_p50",
            "added latency to the first byte of a streamed turn, p50",
            "first_p50",
            goal=False,
        ),
    ]
