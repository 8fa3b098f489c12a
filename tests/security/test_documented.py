"""The page about approvals says what is so."""

import json
import re
from pathlib import Path

import pytest

from tidegate.config import read
from tidegate.security import ROLES, Right
from tidegate.security.policy import Action, PolicyVerdict, decide, parse
from tidegate.security.principal import RIGHTS
from tidegate.tools import Toolsets, builtin_toolsets

PAGES = Path(__file__).resolve().parents[2] / "docs"
PAGE = (PAGES / "approvals.md").read_text()
RULES = re.findall(r"^\| `((?:allow|ask|deny) [^|]*)` \| `(\w+) ({.*?})` \| `(\w+) ({.*?})` \|$", PAGE, re.MULTILINE)
EFFECTS = {"terminal": "execute", "write_file": "write", "read_file": "read"}


def action(tool: str, arguments: str) -> Action:
    return Action(
        tool=tool, effect=EFFECTS[tool], arguments=json.loads(arguments), channel="page", contained=tool != "terminal"
    )


ROWS: dict[Right, str] = {
    "talk": "talk",
    "approve": "approve",
    "approve_outside": "effects outside the sandbox",
    "approve_always": "approve for all conversations",
    "see_usage": "see usage",
    "pair": "pair people",
    "configure": "configure",
}


def test_the_table_of_roles_and_rights_is_the_codes() -> None:
    """X11: every right and every role, and each right is explained."""
    section = (PAGES / "security.md").read_text().partition("## Roles and rights")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert lines[0] == ["right", *ROLES] and list(ROWS) == list(RIGHTS)
    assert lines[2:] == [
        [ROWS[right], *("yes" if role in RIGHTS[right] else "no" for role in ROLES)] for right in RIGHTS
    ]
    for label in ROWS.values():
        assert f"- **{label}**: " in section


def test_there_are_examples() -> None:
    """X12: and that a rule is no wall is said before them."""
    assert len(RULES) >= 6
    assert "the sandbox is the security boundary" in PAGE.partition("## Rules")[0]


@pytest.mark.parametrize(("rule", "tool", "arguments", "other", "others"), RULES)
def test_a_documented_rule_fits_what_it_is_said_to(
    rule: str, tool: str, arguments: str, other: str, others: str
) -> None:
    """X12: and not what it is said not to."""
    assert parse(rule).matches(action(tool, arguments))
    assert not parse(rule).matches(action(other, others))


def test_the_documented_configuration_works_as_it_is_said_to(tmp_path: Path) -> None:
    """X12, X22: rules before the mode, and a text that is written differently gets around them."""
    (toml,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    agent = read(toml, tmp_path).agents["main"]
    rules = [parse(line) for line in agent.rules]

    def verdict(command: str) -> PolicyVerdict:
        return decide(rules, agent.approvals, action("terminal", json.dumps({"command": command})))

    assert verdict("deploy production").decision == "deny"
    assert verdict("git push").because == "rule: " + str(rules[1])
    for command in ("git  push", '"git" push', "$(echo git) push"):
        assert verdict(command).because == "approvals = balanced"
    assert decide(rules, agent.approvals, action("write_file", '{"path": "x/.env"}')).decision == "ask"
    assert decide(rules, agent.approvals, action("write_file", '{"path": "x"}')).decision == "allow"


def test_the_tools_that_come_with_the_gateway_are_contained() -> None:
    """X11: balanced asks for none of them, but for what executes without a sandbox."""
    for name in builtin_toolsets():
        for tool in Toolsets(builtin_toolsets()).resolve([name]).tools:
            assert tool.contained or tool.effect == "read", tool.name
