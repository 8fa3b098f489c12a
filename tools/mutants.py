"""Plants known faults in a copy of the tree, one at a time, and checks that the tests named for each of them fail.

    python tools/mutants.py              every mutant of tests/mutants.toml; exit 1 unless all are caught
    python tools/mutants.py budget end   only those whose name contains one of these words
    python tools/mutants.py --check      run nothing: every `old` occurs once, every `new` compiles, every test exists

A mutant is caught when each of its tests fails in its body, by an assertion or by waiting in vain. A test that cannot
be collected, or that fails because the edit broke a name or an import, shows nothing: that is a defect of the list, as
is a test that fails without the mutant. The working tree is never changed.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
LIST = Path("tests/mutants.toml")
NOT_COPIED = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", ".hypothesis", "dist")

COPIES = 2
"""Mutants that are tried at once, each in a copy of its own: as many as tests run side by side."""

SECONDS = 300
"""For the tests of one mutant; most take a few, or as long as a test waits in vain."""

BROKEN = (NameError, ImportError, SyntaxError)
"""What a careless edit raises: a test that fails with one of these has not noticed the fault."""

Verdict = Literal["caught", "survived", "defect"]


@dataclass(frozen=True)
class Mutant:
    """One fault. `fault` says what goes wrong, as the users of that code would see it."""

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


# -- what can be checked without running anything --


def defects(root: Path, mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with the list itself."""
    found: list[str] = []
    names: set[str] = set()
    known: dict[str, set[str]] = {}
    for mutant in mutants:
        if mutant.name in names:
            found.append(f"{mutant.name}: there are two of this name")
        names.add(mutant.name)
        found += [f"{mutant.name}: {wrong}" for wrong in _edit_defects(root, mutant)]
        if not mutant.tests:
            found.append(f"{mutant.name}: it names no test")
        for test in mutant.tests:
            path, _, name = test.partition("::")
            if path not in known:
                known[path] = _test_names(root / path)
            if name.partition("[")[0] not in known[path]:
                found.append(f"{mutant.name}: there is no test {test}")
    return found


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
        # Compiled modules are told apart by time and size: no two versions of a file may share a time.
        self._stamp += 1
        os.utime(path, (self._stamp, self._stamp))
        try:
            yield
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def run(self, tests: Sequence[str], within: float) -> dict[str, list[str]] | str:
        """For each test that ran, how each of its cases ended; or why there is nothing to tell."""
        report = self._folder / "report.json"
        report.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(self._folder / "src")}
        command = [sys.executable, str(self._folder / "tools" / "mutants.py"), "--report", str(report), *tests]
        child = subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = child.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return f"its tests took longer than {within:g} s"
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            raise
        if not report.exists():
            return "its tests could not be run:\n" + said[-2000:]
        ended: dict[str, list[str]] = json.loads(report.read_text(encoding="utf-8"))
        return ended


def judge(mutant: Mutant, ended: dict[str, list[str]] | str) -> tuple[Verdict, str]:
    if isinstance(ended, str):
        return "defect", ended
    for test in mutant.tests:
        cases = [how for name, hows in ended.items() if _is_of(name, test) for how in hows]
        if not cases:
            return "defect", f"{test} did not run"
        if broken := next((how for how in cases if how.startswith("broken")), None):
            return "defect", f"{test}: {broken}"
        if "failed" not in cases:
            return "survived", f"{test} passes"
    return "caught", ""


def _is_of(name: str, test: str) -> bool:
    return name == test or name.startswith((f"{test}[", f"{test}::"))


