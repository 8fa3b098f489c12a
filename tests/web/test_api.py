"""`/api`: conversations, messages, turns and event streams."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import call, chat, signed_in
from tidegate.store import sessions, turns
from tidegate.values import Inbound, Message

pytestmark = pytest.mark.anyio


async def say(h: InProcessGateway, text: str, **fields: Any) -> dict[str, Any]:
    reply = await call(h, "POST", "/api/messages", json={"text": text, **fields}, headers=fields.pop("headers", {}))
    assert reply.status in (200, 202), reply.body
    return dict(reply.json)


async def ended(h: InProcessGateway, turn: str) -> None:
    with anyio.fail_after(WAIT):
        await h.service.wait(turn)


@contextlib.asynccontextmanager
async def following(
    h: InProcessGateway, session: str, last: int | None = None
) -> AsyncIterator[AsyncIterator[tuple[int | None, Any]]]:
    """The events of a conversation, as they arrive."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    async with h.client.get(f"/api/sessions/{session}/events", headers=headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")

        async def events() -> AsyncIterator[tuple[int | None, Any]]:
            id: int | None = None
            async for line in response.content:
                text = line.decode().rstrip("\n")
                if text.startswith("id: "):
                    id = int(text[4:])
                elif text.startswith("data: "):
                    yield id, msgspec.json.decode(text[6:])
                    id = None

        yield events()


