"""LangChain's ChatOpenAI."""

import json
import uuid
from typing import Any

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
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


class Town(BaseModel):
    """A town."""

    name: str
    people: int


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def model(agent: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"base_url": BASE_URL, "api_key": KEY, "model": agent, "max_retries": 0, **options})


def loop(bound: Any, messages: list[Any]) -> str:
    """Ask, run the tools, ask again."""
    while True:
        answer = bound.invoke(messages)
        if not answer.tool_calls:
            return str(answer.content)
        messages += [answer, *(add.invoke(call) for call in answer.tool_calls)]


@check(agents=AGENTS[:1])
def example(agent: str) -> None:
    run_examples("LangChain")


@check()
def plain(agent: str) -> None:
    same(model(agent).invoke("hello").content, ANSWER)


@check()
async def stream(agent: str) -> None:
    same("".join(str(chunk.content) for chunk in model(agent).stream("hello")), ANSWER)
    same("".join([str(chunk.content) async for chunk in model(agent).astream("hello")]), ANSWER)


@check()
def usage(agent: str) -> None:
    assert model(agent).invoke("hello").usage_metadata["total_tokens"] > 0
    chunks = list(model(agent, stream_usage=True).stream("hello"))
    assert sum((chunk.usage_metadata or {}).get("total_tokens", 0) for chunk in chunks) > 0


@check()
def system(agent: str) -> None:
    same(model(agent).invoke([SystemMessage("Greet the user.")]).content, ANSWER)


@check()
def turns(agent: str) -> None:
    messages: list[Any] = [SystemMessage("Be brief."), HumanMessage("hello")]
    messages += [model(agent).invoke(messages), HumanMessage("[say two]")]
    same(model(agent).invoke(messages).content, "two")


@check()
def session(agent: str) -> None:
    named = model(agent, default_headers={"X-Session-Id": uuid.uuid4().hex})
    named.invoke("My name is Ada.")
    named.invoke("Who am I?")
    assert "My name is Ada." in json.dumps(sent()[-1])


@check()
def tools(agent: str) -> None:
    same(loop(model(agent).bind_tools([add]), [HumanMessage('[tool add {"a": 2, "b": 3}]')]), ANSWER)


@check()
async def tools_stream(agent: str) -> None:
    bound = model(agent).bind_tools([add])
    gathered: Any = None
    async for chunk in bound.astream('[tool add {"a": 2, "b": 3}]'):
        gathered = chunk if gathered is None else gathered + chunk
    (call,) = gathered.tool_calls
    same((call["name"], call["args"]), ("add", {"a": 2, "b": 3}))


@check()
def tools_session(agent: str) -> None:
    named = model(agent, default_headers={"X-Session-Id": uuid.uuid4().hex}).bind_tools([add])
    same(loop(named, [HumanMessage('[tool add {"a": 2, "b": 3}]')]), ANSWER)


@check()
def parallel(agent: str) -> None:
    bound = model(agent).bind_tools([add])
    answer = bound.invoke('[together add {"a": 1, "b": 1} add {"a": 2, "b": 2}]')
    same([call["args"] for call in answer.tool_calls], [{"a": 1, "b": 1}, {"a": 2, "b": 2}])


@check()
def own_tools(agent: str) -> None:
    same(model(agent).bind_tools([add]).invoke("[tool clock {}]").content, ANSWER)
    assert_merged()


@check()
def schema(agent: str) -> None:
    forget()
    structured = model(agent).with_structured_output(Town)
    same(structured.invoke('[say {"name": "Ely", "people": 2}]'), Town(name="Ely", people=2))
    assert has_schema(sent()[-1]), "the model was not sent the schema"


@check()
def schema_by_tool(agent: str) -> None:
    structured = model(agent).with_structured_output(Town, method="function_calling")
    same(structured.invoke('[tool Town {"name": "Ely", "people": 2}]'), Town(name="Ely", people=2))


@check()
def json_mode(agent: str) -> None:
    structured = model(agent).with_structured_output(Town, method="json_mode")
    same(structured.invoke('As JSON. [say {"name": "Ely", "people": 2}]'), Town(name="Ely", people=2))


@check()
def image(agent: str) -> None:
    forget()
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": picture_url()}}]
    same(model(agent).invoke([HumanMessage(parts)]).content, ANSWER)  # type: ignore[arg-type]
    assert has_picture(sent()[-1])


@check()
def image_alone(agent: str) -> None:
    parts = [{"type": "text", "text": ""}, {"type": "image_url", "image_url": {"url": picture_url()}}]
    same(model(agent).invoke([HumanMessage(parts)]).content, ANSWER)  # type: ignore[arg-type]


@check()
def image_in_a_result(agent: str) -> None:
    call = {"id": "call_1", "name": "look", "args": {}}
    part = {"type": "image_url", "image_url": {"url": picture_url()}}
    messages = [HumanMessage("Look."), AIMessage("", tool_calls=[call]), ToolMessage([part], tool_call_id="call_1")]
    same(model(agent).bind_tools([add]).invoke(messages).content, ANSWER)


@check(agents=AGENTS[:2])
def continued(agent: str) -> None:
    same(model(agent).invoke([HumanMessage("[say the level]"), AIMessage("The gate keeps")]).content, "the level")


@check()
def empty(agent: str) -> None:
    messages = [HumanMessage("hello"), AIMessage(""), HumanMessage("again")]
    same(model(agent).invoke(messages).content, ANSWER)


@check(agents=AGENTS[:1])
def unknown_model(agent: str) -> None:
    with fails(openai.NotFoundError, says="responses"):
        model("no-such-agent").invoke("hello")


@check(agents=AGENTS[:1])
def wrong_key(agent: str) -> None:
    with fails(openai.AuthenticationError):
        model(agent, api_key="wrong").invoke("hello")


@check(agents=(SMALL,))
def too_long(agent: str) -> None:
    with fails(ContextOverflowError):
        model(agent).invoke(TOO_LONG)


@check()
def rate_limit(agent: str) -> None:
    with fails(openai.RateLimitError):
        model(agent).invoke("[status 429]")


@check()
def retry(agent: str) -> None:
    same(model(agent).invoke("[status 503 times=1]").content, ANSWER)


if __name__ == "__main__":
    run()
