"""Who is calling. A principal owns sessions, idempotency keys and budgets; its API keys come and go."""

from typing import Literal

from tidegate.values import Frozen


class Principal(Frozen, frozen=True):
    """One caller, as the store knows it. `agents` are those it may use; None means all."""

    id: str
    name: str
    role: Literal["owner", "user"] = "user"
    agents: tuple[str, ...] | None = None

    @property
    def is_owner(self) -> bool:
        return self.role == "owner"

    def may_use(self, agent: str) -> bool:
        return self.agents is None or agent in self.agents
