"""CPU per streamed piece: 64 answers at once, each in many small pieces that arrive one by one, relayed by the floor and
by the gateway. The model sets the pace, so that neither can make it cheaper by falling behind."""

from typing import Any

from bench.readings import median
from bench.report import Figure
from bench.suite import Bench

STREAMS = 64
PACE_MS = 20
GOAL_RATIO = 1.0
US = 1_000_000.0


def run(bench: Bench) -> list[Figure]:
    scale = bench.scale
    taken: dict[str, list[float]] = {"floor": [], "gateway": []}
    with bench.both(limits={"turns": STREAMS}) as subjects:
        for repeat in range(min(3, scale.repeats)):
            bench.say(f"streams: repeat {repeat + 1}")
            for name, subject in bench.in_turn(subjects, repeat):
                taken[name].append(per_piece(bench, subject, repeat))
    gateway, floor = median(taken["gateway"]), median(taken["floor"])
    return [
        Figure(
            name="streams",
            title=f"CPU per streamed piece, {STREAMS} streams at once",
            unit="µs",
            value=gateway,
            floor=floor,
            goal="≤ floor",
            met=gateway <= GOAL_RATIO * floor,
            detail=taken,
        )
    ]


def per_piece(bench: Bench, subject: Any, repeat: int) -> float:
    pieces = bench.scale.stream_pieces
    result = bench.drive(
        subject,
        f"streams-{repeat}",
        sessions=STREAMS,
        turns=2,
        in_flight=STREAMS,
        warmup=STREAMS,
        stream_every=1,
        tool_every=1,
        tool=f"[words {pieces}] [slow ms={PACE_MS}]",
    )
    return float(result["cpu"]["subject"]) / (result["turns"] * pieces) * US
