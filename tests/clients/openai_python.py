"""The official Python client."""

import base64
import json
import uuid
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.clients.check import (
    AGENTS,
    ANSWER,
    BASE_URL,
    KEY,
    SMALL,
    TOO_LONG,
    assert_merged,
    check,
    fails,
    forget,
    has_picture,
    has_schema,
    picture_url,
    run,
    run_examples,
    same,
    sent,
)

client = OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


class Town(BaseModel):
    name: str
    people: int


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def ask(agent: str, messages: list[Any], **options: Any) -> Any:
    return client.chat.completions.create(model=agent, messages=messages, **options)


def add(call: Any) -> dict[str, Any]:
    """Run the tool; its result as a message."""
    given = json.loads(call.function.arguments)
    return {"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])}


def last_result(agent: str) -> str:
    """The result of the last tool call that the model was sent."""
    request = sent()[-1]
    if agent == "responses":
        return str([item["output"] for item in request["input"] if item.get("type") == "function_call_output"][-1])
    if agent == "anthropic":
        blocks = [block for message in request["messages"] for block in message["content"] if isinstance(block, dict)]
        return str([block["content"] for block in blocks if block["type"] == "tool_result"][-1])
    return str([message["content"] for message in request["messages"] if message["role"] == "tool"][-1])


@check(agents=AGENTS[:1])
def example(agent: str) -> None:
    run_examples("openai (Python)")


@check(agents=AGENTS[:1])
def models(agent: str) -> None:
    same(sorted(model.id for model in client.models.list()), sorted([*AGENTS, SMALL]))
    same(client.models.retrieve(agent).id, agent)


@check()
def plain(agent: str) -> None:
    answer = ask(agent, user("hello"))
    same(answer.choices[0].message.content, ANSWER)
    same(answer.choices[0].finish_reason, "stop")


@check()
def stream(agent: str) -> None:
    chunks = list(ask(agent, user("hello"), stream=True))
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER)
    same(chunks[-1].choices[0].finish_reason, "stop")


