"""Messages and fields as OpenAI's clients send them, with models of every format behind the agent."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.faulty_model import FORMATS, KEY, FaultyModel, toml
from tests.in_process import InProcessGateway, in_process_gateway
from tests.spool.pictures import plain, saved
from tests.web.client import chat

PDF = b"%PDF-1.7\n" + bytes(range(256)) * 4
LARGE_PDF = b"%PDF-1.4\n" + bytes(300_000)
"""More than is stored in a message."""

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("api", FORMATS)]

ANSWER = "The tide comes in, the gate keeps the level."
USER = {"role": "user", "content": "hello"}


@pytest.fixture
async def server() -> AsyncIterator[FaultyModel]:
    async with FaultyModel() as server:
        yield server


@pytest.fixture
async def gateway(
    tmp_path: Path, server: FaultyModel, api: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[InProcessGateway]:
    monkeypatch.setenv(KEY, "sesame")
    formats = (api, *(other for other in FORMATS if other != api))
    async with in_process_gateway(tmp_path / "home", toml=toml(server.base_url, formats=formats)) as h:
        yield h


@pytest.mark.parametrize(
    "messages",
    [
        [USER, {"role": "assistant", "content": ""}, USER],
        [USER, {"role": "assistant", "content": None}, USER],
        [USER, {"role": "assistant", "content": []}, USER],
        [USER, {"role": "assistant", "content": "The tide"}],
        [USER, {"role": "assistant", "content": "The tide \n"}],
        [{"role": "assistant", "content": "The tide"}],
        [{"role": "system", "content": "Say something."}],
        [{"role": "developer", "content": "Say something."}],
        [{"role": "system", "content": "One."}, {"role": "system", "content": "Two."}],
        [USER, {"role": "system", "content": "Now be brief."}],
        [USER, USER],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": " \n\t"}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text", "text": ""}]}],
        [{"role": "system", "content": "Say something."}, {"role": "user", "content": ""}],
        [{"role": "user", "content": ""}, {"role": "assistant", "content": "The tide"}, USER],
        [{"role": "system", "content": ""}],
        [{"role": "developer", "content": []}],
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_requests_that_openai_accepts_are_accepted(
    gateway: InProcessGateway, server: FaultyModel, messages: list[Any], stream: bool
) -> None:
    """H04, H20: empty messages, a trailing assistant message, a system message alone; no provider refuses the
    result."""
    reply = await chat(gateway, messages=messages, stream=stream)
    assert reply.status == 200, reply.body
    assert (reply.streamed if stream else reply.text) == ANSWER
    assert server.requested == ["first"]
    assert server.stats()["refusals"] == []


async def test_an_empty_answer_can_be_sent_back(gateway: InProcessGateway, server: FaultyModel) -> None:
    """H04: it must not break later calls."""
    empty = await chat(gateway, "hello [say]")
    assert (empty.status, empty.text) == (200, "")
    again = await chat(gateway, messages=[USER, empty.json["choices"][0]["message"], USER])
    assert (again.status, again.text) == (200, ANSWER)
    assert server.stats()["refusals"] == []


async def test_a_named_session_refuses_a_last_assistant_message_and_accepts_a_system_message_alone(
    gateway: InProcessGateway, server: FaultyModel
) -> None:
    """H05, H20: the gateway has the history."""
    trailing = await chat(gateway, messages=[USER, {"role": "assistant", "content": "The"}], session="n")
    assert (trailing.status, trailing.error["param"]) == (400, "messages[1].role")
    alone = await chat(gateway, messages=[{"role": "system", "content": "Say something."}], session="n")
    assert (alone.status, alone.text) == (200, ANSWER)
    assert server.stats()["refusals"] == []


@pytest.mark.parametrize("content", ["", " \n", []])
async def test_an_empty_user_message_is_accepted_in_a_named_session(
    gateway: InProcessGateway, server: FaultyModel, content: Any
) -> None:
    """H04, H05: after other messages too, and later requests have it in their history."""
    for said in (content, "hello", content):
        reply = await chat(gateway, messages=[{"role": "user", "content": said}], session="n")
        assert (reply.status, reply.text) == (200, ANSWER), reply.body
    assert server.stats()["refusals"] == []


@pytest.mark.parametrize("text", ["", None])
@pytest.mark.parametrize("bare", [False, True])
async def test_a_picture_needs_no_text_and_its_address_may_be_a_string(
    gateway: InProcessGateway, server: FaultyModel, text: str | None, bare: bool
) -> None:
    """H04: as compatible servers accept it."""
    url = "data:image/png;base64," + base64.b64encode(saved(plain(4, 4), "PNG")).decode()
    parts: list[Any] = [] if text is None else [{"type": "text", "text": text}]
    parts.append({"type": "image_url", "image_url": url if bare else {"url": url}})
    reply = await chat(gateway, messages=[{"role": "user", "content": parts}])
    assert reply.status == 200, reply.body
    assert server.stats()["refusals"] == []


@pytest.mark.parametrize("detail", ["low", "original"])
@pytest.mark.parametrize("session", [None, "n"])
async def test_the_detail_of_a_picture_reaches_the_formats_that_have_it(
    tmp_path: Path, server: FaultyModel, api: str, session: str | None, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H08: it decides how closely the model looks."""
    monkeypatch.setenv(KEY, "sesame")
    url = "data:image/png;base64," + base64.b64encode(saved(plain(4, 4), "PNG")).decode()

    def messages(detail: str) -> list[Any]:
        picture = {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        return [{"role": "user", "content": [picture]}]

    settings = toml(server.base_url, formats=(api, *FORMATS[:2]), each="vision = true")
    async with in_process_gateway(tmp_path / "home", toml=settings) as h:
        reply = await chat(h, messages=messages(detail), session=session)
        assert reply.status == 200, reply.body
        # OpenAI's own service has `original`; compatible servers, such as this one, may refuse it.
        sent = "high" if (api, detail) == ("openai-chat", "original") else detail
        assert (b'"detail":"%b"' % sent.encode() in server.recorded[-1].body) == (api != "anthropic")
        refused = await chat(h, messages=messages("blurred"), session=session)
        assert (refused.status, refused.error["param"]) == (400, "messages[0].content[0].image_url.detail")


async def test_loose_values_that_other_servers_accept_are_accepted(
    gateway: InProcessGateway, server: FaultyModel
) -> None:
    """H08: -1 for no limit, a number as the user, metadata that is not text."""
    reply = await chat(gateway, max_tokens=-1, user=17, metadata={"n": 1, "deep": {"a": [True]}})
    assert reply.status == 200, reply.body
    assert server.stats()["refusals"] == []


async def test_a_stop_sequence_is_honoured_by_every_format(
    gateway: InProcessGateway, server: FaultyModel, api: str
) -> None:
    """H08: where the provider does not support it, the gateway cuts the answer."""
    for stream in (False, True):
        reply = await chat(gateway, stop=["keeps", "gate"], stream=stream)
        assert reply.status == 200, reply.body
        if api == "openai-responses":
            assert (reply.streamed if stream else reply.text) == "The tide comes in, the "
    assert server.stats()["refusals"] == []


@pytest.mark.parametrize("stops", [[" "], ["END", " "]])
async def test_a_stop_sequence_of_white_space_is_honoured_by_every_format(
    gateway: InProcessGateway, server: FaultyModel, api: str, stops: list[str]
) -> None:
    """H08: OpenAI supports it and Anthropic does not; there the gateway cuts the answer."""
    reply = await chat(gateway, stop=stops)
    assert reply.status == 200, reply.body
    assert api == "openai-chat" or reply.text == "The"
    assert server.requested == ["first"]
    assert server.stats()["refusals"] == []


@pytest.mark.parametrize(
    ("field", "value", "refused_by"),
    [
        ("seed", 7, ("openai-responses", "anthropic")),
        ("frequency_penalty", 0.5, ("openai-responses", "anthropic")),
        ("presence_penalty", 0.5, ("openai-responses", "anthropic")),
        ("logit_bias", {"17": -100}, ("openai-responses", "anthropic")),
        ("logprobs", True, ("openai-responses", "anthropic")),
        ("top_k", 40, ("openai-responses",)),
        ("min_p", 0.1, ("openai-responses", "anthropic")),
        ("verbosity", "low", ("anthropic",)),
        ("top_k", None, ()),
        ("min_p", None, ()),
        ("reasoning", {"effort": "high"}, ("openai-responses", "anthropic")),
        ("stop_token_ids", [7], ("openai-responses", "anthropic")),
        ("ignore_eos", True, ("openai-responses", "anthropic")),
        ("repeat_penalty", 1.1, ("openai-responses", "anthropic")),
        ("include_reasoning", True, ()),
        ("safety_identifier", "ada", ()),
        ("prompt_cache_retention", "24h", ()),
        ("prompt_cache_options", {"mode": "implicit", "ttl": "30m"}, ()),
        ("prediction", {"type": "content", "content": "The tide"}, ()),
        ("service_tier", "auto", ()),
        ("prompt_cache_key", "mine", ()),
        ("frequency_penalty", 0, ()),
    ],
)
async def test_a_field_is_supported_or_refused_by_name(
    gateway: InProcessGateway, server: FaultyModel, api: str, field: str, value: Any, refused_by: tuple[str, ...]
) -> None:
    """H08, H20: a client error is 400 with `param`, and is not retried or sent to another model."""
    reply = await chat(gateway, **{field: value})
    if api in refused_by:
        assert reply.status == 400, reply.body
        assert (reply.error["param"], reply.error["code"]) == (field, "unsupported_parameter")
        assert server.requested == []
    else:
        assert reply.status == 200, reply.body
        assert server.requested == ["first"]
    assert server.stats()["refusals"] == []


async def test_a_value_refused_by_the_provider_is_a_client_error(
    gateway: InProcessGateway, server: FaultyModel, api: str
) -> None:
    """H08, H20: 400 with the client's own name for the field, after one call to one model; a valid value works."""
    field, wrong, right = {
        "openai-chat": ("service_tier", "warp", "flex"),
        "openai-responses": ("service_tier", "warp", "flex"),
        "anthropic": ("top_k", -1, 40),
    }[api]
    reply = await chat(gateway, **{field: wrong})
    assert reply.status == 400, reply.body
    assert (reply.error["param"], reply.error["code"]) == (field, "invalid_value")
    assert reply.error["type"] == "invalid_request_error"
    assert server.requested == ["first"]
    assert (await chat(gateway, **{field: right})).status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", "many"),
        ("top_k", 0.5),
        ("min_p", "low"),
        ("repetition_penalty", True),
        ("chat_template_kwargs", []),
        ("chat_template_kwargs", "thinking"),
        ("guided_regex", 5),
        ("safety_identifier", 7),
    ],
)
async def test_an_extra_of_the_wrong_type_is_refused_before_any_model_is_asked(
    gateway: InProcessGateway, server: FaultyModel, field: str, value: Any
) -> None:
    """H08, H20: with every format, whatever the provider would have responded."""
    reply = await chat(gateway, **{field: value})
    assert (reply.status, reply.error["param"]) == (400, field)
    assert server.requested == []


