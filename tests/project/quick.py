"""The selection of `make quick`: the first tests of every file that starts no process, with the first case of each.

A test file is left out if it, or a helper in `tests` or `bench` that it imports, imports one of `HEAVY`. A folder is
left out if its `conftest.py` does. This is read from the text of the files, so nothing that is left out is imported.
Tests marked `slow` are left out too, and property tests try only a few examples.
"""

import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

ROOT = Path(__file__).resolve().parents[2]

HEAVY = frozenset(
    {
        "anthropic",
        "openai",
        "playwright",
        "psutil",
        "schemathesis",
        "subprocess",
        "tests.workspaces.harness",
    }
)
"""Modules that start processes or sandboxes, or that take seconds to import."""
INTEGRATED = frozenset({"tests.core", "tests.fixtures", "tests.in_process"})
"""Helpers that start a whole core or gateway for each test."""
TESTS_OF_A_FILE = 2
TESTS_OF_AN_INTEGRATED_FILE = 1
"""The first tests show what a file is about. These numbers keep the run below half a minute."""
PROFILE = "quick"
"""The Hypothesis profile of the run."""
EXAMPLES = 3
"""Examples of each property test that sets no number or uses `example_count`."""

_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)|import\s+([\w.]+))", re.MULTILINE)


@lru_cache(maxsize=4096)
def _file_of(module: str) -> Path | None:
    place = ROOT.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


@lru_cache(maxsize=4096)
def _imported(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for module, parts, plain in _IMPORT.findall(path.read_text(encoding="utf-8")):
        names.add(module or plain)
        names.update(f"{module}.{part}" for part in re.findall(r"\w+", parts) if module.startswith(("tests", "bench")))
    return frozenset(names)


def example_count(count: int) -> int:
    """`max_examples` of a property test or state machine whose examples are expensive."""
    return min(count, EXAMPLES) if settings.get_current_profile_name() == PROFILE else count


def check_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Runs a state machine, whose rules and invariants assert."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=example_count(examples), stateful_step_count=steps, deadline=None)
    )


def is_left_out(path: Path) -> bool:
    """True for a test file, or a folder of tests, that must not be imported."""
    if path.is_dir():
        return (path / "conftest.py").is_file() and is_heavy(path / "conftest.py")
    return path.name.startswith("test_") and is_heavy(path)


def is_heavy(path: Path) -> bool:
    """True if a file, or a helper that it imports, imports something heavy."""
    return _imports(path, HEAVY)


@lru_cache(maxsize=4096)
def selected_count(path: Path) -> int:
    """The number of tests selected from a file. Its folder's `conftest.py` counts as imported."""
    fixtures = path.with_name("conftest.py")
    integrated = _imports(path, INTEGRATED) or (fixtures.is_file() and _imports(fixtures, INTEGRATED))
    return TESTS_OF_AN_INTEGRATED_FILE if integrated else TESTS_OF_A_FILE


def _imports(path: Path, modules: frozenset[str]) -> bool:
    """True if a file, or a helper that it imports, imports one of these modules or packages."""
    todo, seen = [path], {path}
    while todo:
        for name in _imported(todo.pop()):
            if name in modules or name.partition(".")[0] in modules:
                return True
            helper = _file_of(name) if name.startswith(("tests.", "bench.")) else None
            if helper is not None and helper not in seen:
                seen.add(helper)
                todo.append(helper)
    return False


def select(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The first case of the first tests of each file, and the others."""
    seen: set[str] = set()
    of_file: Counter[Path] = Counter()
    kept, others = [], []
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in seen or of_file[item.path] == selected_count(item.path) or item.get_closest_marker("slow"):
            others.append(item)
        else:
            seen.add(test)
            of_file[item.path] += 1
            kept.append(item)
    return kept, others
