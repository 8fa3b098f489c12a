"""Plants known faults in a copy of the tree, one at a time, and checks that the tests listed for each of them fail.

    python tools/mutants.py              every mutant of tests/mutants.toml; exit 1 unless all are caught
    python tools/mutants.py budget end   only those whose name contains one of these words
    python tools/mutants.py --check      run nothing: every `old` occurs once, every `new` compiles, every test exists

A mutant is caught when each of its tests fails: by an assertion, by the test's own timeout, or by leaving something
behind. It is a defect of the list when a test cannot be collected, fails because the edit broke a name or an import, or
takes longer than `SECONDS`. No mutant is planted while a test fails without one. The working tree is never changed.
"""

import argparse
import ast
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

ROOT = Path(__file__).resolve().parent.parent
LIST = Path("tests/mutants.toml")
NOT_COPIED = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", ".hypothesis", "dist")

COPIES = 2
"""Mutants that are tried at once, each in its own copy: as many as `make test` runs tests in parallel."""

SECONDS = 300
"""For the tests of one mutant. Most take a few seconds; some fail only by their own timeout."""

BROKEN = (NameError, ImportError, SyntaxError)
"""Raised by a careless edit: a test that fails with one of these has not noticed the fault."""

Verdict = Literal["caught", "survived", "defect"]
Outcomes = dict[str, list[str]]
"""`passed`, `failed`, `skipped` or `broken: …`, by the id of the test; with a second one if its clean-up fails too."""
Item = TypeVar("Item")
T = TypeVar("T")


@dataclass(frozen=True)
class Mutant:
    """One fault; the fields are described at the head of the list."""

    name: str
    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        return source.replace(self.old, self.new, 1)


@dataclass(frozen=True)
class Result:
    name: str
    verdict: Verdict
    why: str
    seconds: float


def read_list(root: Path) -> list[Mutant]:
    document = tomllib.loads((root / LIST).read_text(encoding="utf-8"))
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in document["mutant"]]


# -- checks that run nothing --


def defects(root: Path, mutants: Sequence[Mutant]) -> list[str]:
    """The defects of the list itself."""
    names = Counter(mutant.name for mutant in mutants)
    found = [f"{name}: there are two of this name" for name, count in names.items() if count > 1]
    known = {path: _test_names(root / path) for path in {_file(test) for mutant in mutants for test in mutant.tests}}
    for mutant in mutants:
        found += [f"{mutant.name}: {defect}" for defect in _edit_defects(root, mutant)]
        if not mutant.tests:
            found.append(f"{mutant.name}: it names no test")
        for test in mutant.tests:
            if test.partition("::")[2].partition("[")[0] not in known[_file(test)]:
                found.append(f"{mutant.name}: there is no test {test}")
    return found


def _file(test: str) -> str:
    return test.partition("::")[0]


def _edit_defects(root: Path, mutant: Mutant) -> Iterator[str]:
    path = root / mutant.file
    if not path.is_file():
        yield f"there is no file {mutant.file}"
        return
    source = path.read_text(encoding="utf-8")
    if mutant.old == mutant.new:
        yield "`old` and `new` are the same"
    elif (count := source.count(mutant.old)) != 1:
        yield f"`old` occurs {count} times in {mutant.file}, not once"
    elif path.suffix == ".py":
        try:
            ast.parse(mutant.applied(source))
        except SyntaxError as error:
            yield f"{mutant.file} does not compile with it: {error}"


def _test_names(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):  # a state machine's test case
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


# -- running --