async def test_fields_that_change_no_answer_reach_the_formats_that_have_them(
    gateway: InProcessGateway, server: FaultyModel, api: str
) -> None:
    """H08: the user, the cache's retention, the predicted output."""
    prediction = {"type": "content", "content": "The tide"}
    options = {"mode": "explicit", "ttl": "30m"}
    given = {
        "safety_identifier": "ada",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": options,
        "prediction": prediction,
    }
    assert (await chat(gateway, user="u-1", **given)).status == 200
    asked = server.recorded[-1].decoded()
    if api == "openai-chat":
        assert {name: asked[name] for name in given} == given
    elif api == "openai-responses":
        assert (asked["safety_identifier"], asked["prompt_cache_retention"]) == ("ada", "24h")
        assert asked["prompt_cache_options"] == options
    else:
        assert asked["metadata"] == {"user_id": "ada"}


async def test_a_schema_that_violates_strict_mode_is_a_client_error(
    gateway: InProcessGateway, server: FaultyModel, api: str
) -> None:
    """H08, H20: 400 with `param` and the provider's message; no other model is called."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    shape = {"type": "json_schema", "json_schema": {"name": "town", "strict": True, "schema": schema}}
    reply = await chat(gateway, response_format=shape)
    if api == "anthropic":  # has no such rule
        assert reply.status == 200
        return
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "response_format", "invalid_value")
    assert "additionalProperties" in reply.error["message"]
    assert server.requested == ["first"]
    kept = {**schema, "required": ["name"], "additionalProperties": False}
    shape["json_schema"] = {"name": "town", "strict": True, "schema": kept}
    assert (await chat(gateway, response_format=shape)).status == 200


async def test_json_mode_without_the_word_json_is_refused_where_the_provider_requires_it(
    gateway: InProcessGateway, server: FaultyModel, api: str
) -> None:
    """H08, H20: OpenAI refuses `json_object` for messages without that word; this is a client error."""
    reply = await chat(gateway, response_format={"type": "json_object"})
    if api == "openai-responses":
        assert (reply.status, reply.error["param"]) == (400, "response_format")
    else:
        assert reply.status == 200, reply.body
    assert server.requested == ["first"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_refused_field_is_named_as_the_caller_named_it(
    gateway: InProcessGateway, server: FaultyModel, api: str, field: str, stream: bool
) -> None:
    """H08, H20: the limit of tokens has two names."""
    reply = await chat(gateway, stream=stream, **{field: 1})
    if api == "openai-responses":
        assert (reply.status, reply.error["param"]) == (400, field)
        assert f"`{field}`" in reply.error["message"]
    else:
        assert reply.status == 200, reply.body


async def test_a_message_name_reaches_the_model(gateway: InProcessGateway, server: FaultyModel, api: str) -> None:
    """H04: in the format that supports it, without the characters that OpenAI refuses."""
    messages = [
        {"role": "user", "name": "Ann Lee", "content": "hi"},
        {"role": "assistant", "name": "tide", "content": "Hello."},
        {"role": "user", "name": "bob", "content": "hi"},
        USER,
    ]
    assert (await chat(gateway, messages=messages)).status == 200
    assert (await chat(gateway, messages=[messages[2]], session="n")).status == 200
    assert server.stats()["refusals"] == []
    if api == "openai-chat":
        first, second = (record.decoded()["messages"][1:] for record in list(server.recorded)[-2:])
        assert [message.get("name") for message in first] == ["Ann_Lee", "tide", "bob", None]
        assert [message.get("name") for message in second] == ["bob"]


async def test_a_tool_result_may_contain_a_picture(gateway: InProcessGateway, server: FaultyModel) -> None:
    """H04, D3: as LangChain sends the pictures of a tool."""
    url = "data:image/png;base64," + base64.b64encode(saved(plain(4, 4), "PNG")).decode()
    asked = {"id": "c1", "type": "function", "function": {"name": "draw", "arguments": "{}"}}
    content = [{"type": "text", "text": "drawn"}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c1", "content": content},
    ]
    reply = await chat(gateway, messages=messages)
    assert reply.status == 200, reply.body
    assert server.stats()["refusals"] == []


@pytest.mark.parametrize("prefix", ["", "data:text/markdown;base64,"])
async def test_a_file_of_text_becomes_text(gateway: InProcessGateway, server: FaultyModel, prefix: str) -> None:
    """H04: with its name, as a data URL or as base64 only."""
    file = {"filename": "tides.md", "file_data": prefix + base64.b64encode("# High tide at noön".encode()).decode()}
    parts = [{"type": "text", "text": "Read this."}, {"type": "file", "file": file}]
    reply = await chat(gateway, messages=[{"role": "user", "content": parts}])
    assert reply.status == 200, reply.body
    sent = server.recorded[-1].body.decode()
    assert "Read this.\\nFile 'tides.md':\\n# High tide at noön" in sent
    assert server.stats()["refusals"] == []


def document(
    data: bytes, name: str | None = "tides.pdf", prefix: str = "data:application/pdf;base64,"
) -> dict[str, Any]:
    file = {"file_data": prefix + base64.b64encode(data).decode()}
    return {"type": "file", "file": file if name is None else {"filename": name, **file}}


def documents(body: Any) -> list[tuple[str, bytes]]:
    """The name and the bytes of each document in a request of any format, in order."""
    if isinstance(body, list):
        return [found for item in body for found in documents(item)]
    if not isinstance(body, dict):
        return []
    if body.get("type") == "document":
        return [(body["title"], base64.b64decode(body["source"]["data"]))]
    if "file_data" in body:
        return [(body["filename"], base64.b64decode(body["file_data"].removeprefix("data:application/pdf;base64,")))]
    return [found for item in body.values() for found in documents(item)]


def settings_with_vision(server: FaultyModel, api: str) -> str:
    return toml(server.base_url, formats=(api, api, api), each="vision = true")


async def test_a_pdf_reaches_the_model_unchanged_even_after_a_restart(
    tmp_path: Path, server: FaultyModel, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H04, D3, B4: with its name, small and large, in a named conversation and in a single call."""
    monkeypatch.setenv(KEY, "sesame")
    settings = settings_with_vision(server, api)
    parts = [{"type": "text", "text": "Read this."}, document(PDF), document(LARGE_PDF, "ebb & flöd.pdf", prefix="")]
    messages = [{"role": "user", "content": parts}]
    given = [("tides.pdf", PDF), ("ebb & flöd.pdf", LARGE_PDF)]
    async with in_process_gateway(tmp_path / "home", toml=settings) as gateway:
        once = await chat(gateway, messages=messages)
        assert once.status == 200, once.body
        assert documents(server.recorded[-1].decoded()) == given
        named = await chat(gateway, messages=messages, session="papers")
        assert named.status == 200, named.body
        assert documents(server.recorded[-1].decoded()) == given
    async with in_process_gateway(tmp_path / "home", toml=settings) as gateway:
        assert (await chat(gateway, "And now?", session="papers")).status == 200
        assert documents(server.recorded[-1].decoded()) == given
    assert server.stats()["refusals"] == []


