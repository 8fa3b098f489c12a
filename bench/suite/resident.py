"""Memory per resident session of 20 messages.

The caps are raised so that no session is unloaded. The figure is the slope of memory over the number of sessions, so
that memory which the process holds once is not counted.
"""

import time

from bench.readings import Line, fit, memory
from bench.report import Figure
from bench.subjects import Subject
from bench.suite import Bench

GOAL_KB = 20.0
TURNS = 10
"""Ten questions and ten answers."""
FILLER = 80
ROOM = 4 << 30
WARM = 3
"""Readings that are dropped at the start, while pools and caches fill up."""
KB = 1024.0


def measure(bench: Bench, subject: Subject) -> tuple[Line, Line, list[tuple[int, float]]]:
    """Lines of RSS and of anonymous memory, in KB, over the number of sessions."""
    scale = bench.scale
    counts: list[float] = []
    rss: list[float] = []
    anon: list[float] = []
    with subject:
        for first in range(0, scale.residents, scale.resident_step):
            bench.say(f"residents, {subject.name}: {first} of {scale.residents} sessions")
            bench.drive(
                subject,
                "resident",
                sessions=scale.resident_step,
                first=first,
                turns=TURNS,
                filler=FILLER,
                window=16,
                in_flight=min(4, scale.resident_step),
            )
            time.sleep(scale.settle / 4)
            held = memory(subject.pid)
            counts.append(first + scale.resident_step)
            rss.append(held.rss / KB)
            anon.append(held.anon / KB)
    warm = min(WARM, len(counts) - 2)
    points = list(zip([int(count) for count in counts], rss, strict=True))
    return fit(counts[warm:], rss[warm:]), fit(counts[warm:], anon[warm:]), points


def run(bench: Bench) -> list[Figure]:
    limits = {"residents": bench.scale.residents + 100, "resident_bytes": ROOM}
    floor_rss, _, _ = measure(bench, bench.make("floor"))
    rss, anon, points = measure(bench, bench.make_measured(limits=limits))
    return [
        Figure(
            name="resident",
            title="RSS per resident session of 20 messages",
            unit="KB",
            value=rss.slope,
            floor=floor_rss.slope,
            goal=f"≤ {GOAL_KB:g} KB",
            met=rss.slope <= GOAL_KB,
            detail={"anon": anon.slope, "noise": rss.noise, "points": points},
        )
    ]