class Copy:
    """A copy of the tree, in which one mutant at a time is planted."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self._stamp = 1.0
        shutil.copytree(root, folder, ignore=NOT_COPIED)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        path = self._folder / mutant.file
        source, before = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutant.applied(source), encoding="utf-8")
        # Compiled modules are identified by time and size: no two versions of a file may share a time.
        self._stamp += 1
        os.utime(path, (self._stamp, self._stamp))
        try:
            yield
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def run(self, tests: Sequence[str], within: float) -> Outcomes | str:
        """The outcomes of each test that ran, or the reason why there are none."""
        report = self._folder / "report.json"
        report.unlink(missing_ok=True)
        child = subprocess.Popen(
            [sys.executable, str(self._folder / "tools" / "mutants.py"), "--report", str(report), *tests],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(self._folder / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=within)
        except BaseException as error:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                return f"its tests took longer than {within:g} s"
            raise
        if not report.exists():
            return "its tests could not be run:\n" + output[-2000:]
        outcomes: Outcomes = json.loads(report.read_text(encoding="utf-8"))
        return outcomes


def judge(mutant: Mutant, outcomes: Outcomes | str) -> tuple[Verdict, str]:
    if isinstance(outcomes, str):
        return "defect", outcomes
    for test in mutant.tests:
        cases = [outcome for name, each in outcomes.items() if _belongs(name, test) for outcome in each]
        if not cases:
            return "defect", f"{test} did not run"
        if broken := next((outcome for outcome in cases if outcome.startswith("broken")), None):
            return "defect", f"{test}: {broken}"
        if "failed" not in cases:
            return "survived", f"{test} passes"
    return "caught", ""


def _belongs(name: str, test: str) -> bool:
    """Whether `name` is this test or one of its cases."""
    return name == test or name.startswith((f"{test}[", f"{test}::"))


def run(root: Path, mutants: Sequence[Mutant]) -> tuple[list[str], list[Result]]:
    """The tests that fail without any mutant; if there are none, the result of each mutant."""
    with tempfile.TemporaryDirectory(prefix="tidegate-mutants-") as scratch, ThreadPoolExecutor(COPIES) as pool:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(COPIES):
            copies.put(Copy(root, Path(scratch) / str(number)))

        def in_a_copy(work: Callable[[Copy, Item], T], item: Item) -> T:
            copy = copies.get()
            try:
                return work(copy, item)
            finally:
                copies.put(copy)

        shares = pool.map(partial(in_a_copy, _failures), _shares(mutants))
        if failures := [line for share in shares for line in share]:
            return failures, []
        return [], list(pool.map(partial(in_a_copy, _attempt), mutants))


def _shares(mutants: Sequence[Mutant]) -> list[list[str]]:
    """The tests of all mutants, divided among the copies; those of one file stay together."""
    files: dict[str, set[str]] = {}
    for mutant in mutants:
        for test in mutant.tests:
            files.setdefault(_file(test), set()).add(test)
    shares: list[list[str]] = [[] for _ in range(COPIES)]
    for tests in sorted(files.values(), key=len, reverse=True):
        min(shares, key=len).extend(sorted(tests))
    return [share for share in shares if share]


def _failures(copy: Copy, tests: Sequence[str]) -> list[str]:
    """The tests that fail without any mutant."""
    outcomes = copy.run(tests, SECONDS * len(tests))
    if isinstance(outcomes, str):
        return [outcomes]
    missing = [test for test in tests if not any(_belongs(name, test) for name in outcomes)]
    return [f"{test} does not run" for test in missing] + [
        f"{name} fails without any mutant" for name, each in outcomes.items() if set(each) != {"passed"}
    ]


def _attempt(copy: Copy, mutant: Mutant) -> Result:
    began = time.monotonic()
    with copy.planted(mutant):
        verdict, why = judge(mutant, copy.run(mutant.tests, SECONDS))
    result = Result(mutant.name, verdict, why, round(time.monotonic() - began, 1))
    _tell(f"{result.verdict:8} {result.seconds:5.1f} s  {mutant.name}" + (f": {why}" if why else ""))
    return result


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# -- in the copy --


def report(path: Path, tests: Sequence[str]) -> int:
    """Run tests in this process, which must import the copy, and write their outcomes to a file."""
    import pytest

    import tidegate

    here = Path.cwd().resolve()
    if not Path(tidegate.__file__).resolve().is_relative_to(here):
        print(f"{tidegate.__file__} is not of the copy in {here}")
        return 1
    outcomes: Outcomes = {}

    class Recorder:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            phase = yield
            if phase.when == "call" or not phase.passed:
                raised = call.excinfo if phase.failed else None
                broken = raised is not None and (phase.when == "setup" or _is_broken(raised.value))
                outcome = f"broken: {raised.exconly()}" if broken else phase.outcome
                outcomes.setdefault(item.nodeid, []).append(outcome)
            return phase

    code = pytest.main(["-q", "--tb=short", "-p", "no:xdist", *tests], plugins=[Recorder()])
    if code in (0, 1):
        path.write_text(json.dumps(outcomes), encoding="utf-8")
    return 0


def _is_broken(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_broken, error.exceptions))
    return isinstance(error, BROKEN)


# -- the command --


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--check", action="store_true", help="only check the list")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.report is not None:
        return report(options.report, options.names)
    mutants = read_list(root)
    if found := defects(root, mutants):
        _tell("\n".join(f"{LIST}: {line}" for line in found))
        return 1
    if options.check:
        return 0
    chosen = [mutant for mutant in mutants if not options.names or any(name in mutant.name for name in options.names)]
    if not chosen:
        _tell("No mutant has such a name.")
        return 1
    failures, results = run(root, chosen)
    if failures:
        _tell("\n".join(failures))
        return 1
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    count = Counter(result.verdict for result in results)
    _tell(
        f"{count['caught']} caught, {count['survived']} survived"
        + (f", {count['defect']} defects of the list" if count["defect"] else "")
    )
    return 0 if count["caught"] == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
