"""Principals, their roles, and each role's rights.

`RIGHTS` is the only definition of what a role may do; all other code calls `may` or `require`. A principal owns
sessions, idempotency keys and budgets; its API keys can be added and revoked.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from tidegate.errors import NotAllowed
from tidegate.values import Frozen

UserRole = Literal["owner", "admin", "member", "guest"]
Right = Literal["talk", "approve", "approve_outside", "approve_always", "see_usage", "pair", "configure"]

RIGHTS: Mapping[Right, tuple[UserRole, ...]] = MappingProxyType(
    {
        "talk": ("owner", "admin", "member", "guest"),
        "approve": ("owner", "admin", "member"),
        "approve_outside": ("owner",),
        "approve_always": ("owner", "admin"),
        "see_usage": ("owner", "admin"),
        "pair": ("owner", "admin"),
        "configure": ("owner",),
    }
)
"""Each right, with the roles that have it."""

DESCRIPTIONS: Mapping[Right, str] = MappingProxyType(
    {
        "talk": "talk to agents and answer their questions",
        "approve": "approve actions in your own conversations",
        "approve_outside": "approve effects outside the sandbox",
        "approve_always": "approve actions for all conversations",
        "see_usage": "see the usage of all users and the gateway's status",
        "pair": "pair users and manage their keys",
        "configure": "configure the gateway and manage the conversations of all users",
    }
)
"""Each right's name in messages."""


class Principal(Frozen, frozen=True):
    """A caller. `agents` are the agents that it may use; None means all."""

    id: str
    name: str
    role: UserRole = "member"
    agents: tuple[str, ...] | None = None

    @property
    def is_owner(self) -> bool:
        return self.role == "owner"

    def may(self, right: Right) -> bool:
        return self.role in RIGHTS[right]

    def require(self, right: Right) -> None:
        """Raises NotAllowed unless this principal has the right. The error names the right and the roles that have
        it."""
        if not self.may(right):
            raise NotAllowed(
                f"You may not {DESCRIPTIONS[right]}: this requires the role {' or '.join(RIGHTS[right])}, "
                f"and yours is {self.role}.",
                code="right_missing",
            )

    def may_use(self, agent: str) -> bool:
        return self.agents is None or agent in self.agents


def may_grant(giver: Principal, role: UserRole) -> bool:
    """True if the giver may create and revoke keys with that role. Only the owner may do so for roles that can manage
    keys themselves."""
    return giver.may("configure") or (giver.may("pair") and role not in RIGHTS["pair"])


ROLES: tuple[UserRole, ...] = get_args(UserRole)
