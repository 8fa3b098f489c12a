"""`tidegate skills`: lists the agents' skills with their sources, and the folders that were left out.

It does not need a running gateway and changes nothing. It shows the skills that a new session would have.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import print_json, print_table, strip_controls, wrap_text
from tidegate.config import nearest
from tidegate.gateway import settings

if TYPE_CHECKING:
    from tidegate.config import Config
    from tidegate.skills import SkillSet


@click.command("skills")
@click.option("--agent", help="Show only this agent's skills.")
@home_option
@json_option
def command(agent: str | None, home: Path, as_json: bool) -> None:
    """List the agents' skills with their sources, and explain why folders are left out."""
    config = settings(home)
    if agent is not None and agent not in config.agents:
        raise click.ClickException(f"There is no agent {agent!r}{nearest(agent, config.agents)}")
    found = list(_discover(config, [agent] if agent is not None else list(config.agents)))
    if as_json:
        print_json(found)
        return
    rows = [
        (each["agent"], skill["name"], skill["from"], skill["folder"], skill["description"])
        for each in found
        for skill in each["skills"]
    ]
    print_table(("agent", "skill", "from", "folder", "description"), rows, empty=_empty_message(config, agent))
    for left in dict.fromkeys(
        f"{left['path']} is left out: {left['why']}" for each in found for left in each["left_out"]
    ):
        print(wrap_text(strip_controls(left)))


def _discover(config: "Config", agents: list[str]) -> Iterator[dict[str, Any]]:
    from tidegate.skills import SkillDiscovery

    discovery = SkillDiscovery(config)
    for name in agents:
        if "skills" in config.agents[name].tools:
            yield {"agent": name, **_json(discovery.discover(name))}


def _json(skill_set: "SkillSet") -> dict[str, Any]:
    return {
        "skills": [
            {
                "name": entry.name,
                "description": entry.skill.description,
                "from": entry.place.origin,
                "folder": str(entry.folder),
                "license": entry.skill.license,
                "compatibility": entry.skill.compatibility,
                "metadata": dict(entry.skill.metadata),
                "tools": list(entry.skill.tools),
            }
            for entry in skill_set.entries
        ],
        "left_out": [
            {"path": left.where, "why": left.why, "covered": left.covered} for left in skill_set.left_out
        ],
    }  # fmt: skip


def _empty_message(config: "Config", agent: str | None) -> str:
    agents = [config.agents[agent]] if agent is not None else config.agents.values()
    if any("skills" in each.tools for each in agents):
        return f"There are no skills; to add one, put a folder with a SKILL.md into {config.home / 'skills'}."
    who = "No agent has" if agent is None else f"The agent {agent} does not have"
    return f'{who} the toolset "skills"; add it to the tools in [agents.{agent or "NAME"}].'
