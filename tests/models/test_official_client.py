"""The official client and ours against the same server with the same script: they must see the same."""

from typing import Any

import anyio
import msgspec
import openai
import pytest

from tests.models.support import PREFIX, ScriptedModel, ask, configured
from tidegate.values import Message

pytestmark = pytest.mark.anyio

SCRIPTS = [
    "hello",
    '[tool read_file {"path": "ä/ö.txt"}]',
    '[together clock {} read_file {"path": "x"} clock {"zone": "UTC"}]',
    "[words 3000]",
    '[say Grüße, 世界 🌊 and \\ "quotes"]',
    "[finish length]",
    "[badargs]",
]


def tools() -> Any:
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": msgspec.json.decode(tool.parameters),
            },
        }
        for tool in PREFIX.tools
    ]


async def official(
    server: ScriptedModel, script: str, *, stream: bool
) -> tuple[str, list[tuple[str, str, str]], str, tuple[int, int, int]]:
    messages: Any = [{"role": "system", "content": PREFIX.prompt}, {"role": "user", "content": script}]
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        if stream:
            async with client.chat.completions.stream(
                model="some-model", messages=messages, tools=tools(), stream_options={"include_usage": True}
            ) as events:
                async for _ in events:
                    pass
                snapshot: Any = events.current_completion_snapshot
        else:
            snapshot = await client.chat.completions.create(model="some-model", messages=messages, tools=tools())
    choice = snapshot.choices[0]
    usage = snapshot.usage
    assert usage is not None
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    return (
        choice.message.content or "",
        calls,
        choice.finish_reason,
        (usage.prompt_tokens, cached or 0, usage.completion_tokens),
    )


def seen(message: Message) -> tuple[str, list[tuple[str, str, str]], str, tuple[int, int, int]]:
    assert message.usage is not None
    calls = [(call.id, call.name, call.arguments) for call in message.calls]
    return message.text, calls, message.finish, (message.usage.input, message.usage.cached, message.usage.output)


@pytest.mark.parametrize("script", SCRIPTS)
async def test_ours_sees_what_the_official_client_sees(server: ScriptedModel, script: str) -> None:
    """S32: text, tool calls, finish and usage, for a plain answer, a tool call and a long answer, streamed and not."""
    with anyio.fail_after(60):
        async with configured(server.base_url) as model:
            server.reset()
            ours = await ask(model, script)
            assert ours.usage is not None
            server.reset()
            streamed = await official(server, script, stream=True)
            server.reset()
            whole = await official(server, script, stream=False)
    assert seen(ours) == streamed == whole
    assert server.stats()["refused"] == 0
