"""Time from the start of the process to its first answer, in an empty home folder and in a used one."""

import time

from bench.readings import median
from bench.report import Figure
from bench.subjects import Subject
from bench.suite import Bench

GOAL_SECONDS = 0.7


def first_answer(subject: Subject) -> tuple[float, float]:
    """Seconds from the start to `ready`, and to the end of the first answer."""
    ready = subject.start()
    try:
        subject.ask("Are you there?", session="start")
        return ready, time.perf_counter() - subject.born
    finally:
        subject.stop()


def run(bench: Bench) -> list[Figure]:
    new: dict[str, list[float]] = {"floor": [], "gateway": []}
    used: dict[str, list[float]] = {"floor": [], "gateway": []}
    ready: dict[str, list[float]] = {"floor": [], "gateway": []}
    for repeat in range(bench.scale.repeats):
        bench.say(f"start: repeat {repeat + 1} of {bench.scale.repeats}")
        for name in new:
            subject = bench.make("floor") if name == "floor" else bench.make_measured()
            took, answered = first_answer(subject)
            ready[name].append(took)
            new[name].append(answered)
            used[name].append(first_answer(subject)[1])
    return [
        Figure(
            name="start",
            title="start to first answer, empty home folder",
            unit="s",
            value=median(new["gateway"]),
            floor=median(new["floor"]),
            goal=f"≤ {GOAL_SECONDS:g} s",
            met=median(new["gateway"]) <= GOAL_SECONDS,
            detail={**new, **{f"{name} ready": times for name, times in ready.items()}},
        ),
        Figure(
            name="start_again",
            title="start to first answer, used home folder",
            unit="s",
            value=median(used["gateway"]),
            floor=median(used["floor"]),
            detail=used,
        ),
    ]
