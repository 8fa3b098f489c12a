"""The documentation of skills is correct."""

import re
from pathlib import Path

import anyio.to_thread
import pytest

from tests.skills.skill_folders import Clock
from tests.tools.contexts import bare
from tidegate.config import AgentSettings, read
from tidegate.gateway.preflight.preflight import skill_warnings
from tidegate.skills import ProjectFiles, SkillDiscovery, SkillLibrary
from tidegate.skills.discovery import IN_PROJECT
from tidegate.skills.discovery_cache import DISCOVERY_SECONDS
from tidegate.skills.frontmatter import (
    FILE_BYTES,
    HEAD_CHARACTERS,
    LONGEST_COMPATIBILITY,
    LONGEST_DESCRIPTION,
    LONGEST_NAME,
)
from tidegate.skills.library import READ_BYTES
from tidegate.skills.project_files import PROJECT_BYTES
from tidegate.skills.skill import LISTED_BYTES
from tidegate.turns.skill_reader import SkillReader

pytestmark = pytest.mark.anyio
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "skills.md").read_text()
(SKILL,) = re.findall(r"^````markdown\n(.*?)^````", PAGE, re.MULTILINE | re.DOTALL)
TOML = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def written(home: Path) -> None:
    (home / "skills" / "release-notes" / "references").mkdir(parents=True)
    (home / "skills" / "release-notes" / "SKILL.md").write_text(SKILL)
    (home / "skills" / "release-notes" / "references" / "style.md").write_text("Be brief.")


async def test_the_documented_skill_works_with_the_documented_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".tidegate"
    written(home)
    for folder in ("project", "my-skills"):
        (tmp_path / folder).mkdir()
    config = read(TOML[0], home)
    assert not await anyio.to_thread.run_sync(list, skill_warnings(config))
    reader = SkillReader(SkillLibrary(config))
    assert "- release-notes: Writes the release notes of this product." in await reader.read(bare(), "", "")
    assert "What changed for the user" not in await reader.read(bare(), "", "")
    told = await reader.read(bare(), "release-notes", "")
    assert "Its other files: references/style.md." in told and told.endswith("references/style.md.")
    assert (await reader.read(bare(), "release-notes", "references/style.md")).endswith("Be brief.")


async def test_the_documented_way_to_show_scripts_works(tmp_path: Path) -> None:
    home = tmp_path / "home"
    written(home)
    config = read(f'{TOML[1]}\n[agents.main]\ntools = ["skills"]\n', home)
    told = await SkillReader(SkillLibrary(config)).read(bare(), "release-notes", "")
    assert f"Your commands see its folder as {home}/skills/release-notes." in told


async def test_the_documented_project_files_enter_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "project" / "docs").mkdir(parents=True)
    for name in ("AGENTS.md", "docs/style.md"):
        (tmp_path / "project" / name).write_text(f"This is {name}.")
    text = await ProjectFiles(read(TOML[2], tmp_path / "home"), clock=Clock()).part("coder", "p")
    assert re.findall(r"This is (.*)\.", text) == ["AGENTS.md", "docs/style.md"]
    assert AgentSettings().project_files == ("AGENTS.md", "CLAUDE.md")


def test_the_documented_places_and_their_order_are_correct(tmp_path: Path) -> None:
    said = re.findall(r"^\d\. `?([^`,]+)`?", PAGE.partition("the first skill is used:")[2], re.MULTILINE)
    assert said[0] == "skills" and said[1].startswith("the folders in") and tuple(said[2:4]) == IN_PROJECT
    assert SkillDiscovery(read("", tmp_path)).discover("main").entries == ()


def test_every_documented_number_is_correct() -> None:
    for number in (
        f"at most {LONGEST_NAME} lower-case",
        f"at most {LONGEST_DESCRIPTION:,} characters",
        f"at most {LONGEST_COMPATIBILITY} characters",
        f"{FILE_BYTES // 1024} KiB",
        f"{HEAD_CHARACTERS:,} characters",
        f"only the beginning if it is larger than {READ_BYTES // 2**20} MiB",
        f"at most {LISTED_BYTES // 1024} KiB",
        f"may have {PROJECT_BYTES // 1024} KiB",
    ):
        assert number in PAGE, number
    assert DISCOVERY_SECONDS == 2.0 and "every two seconds" in PAGE
