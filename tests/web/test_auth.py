"""Authentication over HTTP: keys, principals and their rights."""

import hashlib
from pathlib import Path

import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import InProcessGateway, in_process_gateway
from tests.web.client import call, chat, raw

pytestmark = pytest.mark.anyio

TWO_AGENTS = """
[agents.writer]
model = "other"
prompt = "You write."
"""


async def test_a_rotated_key_finds_the_conversations_of_its_principal(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H01: sessions and idempotency belong to the principal, not to its key."""
    first = await gateway.add_key("anna")
    answered = await chat(gateway, "my name is Anna", key=first, session="notes", headers={"Idempotency-Key": "k1"})
    assert answered.status == 200
    second = await gateway.add_key("anna")
    listed = (await call(gateway, "GET", "/api/keys")).json["keys"]
    old = next(key for key in listed if key["name"] == "anna")
    assert (await call(gateway, "DELETE", f"/api/keys/{old['id']}")).status == 204

    assert (await chat(gateway, "again", key=first, session="notes")).status == 401
    again = await chat(gateway, "who am I", key=second, session="notes")
    assert again.status == 200
    said = [message["content"] for message in model.recorded[-1].decoded()["messages"]]
    assert "my name is Anna" in said
    replayed = await chat(gateway, "my name is Anna", key=second, session="notes", headers={"Idempotency-Key": "k1"})
    assert replayed.headers["X-Turn-Id"] == answered.headers["X-Turn-Id"]


async def test_the_same_session_name_of_two_principals_is_two_conversations(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H01, X06: users cannot continue or see each other's conversations by name or id."""
    anna, bert = await gateway.add_key("anna"), await gateway.add_key("bert")
    await chat(gateway, "a secret of Anna", key=anna, session="notes")
    await chat(gateway, "hello from Bert", key=bert, session="notes")
    assert "a secret of Anna" not in model.recorded[-1].body.decode()
    [session] = (await call(gateway, "GET", "/api/sessions", key=anna)).json["sessions"]
    for method, path in (
        ("GET", ""),
        ("GET", "/messages"),
        ("GET", "/export"),
        ("GET", "/events"),
        ("POST", "/end"),
        ("POST", "/stop"),
        ("DELETE", ""),
    ):
        reply = await call(gateway, method, f"/api/sessions/{session['id']}{path}", key=bert)
        assert reply.status == 404, (method, path)
        assert "Anna" not in reply.error["message"]
    assert (
        await call(gateway, "POST", "/api/messages", json={"text": "hi", "session": session["id"]}, key=bert)
    ).status == 404
    assert (
        await call(gateway, "POST", "/api/messages", json={"text": "/title x", "session": session["id"]}, key=bert)
    ).status == 404
    assert (await call(gateway, "GET", f"/api/sessions/{session['id']}", key=anna)).status == 200
    assert [view["name"] for view in (await call(gateway, "GET", "/api/sessions", key=bert)).json["sessions"]] == [
        "notes"
    ]


async def test_the_owner_can_read_other_users_conversations_but_not_write_in_them(gateway: InProcessGateway) -> None:
    """H21, X06: the owner may read, end and delete them, but send neither messages nor commands."""
    anna = await gateway.add_key("anna")
    await chat(gateway, key=anna, session="notes")
    [session] = (await call(gateway, "GET", "/api/sessions?everyone=true")).json["sessions"]
    assert (await call(gateway, "GET", f"/api/sessions/{session['id']}/messages")).status == 200
    for text in ("hello", "/title mine"):
        body = {"text": text, "session": session["id"]}
        assert (await call(gateway, "POST", "/api/messages", json=body)).status == 403
    assert (await call(gateway, "POST", f"/api/sessions/{session['id']}/end")).status == 200


async def test_a_turn_is_shown_to_its_principal_and_the_owner_only(gateway: InProcessGateway) -> None:
    """H21, X06: anyone else gets 404."""
    anna, bert = await gateway.add_key("anna"), await gateway.add_key("bert")
    turn = (await chat(gateway, key=anna, session="notes")).headers["X-Turn-Id"]
    assert (await call(gateway, "GET", f"/api/turns/{turn}", key=anna)).json["state"] == "answered"
    assert (await call(gateway, "GET", f"/api/turns/{turn}")).status == 200
    assert (await call(gateway, "GET", f"/api/turns/{turn}", key=bert)).status == 404


async def test_models_are_the_agents_that_the_key_may_use(home: Path, model: ScriptedModel) -> None:
    """H02: the list has the agents of this key; another one is unknown, and the error names the available ones."""
    async with in_process_gateway(home, TWO_AGENTS, model=model) as h:
        limited = await h.add_key("anna", ("writer",))
        everything = (await call(h, "GET", "/v1/models")).json
        assert everything["object"] == "list"
        assert [entry["id"] for entry in everything["data"]] == ["main", "writer"]
        assert [entry["id"] for entry in (await call(h, "GET", "/v1/models", key=limited)).json["data"]] == ["writer"]
        assert (await call(h, "GET", "/v1/models/writer", key=limited)).json["id"] == "writer"
        for reply in (
            await call(h, "GET", "/v1/models/main", key=limited),
            await call(h, "GET", "/v1/models/vendor%2Fmodel", key=limited),
            await chat(h, key=limited),
            await chat(h, key=limited, model="nobody"),
        ):
            assert reply.status == 404
            assert reply.error["code"] == "model_not_found"
            assert reply.error["param"] == "model"
            assert "writer" in reply.error["message"]
            assert "main," not in reply.error["message"]
        assert (await chat(h, key=limited, model="writer")).status == 200
        assert model.recorded[-1].decoded()["model"] == "scripted-too"


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic dXNlcjpwYXNz",
        b"Bearer tg_" + b"0" * 40,
        b"Bearer \xff\xfe\x80",
        "Bearer schlüssel".encode(),
        "Bearer schlüssel".encode("latin-1"),
        b"Bearer " + b"x" * 10_000,
        b"tg_" + b"0" * 40,
    ],
)
async def test_a_key_that_is_missing_or_wrong_is_401_whatever_its_bytes(
    gateway: InProcessGateway, value: bytes | None
) -> None:
    """H21, X01: the same response for any bytes, and nothing is read or run."""
    sent = b"" if value is None else b"Authorization: " + value + b"\r\n"
    for path in (b"POST /v1/chat/completions", b"GET /v1/models", b"GET /api/sessions", b"GET /metrics"):
        head, body = await raw(
            gateway, path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + sent + b"Connection: close\r\n\r\n"
        )
        assert head.startswith(b"HTTP/1.1 401"), head
        assert b"www-authenticate: Bearer" in head
        assert b'"code":"invalid_api_key"' in body
        assert b"[hidden]" not in body  # the message itself must not look like a credential


