"""OpenAI's Agents SDK, on chat completions."""

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

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
)
from openai.types.responses import ResponseTextDeltaEvent


class Town(BaseModel):
    name: str
    people: int


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def model(agent: str, **options: Any) -> OpenAIChatCompletionsModel:
    given = {"base_url": BASE_URL, "api_key": KEY, "max_retries": 0, **options}
    return OpenAIChatCompletionsModel(agent, openai.AsyncOpenAI(**given))


def helper(agent: str, **options: Any) -> Agent[Any]:
    return Agent("Helper", instructions="Help.", **{"model": model(agent), **options})


async def ask(helping: Agent[Any], text: Any, **options: Any) -> Any:
    return (await Runner.run(helping, text, **options)).final_output


@check(agents=AGENTS[:1])
def example(agent: str) -> None:
    run_examples("openai-agents")


@check()
async def plain(agent: str) -> None:
    same(await ask(helper(agent), "hello"), ANSWER)


@check()
async def stream(agent: str) -> None:
    running = Runner.run_streamed(helper(agent), "hello")
    said = ""
    async for event in running.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            said += event.data.delta
    same(said, ANSWER)


@check()
async def usage(agent: str) -> None:
    assert (await Runner.run(helper(agent), "hello")).context_wrapper.usage.total_tokens > 0
    running = Runner.run_streamed(helper(agent, model_settings=ModelSettings(include_usage=True)), "hello")
    async for _ in running.stream_events():
        pass
    assert running.context_wrapper.usage.total_tokens > 0


@check()
async def turns(agent: str) -> None:
    remembered = SQLiteSession(uuid.uuid4().hex)
    await ask(helper(agent), "My name is Ada.", session=remembered)
    same(await ask(helper(agent), "[say two]", session=remembered), "two")
    assert "My name is Ada." in json.dumps(sent()[-1])


@check()
async def session(agent: str) -> None:
    headers = {"X-Session-Id": uuid.uuid4().hex}
    named = helper(agent, model=model(agent, default_headers=headers))
    await ask(named, "My name is Ada.")
    await ask(named, "Who am I?")
    assert "My name is Ada." in json.dumps(sent()[-1])


@check()
async def tools(agent: str) -> None:
    same(await ask(helper(agent, tools=[add]), '[tool add {"a": 2, "b": 3}]'), ANSWER)


@check()
async def tools_stream(agent: str) -> None:
    running = Runner.run_streamed(helper(agent, tools=[add]), '[tool add {"a": 2, "b": 3}]')
    async for _ in running.stream_events():
        pass
    same(running.final_output, ANSWER)


@check()
async def tools_session(agent: str) -> None:
    headers = {"X-Session-Id": uuid.uuid4().hex}
    named = helper(agent, model=model(agent, default_headers=headers), tools=[add])
    same(await ask(named, '[tool clock {}] [tool add {"a": 2, "b": 3}]'), ANSWER)


@check()
async def parallel(agent: str) -> None:
    helping = helper(agent, tools=[add], model_settings=ModelSettings(parallel_tool_calls=True))
    same(await ask(helping, '[together add {"a": 1, "b": 1} add {"a": 2, "b": 2}]'), ANSWER)


@check()
async def own_tools(agent: str) -> None:
    same(await ask(helper(agent, tools=[add]), "[tool clock {}]"), ANSWER)
    assert_merged()


@check()
async def schema(agent: str) -> None:
    forget()
    same(await ask(helper(agent, output_type=Town), '[say {"name": "Ely", "people": 2}]'), Town(name="Ely", people=2))
    assert has_schema(sent()[-1]), "the model was not sent the schema"


@check()
async def handoff(agent: str) -> None:
    other = Agent("Other", instructions="You are the other one.", model=model(agent))
    result = await Runner.run(helper(agent, handoffs=[other]), "[tool transfer_to_other {}]")
    same((result.final_output, result.last_agent.name), (ANSWER, "Other"))
    assert "You are the other one." in json.dumps(sent()[-1])


@check()
async def forced_tool(agent: str) -> None:
    helping = helper(agent, tools=[add], model_settings=ModelSettings(tool_choice="required"))
    same(await ask(helping, '[tool add {"a": 2, "b": 3}]'), ANSWER)


@check()
async def image(agent: str) -> None:
    forget()
    parts = [
        {"type": "input_text", "text": "What?"},
        {"type": "input_image", "image_url": picture_url(), "detail": "auto"},
    ]
    same(await ask(helper(agent), [{"role": "user", "content": parts}]), ANSWER)
    assert has_picture(sent()[-1])


@check(agents=AGENTS[:1])
async def unknown_model(agent: str) -> None:
    with fails(openai.NotFoundError, says="responses"):
        await ask(helper("no-such-agent"), "hello")


@check(agents=AGENTS[:1])
async def wrong_key(agent: str) -> None:
    with fails(openai.AuthenticationError):
        await ask(helper(agent, model=model(agent, api_key="wrong")), "hello")


@check(agents=(SMALL,))
async def too_long(agent: str) -> None:
    with fails(openai.BadRequestError, says="context_length_exceeded"):
        await ask(helper(agent), TOO_LONG)


@check()
async def rate_limit(agent: str) -> None:
    with fails(openai.RateLimitError):
        await ask(helper(agent), "[status 429]")


@check()
async def retry(agent: str) -> None:
    same(await ask(helper(agent), "[status 503 times=1]"), ANSWER)


@check(agents=AGENTS[:1])
async def not_offered(agent: str) -> None:
    """Without `chat_completions` the SDK uses the Responses API."""
    client = openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
    with fails(openai.NotFoundError, says="/v1/responses"):
        await client.responses.create(model=agent, input="hello")


if __name__ == "__main__":
    run()
