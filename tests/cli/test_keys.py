"""`tidegate keys`: the new key, its user, and its rights."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.process import GatewayProcess, gateway, tidegate


def add(running: GatewayProcess, *arguments: str) -> tuple[str, str]:
    """Returns the key from standard output, and the text on standard error."""
    run = tidegate("keys", "add", *arguments, home=running.home)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip(), run.stderr


def keys(running: GatewayProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(tidegate("keys", "list", "--json", home=running.home).stdout)
    return found


def test_adding_a_key_describes_its_user_and_permissions(running: GatewayProcess) -> None:
    """X01, X06: on standard error; standard output contains only the key."""
    key, said = add(running, "dora", "--agent", "main")
    assert key.startswith("tg_") and "\n" not in key
    assert said.count("\n") == 1
    assert "dora is a new user" in said and "main" in said and "once" in said
    key, said = add(running, "dora")
    assert "another key" in said and "main" in said
    row = next(line for line in tidegate("keys", "list", home=running.home).stdout.splitlines() if "dora" in line)
    assert row.split()[1:4] == ["dora", "member", "main"]
    run = tidegate("keys", "add", "emil", "--json", home=running.home)
    made = json.loads(run.stdout)
    assert (made["name"], made["role"], made["agents"], made["new"]) == ("emil", "member", None, True)


def test_another_key_for_the_owner_requires_an_option(running: GatewayProcess) -> None:
    """X01: it has all permissions, so --owner is required."""
    before = len(keys(running))
    refused = tidegate("keys", "add", "owner", home=running.home)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert "--owner" in refused.stderr
    assert len(keys(running)) == before
    _, said = add(running, "owner", "--owner", "--label", "laptop")
    assert "owner" in said and "all permissions" in said
    made = keys(running)[-1]
    assert (made["role"], made["label"]) == ("owner", "laptop")
    assert tidegate("keys", "add", "frida", "--owner", home=running.home).returncode == 2
    assert "frida" not in [row["name"] for row in keys(running)]


def test_revoking_a_key_twice_is_reported(running: GatewayProcess) -> None:
    """X01: an unknown key is reported as such."""
    made = json.loads(tidegate("keys", "add", "gerd", "--json", home=running.home).stdout)
    assert tidegate("keys", "revoke", made["id"], home=running.home).returncode == 0
    again = tidegate("keys", "revoke", made["id"], home=running.home)
    assert (again.returncode, again.stderr) == (0, "")
    assert "already revoked" in again.stdout and made["id"] in again.stdout
    run = tidegate("keys", "revoke", made["id"], "--json", home=running.home)
    assert json.loads(run.stdout) == {"revoked": made["id"], "changed": False}
    for id in ("k_none", "", "a/b"):
        unknown = tidegate("keys", "revoke", id, home=running.home)
        assert (unknown.returncode, unknown.stdout, unknown.stderr.count("\n")) == (1, "", 1)
        assert "There is no key" in unknown.stderr and "`tidegate keys list" in unknown.stderr


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "a\nb", "a\x1bb"])
def test_an_invalid_name_is_refused_with_the_rule(running: GatewayProcess, name: str) -> None:
    """F3: in words."""
    run = tidegate("keys", "add", name, home=running.home)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1)
    assert "1 to 100 printable characters" in run.stderr


def test_an_unknown_agent_is_answered_with_the_closest_name(running: GatewayProcess) -> None:
    """F3: and no key is created."""
    run = tidegate("keys", "add", "hugo", "--agent", "mian", home=running.home)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1)
    assert "did you mean 'main'" in run.stderr
    assert "hugo" not in [row["name"] for row in keys(running)]


def test_revoking_the_command_lines_own_key_says_how_to_get_another(tmp_path: Path) -> None:
    """X01, F3: so does every later command."""
    home = tmp_path / "home"
    with gateway(home) as running:
        (own,) = keys(running)
        run = tidegate("keys", "revoke", own["id"], home=home)
        assert run.returncode == 0
        way = f"remove {home}/api-key and restart the gateway with `tidegate up --replace"
        assert way in run.stderr
        after = tidegate("sessions", "list", home=home)
        assert (after.returncode, after.stdout, after.stderr.count("\n")) == (1, "", 1)
        assert way in after.stderr
        (home / "api-key").unlink()
        with gateway(home, "--replace") as next_one:
            assert tidegate("sessions", "list", home=home).returncode == 0
            assert len(keys(next_one)) == 2
        running.wait()