async def test_the_key_is_checked_before_the_body_is_read(gateway: InProcessGateway) -> None:
    """H21: without a valid key, the body is not waited for."""
    head, body = await raw(
        gateway,
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n",
    )
    assert head.startswith(b"HTTP/1.1 401")
    assert b"invalid_api_key" in body


async def test_keys_are_stored_and_looked_up_as_digests(gateway: InProcessGateway) -> None:
    """H21, X01: the store contains no key, so that no comparison of keys can leak one."""
    key = await gateway.add_key("anna")
    rows = await gateway.store.read(lambda db: db.execute("SELECT digest FROM keys").fetchall())
    assert (hashlib.sha256(key.encode()).digest(),) in [tuple(row) for row in rows]
    dump = await gateway.store.read(
        lambda db: str([db.execute(f"SELECT * FROM {t}").fetchall() for t in ("keys", "principals")])
    )
    assert key not in dump


async def test_a_revoked_key_is_refused_at_once(gateway: InProcessGateway) -> None:
    """H01: even if it was used a moment ago."""
    key = await gateway.add_key("anna")
    assert (await call(gateway, "GET", "/v1/models", key=key)).status == 200
    listed = (await call(gateway, "GET", "/api/keys")).json["keys"]
    [id] = [entry["id"] for entry in listed if entry["name"] == "anna"]
    assert (await call(gateway, "DELETE", f"/api/keys/{id}")).status == 204
    assert (await call(gateway, "GET", "/v1/models", key=key)).status == 401
    assert (await call(gateway, "DELETE", f"/api/keys/{id}")).status == 404


async def test_endpoints_about_all_users_are_for_the_owner_only(gateway: InProcessGateway) -> None:
    """H21: 403 for everyone else."""
    anna = await gateway.add_key("anna")
    for method, path, body in (
        ("GET", "/api/status", None),
        ("GET", "/metrics", None),
        ("GET", "/api/keys", None),
        ("POST", "/api/keys", {"name": "mallory"}),
        ("DELETE", "/api/keys/k_x", None),
    ):
        reply = await call(gateway, method, path, json=body, key=anna)
        assert reply.status == 403, path
        assert reply.error["type"] == "permission_error"
    assert (await call(gateway, "GET", "/api/sessions?everyone=true", key=anna)).json["sessions"] == []


async def test_a_key_can_be_made_for_some_agents_and_a_wrong_one_is_refused(gateway: InProcessGateway) -> None:
    """H01, H20: the key is shown once; a principal's agents must exist."""
    made = await call(gateway, "POST", "/api/keys", json={"name": "anna", "label": "laptop", "agents": ["main"]})
    assert made.status == 201
    assert made.headers["Cache-Control"] == "no-store"
    assert set(made.json) == {"key", "id", "principal"}
    [entry] = [e for e in (await call(gateway, "GET", "/api/keys")).json["keys"] if e["id"] == made.json["id"]]
    assert (entry["name"], entry["label"], entry["agents"], entry["revoked"]) == ("anna", "laptop", ["main"], None)
    wrong = await call(gateway, "POST", "/api/keys", json={"name": "bert", "agents": ["main", "nobody"]})
    assert wrong.status == 400
    assert wrong.error["param"] == "agents[1]"
    assert "main" in wrong.error["message"]


async def test_a_second_key_cannot_restrict_its_principal(home: Path, model: ScriptedModel) -> None:
    """X01, X06: agents that differ from the principal's are 409, and no key is created."""
    async with in_process_gateway(home, '[agents.writer]\nmodel = "main"\nprompt = "Write."\n', model=model) as h:
        await h.add_key("anna", ("main", "writer"))
        await h.add_key("bert")
        before = len((await call(h, "GET", "/api/keys")).json["keys"])
        for name, agents in (("anna", ["main"]), ("anna", []), ("bert", ["main"]), ("owner", ["main"])):
            refused = await call(h, "POST", "/api/keys", json={"name": name, "agents": agents})
            assert (refused.status, refused.error["param"]) == (409, "agents"), name
        assert len((await call(h, "GET", "/api/keys")).json["keys"]) == before
        await h.add_key("anna", ("writer", "main"))
        await h.add_key("anna")
