"""The figures, one module each. A module has `run(bench) -> list[Figure]`, starts its own processes and ends them.

`Bench` is what they share: the scale, the model server, a folder to work in, a way to say how far they are.
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
    "search",
    "kill",
    "orphans",
)


@dataclass
class Bench:
    scale: Scale
    model: ScriptedModel
    folder: Path
    results: Path
    say: Callable[[str], None]
    subject: str = "gateway"
    """What is measured against the floor; `floor` itself shows what the noise alone does to a ratio."""
    spreads: dict[str, float] = field(default_factory=dict)
    """How far the floor's repeats lay apart, by figure."""
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

    def temper(self, **given: Any) -> None:
        """The model knows a request for a summary when it sees one; what else it is to be like is given."""
        self.model.call("POST", "/temper", {"marker": SUMMARY_TASK, **given})

    def start_once(self) -> None:
        """Start and ask each subject once, so that no figure pays for compiling or for a cold disk."""
        with self.both() as subjects:
            for subject in subjects.values():
                subject.ask("Hello.", session="first")

    @contextmanager
    def both(self, *, limits: Limits | None = None) -> Iterator[dict[str, Subject]]:
        """The floor and what is measured against it, both running."""
        with self.make("floor") as floor, self.make_measured(limits=limits) as measured:
            yield {"floor": floor, "gateway": measured}

    @staticmethod
    def in_turn(subjects: dict[str, Subject], repeat: int) -> list[tuple[str, Subject]]:
        """Who is measured when: in every second repeat the other one comes first, so that drift favours neither."""
        order = list(subjects.items())
        return order[::-1] if repeat % 2 else order

    def drive(self, subject: Subject, label: str, **plan: Any) -> dict[str, Any]:
        """Turns through a subject; its CPU time and the model's are watched."""
        watch = {"subject": subject.pid, "model": self.model.pid}
        return drive({"url": subject.url, "headers": subject.headers, "label": label, "watch": watch, **plan})

    def drive_direct(self, label: str, **plan: Any) -> dict[str, Any]:
        """The same conversations sent straight to the model."""
        return drive({"url": self.model.url, "label": label, "direct": True, "prompt": PROMPT, **plan})


def load(name: str) -> Callable[[Bench], list[Figure]]:
    """The function that takes a figure."""
    run: Callable[[Bench], list[Figure]] = import_module(f"bench.suite.{name}").run
    return run
