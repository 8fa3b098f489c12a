"""Discovery of an agent's skills: folders, precedence, and rejected skills."""

import os
from pathlib import Path

import pytest

from tests.skills.skill_folders import configured, skill
from tidegate.skills import SkillDiscovery, SkillSet, file_access, unknown_skills
from tidegate.skills import discovery as room
from tidegate.skills.discovery import MOST
from tidegate.skills.skill import LISTED_BYTES


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def names(skill_set: SkillSet) -> list[str]:
    return [entry.name for entry in skill_set.entries]


def why(skill_set: SkillSet) -> str:
    (left,) = skill_set.left_out
    assert not left.covered
    return str(left)


def test_skills_are_found_in_the_home_the_named_folders_and_the_project(home: Path, project: Path) -> None:
    """In the order of their names, wherever they lie; a plain `skills` in a project is something else."""
    skill(home / "skills", "one")
    skill(home / "own", "two")
    skill(project / ".agents" / "skills", "three")
    skill(project / ".claude" / "skills", "four")
    skill(project / "skills", "not-one")
    (home / "skills" / "README.md").write_text("no folder")
    (home / "skills" / "empty").mkdir()
    skill_set = SkillDiscovery(
        configured(home, project=project, toml='[skills]\nfolders = ["own", "nowhere"]\n')
    ).discover("main")
    assert names(skill_set) == ["four", "one", "three", "two"] and not skill_set.left_out
    assert [entry.place.origin for entry in skill_set.entries] == ["project", "user", "project", "user"]


def test_a_project_on_another_machine_has_no_skills_here(home: Path, project: Path) -> None:
    skill(project / ".agents" / "skills", "three")
    config = configured(home, project=project, toml='[workspaces]\nbackend = "ssh"\nssh_host = "there"\n')
    assert SkillDiscovery(config).discover("main") == SkillSet()


def test_of_two_skills_with_one_name_the_owners_is_used_and_the_other_reported(home: Path, project: Path) -> None:
    """X19: what a session can write never stands in for what the owner wrote."""
    for folder in (home / "skills", project / ".agents" / "skills", project / ".claude" / "skills"):
        skill(folder, "deploy", f"From {folder.parent.name}.")
    skill_set = SkillDiscovery(configured(home, project=project)).discover("main")
    assert [entry.skill.description for entry in skill_set.entries] == ["From home."]
    assert [left.path.parts[-4:-2] for left in skill_set.left_out] == [(".agents", "skills"), (".claude", "skills")]
    assert all(left.covered and "takes precedence" in str(left) for left in skill_set.left_out)


def test_one_that_cannot_be_used_covers_no_other(home: Path, project: Path) -> None:
    skill(home / "skills", "deploy")
    skill(project / ".agents" / "skills", "deploy", head="name: again\n")
    skill_set = SkillDiscovery(configured(home, project=project)).discover("main")
    assert [entry.place.origin for entry in skill_set.entries] == ["user"]
    assert "deploy/SKILL.md is left out: its frontmatter has the name" in why(skill_set)


def test_a_broken_skill_of_the_owner_still_hides_a_projects(home: Path, project: Path) -> None:
    """X19"""
    skill(home / "skills", "deploy", head="name: again\n")
    skill(project / ".agents" / "skills", "deploy")
    skill_set = SkillDiscovery(configured(home, project=project)).discover("main")
    assert not skill_set.entries and [left.covered for left in skill_set.left_out] == [False, True]


def test_the_same_folder_by_two_names_is_one(home: Path, project: Path) -> None:
    """Many projects have one as a link to the other."""
    skill(project / ".agents" / "skills", "deploy")
    (project / ".claude").symlink_to(".agents")
    skill_set = SkillDiscovery(configured(home, project=project)).discover("main")
    assert names(skill_set) == ["deploy"] and not skill_set.left_out


def test_an_agent_has_the_skills_that_its_settings_name(home: Path) -> None:
    """And of others nothing is told to it, not even that they are broken."""
    for name in ("one", "two", "broken"):
        skill(home / "skills", name)
    (home / "skills" / "broken" / "SKILL.md").write_text("")
    config = configured(home, skills=["two", "three"])
    skill_set = SkillDiscovery(config).discover("main")
    assert names(skill_set) == ["two"] and not skill_set.left_out
    assert unknown_skills(skill_set, ("two", "three")) == ["three"]


def test_a_skill_whose_folder_has_another_name_is_left_out(home: Path) -> None:
    skill(home / "skills", "one").rename(home / "skills" / "two")
    assert 'its name is "one", but its folder is named "two"; make them equal.' in why(
        SkillDiscovery(configured(home)).discover("main")
    )


def test_only_regular_files_are_opened(home: Path) -> None:
    """A pipe would be waited for: here the look would never end."""
    for name in ("pipe", "folder"):
        (home / "skills" / name).mkdir(parents=True)
    os.mkfifo(home / "skills" / "pipe" / "SKILL.md")
    (home / "skills" / "folder" / "SKILL.md").mkdir()
    skill_set = SkillDiscovery(configured(home)).discover("main")
    assert not skill_set.entries and ["not a regular file" in str(left) for left in skill_set.left_out] == [True, True]


