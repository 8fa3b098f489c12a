"""The scripted server itself: as strict as it says, counting truthfully, bounded."""

from typing import Any

import aiohttp
import anyio
import pytest

from bench.scripted_model import RECORDED, ScriptedModel
from bench.scripted_wire import CONVERSATIONS, Message, Request, Reuse, read_script

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {}}}


def calling(*ids: str) -> dict[str, Any]:
    calls = [{"id": one, "type": "function", "function": {"name": "clock", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(identity: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": ""}


async def post(server: ScriptedModel, body: Any, path: str = "/v1/chat/completions") -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(server.root + path, json=body) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"model": "m"},
        {"model": "m", "messages": []},
        {"model": "m", "messages": [{"role": "robot", "content": "x"}]},
        {"model": "m", "messages": [{"role": "user", "content": ""}]},
        {"model": "m", "messages": [{"role": "user", "content": []}]},
        {"model": "m", "messages": [{"role": "assistant", "content": None}, USER]},
        {"model": "m", "messages": [USER, calling("a")]},
        {"model": "m", "messages": [USER, calling("a"), USER]},
        {"model": "m", "messages": [USER, calling("a", "b"), result("a"), USER]},
        {"model": "m", "messages": [USER, calling("a", "a"), result("a")]},
        {"model": "m", "messages": [USER, calling(), USER]},
        {"model": "m", "messages": [USER, result("a")]},
        {"model": "m", "messages": [USER, calling("a"), result("a"), result("a")]},
        {"model": "m", "messages": [{**USER, "extra": 1}]},
        {"model": "m", "messages": [USER], "tools": [TOOL, TOOL]},
        {"model": "m", "messages": [USER], "tools": []},
        {"model": "m", "messages": [USER], "tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"model": "m", "messages": [USER], "tool_choice": "auto"},
        {"model": "m", "messages": [USER], "unheard_of": 1},
        {"model": "m", "messages": [USER], "temperature": 3},
        {"model": "m", "messages": [USER], "max_tokens": 0},
        {"model": "m", "messages": [USER], "stream_options": {"include_usage": True}},
    ],
)
async def test_what_a_strict_provider_refuses_is_refused(server: ScriptedModel, body: Any) -> None:
    status, answer = await post(server, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert server.stats()["refused"] == 1


async def test_balanced_calls_and_results_are_accepted(server: ScriptedModel) -> None:
    messages = [USER, calling("a", "b"), result("b"), result("a"), {"role": "assistant", "content": ""}, USER]
    status, answer = await post(server, {"model": "m", "messages": messages, "tools": [TOOL]})
    assert (status, answer["choices"][0]["message"]["content"][:8]) == (200, "The tide")


def request(*messages: tuple[str, str], user: str | None = None) -> Request:
    return Request(model="m", messages=tuple(Message(role=r, content=c) for r, c in messages), user=user)  # type: ignore[arg-type]


def test_reuse_is_counted_by_what_came_again() -> None:
    """S32: grown at the end is whole; another beginning, tool list or a lost message is not; a repeat is neither."""
    reuse = Reuse()
    first = request(("system", "s"), ("user", "a"))
    grown = request(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"))
    other = request(("system", "today is Monday"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d"))
    assert reuse.note(first, 1, 10)[1] == 0
    assert reuse.note(first, 1, 10)[1] == 10
    assert reuse.note(grown, 1, 20)[1] == 10
    assert reuse.note(grown, 2, 20)[1] == 0
    assert reuse.note(other, 2, 30)[1] == 0
    assert reuse.note(request(("system", "today is Monday"), ("user", "a")), 2, 30)[1] == 0
    view = reuse.view()
    assert (view["conversations"], view["repeats"], view["followups"], view["whole_prefix"]) == (1, 1, 4, 1)
    assert view["reuse"] == 0.25
    assert [one["reason"] for one in view["violations"]] == [
        "tools changed",
        "messages changed",
        "messages went missing",
    ]


def test_conversations_are_told_apart_by_tag_or_first_words() -> None:
    reuse = Reuse()
    keys = {
        reuse.note(request(("user", text), user=tag), 0, 1)[0] for text, tag in [("a", None), ("b", None), ("a", "t")]
    }
    assert len(keys) == 3
    assert reuse.view()["followups"] == 0


def test_what_is_remembered_of_conversations_is_bounded() -> None:
    reuse = Reuse()
    for number in range(CONVERSATIONS + 10):
        reuse.note(request(("user", str(number))), 0, 1)
    assert len(reuse._last) == CONVERSATIONS


async def test_recorded_requests_are_bounded(server: ScriptedModel) -> None:
    for number in range(RECORDED + 5):
        server.record("/", {}, b"%d" % number)
    server.record("/", {}, b"x" * 9_000_000)
    assert len(server.recorded) == 1


def test_the_script_is_read_with_json_verbatim() -> None:
    script = read_script('please [tool a {"x": "]}"}] and [status 429 retry-after=1 times=2] [broken {oops] [open')
    assert [(one.name, one.words, one.options) for one in script] == [
        ("tool", ["a", '{"x": "]}"}'], {}),
        ("status", ["429"], {"retry-after": "1", "times": "2"}),
    ]


async def test_a_held_answer_comes_when_it_is_released(server: ScriptedModel) -> None:
    async def ask() -> None:
        answers.append(await post(server, {"model": "m", "messages": [{"role": "user", "content": "[hold x]"}]}))

    answers: list[tuple[int, Any]] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await server.held("x")
            assert server.stats()["holding"] == {"x": 1}
            assert answers == []
            assert (await post(server, {}, "/release/x"))[0] == 200
    assert answers[0][0] == 200


async def test_an_answer_is_held_after_some_of_its_pieces(server: ScriptedModel) -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "[words 9] [hold x after=3]"}]}
    with anyio.fail_after(10):
        async with (
            aiohttp.ClientSession() as session,
            session.post(server.base_url + "/chat/completions", json=body) as answer,
        ):
            await server.held("x")
            seen = b""
            while b"w1" not in seen:
                seen += await answer.content.readany()
            server.release("x")
            rest = await answer.read()
    assert b"w2" not in seen and b"w2" in rest and b"w8" in rest


async def test_words_can_come_before_a_tool_call(server: ScriptedModel) -> None:
    said = {"role": "user", "content": "[saying one moment] [tool clock {}] [say done]"}
    _, answer = await post(server, {"model": "m", "messages": [said], "tools": [TOOL]})
    message = answer["choices"][0]["message"]
    assert message["content"] == "one moment" and len(message["tool_calls"]) == 1
    _, answer = await post(server, {"model": "m", "messages": [said, calling("a"), result("a")]})
    assert answer["choices"][0]["message"]["content"] == "done"


async def test_the_other_addresses_answer(server: ScriptedModel) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/stats", "/requests", "/v1/models"):
            async with session.get(server.root + path) as response:
                assert response.status == 200
        async with session.get(server.root + "/nothing") as response:
            assert response.status == 404
    await post(server, {"model": "m", "messages": [USER]})
    assert (await post(server, {}, "/reset"))[0] == 200
    assert server.stats()["requests"] == 0


async def test_a_wrong_key_is_refused() -> None:
    async with ScriptedModel(key="right") as server:
        assert (await post(server, {"model": "m", "messages": [USER]}))[0] == 401
