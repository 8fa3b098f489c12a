"""pydantic-ai's OpenAIChatModel."""

import json
import uuid
from typing import Any

import openai
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput, PromptedOutput
from pydantic_ai.exceptions import (
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelNotFoundError,
    ModelRateLimitError,
)
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

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
    picture,
    run,
    run_examples,
    same,
    sent,
)


class Town(BaseModel):
    name: str
    people: int


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def helper(agent: str, *, client: dict[str, Any] | None = None, **options: Any) -> Agent[None, Any]:
    settings = {"base_url": BASE_URL, "api_key": KEY, "max_retries": 0, **(client or {})}
    provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(**settings))
    return Agent(OpenAIChatModel(agent, provider=provider), **options)


@check(agents=AGENTS[:1])
def example(agent: str) -> None:
    run_examples("pydantic-ai")


@check()
async def plain(agent: str) -> None:
    same((await helper(agent).run("hello")).output, ANSWER)


@check()
async def stream(agent: str) -> None:
    async with helper(agent).run_stream("hello") as running:
        same("".join([text async for text in running.stream_text(delta=True)]), ANSWER)


@check()
async def usage(agent: str) -> None:
    used = (await helper(agent).run("hello")).usage
    assert (used() if callable(used) else used).output_tokens > 0
    async with helper(agent).run_stream("hello") as running:
        await running.get_output()
        used = running.usage
        assert (used() if callable(used) else used).output_tokens > 0


@check()
async def system(agent: str) -> None:
    same((await helper(agent, instructions="Greet the user.").run()).output, ANSWER)
    same((await helper(agent, system_prompt="Greet the user.").run()).output, ANSWER)


@check()
async def turns(agent: str) -> None:
    helping = helper(agent, instructions="Be brief.")
    first = await helping.run("My name is Ada.")
    same((await helping.run("[say two]", message_history=first.all_messages())).output, "two")
    assert "My name is Ada." in json.dumps(sent()[-1])


@check()
async def session(agent: str) -> None:
    named = helper(agent, client={"default_headers": {"X-Session-Id": uuid.uuid4().hex}})
    await named.run("My name is Ada.")
    await named.run("Who am I?")
    assert "My name is Ada." in json.dumps(sent()[-1])


@check()
async def tools(agent: str) -> None:
    same((await helper(agent, tools=[add]).run('[tool add {"a": 2, "b": 3}]')).output, ANSWER)


@check()
async def tools_stream(agent: str) -> None:
    async with helper(agent, tools=[add]).run_stream('[tool add {"a": 2, "b": 3}]') as running:
        same(await running.get_output(), ANSWER)


@check()
async def tools_session(agent: str) -> None:
    named = helper(agent, tools=[add], client={"default_headers": {"X-Session-Id": uuid.uuid4().hex}})
    same((await named.run('[tool clock {}] [tool add {"a": 2, "b": 3}]')).output, ANSWER)


@check()
async def parallel(agent: str) -> None:
    text = '[together add {"a": 1, "b": 1} add {"a": 2, "b": 2}]'
    same((await helper(agent, tools=[add]).run(text)).output, ANSWER)


@check()
async def own_tools(agent: str) -> None:
    same((await helper(agent, tools=[add]).run("[tool clock {}]")).output, ANSWER)
    assert_merged()


@check()
async def schema(agent: str) -> None:
    forget()
    text = '[say {"name": "Ely", "people": 2}]'
    same((await helper(agent, output_type=NativeOutput(Town)).run(text)).output, Town(name="Ely", people=2))
    assert has_schema(sent()[-1]), "the model was not sent the schema"


@check()
async def schema_by_tool(agent: str) -> None:
    """The default: a tool `final_result`, which the model must call."""
    text = '[tool final_result {"name": "Ely", "people": 2}]'
    same((await helper(agent, output_type=Town).run(text)).output, Town(name="Ely", people=2))


@check()
async def schema_by_prompt(agent: str) -> None:
    text = 'As JSON. [say {"name": "Ely", "people": 2}]'
    same((await helper(agent, output_type=PromptedOutput(Town)).run(text)).output, Town(name="Ely", people=2))


@check()
async def image(agent: str) -> None:
    forget()
    same((await helper(agent).run(["What?", BinaryContent(picture(), media_type="image/png")])).output, ANSWER)
    assert has_picture(sent()[-1])


@check()
async def image_alone(agent: str) -> None:
    same((await helper(agent).run([BinaryContent(picture(), media_type="image/png")])).output, ANSWER)


@check()
async def image_in_a_result(agent: str) -> None:
    def look() -> BinaryContent:
        """Looks at it."""
        return BinaryContent(picture(), media_type="image/png")

    same((await helper(agent, tools=[look]).run("[tool look {}]")).output, ANSWER)


@check(agents=AGENTS[:1])
async def unknown_model(agent: str) -> None:
    with fails(ModelNotFoundError, says="responses"):
        await helper("no-such-agent").run("hello")


@check(agents=AGENTS[:1])
async def wrong_key(agent: str) -> None:
    with fails(ModelAuthenticationError):
        await helper(agent, client={"api_key": "wrong"}).run("hello")


@check(agents=(SMALL,))
async def too_long(agent: str) -> None:
    with fails(ModelContextWindowExceededError):
        await helper(agent).run(TOO_LONG)


@check()
async def rate_limit(agent: str) -> None:
    with fails(ModelRateLimitError):
        await helper(agent).run("[status 429]")


@check()
async def retry(agent: str) -> None:
    same((await helper(agent).run("[status 503 times=1]")).output, ANSWER)


if __name__ == "__main__":
    run()
