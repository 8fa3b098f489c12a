"""Skills and project files in conversations: the content of requests, and that it stays unchanged."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import core, settings
from tests.in_process import in_process_gateway
from tests.skills.skill_folders import skill
from tidegate.skills import discovery_cache
from tidegate.store import sessions

pytestmark = pytest.mark.anyio


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "AGENTS.md").write_text("Use tabs, never spaces.\n")
    skill(project / ".agents" / "skills", "deploy", "Ships it.", body="Push the button.", references__how_md="Slowly.")
    return project


def configuration(model: ScriptedModel, project: Path, more: str = "") -> str:
    return settings(model, f'workspace = "{project}"\n{more}', tools='"skills"')


def system(model: ScriptedModel) -> str:
    """The prompt of the newest request."""
    message = json.loads(model.recorded[-1].body)["messages"][0]
    assert message["role"] == "system"
    return str(message["content"])


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are looked at for each session that begins."""
    monkeypatch.setattr(discovery_cache, "DISCOVERY_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_a_conversation_begins_with_the_projects_file_and_the_skills(
    home: Path, model: ScriptedModel, project: Path
) -> None:
    """P16, S32, X19: an edit reaches new conversations; the prefix of those that are there stays, byte for byte."""
    async with core(home, model=model, toml=configuration(model, project)) as in_process_gateway:
        outcome = await in_process_gateway.say("one")
        prompt = system(model)
        assert prompt.startswith("You are a test.\n\n# The project\n\n")
        assert "## Project file: AGENTS.md\n\n```\nUse tabs, never spaces.\n```\n\n# Skills\n\n" in prompt
        assert prompt.endswith("\n- deploy: Ships it.") and "Push the button" not in prompt
        row = await in_process_gateway.store.read(sessions.get, outcome.session)
        assert row is not None and row.prefix is not None
        parts = (await in_process_gateway.store.read(sessions.prefix, row.prefix)).parts
        assert [name for name, _ in parts] == ["prompt", "project", "skills"]

        (project / "AGENTS.md").write_text("Use spaces, never tabs.\n")
        skill(project / ".agents" / "skills", "deploy", "Ships it twice.")
        await in_process_gateway.say("another one", "another talk")
        assert "Use spaces, never tabs." in system(model) and "- deploy: Ships it twice." in system(model)
        await in_process_gateway.say("two")
        assert system(model) == prompt
        assert in_process_gateway.components.presence.unload(outcome.session, reason="test")
        await in_process_gateway.say("three")
        assert system(model) == prompt
    async with core(home, model=model, toml=configuration(model, project)) as in_process_gateway:
        await in_process_gateway.say("four")
        bodies = [request.body for request in model.recorded if b"another one" not in request.body]
        assert len(bodies) == 4
        for earlier, later in itertools.pairwise(bodies):
            assert later.startswith(earlier.removesuffix(b"]}"))


async def test_a_broken_skill_fails_no_conversation(home: Path, model: ScriptedModel, project: Path) -> None:
    skill(project / ".agents" / "skills", "broken")
    (project / ".agents" / "skills" / "broken" / "SKILL.md").write_bytes(b"---\nname: \xff\n---\n")
    async with core(home, model=model, toml=configuration(model, project)) as in_process_gateway:
        assert (await in_process_gateway.say("one")).state == "answered"
        assert "- deploy: " in system(model) and "broken" not in system(model)


async def test_a_thousand_new_sessions_parse_a_skill_once_and_share_one_prefix(
    home: Path, model: ScriptedModel, project: Path
) -> None:
    """For any principal."""
    async with core(home, model=model, toml=configuration(model, project)) as in_process_gateway:
        fresh = [
            await in_process_gateway.components.prompt_prefixes.of("main", f"p_{number % 7}") for number in range(1000)
        ]
        assert all(each is fresh[0] for each in fresh)
        caches = {stats.name: stats for stats in in_process_gateway.service.caches()}
        assert caches["skills"].misses == 1 and caches["skill sets"].size == 1


async def test_long_instructions_are_read_through_the_spool(home: Path, model: ScriptedModel, project: Path) -> None:
    """The rest is named, and can be read."""
    skill(project / ".agents" / "skills", "long", body="".join(f"step {number}\n" for number in range(20_000)))
    async with core(home, model=model, toml=configuration(model, project)) as in_process_gateway:
        await in_process_gateway.say('[tool skill {"name": "long"}] go')
        (result,) = (each for each in json.loads(model.recorded[-1].body)["messages"] if each["role"] == "tool")
        assert result["content"].startswith("Skill long, of the project.") and "step 19999" in result["content"]
        assert "step 10000" not in result["content"] and "sp_" in result["content"]


async def test_an_agent_without_either_begins_with_its_prompt_alone(home: Path, model: ScriptedModel) -> None:
    """And the service has no skill reader."""
    async with core(home, model=model) as in_process_gateway:
        await in_process_gateway.say("one")
        assert system(model) == "You are a test."
        assert (
            in_process_gateway.service.skills is None
            and in_process_gateway.components.project_files is None
            and in_process_gateway.components.skills is None
        )


DEMO = """
[models.main]
api = "demo"
[agents.main]
tools = ["skills"]
[agents.plain]
model = "main"
"""


async def test_the_demo_model_uses_a_skill_and_a_person_lists_them(home: Path) -> None:
    """The same in every conversation with the agent."""
    skill(home / "skills", "deploy", "Ships it.", body="Push the button.", how_md="Slowly.")
    skill(home / "skills", "broken", head="name: x\n")
    async with in_process_gateway(home, toml=DEMO) as running:

        async def said(text: str, **fields: Any) -> str:
            async with running.client.post("/api/messages", json={"text": text, **fields}) as response:
                answer = await response.json()
                assert response.status in (200, 202), answer
                return str(answer.get("reply", {}).get("text", answer.get("text", answer)))

        answer = await running.chat("use skill deploy")
        assert "Push the button." in answer["choices"][0]["message"]["content"]
        answer = await running.chat("Use the skill deploy file how.md")
        assert answer["choices"][0]["message"]["content"].endswith("Slowly.")
        answer = await running.chat("use skill deploy", model="plain")
        assert "has no skill tool" in answer["choices"][0]["message"]["content"]
        listed = await said("/skills")
        assert "deploy (user)  Ships it." in listed and "1 more cannot be used; `tidegate skills` says why." in listed
        assert "The agent plain has no skills." in await said("/skills", agent="plain")
