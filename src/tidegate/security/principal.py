"""Principals, their roles and what each role may do.

Guarantee: `RIGHTS` is the only place that says what a role may do; everything else asks `may` or `require`. A principal
owns sessions, idempotency keys and budgets; its API keys come and go.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from tidegate.errors import NotAllowed
from tidegate.values import Frozen

UserRole = Literal["owner", "admin", "member", "guest"]
Right = Literal["talk", "approve", "approve_outside", "see_usage", "pair", "configure"]

RIGHTS: Mapping[Right, tuple[UserRole, ...]] = MappingProxyType(
    {
        "talk": ("owner", "admin", "member", "guest"),
        "approve": ("owner", "admin", "member"),
        "approve_outside": ("owner",),
        "see_usage": ("owner", "admin"),
        "pair": ("owner", "admin"),
        "configure": ("owner",),
    }
)
"""Each right and the roles that have it."""

DESCRIPTIONS: Mapping[Right, str] = MappingProxyType(
    {
        "talk": "talk to agents and answer their questions",
        "approve": "approve actions in one's own conversations",
        "approve_outside": "approve effects outside the sandbox",
        "see_usage": "see everybody's usage and the gateway's status",
        "pair": "pair people and manage their keys",
        "configure": "configure the gateway and manage everybody's conversations",
    }
)
"""Each right, as people are told of it."""


class Principal(Frozen, frozen=True):
    """One caller, as the store knows it. `agents` are those it may use; None means all."""

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
        """NotAllowed, with the right and who has it, unless this principal has it."""
        if not self.may(right):
            raise NotAllowed(
                f"You may not {DESCRIPTIONS[right]}: that takes the role {' or '.join(RIGHTS[right])}, "
                f"and yours is {self.role}.",
                code="right_missing",
            )

    def may_use(self, agent: str) -> bool:
        return self.agents is None or agent in self.agents


def may_grant(giver: Principal, role: UserRole) -> bool:
    """Whether keys of that role are the giver's to make and revoke: of a role that manages keys, the owner's only."""
    return giver.may("configure") or (giver.may("pair") and role not in RIGHTS["pair"])


ROLES: tuple[UserRole, ...] = get_args(UserRole)
