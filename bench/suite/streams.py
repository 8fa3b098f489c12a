"""CPU per streamed piece: 64 answers at once, each in many small pieces, relayed by the floor and by the gateway.

The model sets the pace, so neither can save CPU by falling behind. The floor relays its input unchanged. The gateway
converts every format into one, so each of its formats has a figure.
"""

from typing import Any

from bench.readings import median
from bench.report import Figure
from bench.suite import Bench
from bench.suite.prefix import APIS

STREAMS = 64
PACE_MS = 20
REPEATS = 3
"""Few repeats are enough: each takes as long as its answers, and has many pieces."""
US = 1_000_000.0
LIMITS = {"turns": STREAMS}


def run(bench: Bench) -> list[Figure]:
    taken: dict[str, list[float]] = {"floor": []}
    repeats = min(REPEATS, bench.scale.repeats)
    for api in APIS:
        taken[api] = []
        with bench.make("floor") as floor, bench.make_measured(limits=LIMITS, api=api) as measured:
            subjects = {"floor": floor, api: measured} if api == APIS[0] else {api: measured}
            for repeat in range(repeats):
                bench.say(f"streams, {api}: repeat {repeat + 1} of {repeats}")
                for name, subject in bench.in_turn(subjects, repeat):
                    taken[name].append(per_piece(bench, subject, f"streams-{api}-{repeat}"))
    floor_cost = median(taken["floor"])
    return [figure(api, median(taken[api]), floor_cost, taken[api], goal=api == APIS[0]) for api in APIS]


def figure(api: str, cost: float, floor: float, runs: list[float], *, goal: bool) -> Figure:
    return Figure(
        name=f"streams-{api}",
        title=f"CPU per streamed piece, {STREAMS} streams at once, {api}",
        unit="µs",
        value=cost,
        floor=floor,
        goal="≤ floor" if goal else "",
        met=cost <= floor if goal else None,
        detail={"gateway": runs},
    )


def per_piece(bench: Bench, subject: Any, label: str) -> float:
    pieces = bench.scale.stream_pieces
    result = bench.drive(
        subject,
        label,
        sessions=STREAMS,
        turns=2,
        in_flight=STREAMS,
        warmup=STREAMS,
        stream_every=1,
        tool_every=1,
        tool=f"[words {pieces}] [slow ms={PACE_MS}]",
    )
    return float(result["cpu"]["subject"]) / (result["turns"] * pieces) * US
