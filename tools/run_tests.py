"""Runs every test, two files at a time, and distinguishes flakes from failures.

Each test that failed is run again alone, three times. A test that passes three times is a flake: it fails only next to
others, and is named in the last lines of the run. A test that fails once more has failed. The exit status is 0 if
nothing failed and there are at most two flakes.

    python tools/run_tests.py [options and paths of pytest]

The module is also the pytest plugin that records which tests failed.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

FLAKES_ALLOWED = 2
"""One or two may come from a busy machine. With more, a green run means little."""
RUNS_ALONE = 3
"""A test that fails by chance every other time passes three runs in one of eight cases."""
RERUN_AT_MOST = 10
"""More failures than this have a common cause; running each of them three times would delay the report for an hour."""

TESTS_FAILED = 1
"""The status of pytest for a run that was completed. The others are errors of collection, usage or pytest itself."""
LIST = "TIDEGATE_FAILED_TESTS"


class Report(Protocol):
    nodeid: str
    failed: bool


def pytest_runtest_logreport(report: Report) -> None:
    """Record the id of a failed test, in the process that collects the reports of all workers."""
    path = os.environ.get(LIST)
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(path).open("a", encoding="utf-8") as failed:
            failed.write(report.nodeid + "\0")


@contextmanager
def _list() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "failed"
        path.touch()
        yield path


def _pytest(*arguments: str, failed: Path | None = None) -> int:
    plugin = Path(__file__).resolve()
    found = [str(plugin.parent), os.environ.get("PYTHONPATH", "")]
    # The runner may itself be started by a worker: the variables then belong to another run.
    foreign = ("PYTEST_XDIST_", LIST)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, found))
    if failed is not None:
        environment[LIST] = str(failed)
    command = [sys.executable, "-m", "pytest", "-q", "-p", plugin.stem, *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def _passes_alone(test: str) -> bool:
    for run in range(1, RUNS_ALONE + 1):
        print(f"\nAlone, {run} of {RUNS_ALONE}: {test}", flush=True)
        if _pytest(test) != 0:
            return False
    return True


def _named(title: str, tests: Sequence[str]) -> None:
    if tests:
        print(title, *(f"  {test}" for test in tests), sep="\n", flush=True)


def main(arguments: list[str]) -> int:
    # A shell starts background jobs with Ctrl-C ignored. The programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with _list() as path:
        status = _pytest("-n", "2", "--dist", "loadfile", *arguments, failed=path)
        failing = list(dict.fromkeys(path.read_text(encoding="utf-8").split("\0")[:-1]))
    if status != TESTS_FAILED or not failing:
        return status
    if len(failing) > RERUN_AT_MOST:
        print(f"\n{len(failing)} tests failed. That is too many to run each of them alone.")
        return 1
    alone = {test: _passes_alone(test) for test in failing}
    flakes = [test for test in failing if alone[test]]
    failures = [test for test in failing if not alone[test]]
    print()
    _named("Failed:", failures)
    _named(f"Flakes, which failed beside others and passed {RUNS_ALONE} times alone:", flakes)
    if len(flakes) > FLAKES_ALLOWED:
        print(f"{len(flakes)} flakes: at most {FLAKES_ALLOWED} are allowed.")
    return 1 if failures or len(flakes) > FLAKES_ALLOWED else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
