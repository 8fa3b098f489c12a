"""`tidegate audit`: the log as a table or as JSON."""

import json
from pathlib import Path

from tests.cli.test_conversations import one_sentence
from tests.gateway.process import GatewayProcess, tidegate


def test_the_log_is_a_table_with_the_latest_last(running: GatewayProcess) -> None:
    """X24: filtered by kind and by principal (name or id); JSON has the same rows with complete digests."""
    made = running.call("POST", "/api/keys", {"name": "auditor", "label": "x"})
    running.call("DELETE", f"/api/keys/{made['id']}")
    found = json.loads(tidegate("audit", "--principal", "auditor", "--json", home=running.home).stdout)
    assert [(event["kind"], event["outcome"], event["name"]) for event in found] == [
        ("principal", "added", "owner"),
        ("key", "added", "owner"),
        ("key", "revoked", "owner"),
    ]
    heads, *lines = tidegate("audit", "--principal", made["principal"], home=running.home).stdout.splitlines()
    assert heads.split() == ["id", "when", "kind", "outcome", "by", "conversation", "subject", "digest"]
    assert len(lines) == 3 and lines[0].split()[0] == str(found[0]["id"])
    assert lines[2].split()[3:] == ["key", "revoked", "owner", "key", made["id"], made["principal"]]
    keys = json.loads(tidegate("audit", "--kind", "key", "--json", home=running.home).stdout)
    assert {event["kind"] for event in keys} == {"key"}
    configured = json.loads(tidegate("audit", "--kind", "configuration", "--json", home=running.home).stdout)
    assert len(configured[0]["digest"]) == 32
    nothing = tidegate("audit", "--session", "s_none", home=running.home).stdout
    assert nothing == "Nothing was recorded in this period.\n"


def test_a_limit_is_reported(running: GatewayProcess) -> None:
    """X24: the latest events are shown, however many pages that takes."""
    for _ in range(3):
        tidegate("status", "--link", home=running.home)
    everything = json.loads(tidegate("audit", "--limit", "5000", "--json", home=running.home).stdout)
    some = tidegate("audit", "--limit", "2", "--json", home=running.home)
    assert json.loads(some.stdout) == everything[-2:]
    assert some.stderr == "There are more than 2: raise --limit, or narrow the search.\n"


def test_invalid_arguments_are_reported_in_one_sentence(running: GatewayProcess, nobody: Path) -> None:
    """F3: for an unknown kind, an invalid time, an unknown name, and without a gateway."""
    wrong = tidegate("audit", "--kind", "colour", home=running.home)
    assert wrong.returncode == 2 and "'colour' is not one of 'sign_in', 'sign_out', 'key'" in wrong.stderr
    assert "since must be a time span like 7d" in one_sentence(tidegate("audit", "--since", "soon", home=running.home))
    assert "There is no principal 'nobody'" in one_sentence(
        tidegate("audit", "--principal", "nobody", home=running.home)
    )
    assert "No gateway is running" in one_sentence(tidegate("audit", home=nobody))
