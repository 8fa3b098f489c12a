"""`tidegate skills`: without a running gateway."""

import json
from pathlib import Path

from tests.gateway.process import tidegate
from tests.skills.skill_folders import skill

SETTINGS = """
[agents.main]
tools = ["skills"]
workspace = "{project}"
[agents.narrow]
tools = ["skills"]
skills = ["mine"]
[agents.plain]
"""


def write(home: Path, tmp_path: Path) -> Path:
    project = tmp_path / "project"
    skill(project / ".agents" / "skills", "ours", "What we do.", head="license: MIT\nmetadata:\n  version: 1.0\n")
    skill(home / "skills", "mine", "What \\u001b[31m I do.")
    skill(home / "skills", "mine-too", "Both have it.")
    skill(project / ".agents" / "skills", "mine-too")
    skill(home / "skills", "broken", head="name: x\n")
    (home / "tidegate.toml").write_text(SETTINGS.format(project=project))
    return project


def test_skills_are_listed_with_their_sources_and_what_is_left_out(nobody: Path, tmp_path: Path) -> None:
    """The list contains the skills that a new session would have."""
    project = write(nobody, tmp_path)
    run = tidegate("skills", "--json", home=nobody)
    assert run.returncode == 0, run.stderr
    main, narrow = json.loads(run.stdout)
    assert [(each["name"], each["from"]) for each in main["skills"]] == [
        ("mine", "user"),
        ("mine-too", "user"),
        ("ours", "project"),
    ]
    assert main["skills"][2] == {
        "name": "ours",
        "description": "What we do.",
        "from": "project",
        "folder": str(project / ".agents" / "skills" / "ours"),
        "license": "MIT",
        "compatibility": "",
        "metadata": {"version": "1.0"},
        "tools": [],
    }
    assert {(Path(left["path"]).parent.name, left["covered"]) for left in main["left_out"]} == {
        ("mine-too", True),
        ("broken", False),
    }
    assert [each["name"] for each in narrow["skills"]] == ["mine"] and not narrow["left_out"]
    heads, *rows = tidegate("skills", home=nobody).stdout.splitlines()
    assert heads.split() == ["agent", "skill", "from", "folder", "description"]
    assert [row.split()[:3] for row in rows[:4]] == [
        ["main", "mine", "user"],
        ["main", "mine-too", "user"],
        ["main", "ours", "project"],
        ["narrow", "mine", "user"],
    ]
    assert any("broken/SKILL.md is left out: its frontmatter has the name" in row for row in rows[4:])
    assert not any("\x1b" in row for row in rows)


def test_the_list_can_be_limited_to_one_agent_and_missing_parts_are_named(nobody: Path, tmp_path: Path) -> None:
    write(nobody, tmp_path)
    assert "main" not in tidegate("skills", "--agent", "narrow", home=nobody).stdout.split()
    assert tidegate("skills", "--agent", "plain", home=nobody).stdout == (
        'The agent plain does not have the toolset "skills"; add it to the tools in [agents.plain].\n'
    )
    run = tidegate("skills", "--agent", "narow", home=nobody)
    assert run.returncode == 1 and "There is no agent 'narow'; did you mean 'narrow'?" in run.stderr
    (nobody / "tidegate.toml").write_text('[agents.main]\ntools = ["skills"]\nskills = ["none"]\n')
    assert tidegate("skills", home=nobody).stdout.startswith(
        "There are no skills; to add one, put a folder with a SKILL.md into "
    )
    (nobody / "tidegate.toml").write_text('[agents.main]\ntools = ["clock"]\n')
    assert 'No agent has the toolset "skills"' in tidegate("skills", home=nobody).stdout