def test_no_link_leads_out_of_a_project(home: Path, project: Path, tmp_path: Path) -> None:
    """X08, X18: an agent can write there, and must not have the gateway read what it cannot."""
    elsewhere = skill(tmp_path / "elsewhere", "secret")
    places = project / ".agents" / "skills"
    skill(project / "docs", "inside")
    places.mkdir(parents=True)
    (places / "secret").symlink_to(elsewhere)
    (places / "inside").symlink_to("../../docs/inside")
    skill_set = SkillDiscovery(configured(home, project=project)).discover("main")
    assert names(skill_set) == ["inside"]
    assert "leads out of its folder" in why(skill_set)
    places.rename(project / "moved")
    places.symlink_to(tmp_path / "elsewhere")
    skill_set = SkillDiscovery(configured(home, project=project)).discover("main")
    assert not skill_set.entries and "leads out of its folder" in why(skill_set)


def test_no_file_of_a_skill_is_a_link_out_of_it(home: Path, tmp_path: Path) -> None:
    """X08: also in a folder of the user's own, which itself may be a link."""
    kept = skill(tmp_path / "elsewhere", "kept")
    (home / "skills").mkdir(parents=True)
    (home / "skills" / "kept").symlink_to(kept)
    other = skill(home / "skills", "other")
    (other / "SKILL.md").unlink()
    (other / "SKILL.md").symlink_to(kept / "SKILL.md")
    skill_set = SkillDiscovery(configured(home)).discover("main")
    assert names(skill_set) == ["kept"] and "leads out of its folder" in why(skill_set)


def test_a_configured_folder_that_is_itself_a_skill_is_reported(home: Path) -> None:
    skill(home, "own")
    config = configured(home, toml='[skills]\nfolders = ["own"]\n')
    assert f"it is itself a skill; name the folder that contains it ({home})." in why(
        SkillDiscovery(config).discover("main")
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_unreadable_skills_are_reported(home: Path) -> None:
    (skill(home / "skills", "one") / "SKILL.md").chmod(0)
    assert "cannot be opened" in why(SkillDiscovery(configured(home)).discover("main"))


def test_an_unchanged_file_is_neither_read_nor_parsed_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking is a matter of names and times."""
    for name in ("one", "two"):
        skill(home / "skills", name)
    looker = SkillDiscovery(configured(home), settled=-1.0)
    reads: list[object] = []
    load = room.file_access.load
    monkeypatch.setattr(room.file_access, "load", lambda *given: (reads.append(given), load(*given))[1])
    first = looker.discover("main")
    assert all(looker.discover("main") == first for _ in range(10))
    assert len(reads) == 2
    assert looker.stats()[1].misses == 2
    skill(home / "skills", "two", "Now for something else.")
    assert looker.discover("main").entries[1].skill.description == "Now for something else."
    assert len(reads) == 3


def test_a_file_that_was_just_changed_is_not_trusted_by_its_times(home: Path) -> None:
    """Two edits within the grain of a clock look alike: the second is seen all the same."""
    file = skill(home / "skills", "one", "aaa") / "SKILL.md"
    looker = SkillDiscovery(configured(home))
    looker.discover("main")
    times = file.stat()
    with file.open("r+") as same:
        same.write(file.read_text().replace("aaa", "bbb"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert looker.discover("main").entries[0].skill.description == "bbb"


def test_the_same_text_in_two_folders_is_parsed_once(home: Path, project: Path) -> None:
    for folder in (home / "skills", project / ".agents" / "skills"):
        skill(folder, "one")
    looker = SkillDiscovery(configured(home, project=project))
    looker.discover("main")
    assert (looker.stats()[1].misses, looker.stats()[1].size) == (1, 1)


def test_a_list_is_bounded_and_says_what_is_not_in_it(home: Path) -> None:
    """The same every time; the tool lists the others."""
    for number in range(MOST + 2):
        skill(home / "skills", f"skill-{number:03}", f"é{number} " * 20)
    skill_set = SkillDiscovery(configured(home)).discover("main")
    listing, listed = skill_set.listing, skill_set.listing.count("\n- skill-")
    assert LISTED_BYTES * 0.9 < len(listing.encode()) <= LISTED_BYTES
    assert listing.endswith(f"\n{MOST - listed} more are not listed here: `skill` without a name lists all.")
    assert SkillDiscovery(configured(home)).discover("main").listing == listing
    assert (
        len(skill_set.entries) == MOST and len(skill_set.left_out) == 2 and "remove some" in str(skill_set.left_out[0])
    )


def test_a_file_that_is_too_long_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that an agent may write into its project must not cost the gateway more than a `stat`."""
    with (skill(home / "skills", "one") / "SKILL.md").open("ab") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(room.file_access, "load", None)
    assert "more than 256 KiB" in why(SkillDiscovery(configured(home)).discover("main"))


def test_a_folder_of_too_many_folders_is_left_out(home: Path) -> None:
    for number in range(file_access.FOLDERS + 1):
        (home / "skills" / f"{number}").mkdir(parents=True)
    assert "more than 1000 folders; move" in why(SkillDiscovery(configured(home)).discover("main"))


def test_the_prompt_of_an_agent_without_skills_does_not_mention_them(home: Path) -> None:
    assert SkillDiscovery(configured(home)).discover("main") == SkillSet()
