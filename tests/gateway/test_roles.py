"""A second user's key against a gateway without a sandbox: what it cannot get through any entry point."""

import json
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate

pytestmark = pytest.mark.sandbox

UNCONTAINED = """
[models.main]
api = "demo"
[agents.main]
model = "main"
tools = ["terminal", "clock"]
rules = ["deny clock channel:http"]
[workspaces]
backend = "local"
"""


@pytest.fixture(scope="module")
def open_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that runs commands without a sandbox."""
    home = tmp_path_factory.mktemp("roles") / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(UNCONTAINED)
    with gateway(home) as running:
        yield running


def key_of(running: GatewayProcess, name: str, *options: str) -> dict[str, str]:
    run = tidegate("keys", "add", name, *options, home=running.home)
    assert run.returncode == 0, run.stderr
    return {"Authorization": f"Bearer {run.stdout.strip()}"}


def refused(running: GatewayProcess, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, str]:
    with pytest.raises(HTTPError) as error:
        running.call(method, path, body, **headers)
    with error.value:
        return error.value.code, json.loads(error.value.read())["error"]["message"]


def waiting(running: GatewayProcess) -> dict[str, Any]:
    """What waits for the owner."""
    deadline = time.monotonic() + WAIT
    while not (found := running.call("GET", "/api/approvals")["approvals"]):
        assert time.monotonic() < deadline
    return dict(found[0])


def outcome(running: GatewayProcess, turn: str) -> str:
    deadline = time.monotonic() + WAIT
    while (found := running.call("GET", f"/api/turns/{turn}"))["state"] in ("queued", "running"):
        assert time.monotonic() < deadline
    return str(found["text"])


@pytest.mark.parametrize("role", ["member", "admin", "guest"])
def test_only_the_owner_approves_actions_outside_a_sandbox(open_house: GatewayProcess, role: str) -> None:
    """X11, X14: a hostile model asks to read the owner's key, and its own user says yes by every way there is. Nothing
    runs. The owner sees the whole command, and may; where root runs the gateway, the key stays unread even then."""
    theirs = key_of(open_house, f"mallory-{role}", "--role", role)
    key = (open_house.home / "api-key").read_text()
    command = f"echo begun > stolen && cat {open_house.home}/api-key >> stolen"
    said = {"text": f"call terminal {json.dumps({'command': command})}", "channel": "page", "attended": True}
    begun = open_house.call("POST", "/api/messages", said, **theirs)
    stolen = open_house.home / "workspaces" / begun["session"] / "stolen"
    question = waiting(open_house)
    assert question["turn"] == begun["turn"] and command in question["summary"] and question["for_owner"]
    assert open_house.call("GET", "/api/approvals", **theirs)["approvals"] == []
    ways: list[tuple[str, Any]] = [(f"/api/approvals/{question['id']}", {"decision": "approved"})]
    for line in ("/approve", f"/approve {question['id']}"):
        ways.append(("/api/messages", {"text": line, "session": begun["session"]}))
    for path, body in ways:
        status, sentence = refused(open_house, "POST", path, body, theirs)
        assert status == 403 and "this requires the role owner" in sentence and f"yours is {role}" in sentence
    assert waiting(open_house)["state"] == "open" and not stolen.exists()
    listed = tidegate("approvals", "list", home=open_house.home).stdout
    assert command in listed and f"{question['id']}: an approval in mallory-{role}'s conversation" in listed
    approved = tidegate("approvals", "answer", question["id"], "approve", home=open_house.home)
    assert approved.returncode == 0, approved.stderr
    outcome(open_house, begun["turn"])
    assert stolen.read_text() == ("begun\n" if os.geteuid() == 0 else f"begun\n{key}")


def test_a_key_that_claims_another_channel_gains_nothing(open_house: GatewayProcess) -> None:
    """X20, X11: a rule about a channel holds, whatever a field or a header says."""
    theirs = key_of(open_house, "eve")
    for claim in ({}, {"channel": "page"}, {"channel": "terminal"}, {"attended": True}):
        body = {"text": 'call clock {"zone": "UTC"}', **claim}
        begun = open_house.call("POST", "/api/messages", body, **theirs, **{"X-Channel": "page"})
        assert "denied (rule: deny clock channel:http)" in outcome(open_house, begun["turn"])
    begun = open_house.call("POST", "/api/messages", {"text": 'call clock {"zone": "UTC"}'})
    assert "denied" not in outcome(open_house, begun["turn"])


def test_only_the_owner_creates_and_revokes_keys_of_owner_and_admin(open_house: GatewayProcess) -> None:
    """X06: an admin pairs members and guests; a member nobody."""
    admin, member = key_of(open_house, "adam", "--role", "admin"), key_of(open_house, "mia")
    made = open_house.call("POST", "/api/keys", {"name": "kim", "role": "guest"}, **admin)
    open_house.call("DELETE", f"/api/keys/{made['id']}", **admin)
    ids = {key["name"]: key["id"] for key in open_house.call("GET", "/api/keys", **admin)["keys"]}
    for name, role in (("owner", None), ("adam", None), ("new", "admin"), ("new", "owner")):
        body = {"name": name, "role": role}
        status, sentence = refused(open_house, "POST", "/api/keys", body, admin)
        assert status == 403 and "Only the owner can create and revoke keys" in sentence, body
    for name in ("owner", "adam"):
        assert refused(open_house, "DELETE", f"/api/keys/{ids[name]}", None, admin)[0] == 403
    for method, path, body in (
        ("GET", "/api/keys", None),
        ("POST", "/api/keys", {"name": "x"}),
        ("DELETE", f"/api/keys/{ids['mia']}", None),
    ):
        status, sentence = refused(open_house, method, path, body, member)
        assert (status, sentence) == (
            403,
            "You may not pair users and manage their keys: this requires the role owner or admin, and yours is member.",
        )
    assert refused(open_house, "POST", "/api/keys", {"name": "mia", "role": "admin"}, {})[0] == 409
    assert refused(open_house, "POST", "/api/keys", {"name": "second", "role": "owner"}, {})[0] == 409
    roles = tidegate("keys", "list", home=open_house.home).stdout
    assert "admin" in roles and "guest" in roles and "member" in roles


def test_an_admin_cannot_grant_an_agent_that_they_may_not_use(open_house: GatewayProcess) -> None:
    """X06: neither with a key for somebody new nor with one for somebody who has more."""
    added = {"name": "nora", "role": "admin", "agents": []}
    admin = {"Authorization": f"Bearer {open_house.call('POST', '/api/keys', added)['key']}"}
    key_of(open_house, "olga")
    for body in ({"name": "new"}, {"name": "new", "agents": ["main"]}, {"name": "olga"}):
        status, sentence = refused(open_house, "POST", "/api/keys", body, admin)
        assert (status, sentence) == (403, "A key cannot allow more agents than its creator may use: none."), body
    assert open_house.call("POST", "/api/keys", {"name": "new", "agents": []}, **admin)["key"]


def test_a_role_sees_only_what_its_rights_allow(open_house: GatewayProcess) -> None:
    """X06: an admin sees the gateway's status and everybody's usage, but nobody's conversation."""
    admin = key_of(open_house, "ada", "--role", "admin")
    guest = key_of(open_house, "gus", "--role", "guest")
    begun = open_house.call("POST", "/api/messages", {"text": "say hello"}, **guest)
    assert outcome(open_house, begun["turn"]) == "hello"
    assert open_house.call("GET", "/api/status", **admin)["turns"] is not None
    people = [row["key"] for row in open_house.call("GET", "/api/usage?by=principal&since=1d", **admin)["rows"]]
    assert len(people) >= 1
    assert refused(open_house, "GET", f"/api/sessions/{begun['session']}", None, admin)[0] == 404
    assert refused(open_house, "GET", "/api/settings", None, admin)[0] == 403
    for path in ("/api/status", "/metrics", "/api/settings", "/api/keys"):
        assert refused(open_house, "GET", path, None, guest)[0] == 403