def run(
    root: Path, mutants: Sequence[Mutant], tell: Callable[[str], None], within: float = SECONDS
) -> tuple[list[str], list[Result]]:
    """The tests that fail without any mutant, and what became of each mutant; none is planted if there are some."""
    with tempfile.TemporaryDirectory(prefix="tidegate-mutants-") as scratch:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(COPIES):
            copies.put(Copy(root, Path(scratch) / str(number)))

        def with_copy(work: Callable[[Copy], Any]) -> Any:
            copy = copies.get()
            try:
                return work(copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(COPIES) as pool:
            red = [
                test
                for failing in pool.map(lambda tests: with_copy(lambda copy: _red(copy, tests)), _shares(mutants))
                for test in failing
            ]
            if red:
                return red, []

            def attempt(mutant: Mutant) -> Result:
                return with_copy(lambda copy: _attempt(copy, mutant, within, tell))

            return [], list(pool.map(attempt, mutants))


def _shares(mutants: Sequence[Mutant]) -> list[list[str]]:
    """The tests of all mutants, in one share for each copy; those of one file stay together."""
    files: dict[str, dict[str, None]] = {}
    for mutant in mutants:
        for test in mutant.tests:
            files.setdefault(test.partition("::")[0], {})[test] = None
    shares: list[list[str]] = [[] for _ in range(COPIES)]
    for tests in sorted(files.values(), key=len, reverse=True):
        min(shares, key=len).extend(tests)
    return [share for share in shares if share]


def _red(copy: Copy, tests: Sequence[str]) -> list[str]:
    ended = copy.run(tests, SECONDS * len(tests))
    if isinstance(ended, str):
        return [ended]
    missing = [test for test in tests if not any(_is_of(name, test) for name in ended)]
    return [f"{test} does not run" for test in missing] + [
        f"{name} fails without any mutant" for name, hows in ended.items() if set(hows) != {"passed"}
    ]


def _attempt(copy: Copy, mutant: Mutant, within: float, tell: Callable[[str], None]) -> Result:
    began = time.monotonic()
    with copy.planted(mutant):
        verdict, why = judge(mutant, copy.run(mutant.tests, within))
    result = Result(mutant.name, verdict, why, round(time.monotonic() - began, 1))
    tell(f"{result.verdict:8} {result.seconds:5.1f} s  {mutant.name}" + (f": {why}" if why else ""))
    return result


# -- in the copy --


def report(path: Path, tests: Sequence[str]) -> int:
    """Run tests in this process, which must import the copy, and write down how each has ended."""
    import pytest

    import tidegate

    here = Path.cwd().resolve()
    if not Path(tidegate.__file__).resolve().is_relative_to(here):
        print(f"{tidegate.__file__} is not of the copy in {here}")
        return 1
    ended: dict[str, list[str]] = {}

    class Recorder:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            told = yield
            if told.when == "call" or not told.passed:
                broken = told.when == "setup" or (call.excinfo is not None and _is_broken(call.excinfo.value))
                how = f"broken: {call.excinfo.exconly()}" if told.failed and broken else told.outcome
                ended.setdefault(item.nodeid, []).append(how)
            return told

    code = pytest.main(["-q", "--tb=short", "-p", "no:xdist", *tests], plugins=[Recorder()])
    if code in (0, 1):
        path.write_text(json.dumps(ended), encoding="utf-8")
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
    parser.add_argument("--json", action="store_true", help="the results as JSON on standard output")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.report is not None:
        return report(options.report, options.names)
    mutants = read_list(root)
    if wrong := defects(root, mutants):
        sys.stderr.writelines(f"{LIST}: {line}\n" for line in wrong)
        return 1
    if options.check:
        return 0
    chosen = [mutant for mutant in mutants if not options.names or any(name in mutant.name for name in options.names)]
    if not chosen:
        sys.stderr.write("No mutant has such a name.\n")
        return 1

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    red, results = run(root, chosen, tell)
    if red:
        sys.stderr.writelines(f"{line}\n" for line in red)
        return 1
    count = Counter(result.verdict for result in results)
    if options.json:
        print(json.dumps([vars(result) for result in results], indent=2))
    tell(
        f"{count['caught']} caught, {count['survived']} survived"
        + (f", {count['defect']} defects of the list" if count["defect"] else "")
    )
    return 0 if count["caught"] == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