async def test_a_message_begins_a_conversation_and_the_next_continues_it(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """S13, S14: 202 with the turn, the session and how it is handled; then the same conversation by its id."""
    first = await say(gateway, "one")
    assert first["how"] == "started" and first["ahead"] == 0
    await ended(gateway, first["turn"])
    second = await say(gateway, "two", session=first["session"])
    assert second["session"] == first["session"]
    await ended(gateway, second["turn"])
    said = [m["content"] for m in model.recorded[-1].decoded()["messages"] if m["role"] == "user"]
    assert said == ["one", "two"]
    outcome = (await call(gateway, "GET", f"/api/turns/{second['turn']}")).json
    assert outcome["state"] == "answered" and outcome["text"] and outcome["session"] == first["session"]
    assert (await call(gateway, "GET", "/api/turns/t_nothing")).status == 404


async def test_the_api_takes_the_busy_mode_as_a_field(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H12, H13: queue, steer and interrupt, each reported as what it is."""
    first = await say(gateway, "one [hold there]")
    await model.held("there")
    queued = await say(gateway, "two", session=first["session"])
    assert (queued["how"], queued["ahead"]) == ("queued", 1)
    steered = await say(gateway, "and", session=first["session"], busy="steer")
    assert (steered["how"], steered["turn"]) == ("steered", first["turn"])
    interrupting = await say(gateway, "three", session=first["session"], busy="interrupt")
    assert interrupting["how"] == "interrupting"
    await ended(gateway, first["turn"])
    model.release("there")
    await ended(gateway, interrupting["turn"])
    assert (await call(gateway, "GET", f"/api/turns/{first['turn']}")).json["state"] == "stopped"


async def test_a_message_has_an_idempotency_key_too(gateway: InProcessGateway) -> None:
    """H17, H18: a page that did not get a response sends the message again."""
    headers = {"Idempotency-Key": "m1"}
    body = {"text": "one"}
    first = await call(gateway, "POST", "/api/messages", json=body, headers=headers)
    again = await call(gateway, "POST", "/api/messages", json=body, headers=headers)
    assert again.status == 202
    assert again.json["turn"] == first.json["turn"] and again.json["how"] in ("attached", "replayed")
    other = await call(gateway, "POST", "/api/messages", json={"text": "two"}, headers=headers)
    assert other.status == 422


async def test_a_slash_is_a_command_and_its_reply_comes_at_once(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """S13: never sent to a model; an unknown one is refused with the nearest."""
    help = await say(gateway, "/help")
    assert "/new" in help["reply"]["text"]
    first = await say(gateway, "one")
    await ended(gateway, first["turn"])
    titled = await say(gateway, "/title My talk", session=first["session"])
    assert titled["reply"]["session"] == first["session"] and titled["reply"]["ended"] is False
    assert (await call(gateway, "GET", f"/api/sessions/{first['session']}")).json["title"] == "My talk"
    new = await say(gateway, "/new", session=first["session"])
    assert new["reply"]["ended"] is (new["reply"]["session"] is None)
    assert (await call(gateway, "GET", f"/api/sessions/{first['session']}")).json["ended"] is not None
    wrong = await call(gateway, "POST", "/api/messages", json={"text": "/hepl"})
    assert wrong.status == 400 and "/help" in wrong.error["message"]
    path = await say(gateway, "/usr/bin is a folder")
    await ended(gateway, path["turn"])
    assert len(model.recorded) == 2
    listed = (await call(gateway, "GET", "/api/commands")).json["commands"]
    assert {"new", "stop", "help"} <= {command["name"] for command in listed}


async def test_a_message_is_recorded_with_its_channel(gateway: InProcessGateway) -> None:
    """H21, X20: a key is the API's, whatever its holder claims; a signed-in browser is the page."""

    async def channel(**said: str) -> tuple[str, str]:
        accepted = await say(gateway, "one", **said)
        await ended(gateway, accepted["turn"])
        turn = await gateway.store.read(turns.get, accepted["turn"])
        assert turn is not None
        view = (await call(gateway, "GET", f"/api/sessions/{accepted['session']}")).json
        return view["channel"], turn.channel

    assert await channel() == ("http", "http")
    for name in ("page", "terminal", "pigeon"):
        assert await channel(channel=name) == ("http", "http")
    headers = {**await signed_in(gateway), "Origin": gateway.url}
    accepted = (await call(gateway, "POST", "/api/messages", json={"text": "one"}, headers=headers, key="")).json
    await ended(gateway, accepted["turn"])
    assert (await call(gateway, "GET", f"/api/sessions/{accepted['session']}")).json["channel"] == "page"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": 5}, "text"),
        ({"text": " "}, "text"),
        ({"text": "x", "busy": "maybe"}, "busy"),
        ({"text": "x", "session": 5}, "session"),
        ({"text": "x", "session": ""}, "session"),
        ({"text": "x", "attended": "perhaps"}, "attended"),
    ],
)
async def test_a_wrong_message_is_refused_by_field(gateway: InProcessGateway, body: Any, param: str) -> None:
    """H20: 400 with the name of the field."""
    reply = await call(gateway, "POST", "/api/messages", json=body)
    assert reply.status == 400
    assert reply.error["param"] == param


async def test_unknown_sessions_and_agents_are_404(gateway: InProcessGateway) -> None:
    """H21: one that does not exist, or belongs to another user."""
    for body in (
        {"text": "x", "session": "s_nothing"},
        {"text": "x", "agent": "nobody"},
        {"text": "/stop", "session": "s_x"},
    ):
        assert (await call(gateway, "POST", "/api/messages", json=body)).status == 404


async def test_conversations_are_listed_page_by_page_and_searched(gateway: InProcessGateway) -> None:
    """H21: the most recently used first; `next` leads to the next page; a search finds words of messages."""
    for number in range(5):
        await chat(gateway, f"about subject{number}", session=f"talk {number}")
    seen: list[str] = []
    path = "/api/sessions?limit=2"
    while path:
        page = (await call(gateway, "GET", path)).json
        seen += [view["name"] for view in page["sessions"]]
        path = f"/api/sessions?limit=2&before={page['next']}" if page["next"] else ""
    assert seen == [f"talk {number}" for number in reversed(range(5))]
    found = (await call(gateway, "GET", "/api/sessions?q=subject3")).json["sessions"]
    assert [view["name"] for view in found] == ["talk 3"]
    for query in ('"', "a OR", "NEAR(", "*", "x" * 500, "ö ' --", "snake_case", "%", "title:x"):
        assert (await call(gateway, "GET", "/api/sessions", params={"q": query})).status == 200
    [view, *_] = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    await call(gateway, "POST", f"/api/sessions/{view['id']}/end")
    assert [v["id"] for v in (await call(gateway, "GET", "/api/sessions?ended=true")).json["sessions"]] == [view["id"]]