async def test_a_pdf_without_a_name_or_in_a_tool_result_is_accepted(
    tmp_path: Path, server: FaultyModel, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H04, D3: each format supports it."""
    monkeypatch.setenv(KEY, "sesame")
    asked = {"id": "c1", "type": "function", "function": {"name": "print", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [document(PDF, None)]},
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "printed"}, document(LARGE_PDF)]},
    ]
    async with in_process_gateway(tmp_path / "home", toml=settings_with_vision(server, api)) as gateway:
        reply = await chat(gateway, messages=messages)
    assert reply.status == 200, reply.body
    assert documents(server.recorded[-1].decoded()) == [("document.pdf", PDF), ("tides.pdf", LARGE_PDF)]
    assert server.stats()["refusals"] == []


async def test_a_model_without_vision_gets_a_description_of_a_pdf(
    gateway: InProcessGateway, server: FaultyModel
) -> None:
    """H04, D3: it gets a note, not an error."""
    reply = await chat(gateway, messages=[{"role": "user", "content": [document(LARGE_PDF, "a\nb.pdf")]}])
    assert reply.status == 200, reply.body
    sent = server.recorded[-1].body.decode()
    assert "[A document (application/pdf, a?b.pdf) stands here, which this model cannot read.]" in sent
    assert documents(server.recorded[-1].decoded()) == []
    assert server.stats()["refusals"] == []


async def test_json_without_a_schema_is_supported_by_every_format(
    gateway: InProcessGateway, server: FaultyModel
) -> None:
    """H09: as an instruction, where the provider does not support it."""
    reply = await chat(gateway, "Say it as json.", response_format={"type": "json_object"})
    assert reply.status == 200, reply.body
    assert "one JSON object" in server.recorded[-1].body.decode() or "json_object" in server.recorded[-1].body.decode()
    assert server.stats()["refusals"] == []


@pytest.mark.parametrize(
    "wish", ["go [together weather {} clock {}]", "go [together weather {} tides {}]"], ids=["with own", "left open"]
)
async def test_results_of_a_step_are_read_in_the_order_of_its_calls_live_and_after_a_restart(
    tmp_path: Path, server: FaultyModel, api: str, wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2, H09: whoever ran the tools, and whenever the results arrived, so that the provider's cache is used."""
    monkeypatch.setenv(KEY, "sesame")
    settings = toml(server.base_url, formats=(api, *FORMATS[:2]))
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "tides")]
    shown: list[list[str]] = []

    async def ask(h: InProcessGateway, **fields: Any) -> Any:
        reply = await chat(h, session="notes", tools=tools, **fields)
        assert reply.status == 200, reply.body
        sent = server.recorded[-1].body.decode()
        shown.append(sorted((mark for mark in ("sunny", "(UTC)", "No result") if mark in sent), key=sent.find))
        return reply.json["choices"][0]["message"]

    async with in_process_gateway(tmp_path / "other", toml=settings) as h:
        [first, *_] = (await ask(h, text=wish))["tool_calls"]
        await ask(h, messages=[{"role": "tool", "tool_call_id": first["id"], "content": "sunny"}])
    async with in_process_gateway(tmp_path / "other", toml=settings) as h:
        await ask(h, text="and now")
    in_order = ["sunny", "(UTC)" if "clock" in wish else "No result"]
    assert shown == [[], in_order, in_order]
    assert server.stats()["refusals"] == []


