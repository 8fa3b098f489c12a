"""Approvals and questions over HTTP: listed, answered once, and only by the users who may answer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.effects import EffectRecord, configured
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import call, chat

pytestmark = pytest.mark.anyio

PUSH = '[tool push {"what": "a"}] [say done]'
QUESTION = '[tool ask_user {"question": "Which?", "choices": ["red", "blue"]}] [say thanks]'


@pytest.fixture
def deeds() -> EffectRecord:
    return EffectRecord()


@pytest.fixture
async def careful(home: Path, model: ScriptedModel, deeds: EffectRecord) -> AsyncIterator[InProcessGateway]:
    """A gateway whose agent asks before it runs a command."""
    async with in_process_gateway(
        home, toml=configured(model), model=model, toolsets={"deeds": deeds.toolset()}
    ) as running:
        yield running


async def begin(h: InProcessGateway, text: str, key: str | None = None, **fields: Any) -> tuple[str, str, Any]:
    """A waiting turn: its session, its id and its question."""
    sent = {"text": text, "attended": True, **fields}
    accepted = (await call(h, "POST", "/api/messages", json=sent, key=key)).json
    with anyio.fail_after(WAIT):
        while not (found := (await waiting(h, key, session=accepted["session"]))["approvals"]):
            await anyio.sleep(0.01)
    return accepted["session"], accepted["turn"], found[0]


async def waiting(h: InProcessGateway, key: str | None = None, **query: str) -> Any:
    reply = await call(h, "GET", "/api/approvals", params=query, key=key)
    assert reply.status == 200, reply.body
    return reply.json


async def answer(h: InProcessGateway, id: str, key: str | None = None, **body: Any) -> Any:
    return await call(h, "POST", f"/api/approvals/{id}", json=body, key=key)


async def outcome(h: InProcessGateway, turn: str) -> str:
    with anyio.fail_after(WAIT):
        return (await h.service.wait(turn)).text


async def test_an_approval_is_listed_and_answered(careful: InProcessGateway, deeds: EffectRecord) -> None:
    """S29: it shows the action in full; repeating the answer changes nothing, another answer is refused."""
    session, turn, row = await begin(careful, PUSH)
    assert (row["session"], row["turn"], row["kind"], row["tool"]) == (session, turn, "approval", "push")
    assert row["summary"] == "push\nwhat: a" and row["state"] == "open" and row["expires"] > row["asked"]
    assert (await waiting(careful)) == {"approvals": [row], "more": False}
    assert (await call(careful, "GET", f"/api/approvals/{row['id']}")).json == row
    first = await answer(careful, row["id"], decision="approved")
    assert (first.status, first.json["state"]) == (200, "approved")
    assert await outcome(careful, turn) == "done" and deeds.done == ["a"]
    assert (await answer(careful, row["id"], decision="approved")).json == first.json
    closed = await answer(careful, row["id"], decision="denied", text="no")
    assert (closed.status, closed.error["code"]) == (409, "question_closed")
    assert await waiting(careful) == {"approvals": [], "more": False}
    assert [found["state"] for found in (await waiting(careful, session=session, closed="true"))["approvals"]] == [
        "approved"
    ]


async def test_a_question_is_answered_by_a_choice_or_its_number(careful: InProcessGateway) -> None:
    """S29: any other answer is refused with the choices."""
    _, turn, row = await begin(careful, QUESTION)
    assert row["choices"] == ["red", "blue"] and row["summary"] == "Which?"
    for body, param in (
        ({"decision": "approved"}, "decision"),
        ({"decision": "answered"}, "text"),
        ({"decision": "answered", "text": "green"}, "text"),
        ({"decision": "answered", "text": "3"}, "text"),
        ({"decision": "answered", "text": "0000000011"}, "text"),
        ({"decision": "answered", "text": "000000001" + "0" * 5000}, "text"),
        ({"decision": "answered", "text": "x" * 16_001}, "text"),
        ({"decision": "maybe"}, "decision"),
        ({}, "decision"),
    ):
        refused = await answer(careful, row["id"], **body)
        assert (refused.status, refused.error["param"]) == (400, param), body
    taken = await answer(careful, row["id"], decision="answered", text="2")
    assert (taken.json["state"], taken.json["answer"]) == ("answered", "blue")
    assert await outcome(careful, turn) == "thanks"


async def test_other_users_questions_are_404(careful: InProcessGateway, deeds: EffectRecord) -> None:
    """X14, X06: 404 with the same words as for an unknown id, even for the gateway's owner; never 403."""
    anna, bert = await careful.add_key("anna"), await careful.add_key("bert")
    session, turn, row = await begin(careful, PUSH, anna)
    for stranger in (bert, None):
        for id in (row["id"], "ap_" + "0" * 32):
            for method, options in (("GET", {}), ("POST", {"json": {"decision": "approved"}})):
                refused = await call(careful, method, f"/api/approvals/{id}", key=stranger, **options)
                assert (refused.status, refused.error["code"]) == (404, "question_not_found")
                assert refused.error["message"] == f"There is no question {id!r} that you may answer."
        assert await waiting(careful, stranger) == {"approvals": [], "more": False}
    hidden = await call(careful, "GET", "/api/approvals", params={"session": session}, key=bert)
    assert (hidden.status, hidden.error["code"]) == (404, "session_not_found")
    assert (await call(careful, "GET", "/api/approvals", key="")).status == 401
    assert deeds.done == []
    assert (await answer(careful, row["id"], anna, decision="denied")).status == 200
    assert await outcome(careful, turn) == "done" and deeds.done == []