async def test_a_search_finds_titles_and_names_too(gateway: InProcessGateway) -> None:
    """H21, X06: only the caller's own, or everyone's for the owner; ended ones when they are requested."""
    anna = await gateway.add_key("anna")
    await chat(gateway, "nothing of note", session="holiday-2026", key=anna)
    await chat(gateway, "nothing of note", session="other", key=anna)
    views = {view["name"]: view for view in (await call(gateway, "GET", "/api/sessions", key=anna)).json["sessions"]}
    await call(gateway, "POST", "/api/messages", json={"text": "/title Café plans", "session": views["other"]["id"]},
               key=anna)  # fmt: skip

    async def found(query: str, key: str | None = anna, **more: str) -> list[str]:
        reply = await call(gateway, "GET", "/api/sessions", params={"q": query, **more}, key=key)
        return [view["name"] for view in reply.json["sessions"]]

    assert await found("holiday") == ["holiday-2026"]
    assert await found("HOLI") == ["holiday-2026"]
    assert await found("cafe pla") == ["other"]
    assert await found("holiday cafe") == []
    assert sorted(await found("note")) == ["holiday-2026", "other"]
    assert await found("holiday", key=None) == []
    assert await found("holiday", key=None, everyone="true") == ["holiday-2026"]
    await call(gateway, "POST", f"/api/sessions/{views['other']['id']}/end", key=anna)
    assert await found("cafe") == []
    assert await found("cafe", ended="true") == ["other"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=x", "limit=%ff", "before=x", "ended=perhaps", "q=" + "x" * 2000]
)
async def test_a_wrong_query_is_refused(gateway: InProcessGateway, query: str) -> None:
    """H20: 400 with the name of the field."""
    import yarl

    reply = await call(gateway, "GET", yarl.URL(f"{gateway.url}/api/sessions?{query}", encoded=True))  # type: ignore[arg-type]
    assert reply.status == 400


async def test_a_transcript_is_read_from_either_end(gateway: InProcessGateway) -> None:
    """H15: the rows after a position in order, the newest rows, or those before a position."""
    for text in ("one", "two", "three"):
        await chat(gateway, text, session="n")
    [view] = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    path = f"/api/sessions/{view['id']}/messages"

    async def places(query: str) -> list[int]:
        return [row["seq"] for row in (await call(gateway, "GET", f"{path}?{query}")).json["messages"]]

    assert await places("") == [1, 2, 3, 4, 5, 6]
    assert await places("after=0&limit=2") == [1, 2]
    assert await places("after=4") == [5, 6]
    assert await places("limit=2") == [5, 6]
    assert await places("before=5&limit=2") == [3, 4]
    assert (await call(gateway, "GET", f"{path}?after=1&before=3")).status == 400


async def test_a_conversation_is_exported_and_deleted(gateway: InProcessGateway) -> None:
    """H21: exported as JSON lines; once deleted, it is gone for everyone."""
    await chat(gateway, "one", session="n")
    [view] = (await call(gateway, "GET", "/api/sessions")).json["sessions"]
    path = f"/api/sessions/{view['id']}"
    export = await call(gateway, "GET", f"{path}/export")
    lines = [msgspec.json.decode(line) for line in export.body.splitlines()]
    assert lines[0]["id"] == view["id"]
    assert [line["message"]["role"] for line in lines[1:]] == ["user", "assistant"]
    deleted = await call(gateway, "DELETE", path)
    assert deleted.status == 204 and deleted.body == b""
    for suffix in ("", "/messages", "/export", "/events"):
        assert (await call(gateway, "GET", path + suffix)).status == 404


