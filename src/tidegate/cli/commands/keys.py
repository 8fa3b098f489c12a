"""`tidegate keys`: keys for the HTTP API.

When a key is created, only the key itself is printed to standard output; its user and permissions go to standard error.
The owner has all permissions, so creating another key for the owner requires an explicit option.
"""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import local_time, print_json, print_table, strip_controls
from tidegate.errors import Misconfigured, NotFound, TidegateError

if TYPE_CHECKING:
    from tidegate.cli.client import GatewayClient

_NAME = re.compile(r"(?=.*\S)[^\x00-\x1f\x7f]{1,100}")  # the gateway's rule, and not blank


@click.group("keys")
def command() -> None:
    """Add, list or revoke keys for the HTTP API."""


@command.command("add")
@click.argument("name")
@click.option(
    "--agent", "agents", multiple=True, help="An agent that this user may use (repeat for more; default: all)."
)
@click.option("--label", default="", help="A note on the key's purpose.")
@click.option(
    "--role", type=click.Choice(["admin", "member", "guest"]), help="The role of a new user (default: member)."
)
@click.option("--owner", is_flag=True, help="Required to create another key for the owner, which has all permissions.")
@home_option
@json_option
def add(
    name: str, agents: tuple[str, ...], label: str, role: str | None, owner: bool, home: Path, as_json: bool
) -> None:
    """Create a key for the user NAME, and the user if necessary.

    The key is shown only once, since the gateway stores just a digest of it. Conversations belong to the user, so all
    of the user's keys give access to them.
    """
    from tidegate.cli.client import GatewayClient

    if not _NAME.fullmatch(name):
        raise TidegateError("A user name must have 1 to 100 printable characters: choose another.")
    api = GatewayClient(home)
    _check_agents(api, agents)
    had = next((key for key in api.call("GET", "/api/keys")["keys"] if key["name"] == name), None)
    holds = had["role"] if had is not None else role or "member"
    if owner and holds != "owner":
        raise click.UsageError(f"{name} is not the owner of this gateway: omit --owner.")
    if holds == "owner" and not owner:
        raise TidegateError(f"{name} owns this gateway, so the key would have all permissions: confirm with --owner.")
    made = api.call("POST", "/api/keys", {"name": name, "label": label, "agents": list(agents) or None, "role": role})
    allowed = had["agents"] if had is not None else list(agents) or None
    if as_json:
        print_json({**made, "name": name, "role": holds, "agents": allowed, "new": had is None})
        return
    print(made["key"])
    print(strip_controls(_description(name, holds, allowed, had is None)), file=sys.stderr)


def _check_agents(api: "GatewayClient", agents: tuple[str, ...]) -> None:
    known = [view["name"] for view in api.call("GET", "/api/agents")["agents"]] if agents else []
    for agent in agents:
        if agent not in known:
            from tidegate.config import nearest

            raise NotFound(f"There is no agent {agent[:100]!r}{nearest(agent, known)}")


def _agents(allowed: list[str] | None) -> str:
    return "all" if allowed is None else ", ".join(allowed) or "none"


def _description(name: str, role: str, agents: list[str] | None, new: bool) -> str:
    """Describes the new key in one line."""
    if role == "owner":
        what = f"This is another key for {name}, who owns this gateway and has all permissions"
    else:
        may = "every agent" if agents is None else f"agent {_agents(agents)}"
        whose = f"{name} is a new user" if new else f"This is another key for {name}, with the same conversations"
        what = f"{whose}, has the role {role} and may use {may}"
    return f"{what}; the key is shown only once."


@command.command("list")
@home_option
@json_option
def list_(home: Path, as_json: bool) -> None:
    """List keys with their user, label and last use. The keys themselves are not stored."""
    from tidegate.cli.client import GatewayClient

    keys = GatewayClient(home).call("GET", "/api/keys")["keys"]
    if as_json:
        print_json(keys)
        return
    rows = [
        (key["id"], key["name"], key["role"], _agents(key["agents"]), key.get("label"),
         local_time(key["created"]), local_time(key.get("used")), "revoked" if key.get("revoked") else "valid")
        for key in keys
    ]  # fmt: skip
    print_table(("id", "principal", "role", "agents", "label", "created", "last used", "state"), rows, empty="No keys.")


@command.command("revoke")
@click.argument("key_id")
@home_option
@json_option
def revoke(key_id: str, home: Path, as_json: bool) -> None:
    """Revoke the key with this id (see `tidegate keys list`)."""
    from tidegate.cli.client import GatewayClient, another_key

    api = GatewayClient(home)
    changed = True
    try:
        api.call("DELETE", api.key(key_id))
    except NotFound:
        # The gateway treats a revoked key as missing, but the user should learn that it has already been revoked.
        if key_id not in {key["id"] for key in api.call("GET", "/api/keys")["keys"] if key.get("revoked")}:
            raise
        changed = False
    if as_json:
        print_json({"revoked": key_id, "changed": changed})
    else:
        print(f"Revoked {key_id}." if changed else f"{key_id} was already revoked.")
    if not _is_own_key_valid(api):
        print(f"This was the CLI's key: {another_key(home)}.", file=sys.stderr)


def _is_own_key_valid(api: "GatewayClient") -> bool:
    """True if the CLI's own key is still valid."""
    try:
        api.call("GET", "/api/agents")
    except Misconfigured:
        return False
    return True