async def test_an_approval_may_be_given_for_more_than_its_call_and_is_listed_and_removed(
    careful: InProcessGateway, deeds: EffectRecord
) -> None:
    """S29, X14: with one of the scopes that the request names; from then on nobody is asked, until it is removed."""
    session, turn, row = await begin(careful, PUSH)
    assert [choice["scope"] for choice in row["scopes"]] == ["call", "conversation", "always"]
    for body, param in (
        ({"decision": "approved", "scope": "forever"}, "scope"),
        ({"decision": "approved", "scope": None}, "scope"),
        ({"decision": "denied", "scope": "always"}, "scope"),
    ):
        refused = await answer(careful, row["id"], **body)
        assert (refused.status, refused.error["param"]) == (400, param), body
    given = await answer(careful, row["id"], decision="approved", scope="always")
    assert (given.status, given.json["scope"], given.json["scopes"]) == (200, "always", [])
    assert await outcome(careful, turn) == "done"
    assert (await chat(careful, PUSH)).text == "done" and deeds.done == ["a", "a"]
    listed = (await call(careful, "GET", "/api/approval-rules")).json
    [rule] = listed["rules"]
    assert not listed["more"] and rule["allows"] == row["scopes"][2]["allows"]
    assert (rule["person"], rule["given_by"], rule["uses"], rule["conversation"]) == ("owner", "owner", 1, None)
    for query, found in (({"principal": "owner"}, [rule]), ({"principal": "x"}, []), ({"session": session}, [])):
        assert (await call(careful, "GET", "/api/approval-rules", params=query)).json["rules"] == found
    assert (await call(careful, "GET", "/api/approval-rules", params={"limit": "0"})).status == 400
    path = f"/api/approval-rules/{rule['id']}"
    assert (await call(careful, "DELETE", path)).status == 204
    gone = await call(careful, "DELETE", path)
    assert (gone.status, gone.error["code"]) == (404, "rule_not_found")
    assert (await chat(careful, PUSH)).text == "done" and deeds.done == ["a", "a"]


async def test_stored_approvals_of_others_are_neither_shown_nor_removed(careful: InProcessGateway) -> None:
    """X06, X11: the owner sees everybody's; a member may not store one for all conversations."""
    anna, bert = await careful.add_key("anna"), await careful.add_key("bert")
    _, turn, row = await begin(careful, PUSH, anna)
    refused = await answer(careful, row["id"], anna, decision="approved", scope="always")
    assert (refused.status, refused.error["code"]) == (403, "right_missing")
    assert (await answer(careful, row["id"], anna, decision="approved", scope="conversation")).status == 200
    assert await outcome(careful, turn) == "done"
    [rule] = (await call(careful, "GET", "/api/approval-rules", key=anna)).json["rules"]
    assert (await call(careful, "GET", "/api/approval-rules")).json["rules"] == [rule]
    for query in ({}, {"principal": "anna"}, {"session": rule["conversation"]}):
        assert (await call(careful, "GET", "/api/approval-rules", key=bert, params=query)).json["rules"] == []
    assert (await call(careful, "DELETE", f"/api/approval-rules/{rule['id']}", key=bert)).status == 404
    assert (await call(careful, "DELETE", f"/api/approval-rules/{rule['id']}", key=anna)).status == 204


