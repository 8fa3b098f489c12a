"""Parts of the sessions room that only some gateways use.

Guarantee: where no agent of the configuration uses one, it is None and nothing of it is loaded. A service is built here
and opens nothing; who asked for it owns it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.config import Config
from tidegate.lifetimes import Scope
from tidegate.models import Models
from tidegate.security import Secret
from tidegate.spool import Spool
from tidegate.store import Store
from tidegate.tools import Skills
from tidegate.turns.budgets.budgets import Budgets
from tidegate.turns.channels import DELEGATE
from tidegate.workspaces import Provenance

if TYPE_CHECKING:
    from tidegate.memory.extraction import NoteExtractor
    from tidegate.memory.memory import Memory
    from tidegate.recall.recall import RecallService
    from tidegate.sessions.delegation import Delegation
    from tidegate.sessions.service import Sessions
    from tidegate.skills import ProjectFiles, SkillLibrary
    from tidegate.tools.builtin.web.http_access import WebAccess


def remembering(
    config: Config, store: Store, models: Models, budgets: Budgets, clock: Callable[[], float]
) -> "tuple[Memory | None, NoteExtractor | None]":
    """What is remembered, and who learns from conversations that have ended."""
    if not _uses(config, "memory"):
        return None, None
    from tidegate.memory.extraction import NoteExtractor
    from tidegate.memory.memory import Memory

    memory = Memory(config, store, clock)
    return memory, NoteExtractor(
        memory, config, store, models, budgets.spend_guard, clock
    ) if config.memory.at_end else None


def web_access(config: Config, spool: Spool, key: Secret | None) -> "WebAccess | None":
    """What the tools of the web use; None where no agent has them, and then nothing of it is loaded."""
    if not _uses(config, "web"):
        return None
    from tidegate.tools.builtin.web.http_access import WebAccess

    return WebAccess(config.web, workers=spool.workers, key=key)


def recalling(config: Config, store: Store, spool: Spool, scope: Scope) -> "RecallService | None":
    """What looks up what was said; None where no agent has the toolset, and then nothing of it is loaded."""
    if not _uses(config, "context"):
        return None
    from tidegate.recall.recall import RecallService

    return RecallService(config, store, spool, scope)


def provenance(config: Config, store: Store, clock: Callable[[], float]) -> Provenance:
    """Who could write what prompts take from project folders. Nothing of skills is loaded before somebody could."""

    def prompt_file_digests(folder: Path) -> Mapping[str, bytes]:
        from tidegate.skills import prompt_file_digests

        return prompt_file_digests(config, folder)

    return Provenance(store, prompt_file_digests, clock)


def skills(config: Config, provenance: Provenance) -> "SkillLibrary | None":
    """The agents' skills; None where no agent has the toolset, and then nothing of them is loaded."""
    if not _uses(config, "skills"):
        return None
    from tidegate.skills import SkillLibrary

    return SkillLibrary(config, provenance)


def skill_reader(library: "SkillLibrary | None") -> Skills | None:
    """What the tool `skill` uses."""
    if library is None:
        return None
    from tidegate.turns.skill_reader import SkillReader

    return SkillReader(library)


def project_files(config: Config, provenance: Provenance) -> "ProjectFiles | None":
    """What agents' project folders say to whoever works there; None where no agent has such a folder here."""
    if not any(agent.workspace and agent.project_files for agent in config.agents.values()):
        return None
    from tidegate.skills import ProjectFiles

    return ProjectFiles(config, provenance)


def delegation(service: "Sessions") -> "Delegation | None":
    """Who has tasks worked on by other agents; None where no agent may give any."""
    if not any(agent.delegates and DELEGATE in agent.tools for agent in service.config.agents.values()):
        return None
    from tidegate.sessions.delegation import Delegation

    return Delegation(service)


def _uses(config: Config, toolset: str) -> bool:
    """Whether any agent has it."""
    return any(toolset in agent.tools for agent in config.agents.values())
