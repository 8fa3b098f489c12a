"""Skills and project files in a real process, and what is said of them before one starts."""

import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from anyio import to_thread

from bench.scripted_model import ScriptedModel
from tests.core import settings
from tests.gateway.process import WAIT, GatewayProcess, environment, tidegate
from tests.skills.skill_folders import skill
from tidegate.gateway import PreflightFailed, examine

T = TypeVar("T")


async def away(do: Callable[..., T], *given: Any) -> T:
    """In a thread: the server that is asked meanwhile lives on this loop."""
    with anyio.fail_after(2 * WAIT):
        return await to_thread.run_sync(partial(do, *given))


@asynccontextmanager
async def running(home: Path, text: str) -> AsyncIterator[GatewayProcess]:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "tidegate.toml").write_text(text)
    gateway = GatewayProcess(home)
    try:
        await away(gateway.wait_ready)
        yield gateway
    finally:
        await away(gateway.end)


def bodies(model: ScriptedModel, words: str) -> list[bytes]:
    """The requests in which this was said, oldest first."""
    return [request.body for request in model.recorded if words.encode() in request.body]


@pytest.mark.anyio
async def test_a_project_with_its_file_and_a_skill_in_a_real_gateway(tmp_path: Path) -> None:
    """P16, S32, S33, X19: the provider gets both; after an edit, and a kill, an old conversation's requests begin with
    the same bytes, and a new one begins with the new text."""
    project, home = tmp_path / "project", tmp_path / "home"
    skill(project / ".agents" / "skills", "deploy", "Ships it.", body="Push the button.")
    (project / "AGENTS.md").write_text("Use tabs.\n")
    async with ScriptedModel() as model:
        text = settings(model, f'workspace = "{project}"\n', tools='"skills"')
        async with running(home, text) as gateway:
            await away(gateway.say, 'old [tool skill {"name": "deploy"}]', "old")
            assert b"Use tabs." in bodies(model, "old ")[0] and b"- deploy: Ships it." in bodies(model, "old ")[0]
            assert b"Push the button." not in bodies(model, "old ")[0]
            assert b"Push the button." in bodies(model, "old ")[1]
            (project / "AGENTS.md").write_text("Use spaces.\n")
            skill(project / ".agents" / "skills", "deploy", "Ships it again.", body="Pull the lever.")
            await away(gateway.say, 'old [tool skill {"name": "deploy"}] again', "old")
            assert b"Pull the lever." in bodies(model, "old ")[-1]
            with anyio.fail_after(WAIT):  # folders are looked at once in a while
                for number in itertools.count():
                    await away(gateway.say, "new one", f"new {number}")
                    new = bodies(model, "new one")[-1]
                    if b"Use spaces." in new and b"Ships it again." in new:
                        break
                    await anyio.sleep(0.2)
            assert b"Use tabs." not in new
        async with running(home, text) as gateway:
            await away(gateway.say, "old and restarted", "old")
        old = bodies(model, "old ")
        assert len(old) == 5 and all(later.startswith(old[0].removesuffix(b"]}")) for later in old)


def write(home: Path, text: str) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "tidegate.toml").write_text(text)


SKILLED = '[agents.main]\ntools = ["skills"]\n'


def test_faulty_skills_are_a_warning_in_every_command(tmp_path: Path) -> None:
    """One sentence each, with what to do; a gateway starts all the same."""
    home = tmp_path / "home"
    write(home, f'{SKILLED}skills = ["deploy", "broken", "absent"]\n[skills]\nfolders = ["gone"]\n')
    skill(home / "skills", "deploy")
    skill(home / "skills", "broken", head="name: again\n")
    skill(home / "skills", "absinth")
    warnings = list(examine(home).warnings)
    assert warnings == [
        f"{home}/tidegate.toml: [skills] folders: there is no folder {home}/gone; create it, or remove it "
        "from the list",
        f'{home}/skills/broken/SKILL.md is left out: its frontmatter has the name "name" twice, again on line 4; '
        "keep one.",
        f"{home}/tidegate.toml: [agents.main] skills: there is no skill 'absent'; did you mean 'absinth'?",
    ]
    checked = tidegate("config", "check", home=home)
    assert checked.returncode == 0 and checked.stdout.count("warning: ") == 3
    (finding,) = [
        each for each in json.loads(tidegate("doctor", "--json", home=home).stdout) if each["name"] == "configuration"
    ]
    assert finding["state"] == "warn" and "again on line 4" in finding["text"]


def test_skills_without_the_toolset_are_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "home", '[agents.main]\nskills = ["deploy"]\n')
    (warning,) = examine(tmp_path / "home").warnings
    assert 'has no effect without "skills" among its tools; add it there' in warning


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ('[agents.main]\nworkspace = "skills"\n', "is private to the gateway"),
        (f'{SKILLED}[skills]\nfolders = [".."]\n', "contains the gateway's home folder"),
        (f'{SKILLED}[skills]\nfolders = ["workspaces"]\n', "is private to the gateway"),
        (f'{SKILLED}[web]\nsearch = "brave"\nsearch_key = "file:skills/key"\n', "contains the secret"),
        (f'{SKILLED}[skills]\nfolders = ["~nobody-is-called-so/x"]\n', "of an unknown user"),
    ],
)
def test_no_folder_of_skills_exposes_the_gateways_files(tmp_path: Path, settings: str, told: str) -> None:
    """X13, X18: and no agent writes what others would go by."""
    home = tmp_path / "home"
    write(home, settings)
    (home / "skills").mkdir()
    (home / "skills" / "key").write_text("k")
    with pytest.raises(PreflightFailed, match=told):
        examine(home)


def test_the_owners_skills_may_be_readable_for_commands(tmp_path: Path) -> None:
    write(tmp_path / "home", f'{SKILLED}[workspaces]\nread_only = ["skills"]\n')
    (tmp_path / "home" / "skills").mkdir()
    assert examine(tmp_path / "home").warnings == ()


def test_a_gateway_without_skills_loads_nothing_of_them(tmp_path: Path) -> None:
    """L22: nor does one with skills load the reader of YAML before there is something to read."""
    code = (
        "import sys; from pathlib import Path; import tidegate.gateway.gateway; from tidegate.gateway import examine; "
        "examine(Path(sys.argv[1])); "
        "print(*(name for name in ('tidegate.skills', 'tidegate.turns.skill_reader', 'yaml') if name in sys.modules))"
    )

    def loaded(home: Path) -> str:
        run = [sys.executable, "-c", code, str(home)]
        return subprocess.run(run, capture_output=True, text=True, env=environment(), check=True).stdout.strip()

    write(tmp_path / "home", '[agents.main]\ntools = ["clock"]\n')
    assert loaded(tmp_path / "home") == ""
    write(tmp_path / "home", SKILLED)
    assert loaded(tmp_path / "home") == "tidegate.skills"
    skill(tmp_path / "home" / "skills", "deploy")
    assert loaded(tmp_path / "home") == "tidegate.skills yaml"
