"""Parts of the sessions room that only some gateways use.

Guarantee: where no agent of the configuration uses one, it is None and nothing of it is loaded. A service is built here
and opens nothing; who asked for it owns it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.config import Config
from tidegate.models import Models
from tidegate.sessions.budgets import Budgets
from tidegate.store import Store

if TYPE_CHECKING:
    from tidegate.sessions.learning import Learner
    from tidegate.sessions.memory import Memory


def remembering(
    config: Config, store: Store, models: Models, budgets: Budgets, clock: Callable[[], float]
) -> "tuple[Memory | None, Learner | None]":
    """What is remembered, and who learns from conversations that have ended."""
    if not any("memory" in agent.tools for agent in config.agents.values()):
        return None, None
    from tidegate.sessions.learning import Learner
    from tidegate.sessions.memory import Memory

    memory = Memory(config, store, clock)
    return memory, Learner(memory, config, store, models, budgets, clock) if config.memory.at_end else None
