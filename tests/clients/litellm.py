"""LiteLLM as a library, with its provider prefix `openai/`."""

import json
import os
import uuid
from typing import Any

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

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


class Town(BaseModel):
    name: str
    people: int


def settings(agent: str, messages: Any, options: dict[str, Any]) -> dict[str, Any]:
    given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return {"model": f"openai/{agent}", "api_base": BASE_URL, "api_key": KEY, "messages": given, **options}


def ask(agent: str, messages: Any, **options: Any) -> Any:
    return litellm.completion(**settings(agent, messages, options))


def loop(agent: str, text: str, **options: Any) -> str:
    """Ask, run the tools, ask again."""
    messages: list[Any] = [{"role": "user", "content": text}]
    while True:
        answer = ask(agent, messages, tools=[ADD], **options).choices[0].message
        if not answer.tool_calls:
            return str(answer.content)
        messages.append(answer)
        for call in answer.tool_calls:
            given = json.loads(call.function.arguments)
            total = str(given["a"] + given["b"])
            messages.append({"role": "tool", "tool_call_id": call.id, "name": "add", "content": total})


@check(agents=AGENTS[:1])
def example(agent: str) -> None:
    run_examples("LiteLLM")


@check()
def plain(agent: str) -> None:
    same(ask(agent, "hello").choices[0].message.content, ANSWER)


@check()
async def stream(agent: str) -> None:
    chunks = list(ask(agent, "hello", stream=True))
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER)
    answer = await litellm.acompletion(**settings(agent, "hello", {"stream": True}))
    same("".join([chunk.choices[0].delta.content or "" async for chunk in answer]), ANSWER)


@check()
def usage(agent: str) -> None:
    assert ask(agent, "hello").usage.total_tokens > 0
    chunks = list(ask(agent, "hello", stream=True, stream_options={"include_usage": True}))
    assert any(getattr(chunk, "usage", None) for chunk in chunks)


@check()
def system(agent: str) -> None:
    same(ask(agent, [{"role": "system", "content": "Greet the user."}]).choices[0].message.content, ANSWER)


@check()
def turns(agent: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    messages += [ask(agent, messages).choices[0].message, {"role": "user", "content": "[say two]"}]
    same(ask(agent, messages).choices[0].message.content, "two")


@check()
def session(agent: str) -> None:
    headers = {"X-Session-Id": uuid.uuid4().hex}
    ask(agent, "My name is Ada.", extra_headers=headers)
    ask(agent, "Who am I?", extra_headers=headers)
    assert "My name is Ada." in json.dumps(sent()[-1])


@check()
def tools(agent: str) -> None:
    same(loop(agent, '[tool add {"a": 2, "b": 3}]'), ANSWER)


@check()
def tools_stream(agent: str) -> None:
    chunks = list(ask(agent, '[tool add {"a": 2, "b": 3}]', tools=[ADD], stream=True))
    (call,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls  # type: ignore[union-attr]
    same((call.function.name, json.loads(call.function.arguments)), ("add", {"a": 2, "b": 3}))


@check()
def tools_session(agent: str) -> None:
    headers = {"X-Session-Id": uuid.uuid4().hex}
    same(loop(agent, '[tool clock {}] [tool add {"a": 2, "b": 3}]', extra_headers=headers), ANSWER)


@check()
def parallel(agent: str) -> None:
    same(loop(agent, '[together add {"a": 1, "b": 1} add {"a": 2, "b": 2}]'), ANSWER)


@check()
def own_tools(agent: str) -> None:
    same(loop(agent, "[tool clock {}]"), ANSWER)
    assert_merged()


@check()
def schema(agent: str) -> None:
    forget()
    answer = ask(agent, '[say {"name": "Ely", "people": 2}]', response_format=Town)
    same(Town.model_validate_json(answer.choices[0].message.content), Town(name="Ely", people=2))
    assert has_schema(sent()[-1]), "the model was not sent the schema"


@check()
def image(agent: str) -> None:
    forget()
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": picture_url()}}]
    same(ask(agent, [{"role": "user", "content": parts}]).choices[0].message.content, ANSWER)
    assert has_picture(sent()[-1])


@check()
def image_alone(agent: str) -> None:
    # LiteLLM also accepts the plain address.
    parts = [{"type": "text", "text": ""}, {"type": "image_url", "image_url": picture_url()}]
    same(ask(agent, [{"role": "user", "content": parts}]).choices[0].message.content, ANSWER)


@check(agents=AGENTS[:2])
def continued(agent: str) -> None:
    messages = [{"role": "user", "content": "[say the level]"}, {"role": "assistant", "content": "The gate keeps"}]
    same(ask(agent, messages).choices[0].message.content, "the level")


@check()
def empty(agent: str) -> None:
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "again"},
    ]
    same(ask(agent, messages).choices[0].message.content, ANSWER)


@check()
def fields(agent: str) -> None:
    same(ask(agent, "hello", user=7, metadata={"count": 1}, max_tokens=100).choices[0].message.content, ANSWER)
    if agent == "main":
        forget()
        ask(agent, "hello", seed=7, presence_penalty=0.25)
        same((sent()[-1].get("seed"), sent()[-1].get("presence_penalty")), (7, 0.25))


@check(agents=AGENTS[:1])
def unknown_model(agent: str) -> None:
    with fails(litellm.NotFoundError, says="responses"):
        ask("no-such-agent", "hello")


@check(agents=AGENTS[:1])
def wrong_key(agent: str) -> None:
    with fails(litellm.AuthenticationError):
        ask(agent, "hello", api_key="wrong")


@check(agents=(SMALL,))
def too_long(agent: str) -> None:
    with fails(litellm.ContextWindowExceededError):
        ask(agent, TOO_LONG)


@check()
def rate_limit(agent: str) -> None:
    with fails(litellm.RateLimitError):
        ask(agent, "[status 429]", max_retries=0)


@check()
def retry(agent: str) -> None:
    same(ask(agent, "[status 503 times=1]").choices[0].message.content, ANSWER)


@check()
def retries(agent: str) -> None:
    forget()
    with fails(litellm.APIError, litellm.ServiceUnavailableError, litellm.InternalServerError):
        ask(agent, "[status 503]")
    assert len(sent()) < 12, f"{len(sent())} requests to the model"


if __name__ == "__main__":
    run()
