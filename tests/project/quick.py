"""The selection of `make quick`: the first tests of every file that starts no process, with the first case of each.

A test file is left out if it, or a helper in `tests` or `bench` that it imports, imports one of `HEAVY`. This is read
from the text of the files, so a file that is left out is never imported.
"""

import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

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
TESTS_OF_A_FILE = 2
"""The first tests show what a file is about. Two of each file keep the run below half a minute."""
EXAMPLES = 5
"""Examples of each property test that does not set its own number."""

_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)|import\s+([\w.]+))", re.MULTILINE)


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


def is_heavy(path: Path) -> bool:
    """Whether a file, or a helper that it imports, imports something heavy."""
    todo, seen = [path], {path}
    while todo:
        for name in _imported(todo.pop()):
            if name in HEAVY or name.partition(".")[0] in HEAVY:
                return True
            helper = _file_of(name) if name.startswith(("tests.", "bench.")) else None
            if helper is not None and helper not in seen:
                seen.add(helper)
                todo.append(helper)
    return False


def chosen(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The first case of the first tests of each file, and the others."""
    seen: set[str] = set()
    of_file: Counter[Path] = Counter()
    kept, others = [], []
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in seen or of_file[item.path] == TESTS_OF_A_FILE:
            others.append(item)
        else:
            seen.add(test)
            of_file[item.path] += 1
            kept.append(item)
    return kept, others