async def test_disabling_parallel_tool_calls_is_translated_for_each_format(
    gateway: InProcessGateway, server: FaultyModel, api: str
) -> None:
    """H08: `parallel_tool_calls` has another name at Anthropic's."""
    reply = await chat(gateway, parallel_tool_calls=False)
    assert reply.status == 200, reply.body
    asked = server.recorded[-1].decoded()
    if api == "anthropic":
        assert asked["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    else:
        assert asked["parallel_tool_calls"] is False
    assert server.stats()["refusals"] == []


@pytest.mark.parametrize("session", [None, "n"])
@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_choice_of_allowed_tools_limits_every_step_without_changing_the_tools(
    gateway: InProcessGateway, server: FaultyModel, api: str, mode: str, session: str | None
) -> None:
    """H08, H09: `required` applies to the first step, the limit to all of them; Anthropic's format has no such
    choice."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("depth", "width")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [*tools[:1], named("clock")]}}
    reply = await chat(gateway, "go [tool clock {}] [tool depth {}]", session=session, tools=tools, tool_choice=choice)
    if api == "anthropic":
        assert (reply.status, reply.error["param"], reply.error["code"]) == (
            400,
            "tool_choice",
            "unsupported_parameter",
        )
        assert server.requested == []
        return
    assert reply.status == 200, reply.body
    assert [call["function"]["name"] for call in reply.json["choices"][0]["message"]["tool_calls"]] == ["depth"]
    first, second = (recorded.decoded() for recorded in server.recorded)
    assert first["tools"] == second["tools"] and len(first["tools"]) > len(tools)
    sent = [request["tool_choice"].get("allowed_tools", request["tool_choice"]) for request in (first, second)]
    assert [each["mode"] for each in sent] == [mode, "auto"]
    names = [tool.get("name") or tool["function"]["name"] for tool in sent[1]["tools"]]
    assert names == ["depth", "clock"]
    assert server.stats()["refusals"] == []


@pytest.mark.parametrize(
    ("allowed", "where"),
    [
        ([], "tool_choice.allowed_tools.tools"),
        (["tides"], "tool_choice"),
        ([""], "tool_choice"),
        (["depth", "tides"], "tool_choice"),
        ([{"type": "custom", "custom": {"name": "depth"}}], "tool_choice.allowed_tools.tools[0].type"),
    ],
)
async def test_only_tools_that_are_offered_can_be_allowed(
    gateway: InProcessGateway, server: FaultyModel, allowed: list[Any], where: str
) -> None:
    """H09, H20: anything else is the caller's error, with every format."""
    listed = [each if isinstance(each, dict) else named(each) for each in allowed]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": listed}}
    reply = await chat(gateway, tools=[named("depth")], tool_choice=choice)
    assert (reply.status, reply.error["param"]) == (400, where)
    assert server.requested == []


async def test_whole_numbers_of_logit_bias_stay_whole(gateway: InProcessGateway, server: FaultyModel, api: str) -> None:
    """H08: strict servers refuse `-100.0` where the caller wrote `-100`."""
    reply = await chat(gateway, logit_bias={"17": -100, "18": 0.5}, session="n")
    if api == "openai-chat":
        assert b'"logit_bias":{"17":-100,"18":0.5}' in server.recorded[-1].body
    else:
        assert (reply.status, reply.error["param"]) == (400, "logit_bias")


async def test_thinking_is_not_switched_on_to_switch_it_off(
    gateway: InProcessGateway, server: FaultyModel, api: str
) -> None:
    """H08: a model that the gateway does not know may not be able to think at all."""
    assert (await chat(gateway, reasoning_effort="none")).status == 200
    assert not {"thinking", "output_config", "reasoning", "reasoning_effort"} & set(server.recorded[-1].decoded())


@pytest.mark.parametrize("effort", ["low", "xhigh", "max"])
async def test_a_reasoning_effort_that_the_model_has_reaches_it_unchanged(
    tmp_path: Path, server: FaultyModel, api: str, effort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H08: a higher one would cost more than the caller asked for."""
    monkeypatch.setenv(KEY, "sesame")
    formats = (api, *(other for other in FORMATS if other != api))
    settings = toml(server.base_url, formats=formats, each='efforts = ["low", "high", "xhigh", "max"]')
    async with in_process_gateway(tmp_path / "home", toml=settings) as h:
        assert (await chat(h, reasoning_effort=effort)).status == 200
    asked = server.recorded[-1].decoded()
    sent = asked.get("reasoning_effort") or (asked.get("reasoning") or asked.get("output_config"))["effort"]
    assert sent == effort


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}
