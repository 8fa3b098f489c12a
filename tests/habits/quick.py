"""What `make quick` runs: the tests that start no process, each with its first case, and few examples of a property.

A test file is left out if it, or a helper in `tests` or `bench` that it imports, imports one of `HEAVY`. That is read from
the text of the files, so that a file that is left out is never imported.
"""

import ast
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEAVY = frozenset({"anthropic", "openai", "playwright", "psutil", "schemathesis", "subprocess"})
"""They start processes, or take seconds to import."""
EXAMPLES = 5
"""Of each property. `make test` draws a hundred."""


def _file_of(module: str) -> Path | None:
    place = ROOT.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@lru_cache(maxsize=4096)
def is_heavy(path: Path) -> bool:
    """Whether a file, or a helper that it imports, imports something heavy."""
    todo, seen = [path], {path}
    while todo:
        for name in _imported(todo.pop()):
            if name.partition(".")[0] in HEAVY:
                return True
            helper = _file_of(name) if name.startswith(("tests.", "bench.")) else None
            if helper is not None and helper not in seen:
                seen.add(helper)
                todo.append(helper)
    return False


def first_cases(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The first case of every test, and the others."""
    kept: dict[str, pytest.Item] = {}
    others = [item for item in items if kept.setdefault(item.nodeid.partition("[")[0], item) is not item]
    return list(kept.values()), others
