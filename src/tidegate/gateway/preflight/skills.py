"""The agents' skills, looked at before a gateway starts.

Guarantee: whatever is wrong with a skill is a warning and keeps nobody from starting. Nothing is kept or changed, and
nothing is loaded where no agent has skills.
"""

from collections.abc import Iterator

from tidegate.config import FILE_NAME, Config, nearest

TOOLSET = "skills"


def doubtful(config: Config) -> Iterator[str]:
    """A sentence for each skill that cannot be used, and for each that is named and not there."""
    for name, agent in config.agents.items():
        if agent.skills and TOOLSET not in agent.tools:
            yield f'{FILE_NAME}: [agents.{name}] skills: without "skills" among its tools it has none; add it there'
    agents = [name for name, agent in config.agents.items() if TOOLSET in agent.tools]
    if not agents:
        return
    from tidegate.skills import SkillDiscovery, unknown_skills

    for text in config.skills.folders:
        if not (folder := config.path(text)).is_dir():
            yield f"{FILE_NAME}: [skills] folders: there is no folder {folder}; make it, or remove it there"
    looker = SkillDiscovery(config)
    told: dict[str, None] = {}
    for name in agents:
        skill_set, wanted = looker.discover(name), config.agents[name].skills
        told |= dict.fromkeys(str(left) for left in skill_set.left_out if not left.covered)
        if not (absent := unknown_skills(skill_set, wanted)):
            continue
        found = [entry.name for entry in looker.discover(name, narrowed=False).entries]
        for missing in absent:
            told[f"{FILE_NAME}: [agents.{name}] skills: there is no skill {missing!r}{nearest(missing, found)}"] = None
    yield from told
