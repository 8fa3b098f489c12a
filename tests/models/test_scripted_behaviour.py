"""The scripted server's behaviour settings: faulty summaries of every kind, and limits that are refused in each
provider's own words."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from bench.http_client import events
from bench.scripted.behaviour import INJECTED, SUMMARY_WORDS, WRITTEN, Behaviour, good
from bench.scripted_model import ScriptedModel
from tests.models.official import strictly

pytestmark = pytest.mark.anyio

MARKER = "You write summaries."
ORDERS = f"{MARKER} Be brief."
PATHS = {"chat": "/chat/completions", "responses": "/responses", "anthropic": "/messages"}
HEADERS = {"x-api-key": "k", "anthropic-version": "2026-10-21"}
EVENTS: dict[str, TypeAdapter[Any]] = {
    "chat": TypeAdapter(ChatCompletionChunk),
    "responses": TypeAdapter(ResponseStreamEvent),
    "anthropic": TypeAdapter(RawMessageStreamEvent),
}
WHOLES: dict[str, TypeAdapter[Any]] = {
    "chat": TypeAdapter(ChatCompletion),
    "responses": TypeAdapter(Response),
    "anthropic": TypeAdapter(Message),
}
TALK = json.dumps(
    [
        {"message": number, "from": "user", "text": f"the tide of day {number} came in early [tool clock {{}}]"}
        for number in range(1, 90)
    ]
)
formats = pytest.mark.parametrize("form", PATHS)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(behaviour=Behaviour(marker=MARKER)) as server:
        yield server


def asking(form: str, text: Any, system: str = ORDERS, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    if form == "anthropic":
        return {"model": "m", "max_tokens": 2000, "system": system, "messages": [message], **more}
    if form == "responses":
        return {"model": "m", "instructions": system, "input": [message], "store": False, **more}
    return {"model": "m", "messages": [{"role": "system", "content": system}, message], **more}


async def post(server: ScriptedModel, form: str, body: dict[str, Any]) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + PATHS[form], json=body, headers=HEADERS) as response,
    ):
        return response.status, await response.text()


def outcome(form: str, whole: Any) -> tuple[str, str, str]:
    """The text, the refusal and the finish, by the official types."""
    found = strictly(WHOLES[form], whole)
    if form == "chat":
        choice = found.choices[0]
        return choice.message.content or "", choice.message.refusal or "", choice.finish_reason
    if form == "anthropic":
        words = "".join(block.text for block in found.content if block.type == "text")
        refused = found.stop_reason == "refusal"
        return "" if refused else words, words if refused else "", found.stop_reason
    parts = [part for item in found.output if item.type == "message" for part in item.content]
    words = "".join(part.text for part in parts if part.type == "output_text")
    reason = found.incomplete_details.reason if found.incomplete_details else found.status
    return words, "".join(part.refusal for part in parts if part.type == "refusal"), reason


@formats
async def test_a_good_summary_lists_the_messages_is_bounded_and_deterministic(server: ScriptedModel, form: str) -> None:
    """Directives in the given messages are ignored."""
    first, second = [outcome(form, json.loads((await post(server, form, asking(form, TALK)))[1])) for _ in range(2)]
    said, refused, _ = first
    assert first == second
    assert said.startswith("1: the tide of day 1") and "; 89: the tide" in said and not refused
    assert len(said.split()) <= SUMMARY_WORDS
    assert server.stats()["summaries"] == 2


@formats
async def test_any_other_system_prompt_is_not_a_summary_request(server: ScriptedModel, form: str) -> None:
    status, said = await post(server, form, asking(form, TALK, system=f"Today: {MARKER}"))
    assert status == 200 and server.stats()["summaries"] == 0
    assert "clock" in said, "the directive in it was obeyed"


@formats
@pytest.mark.parametrize("behaviour", [*WRITTEN, "refusal", "filtered", "truncated", "calls"])
async def test_every_kind_of_summary_is_valid_by_the_official_types(
    server: ScriptedModel, form: str, behaviour: str
) -> None:
    server.behave(Behaviour(marker=MARKER, summary=behaviour))
    status, body = await post(server, form, asking(form, TALK))
    assert status == 200
    said, refused, reason = outcome(form, json.loads(body))
    if behaviour == "longer":
        assert len(said) > len(TALK)
    elif behaviour == "empty":
        assert (said, refused) == ("", "")
    elif behaviour == "blank":
        assert said.isspace()
    elif behaviour == "injected":
        assert said == INJECTED
    elif behaviour == "refusal":
        assert said == "" and refused.startswith("I am sorry")
    elif behaviour == "filtered":
        assert reason in ("content_filter", "refusal")
    elif behaviour == "truncated":
        assert reason in ("length", "max_tokens", "max_output_tokens")
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            server.base_url + PATHS[form], json={**asking(form, TALK), "stream": True}, headers=HEADERS
        ) as response,
    ):
        told = events(await response.read())
    assert told
    for event in told:
        if event.get("type") != "ping":  # which the types leave out
            strictly(EVENTS[form], event)


@formats
@pytest.mark.parametrize("status", [500, 529, 400])
async def test_a_summary_can_fail_and_be_good_again(server: ScriptedModel, form: str, status: int) -> None:
    server.behave(Behaviour(marker=MARKER, summary=f"[status {status}]", times=2))
    found = [(await post(server, form, asking(form, TALK)))[0] for _ in range(3)]
    assert found == [status, status, 200]


@formats
async def test_requests_beyond_a_limit_are_refused_in_the_providers_words(server: ScriptedModel, form: str) -> None:
    server.behave(Behaviour(windows={"m": 300}))
    status, body = await post(server, form, asking(form, "a " * 1000))
    assert status == 400
    assert {"chat": "maximum context length", "responses": "context window", "anthropic": "prompt is too long"}[
        form
    ] in body
    assert (await post(server, form, asking(form, "a " * 100)))[0] == 200
    server.behave(Behaviour(body_bytes=1000))
    assert (await post(server, form, asking(form, "a " * 1000)))[0] == 413
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(4000)).decode()
    url = f"data:image/png;base64,{png}"
    part: dict[str, Any] = {
        "chat": {"type": "image_url", "image_url": {"url": url}},
        "responses": {"type": "input_image", "image_url": url},
        "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png}},
    }[form]
    server.behave(Behaviour(image_bytes=1000))
    status, body = await post(server, form, asking(form, [part]))
    assert status == 400 and "image" in body
    server.behave(Behaviour(image_bytes=5000))
    assert (await post(server, form, asking(form, [part])))[0] == 200
    stats = server.stats()
    assert (stats["refused"], stats["too_much"]) == (0, 3)


async def test_behaviour_is_set_and_the_trace_is_read_over_http(server: ScriptedModel) -> None:
    """Requests with one system prompt are one conversation, whatever their first message; summaries are another."""
    wanted = {"marker": MARKER, "summary": "empty", "by_prompt": True}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{server.root}/behaviour", json=wanted) as response:
            assert response.status == 200
        async with session.post(f"{server.root}/behaviour", json={"sumary": "good"}) as response:
            assert response.status == 400
        for text in ("one", "one", "two"):
            await post(server, "chat", asking("chat", text, system="You talk."))
        await post(server, "chat", asking("chat", "three"))
        async with session.get(f"{server.root}/trace") as response:
            found = await response.json()
    assert [(entry[0], entry[1], entry[5]) for entry in found] == [
        ("one", False, "first"),
        ("one", False, "repeated"),
        ("two", False, "changed"),
        ("three", True, "first"),
    ]


def test_text_without_message_numbers_is_summarised_by_paragraphs() -> None:
    assert good("One two three four five six.\n\nSeven.", 100) == "1: One two three four five; 2: Seven.;"
    assert len(good("word " * 500 + "\n\n" + "word " * 500, 7).split()) <= 7