@check()
def usage(agent: str) -> None:
    assert ask(agent, user("hello")).usage.total_tokens > 0
    chunks = list(ask(agent, user("hello"), stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices


@check()
def system(agent: str) -> None:
    same(ask(agent, [{"role": "system", "content": "Greet the user."}]).choices[0].message.content, ANSWER)


@check()
def turns(agent: str) -> None:
    messages = user("hello")
    for text in ("[say two]", "[say three]"):
        messages.append(ask(agent, messages).choices[0].message)
        messages += user(text)
    same(ask(agent, messages).choices[0].message.content, "three")


@check()
def session(agent: str) -> None:
    headers = {"X-Session-Id": uuid.uuid4().hex}
    ask(agent, user("My name is Ada."), extra_headers=headers)
    ask(agent, user("Who am I?"), extra_headers=headers)
    assert "My name is Ada." in json.dumps(sent()[-1])


@check()
def tools(agent: str) -> None:
    messages = user('[tool add {"a": 2, "b": 3}]')
    answer = ask(agent, messages, tools=[ADD]).choices[0]
    same(answer.finish_reason, "tool_calls")
    (call,) = answer.message.tool_calls
    messages += [answer.message, add(call)]
    same(ask(agent, messages, tools=[ADD]).choices[0].message.content, ANSWER)
    assert "5" in last_result(agent)


@check()
def tools_stream(agent: str) -> None:
    messages = user('[tool add {"a": 2, "b": 3}]')
    with client.chat.completions.stream(model=agent, messages=messages, tools=[ADD]) as events:
        answer = events.get_final_completion().choices[0]
    same(answer.finish_reason, "tool_calls")
    (call,) = answer.message.tool_calls
    messages += [{"role": "assistant", "tool_calls": [call.to_dict()]}, add(call)]
    with client.chat.completions.stream(model=agent, messages=messages, tools=[ADD]) as events:
        same(events.get_final_completion().choices[0].message.content, ANSWER)


@check()
def tools_session(agent: str) -> None:
    headers = {"X-Session-Id": uuid.uuid4().hex}
    messages = user('[tool clock {}] [tool add {"a": 2, "b": 3}]')
    answer = ask(agent, messages, tools=[ADD], extra_headers=headers).choices[0]
    same([call.function.name for call in answer.message.tool_calls], ["add"])
    messages += [answer.message, add(answer.message.tool_calls[0])]
    same(ask(agent, messages, tools=[ADD], extra_headers=headers).choices[0].message.content, ANSWER)
    assert "5" in last_result(agent)
    same(ask(agent, user("[say again]"), tools=[ADD], extra_headers=headers).choices[0].message.content, "again")


@check()
def parallel(agent: str) -> None:
    messages = user('[together add {"a": 1, "b": 1} add {"a": 2, "b": 2}]')
    answer = ask(agent, messages, tools=[ADD]).choices[0].message
    same(len(answer.tool_calls), 2)
    messages += [answer, *(add(call) for call in answer.tool_calls)]
    same(ask(agent, messages, tools=[ADD]).choices[0].message.content, ANSWER)


@check()
def own_tools(agent: str) -> None:
    same(ask(agent, user("[tool clock {}]"), tools=[ADD]).choices[0].message.content, ANSWER)
    assert_merged()


@check()
def tools_failure(agent: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    past = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "5"}]
    messages = [*user("hello"), *past, {"role": "assistant", "content": "It is 5."}, *user("[status 400]")]
    with fails(openai.APIStatusError, says="Scripted failure"):
        ask(agent, messages)
    with fails(openai.APIStatusError, says="Scripted failure"):
        list(ask(agent, messages, stream=True))


@check()
def schema(agent: str) -> None:
    forget()
    parsed = client.chat.completions.parse(
        model=agent, messages=user('[say {"name": "Ely", "people": 20000}]'), response_format=Town
    )
    same(parsed.choices[0].message.parsed, Town(name="Ely", people=20000))
    assert has_schema(sent()[-1]), "the model was not sent the schema"
    headers = {"X-Session-Id": uuid.uuid4().hex}
    parsed = client.chat.completions.parse(
        model=agent, messages=user('[say {"name": "Ely", "people": 2}]'), response_format=Town, extra_headers=headers
    )
    same(parsed.choices[0].message.parsed.people, 2)


@check()
def image(agent: str) -> None:
    forget()
    part = {"type": "image_url", "image_url": {"url": picture_url()}}
    same(
        ask(agent, [{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}]).choices[0].message.content,
        ANSWER,
    )
    assert has_picture(sent()[-1])


@check()
def image_alone(agent: str) -> None:
    parts = [{"type": "text", "text": ""}, {"type": "image_url", "image_url": {"url": picture_url()}}]
    same(ask(agent, [{"role": "user", "content": parts}]).choices[0].message.content, ANSWER)
    # Compatible servers also accept the plain address.
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": picture_url()}]
    same(ask(agent, [{"role": "user", "content": parts}]).choices[0].message.content, ANSWER)


@check()
def continued(agent: str) -> None:
    messages = [*user("[say the level]"), {"role": "assistant", "content": "The gate keeps"}]
    try:
        same(ask(agent, messages).choices[0].message.content, "the level")
    except openai.BadRequestError as error:
        # The newest models of this format do not continue a message.
        same((agent, error.param), ("anthropic", "messages"))
    headers = {"X-Session-Id": uuid.uuid4().hex}
    with fails(openai.BadRequestError, says="assistant"):
        ask(agent, messages, extra_headers=headers)


@check()
def empty(agent: str) -> None:
    for content in ("", None):
        messages = [*user("hello"), {"role": "assistant", "content": content}, *user("again")]
        same(ask(agent, messages).choices[0].message.content, ANSWER)
    answer = ask(agent, user("[say]")).choices[0].message
    same(ask(agent, [*user("[say]"), answer, *user("hello")]).choices[0].message.content, ANSWER)


@check()
def fields(agent: str) -> None:
    forget()
    ask(agent, user("hello"), tools=[ADD], parallel_tool_calls=False, user="ada", metadata={"a": "b"})
    request = sent()[-1]
    if agent == "anthropic":
        same(request["tool_choice"], {"type": "auto", "disable_parallel_tool_use": True})
    else:
        same(request["parallel_tool_calls"], False)
    ask(agent, user("hello"), max_tokens=-1)
    ask(agent, user("hello"), user=7, metadata={"count": 1})  # As compatible servers do.
    with fails(openai.BadRequestError, says="'param': 'n'"):
        ask(agent, user("hello"), n=2)
    if agent == "main":
        given = {
            "seed": 7,
            "frequency_penalty": 0.5,
            "presence_penalty": 0.25,
            "logit_bias": {"50256": -100},
            "service_tier": "flex",
            "verbosity": "low",
            "prompt_cache_key": "ada",
        }
        ask(agent, user("hello"), **given)
        same({name: sent()[-1].get(name) for name in given}, given)
    # Either applied by cutting, or refused by its name.
    try:
        same(ask(agent, user("[say one two three]"), stop=["two"]).choices[0].message.content.strip(), "one")
    except openai.BadRequestError as error:
        same(error.param, "stop")


@check(agents=AGENTS[:1])
def unknown_model(agent: str) -> None:
    with fails(openai.NotFoundError, says="'code': 'model_not_found'"):
        ask("no-such-agent", user("hello"))
    with fails(openai.NotFoundError, says="responses"):
        ask("no-such-agent", user("hello"))


@check(agents=AGENTS[:1])
def wrong_key(agent: str) -> None:
    for key in ("sk-wrong", "schlüssel".encode("latin-1").decode("ascii", "ignore") + "x"):
        stranger = OpenAI(base_url=BASE_URL, api_key=key, max_retries=0)
        with fails(openai.AuthenticationError, says="'code': 'invalid_api_key'"):
            stranger.chat.completions.create(model=agent, messages=user("hello"))


@check(agents=(SMALL,))
def too_long(agent: str) -> None:
    with fails(openai.BadRequestError, says="'code': 'context_length_exceeded'"):
        ask(agent, user(TOO_LONG))
    with fails(openai.BadRequestError, says="'code': 'context_length_exceeded'"):
        list(ask(agent, user(TOO_LONG), stream=True))


@check()
def rate_limit(agent: str) -> None:
    with fails(openai.RateLimitError):
        ask(agent, user("[status 429]"))


@check()
def retry(agent: str) -> None:
    same(ask(agent, user("[status 503 times=1]")).choices[0].message.content, ANSWER)


@check()
def retries(agent: str) -> None:
    forget()
    patient = OpenAI(base_url=BASE_URL, api_key=KEY)
    with fails(openai.APIStatusError):
        patient.chat.completions.create(model=agent, messages=user("[status 503]"))
    assert len(sent()) <= 6, f"{len(sent())} requests to the model"
    forget()
    with fails(openai.APIStatusError):
        patient.chat.completions.create(model=agent, messages=user("[status 400]"))
    same(len(sent()), 1)


@check(agents=AGENTS[:1])
def not_offered(agent: str) -> None:
    with fails(openai.NotFoundError, says="embeddings"):
        client.embeddings.create(model=agent, input="hello")
    with fails(openai.NotFoundError, says="responses"):
        client.responses.create(model=agent, input="hello")


@check()
async def asynchronous(agent: str) -> None:
    async with AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0) as patient:
        answer = await patient.chat.completions.create(model=agent, messages=user("hello"))
        same(answer.choices[0].message.content, ANSWER)
        chunks = [
            chunk
            async for chunk in await patient.chat.completions.create(model=agent, messages=user("hello"), stream=True)
        ]
        same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER)


