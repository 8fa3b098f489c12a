"""Memory of an idle process: after its start, and after its first answers, when all lazy imports are loaded."""

import time

from bench.readings import Memory, median, memory
from bench.report import Figure
from bench.subjects import Subject
from bench.suite import Bench

GOAL_MB = 60.0
MB = 1024.0 * 1024.0
ANSWERS = 3


def measure(bench: Bench, subject: Subject) -> tuple[Memory, Memory]:
    """Memory before the first answer and after some."""
    with subject:
        time.sleep(bench.scale.settle)
        before = memory(subject.pid)
        for number in range(ANSWERS):
            subject.ask(f"Hello {number}.", session="idle")
        time.sleep(bench.scale.settle)
        return before, memory(subject.pid)


def run(bench: Bench) -> list[Figure]:
    taken: dict[str, list[tuple[Memory, Memory]]] = {"floor": [], "gateway": []}
    for repeat in range(bench.scale.repeats):
        bench.say(f"idle memory: repeat {repeat + 1} of {bench.scale.repeats}")
        for name, runs in taken.items():
            runs.append(measure(bench, bench.make("floor") if name == "floor" else bench.make_measured()))
    rss = {name: [before.rss / MB for before, _ in runs] for name, runs in taken.items()}
    after = {name: [after.rss / MB for _, after in runs] for name, runs in taken.items()}
    anon = {name: [after.anon / MB for _, after in runs] for name, runs in taken.items()}
    return [
        Figure(
            name="idle_rss",
            title="idle RSS",
            unit="MB",
            value=median(rss["gateway"]),
            floor=median(rss["floor"]),
            goal=f"≤ {GOAL_MB:g} MB",
            met=median(rss["gateway"]) <= GOAL_MB,
            detail=rss,
        ),
        Figure(
            name="idle_rss_used",
            title="idle RSS after its first answers",
            unit="MB",
            value=median(after["gateway"]),
            floor=median(after["floor"]),
            detail=after,
        ),
        Figure(
            name="idle_anon",
            title="of which its own (RssAnon + VmSwap)",
            unit="MB",
            value=median(anon["gateway"]),
            floor=median(anon["floor"]),
            detail=anon,
        ),
    ]
