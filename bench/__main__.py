"""`python -m bench`: measure the figures of floor and gateway side by side, and report which goals are met.

    python -m bench [--quick | --full | --scale NAME] [--only NAME …] [--json] [--check]
    python -m bench --table FILE        render an earlier result for the documentation

Results go to `bench/results/`: one JSON file per run, and plots. All other files of a run are in a temporary folder,
which is removed at its end.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.children import Failed
from bench.report import Environment, Report, markdown_table, number, text_table, verdict
from bench.scale import SCALES
from bench.subjects import MAKERS, ScriptedModel
from bench.suite import FIGURES, Bench, load

RESULTS = Path(__file__).resolve().parent / "results"


def say(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S}  {text}", file=sys.stderr, flush=True)


def environment() -> Environment:
    return Environment(
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        load=os.getloadavg()[0],
    )


def measure(scale: str, subject: str, only: tuple[str, ...], results: Path) -> Report:
    """Measure the named figures and write the report."""
    results.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    at = datetime.now(UTC)
    report = Report(
        subject=subject, scale=scale, at=at.isoformat(timespec="seconds"), environment=environment(), figures=[]
    )
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        with ScriptedModel(folder / "model") as model:
            bench = Bench(SCALES[scale], model, folder, results, say, subject)
            bench.set_behaviour()
            bench.start_once()
            for figure in only:
                for taken in load(figure)(bench):
                    report.figures.append(taken)
                    say(f"  {taken.title}: {number(taken.value, taken.unit)} {taken.goal} {verdict(taken)}".rstrip())
    report.environment.noise = max(bench.spreads.values(), default=None)
    report.seconds = time.monotonic() - began
    file = results / f"{at:%Y%m%d-%H%M%S}-{scale}.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    say(f"written to {file}")
    return report


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the gateway beside the floor.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="scale", action="store_const", const="quick", help="a few minutes (the default)")
    size.add_argument("--full", dest="scale", action="store_const", const="full", help="100,000 turns and more repeats")
    size.add_argument("--scale", choices=sorted(SCALES))
    parser.add_argument("--only", action="append", choices=FIGURES, metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument(
        "--subject", choices=sorted(MAKERS), default="gateway", help="the program to measure (floor: shows the noise)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of the table")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a goal was missed")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="render an earlier result as Markdown without measuring"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    chosen = options(arguments)
    if chosen.table is not None:
        print(markdown_table(msgspec.json.decode(chosen.table.read_bytes(), type=Report)))
        return 0
    only = tuple(name for name in FIGURES if chosen.only is None or name in chosen.only)
    try:
        report = measure(chosen.scale or "quick", chosen.subject, only, chosen.results)
    except Failed as failed:
        print(f"bench: {failed}", file=sys.stderr)
        return 2
    print(msgspec.json.encode(report).decode() if chosen.json else text_table(report))
    return 1 if chosen.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
