"""The page of behaviours lists promises with their tests, and its check notices when they disagree."""

from pathlib import Path

import pytest

from tools.behaviours import ROOT, faults, main, read_promises, read_tests

PROMISES = """
[A]
title = "Residents"
[A.promises]
A1 = { owner = "now", promise = "It is found again." }
A2 = { owner = "later", promise = "It will fly." }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests" / "room").mkdir(parents=True)
    (tmp_path / "docs" / "promises.toml").write_text(PROMISES)
    return tmp_path


def write_test(project: Path, docstring: str) -> None:
    source = f'async def test_it_is_found() -> None:\n    """{docstring}"""\n'
    (project / "tests" / "room" / "test_finding.py").write_text(source)


def test_a_promise_is_shown_with_its_tests_or_as_not_yet(project: Path) -> None:
    """A13: the page links the tests of a promise."""
    write_test(project, "A1: the same object.")
    assert main([], project) == 0
    page = (project / "docs" / "behaviours.md").read_text()
    assert "| A1 | It is found again. | [it is found](../tests/room/test_finding.py) |" in page
    assert "| A2 | It will fly. | not yet |" in page
    assert main(["--check"], project) == 0


def test_a_stale_page_fails_the_check(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A13: it is generated, not edited."""
    write_test(project, "A1: the same object.")
    assert main(["--check"], project) == 1
    main([], project)
    write_test(project, "A1, A2: the same object, in the air.")
    assert main(["--check"], project) == 1
    assert "docs/behaviours.md is stale" in capsys.readouterr().err


def test_an_unknown_id_fails_the_check(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A13: a test may only name existing promises."""
    write_test(project, "A1, Z9: the same object.")
    main([], project)
    assert main(["--check", "--allow-missing"], project) == 1
    assert "test_it_is_found names Z9" in capsys.readouterr().err


def test_a_promise_without_a_test_fails_the_check(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A13: a promise that is kept now needs a test; a later one does not."""
    write_test(project, "no id at all.")
    main([], project)
    assert main(["--check"], project) == 1
    assert main(["--check", "--allow-missing"], project) == 0
    said = capsys.readouterr().err
    assert "A1 has no test" in said and "A2" not in said


def test_every_id_that_a_test_names_is_promised() -> None:
    """A13: in this very repository."""
    unknown, _ = faults(read_promises(ROOT / "docs" / "promises.toml"), read_tests(ROOT))
    assert unknown == []
