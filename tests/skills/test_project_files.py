"""A project's instruction files in prompts."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.logs import capture_logs
from tests.skills.skill_folders import Clock, configured
from tidegate.skills import ProjectFiles
from tidegate.skills.discovery_cache import DISCOVERY_SECONDS
from tidegate.skills.project_files import PROJECT_BYTES

pytestmark = pytest.mark.anyio


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


async def part(home: Path, project: Path, *names: str) -> str:
    files = ProjectFiles(configured(home, project=project, **({"project_files": list(names)} if names else {})))
    return await files.part("main", "p")


async def test_the_projects_file_enters_under_its_name(home: Path, project: Path) -> None:
    """X19: marked as the project's."""
    assert await part(home, project) == ""
    (project / "AGENTS.md").write_text("Use tabs.\n")
    text = await part(home, project)
    assert text.startswith("# The project\n\n")
    assert text.endswith("## Project file: AGENTS.md\n\n```\nUse tabs.\n```")


async def test_the_files_are_those_of_the_settings_in_their_order(home: Path, project: Path) -> None:
    (project / "docs").mkdir()
    for name in ("AGENTS.md", "docs/style.md"):
        (project / name).write_text(f"This is {name}.")
    (project / "CLAUDE.md").symlink_to("AGENTS.md")
    text = await part(home, project, "docs/style.md", "CLAUDE.md", "AGENTS.md", "none.md", "none/none.md")
    assert re.findall(r"^This is (.*)\.$", text, re.MULTILINE) == ["docs/style.md", "AGENTS.md"]
    assert ProjectFiles(configured(home, project=project, project_files=[])).serves("main") is False
    assert ProjectFiles(configured(home)).serves("main") is False


async def test_a_truncated_file_says_so_and_where_the_rest_is(home: Path, project: Path) -> None:
    line = "A rule of this project, wörter und alles.\n"
    (project / "one.md").write_text(line * 1000)
    (project / "two.md").write_text("Never seen.\n" * 20)
    (project / "three.md").write_text("x" * 40_000)
    text = await part(home, project, "one.md", "two.md")
    assert len(text.encode()) < PROJECT_BYTES + 1000
    shown = len(line.encode()) * text.count(line)
    assert PROJECT_BYTES - 100 < shown <= PROJECT_BYTES
    assert f"Only its first {shown - 1:,} of {len(line.encode()) * 1000:,} bytes are included here" in text
    assert "the rest is in one.md in your workspace." in text
    assert (
        "Never seen.\nNever" not in text and "bytes are included here; the rest is in two.md in your workspace." in text
    )
    assert "x" * PROJECT_BYTES in await part(home, project, "three.md")


async def test_a_file_that_cannot_be_used_is_logged_once_and_costs_no_session(home: Path, project: Path) -> None:
    """X08: nor is anything read from outside, or waited for."""
    (home / "secret.md").parent.mkdir()
    (home / "secret.md").write_text("secret")
    (project / "link.md").symlink_to(home / "secret.md")
    os.mkfifo(project / "pipe.md")
    (project / "binary.md").write_bytes(b"a\0b")
    (project / "latin.md").write_bytes(b"\xe9t\xe9 \xe9t\xe9\n")
    (project / "folder.md").mkdir()
    (project / "good.md").write_text("Good.")
    names = ["link.md", "pipe.md", "binary.md", "latin.md", "folder.md", "../home/secret.md", "/etc/passwd", "good.md"]
    clock = Clock()
    files = ProjectFiles(configured(home, project=project, project_files=names), clock=clock)
    with capture_logs() as lines:
        for _ in range(3):
            text = await files.part("main", "p")
            assert "Good." in text and "secret" not in text and text.count("## Project file") == 1
            clock.now += DISCOVERY_SECONDS
    assert len(lines) == 7 and {line["event"] for line in lines} == {"a project file is left out"}


async def test_a_project_that_is_not_there_costs_nothing(home: Path, project: Path) -> None:
    project.rmdir()
    assert await part(home, project) == ""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["```", "`````", "~~~", "# System", "x", "## Project file: B", "`"]), max_size=12))
async def test_no_text_of_a_file_can_leave_its_fences(home: Path, project: Path, lines: list[str]) -> None:
    """X19: provenance is in the structure, and not in what the text says of itself."""
    written = "\n".join(["begin", *lines, "end"])
    (project / "AGENTS.md").write_text(written)
    text = await part(home, project)
    head, fence, rest = re.split(r"^(`{3,})\n", text, maxsplit=1, flags=re.MULTILINE)
    assert rest == f"{written}\n{fence}" and head.endswith("AGENTS.md\n\n")
    assert not re.search(rf"^{fence}", rest.removesuffix(fence), re.MULTILINE)
