"""The figures, one module each. A module has `run(bench) -> list[Figure]`, and starts and ends its own processes.

They share a `Bench`: the scale, the model server, a working folder, and a function to report progress.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.children import drive
from bench.floor import PROMPT
from bench.report import Figure
from bench.scale import Scale
from bench.subjects import MAKERS, Limits, ScriptedModel, Subject
from tidegate.models import SUMMARY_TASK

FIGURES = (
    "idle",
    "start",
    "latency",
    "throughput",
    "resident",
    "reload",
    "slope",
    "prefix",
    "encoding",
    "streams",
    "tools",
    "context",
    "recall",
    "search",
    "kill",
    "orphans",
    "mcp",
)


@dataclass
class Bench:
    scale: Scale
    model: ScriptedModel
    folder: Path
    results: Path
    say: Callable[[str], None]
    subject: str = "gateway"
    """The program that is compared with the floor; `floor` itself shows how noise alone affects a ratio."""
    spreads: dict[str, float] = field(default_factory=dict)
    """The spread of the floor's repeats, by figure."""
    used: int = 0

    def place(self, name: str) -> Path:
        """A new folder for a process."""
        self.used += 1
        folder = self.folder / f"{self.used:02d}-{name}"
        folder.mkdir(parents=True)
        return folder

    def make(
        self, which: str, *, limits: Limits | None = None, tools: tuple[str, ...] = (), api: str = "openai-chat"
    ) -> Subject:
        return MAKERS[which](self.place(which), self.model.url, limits=limits, tools=tools, api=api)

    def make_measured(
        self, *, limits: Limits | None = None, tools: tuple[str, ...] = (), api: str = "openai-chat"
    ) -> Subject:
        return self.make(self.subject, limits=limits, tools=tools, api=api)

    def set_behaviour(self, **given: Any) -> None:
        """Set the behaviour of the model server; it always recognises requests for summaries."""
        self.model.call("POST", "/behaviour", {"marker": SUMMARY_TASK, **given})

    def start_once(self) -> None:
        """Start and use each subject once, so that no figure includes compilation or a cold disk."""
        with self.both() as subjects:
            for subject in subjects.values():
                subject.ask("Hello.", session="first")

    @contextmanager
    def both(self, *, limits: Limits | None = None) -> Iterator[dict[str, Subject]]:
        """The floor and the measured program, both running."""
        with self.make("floor") as floor, self.make_measured(limits=limits) as measured:
            yield {"floor": floor, "gateway": measured}

    @staticmethod
    def in_turn(subjects: dict[str, Subject], repeat: int) -> list[tuple[str, Subject]]:
        """The order of measurement: reversed in every second repeat, so that drift favours neither."""
        order = list(subjects.items())
        return order[::-1] if repeat % 2 else order

    def drive(self, subject: Subject, label: str, **plan: Any) -> dict[str, Any]:
        """Send turns to a subject, and measure the CPU time of it and of the model."""
        watch = {"subject": subject.pid, "model": self.model.pid}
        return drive({"url": subject.url, "headers": subject.headers, "label": label, "watch": watch, **plan})

    def drive_direct(self, label: str, **plan: Any) -> dict[str, Any]:
        """Send the same conversations directly to the model."""
        return drive({"url": self.model.url, "label": label, "direct": True, "prompt": PROMPT, **plan})


def load(name: str) -> Callable[[Bench], list[Figure]]:
    """The `run` function of a figure."""
    run: Callable[[Bench], list[Figure]] = import_module(f"bench.suite.{name}").run
    return run
