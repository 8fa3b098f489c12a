"""`tidegate browsers`: where people are signed in, and signing them out."""

import json
from typing import Any

import pytest

from tests.gateway.process import GatewayProcess, tidegate


def sign_in(running: GatewayProcess, browser: str) -> str:
    """Signs a browser in; its page token."""
    code = json.loads(tidegate("status", "--link", "--json", home=running.home).stdout)["link"].partition("#code=")[2]
    return str(running.call("POST", "/api/login", {"code": code, "browser": browser})["page_token"])


def browsers(running: GatewayProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(tidegate("browsers", "list", "--json", home=running.home).stdout)
    return found


def test_browsers_are_listed_and_signed_out_one_by_one_or_all(running: GatewayProcess) -> None:
    """X05: in a table and in JSON; none of their secrets is shown."""
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
def test_what_cannot_be_signed_out_is_said(
    running: GatewayProcess, arguments: list[str], status: int, told: str
) -> None:
    """H20: and where to look."""
    run = tidegate("browsers", "revoke", *arguments, home=running.home)
    assert (run.returncode, run.stdout) == (status, "")
    assert told in run.stderr
