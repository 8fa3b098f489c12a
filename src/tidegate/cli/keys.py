"""`tidegate keys`: who may call the HTTP API."""

from pathlib import Path

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import print_json, print_table, when


@click.group("keys")
def command() -> None:
    """Add, list or revoke keys for the HTTP API."""


@command.command("add")
@click.argument("name")
@click.option("--agent", "agents", multiple=True, help="An agent this principal may use (again for more; default all).")
@click.option("--label", default="", help="What the key is for.")
@home_option
@json_option
def add(name: str, agents: tuple[str, ...], label: str, home: Path, as_json: bool) -> None:
    """Make a key for the principal NAME; a principal that does not exist yet is made.

    The key is shown once: the gateway keeps only its digest. Conversations belong to the principal, so a second key of
    the same NAME finds them.
    """
    from tidegate.cli.api import Api

    made = Api(home).call("POST", "/api/keys", {"name": name, "label": label, "agents": list(agents) or None})
    if as_json:
        print_json(made)
    else:
        print(made["key"])


@command.command("list")
@home_option
@json_option
def list_(home: Path, as_json: bool) -> None:
    """List keys: whose, what for, when last used. The keys themselves are not kept."""
    from tidegate.cli.api import Api

    keys = Api(home).call("GET", "/api/keys")["keys"]
    if as_json:
        print_json(keys)
        return
    rows = [
        (key["id"], key["name"], key["role"], key.get("label"), when(key["created"]), when(key.get("used")),
         "revoked" if key.get("revoked") else "valid")
        for key in keys
    ]  # fmt: skip
    print_table(("id", "principal", "role", "label", "made", "last used", "state"), rows, empty="No keys.")


@command.command("revoke")
@click.argument("key_id")
@home_option
@json_option
def revoke(key_id: str, home: Path, as_json: bool) -> None:
    """Revoke the key with this id (see `tidegate keys list`): it is refused from now on."""
    from tidegate.cli.api import Api, segment

    Api(home).call("DELETE", f"/api/keys/{segment(key_id)}")
    if as_json:
        print_json({"revoked": key_id})
    else:
        print(f"Revoked {key_id}.")
