"""`tidegate browsers`: lists browsers that are signed in, and signs them out."""

import json
from typing import Any

import pytest

from tests.gateway.process import GatewayProcess, tidegate


def sign_in(running: GatewayProcess, browser: str) -> str:
    """Signs a browser in and returns its page token."""
    code = json.loads(tidegate("status", "--link", "--json", home=running.home).stdout)["link"].partition("#code=")[2]
    return str(running.call("POST", "/api/login", {"code": code, "browser": browser})["page_token"])


def browsers(running: GatewayProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(tidegate("browsers", "list", "--json", home=running.home).stdout)
    return found


def test_browsers_are_listed_and_signed_out_individually_or_all_at_once(running: GatewayProcess) -> None:
    """X05: as a table and as JSON, without their secrets."""
    tokens = [sign_in(running, name) for name in ("Chrome on Linux", "Safari on iPhone", "Firefox on Windows")]
    table = tidegate("browsers", "list", home=running.home).stdout
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == [each["id"] for each in browsers(running)]
    assert "Safari on iPhone" in table and tokens[0] not in table
    first = browsers(running)[0]
    assert (first["name"], first["browser"], first["current"]) == ("owner", "Chrome on Linux", False)
    run = tidegate("browsers", "revoke", first["id"], home=running.home)
    assert (run.returncode, run.stdout) == (0, "Signed out 1 browser.\n")
    assert first["id"] not in [each["id"] for each in browsers(running)]
    run = tidegate("browsers", "revoke", "--all", "--json", home=running.home)
    assert json.loads(run.stdout) == {"signed_out": 2}
    assert tidegate("browsers", "list", home=running.home).stdout == "No browser is signed in.\n"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["k_nothing"], 1, "browsers list"),
        (["../keys"], 1, "browsers list"),
        ([], 2, "--all"),
        (["k_nothing", "--all"], 2, "--all"),
    ],
)
def test_an_unknown_browser_is_reported(running: GatewayProcess, arguments: list[str], status: int, told: str) -> None:
    """H20: with the command that lists the browsers."""
    run = tidegate("browsers", "revoke", *arguments, home=running.home)
    assert (run.returncode, run.stdout) == (status, "")
    assert told in run.stderr
