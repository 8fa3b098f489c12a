"""The test runner distinguishes flakes from failures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).resolve().parents[2] / "tools" / "run_tests.py"

ONCE = """
from pathlib import Path

def test_fails_once[NAME]():
    beside = Path(__file__).with_suffix(".beside")
    if not beside.exists():
        beside.touch()
        raise AssertionError("beside others")
"""
EVERY_OTHER_TIME = """
from pathlib import Path

def test_fails_at_first_and_at_last():
    runs = Path(__file__).with_suffix(".runs")
    runs.write_text((runs.read_text() if runs.exists() else "") + "x")
    assert len(runs.read_text()) in (2, 3)
"""
GOOD = "def test_passes():\n    pass\n"


def suite(folder: Path, **files: str) -> None:
    """A separate suite whose tests fail depending on files on disk."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text.replace("[NAME]", f"_{name}"))


def run(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    scratch = folder / "scratch"
    scratch.mkdir()
    # Plugins that these suites do not use would take most of the time.
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, str(RUNNER), "-p", "xdist.plugin", *arguments]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return ran.returncode, ran.stdout.splitlines()


def test_a_test_that_passes_three_times_alone_is_named_as_a_flake(tmp_path: Path) -> None:
    """The run passes, and its last lines name the test."""
    suite(tmp_path, good=GOOD, once=ONCE)
    status, told = run(tmp_path)
    assert (status, told[-2:]) == (
        0,
        [
            "Flakes, which failed beside others and passed 3 times alone:",
            "  test_once.py::test_fails_once_once",
        ],
    )
    assert [line for line in told if line.startswith("Alone")] == [
        f"Alone, {number} of 3: test_once.py::test_fails_once_once" for number in (1, 2, 3)
    ]


def test_a_run_inside_of_a_run_adds_nothing_to_the_outer_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failures of the inner runs, alone or beside others, are not failures of the outer run."""
    outer = tmp_path / "outer"
    outer.touch()
    monkeypatch.setenv("TIDEGATE_FAILED_TESTS", str(outer))
    suite(tmp_path, bad="def test_fails():\n    assert False\n")
    assert run(tmp_path)[0] == 1
    assert outer.read_text() == ""


def test_three_flakes_fail_the_run(tmp_path: Path) -> None:
    """Two are tolerated, more are not."""
    suite(tmp_path, first=ONCE, second=ONCE, third=ONCE)
    status, told = run(tmp_path)
    assert (status, told[-1]) == (1, "3 flakes: at most 2 are allowed.")


@pytest.mark.parametrize("text", [EVERY_OTHER_TIME, "def test_fails():\n    assert False\n"], ids=["later", "always"])
def test_a_test_that_fails_alone_has_failed(tmp_path: Path, text: str) -> None:
    """A test that passes twice alone and fails the third time is no flake, and a flake beside it does not hide it."""
    suite(tmp_path, bad=text, once=ONCE)
    status, told = run(tmp_path)
    assert status == 1
    failed = told.index("Failed:")
    assert told[failed + 1].startswith("  test_bad.py::")
    assert told[failed + 2].startswith("Flakes")
    assert told[failed + 3 :] == ["  test_once.py::test_fails_once_once"]


def test_a_suite_that_cannot_be_collected_fails_at_once(tmp_path: Path) -> None:
    """A collection error is not retried."""
    suite(tmp_path, good=GOOD, broken="import no_such_module_anywhere\n")
    status, told = run(tmp_path)
    assert status not in (0, 5)
    assert not any(line.startswith("Alone") for line in told)


def test_a_suite_that_passes_is_run_once(tmp_path: Path) -> None:
    """Without failures there are no further runs."""
    suite(tmp_path, good=GOOD)
    status, told = run(tmp_path)
    assert status == 0
    assert "1 passed" in told[-1]
