"""The tool behind `make mutants`: it plants each fault in a copy, and reports whether its tests notice."""

import json
import shutil
from pathlib import Path

import pytest

from tools.mutants import LIST, ROOT, defects, main, read_list

SOURCE = 'def double(number: int) -> int:\n    """Twice as much."""\n    return 2 * number\n'

TESTS = """
import subprocess
import sys

from tidegate import double


def test_it_doubles() -> None:
    assert double(3) == 6


def test_it_doubles_in_a_process() -> None:
    code = "import tidegate; print(tidegate.double(3))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "6\\n"


def test_it_says_what_it_does() -> None:
    assert double.__doc__
"""


def mutant(name: str, new: str, *tests: str, old: str = "return 2 * number") -> str:
    named = ", ".join(f'"tests/test_double.py::{test}"' for test in tests)
    return f"""
[[mutant]]
name = "{name}"
fault = "It does not double."
file = "src/tidegate/__init__.py"
old = "{old}"
new = "{new}"
tests = [{named}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project with the same layout and package name as ours."""
    root = tmp_path / "project"
    for folder in ("src/tidegate", "tests", "tools"):
        (root / folder).mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "mutants.py", root / "tools")
    (root / "src" / "tidegate" / "__init__.py").write_text(SOURCE)
    (root / "tests" / "test_double.py").write_text(TESTS)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "-p no:cacheprovider"\n')
    return root


def listed(project: Path, *mutants: str) -> Path:
    (project / LIST).write_text("".join(mutants))
    return project


def test_a_fault_is_caught_survives_or_shows_nothing(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A13: in this process and in those that tests start; the tree itself is not touched."""
    listed(
        project,
        mutant("caught", "return 3 * number", "test_it_doubles", "test_it_doubles_in_a_process"),
        mutant("survivor", "return 3 * number", "test_it_says_what_it_does"),
        mutant("half-caught", "return 3 * number", "test_it_doubles", "test_it_says_what_it_does"),
        mutant("careless", "return 2 * nummer", "test_it_doubles"),
        mutant("import", "import nothing", "test_it_doubles", old='\\"\\"\\"Twice as much.\\"\\"\\"'),
    )
    assert main([], project) == 1
    said = capfd.readouterr().err
    verdicts = {line.split()[3].rstrip(":"): line.split()[0] for line in said.splitlines() if " s  " in line}
    assert verdicts == {
        "caught": "caught",
        "survivor": "survived",
        "half-caught": "survived",
        "careless": "defect",
        "import": "defect",
    }
    assert said.endswith("1 caught, 2 survived, 2 defects of the list\n")
    assert (project / "src" / "tidegate" / "__init__.py").read_text() == SOURCE


def test_only_faults_with_a_matching_name_are_tried(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A13: by a part of the name, with the results as JSON."""
    listed(
        project,
        mutant("times-three", "return 3 * number", "test_it_doubles"),
        mutant("survivor", "return 3 * number", "test_it_says_what_it_does"),
    )
    assert main(["three", "--json"], project) == 0
    (result,) = json.loads(capfd.readouterr().out)
    assert (result["name"], result["verdict"]) == ("times-three", "caught")
    assert main(["four"], project) == 1
    assert "No mutant has such a name" in capfd.readouterr().err


def test_nothing_is_planted_while_a_test_fails_without_it(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A13: a failing test would catch every fault."""
    listed(project, mutant("caught", "return 3 * number", "test_it_doubles"))
    (project / "tests" / "test_double.py").write_text(TESTS.replace("== 6\n", "== 7\n", 1))
    assert main([], project) == 1
    assert "test_it_doubles fails without any mutant" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (mutant("a", "return 3", "test_it_doubles", old="return 4"), "occurs 0 times"),
        (mutant("a", "x", "test_it_doubles", old="number"), "occurs 2 times"),
        (mutant("a", "return 2 * number", "test_it_doubles"), "are the same"),
        (mutant("a", "return (", "test_it_doubles"), "does not compile"),
        (mutant("a", "return 3", "test_it_trebles"), "there is no test tests/test_double.py::test_it_trebles"),
        (mutant("a", "return 3"), "names no test"),
        (2 * mutant("a", "return 3", "test_it_doubles"), "two of this name"),
    ],
)
def test_a_list_that_does_not_fit_the_tree_fails_the_check(
    project: Path, capfd: pytest.CaptureFixture[str], entry: str, complaint: str
) -> None:
    """A13: at once, without running anything."""
    listed(project, entry)
    assert main(["--check"], project) == 1
    assert complaint in capfd.readouterr().err


def test_the_list_fits_the_tree() -> None:
    """A13: in this very repository."""
    assert defects(ROOT, read_list(ROOT)) == []