async def test_a_list_is_bounded_and_says_whether_there_are_more(careful: InProcessGateway) -> None:
    """L24: oldest first."""
    rows = [(await begin(careful, PUSH))[2] for _ in range(3)]
    found = await waiting(careful, limit="2")
    assert [row["id"] for row in found["approvals"]] == [row["id"] for row in rows[:2]] and found["more"]
    for query in ({"limit": "0"}, {"limit": "501"}, {"closed": "true"}):
        assert (await call(careful, "GET", "/api/approvals", params=query)).status == 400
    for row in rows:
        await answer(careful, row["id"], decision="denied")


async def test_a_stop_closes_open_questions(careful: InProcessGateway, deeds: EffectRecord) -> None:
    """S30: a late answer gets the reason."""
    session, turn, row = await begin(careful, PUSH)
    assert (await call(careful, "POST", f"/api/sessions/{session}/stop")).json["stopped"] == turn
    await outcome(careful, turn)
    late = await answer(careful, row["id"], decision="approved")
    assert late.status == 409 and "cancelled" in late.error["message"] and deeds.done == []


async def test_commands_can_answer_questions_during_a_turn(careful: InProcessGateway, deeds: EffectRecord) -> None:
    """S29, V19: the reply names the turn that continues."""
    session, turn, _ = await begin(careful, PUSH)
    said = await call(careful, "POST", "/api/messages", json={"text": "/approve", "session": session})
    assert said.status == 200 and said.json["reply"]["turn"] == turn
    assert await outcome(careful, turn) == "done" and deeds.done == ["a"]
    refused = await call(careful, "POST", "/api/messages", json={"text": "/approve", "session": session})
    assert (refused.status, refused.error["code"]) == (404, "question_not_found")


async def test_a_stream_begins_with_open_questions(careful: InProcessGateway) -> None:
    """S29: a second browser, a reload, another device."""
    session, turn, row = await begin(careful, PUSH)
    with anyio.fail_after(WAIT):
        async with careful.client.get(f"/api/sessions/{session}/events") as stream:
            events: list[dict[str, Any]] = []
            async for line in stream.content:
                if not line.startswith(b"data:"):
                    continue
                events.append(msgspec.json.decode(line[5:]))
                if len(events) == 1:
                    assert (events[0]["type"], events[0]["id"], events[0]["turn"]) == ("asked", row["id"], turn)
                    await answer(careful, row["id"], decision="approved")
                if events[-1]["type"] == "turn_ended":
                    break
    assert [event["state"] for event in events if event["type"] == "answered"] == ["approved"]


async def test_the_openai_api_does_not_wait_for_answers(careful: InProcessGateway, deeds: EffectRecord) -> None:
    """X11: a program gets an error immediately, and its named session keeps no open question."""
    for session in (None, "named"):
        assert (await chat(careful, PUSH, session=session)).text == "done"
        assert (await chat(careful, PUSH, session=session, stream=True)).streamed == "done"
    assert deeds.done == [] and (await waiting(careful))["approvals"] == []


async def test_a_stream_of_all_events_includes_the_output_of_tools(careful: InProcessGateway) -> None:
    """D6: as a named event; a plain client does not get it."""
    note = '[tool note {"what": "n"}] [say done]'
    full = await chat(careful, note, stream=True, headers={"X-Events": "full"})
    told = [event["text"] for name, event in full.events if name == "tool_progress"]
    assert told == ["writing\n"] and full.streamed == "done"
    plain = await chat(careful, note, stream=True)
    assert plain.events == [] and plain.comments == ["tool note started", "tool note ended"]


async def test_status_and_metrics_count_open_questions(careful: InProcessGateway) -> None:
    """L31: waiting turns do not occupy slots."""
    _, turn, row = await begin(careful, PUSH)
    with anyio.fail_after(WAIT):
        while careful.components.engine.stats().asking == 0:
            await anyio.sleep(0.01)
    status = (await call(careful, "GET", "/api/status")).json
    assert status["questions"] == {"waiting": 1} and status["turns"]["asking"] == 1 and status["turns"]["running"] == 0
    metrics = (await call(careful, "GET", "/metrics")).body.decode()
    assert "tidegate_questions_waiting 1.0" in metrics and 'tidegate_turns{state="asking"} 1.0' in metrics
    await answer(careful, row["id"], decision="denied")
    await outcome(careful, turn)
    assert "tidegate_questions_waiting 0.0" in (await call(careful, "GET", "/metrics")).body.decode()