@check(agents=AGENTS[:1])
def request_id(agent: str) -> None:
    raw = client.chat.completions.with_raw_response.create(model=agent, messages=user("hello"))
    assert raw.headers.get("x-request-id"), "no x-request-id"
    for model, text in (("no-such-agent", "hello"), (agent, "[status 400]")):
        try:
            ask(model, user(text))
        except openai.APIStatusError as error:
            assert error.request_id, "no x-request-id with an error"
            same(error.response.headers.get("x-should-retry", "false"), "false")


@check()
def name_clash(agent: str) -> None:
    """The agent's tool takes precedence, and a header says so."""
    clash = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
    raw = client.chat.completions.with_raw_response.create(
        model=agent, messages=user("[tool clock {}]"), tools=[clash, ADD]
    )
    same(raw.parse().choices[0].message.content, ANSWER)
    assert_merged()
    assert any("clock" in value for value in raw.headers.values()), f"no header names the clash: {raw.headers}"


@check()
def other_tools_in_a_session(agent: str) -> None:
    """Another set of tools replaces the first, and a header says so."""
    headers = {"X-Session-Id": uuid.uuid4().hex}
    first = client.chat.completions.with_raw_response.create(
        model=agent, messages=user("hello"), tools=[ADD], extra_headers=headers
    )
    other = {**ADD, "function": {**ADD["function"], "name": "sum"}}  # type: ignore[dict-item]
    second = client.chat.completions.with_raw_response.create(
        model=agent, messages=user("[say two]"), tools=[other], extra_headers=headers
    )
    same(second.parse().choices[0].message.content, "two")
    assert '"sum"' in json.dumps(sent()[-1]["tools"])
    new = set(second.headers) - set(first.headers)
    assert new, "no header says that the tools were replaced"


@check()
def picture_in_a_result(agent: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    part = {"type": "image_url", "image_url": {"url": picture_url()}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": [part]}
    same(
        ask(agent, [*user("Look."), {"role": "assistant", "tool_calls": [call]}, result]).choices[0].message.content,
        ANSWER,
    )
    assert has_picture(sent()[-1])


@check()
def file(agent: str) -> None:
    data = "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.7\n").decode()
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": data}}
    same(
        ask(agent, [{"role": "user", "content": [{"type": "text", "text": "Read."}, part]}]).choices[0].message.content,
        ANSWER,
    )


if __name__ == "__main__":
    run()