async def test_a_running_turn_is_stopped(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """S13: the response names the turn."""
    first = await say(gateway, "one [hold there]")
    await model.held("there")
    stopped = await call(gateway, "POST", f"/api/sessions/{first['session']}/stop")
    assert stopped.json == {"stopped": first["turn"]}
    await ended(gateway, first["turn"])
    assert (await call(gateway, "POST", f"/api/sessions/{first['session']}/stop")).json == {"stopped": None}


# -- following ---------------------------------------------------------------------------------------------------------


async def test_a_stream_sends_a_conversations_rows_and_then_new_events(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """S14: rows with ids, then the running turn from its beginning, then new events."""
    first = await say(gateway, "one")
    await ended(gateway, first["turn"])
    with anyio.fail_after(WAIT):
        async with following(gateway, first["session"]) as events:
            assert [(id, (await anext(events))[1]["message"]["role"]) for id in (1, 2)] == [
                (1, "user"),
                (2, "assistant"),
            ]
            second = await say(gateway, "two [tool clock {}]", session=first["session"])
            kinds = []
            async for id, event in events:
                kinds.append(event["type"])
                if event["type"] == "message":
                    assert id == event["seq"]
                else:
                    assert id is None
                if event["type"] == "turn_ended":
                    break
            assert event["outcome"]["turn"] == second["turn"]
    assert {"turn_started", "tool_started", "tool_ended", "text", "message"} <= set(kinds)
    assert kinds.index("turn_started") < kinds.index("tool_started") < kinds.index("tool_ended") < kinds.index("text")


async def test_a_stream_resumes_after_the_last_row_received(gateway: InProcessGateway) -> None:
    """S14: no row is missed or repeated."""
    first = await say(gateway, "one")
    await ended(gateway, first["turn"])
    with anyio.fail_after(WAIT):
        async with following(gateway, first["session"]) as events:
            last, _ = await anext(events)
        assert last == 1
        second = await say(gateway, "two", session=first["session"])
        await ended(gateway, second["turn"])
        async with following(gateway, first["session"], last) as events:
            places = [(await anext(events))[0] for _ in range(3)]
    assert places == [2, 3, 4]


async def test_a_stream_opens_at_once_and_is_kept_alive(home: Path, model: ScriptedModel) -> None:
    """H11: even when nothing happens in the conversation."""
    async with in_process_gateway(home, model=model, keep_alive=0.05) as h:
        first = await say(h, "one")
        await ended(h, first["turn"])
        headers = {"Last-Event-ID": str(2**53)}
        with anyio.fail_after(WAIT):
            async with h.client.get(f"/api/sessions/{first['session']}/events", headers=headers) as response:
                seen = b""
                while seen.count(b": keep-alive") < 2:
                    seen += await response.content.readany()
        assert seen.startswith(b": open\n\n")


async def test_a_head_request_does_not_open_a_stream(gateway: InProcessGateway) -> None:
    """H11, L31: the response to HEAD is immediate."""
    first = await say(gateway, "one")
    reply = await call(gateway, "HEAD", f"/api/sessions/{first['session']}/events")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/event-stream")


async def test_the_outcome_of_a_one_shot_call_can_be_read_again(gateway: InProcessGateway) -> None:
    """V18, H11: its caller may not have got the first response."""
    first = await say(gateway, "one")
    row = await gateway.store.read(sessions.get, first["session"])
    assert row is not None
    one_shot = Inbound(
        principal=row.principal,
        channel="http",
        agent=row.agent,
        messages=(Message(role="user", text="hello"),),
        on_disconnect="continue",
    )
    path = f"/api/turns/{(await gateway.service.accept(one_shot)).turn}"
    with anyio.fail_after(WAIT):
        while gateway.service.turn_log(path.rpartition("/")[2]) is not None:
            await anyio.sleep(0.001)
    assert (await call(gateway, "HEAD", path)).status == 200
    replies = [await call(gateway, "GET", path) for _ in range(2)]
    assert [(reply.status, reply.json["state"]) for reply in replies] == [(200, "answered")] * 2


async def test_a_wrong_event_id_is_refused(gateway: InProcessGateway) -> None:
    """H20: the id is not one of this stream."""
    first = await say(gateway, "one")
    for value in ("x", "-1", "1" * 30):
        path = f"/api/sessions/{first['session']}/events"
        reply = await call(gateway, "GET", path, headers={"Last-Event-ID": value})
        assert reply.status == 400


@contextlib.asynccontextmanager
async def streams(h: InProcessGateway, session: str, number: int, key: str | None = None) -> AsyncIterator[None]:
    """Open this number of event streams of a conversation."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(number):
            opened = await stack.enter_async_context(h.client.get(f"/api/sessions/{session}/events", headers=headers))
            assert opened.status == 200, await opened.text()
        yield


async def conversation(h: InProcessGateway, key: str | None = None) -> str:
    accepted = await call(h, "POST", "/api/messages", json={"text": "one"}, key=key)
    assert accepted.status == 202
    await ended(h, accepted.json["turn"])
    return str(accepted.json["session"])


STREAMS = "[limits]\nevent_streams = 6\nevent_streams_each = 2\n"


async def test_one_principal_cannot_take_all_event_streams(home: Path, model: ScriptedModel) -> None:
    """H20, L21: beyond their share, 429 with the limit and a retry time; closing one makes space again."""
    async with in_process_gateway(home, STREAMS, model=model) as h:
        keys = [await h.add_key("anna"), await h.add_key("bert")]
        rooms = [await conversation(h, key) for key in keys]
        with anyio.fail_after(WAIT):
            async with streams(h, rooms[0], 2, keys[0]):
                refused = await call(h, "GET", f"/api/sessions/{rooms[0]}/events", key=keys[0])
                assert refused.status == 429
                assert refused.error["code"] == "too_many_streams"
                assert "2 event streams open (limits.event_streams_each)" in refused.error["message"]
                assert int(refused.headers["Retry-After"]) >= 1
                async with streams(h, rooms[1], 2, keys[1]):
                    pass
            while "tidegate_event_streams 0.0" not in (await call(h, "GET", "/metrics")).body.decode():
                await anyio.sleep(0.01)
            async with streams(h, rooms[0], 2, keys[0]):
                pass


async def test_the_owner_can_open_a_stream_when_all_others_are_in_use(home: Path, model: ScriptedModel) -> None:
    """H20, L21: the last ones are reserved for the owner; others get the total limit in the error."""
    async with in_process_gateway(home, STREAMS, model=model) as h:
        keys = [await h.add_key(name) for name in ("anna", "bert", "cleo")]
        rooms = [await conversation(h, key) for key in keys]
        with anyio.fail_after(WAIT):
            async with streams(h, rooms[0], 2, keys[0]), streams(h, rooms[1], 2, keys[1]):
                refused = await call(h, "GET", f"/api/sessions/{rooms[2]}/events", key=keys[2])
                assert refused.status == 429
                assert "of at most 6 event streams are open (limits.event_streams)" in refused.error["message"]
                async with streams(h, rooms[2], 2):
                    refused = await call(h, "GET", f"/api/sessions/{rooms[2]}/events")
                    assert "limits.event_streams_each" in refused.error["message"]


async def test_a_stream_ends_when_its_reader_leaves(gateway: InProcessGateway) -> None:
    """L31: no stream is held for a reader that has left."""
    first = await say(gateway, "one")
    await ended(gateway, first["turn"])
    async with following(gateway, first["session"]) as events:
        await anext(events)
    with anyio.fail_after(WAIT):
        while "tidegate_event_streams 0.0" not in (metrics := (await call(gateway, "GET", "/metrics")).body.decode()):
            await anyio.sleep(0.01)
    assert "tidegate_event_streams 1.0" not in metrics
