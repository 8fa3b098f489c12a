"""The page about recall is correct."""

import re
from pathlib import Path

import pytest

from tests.in_process import in_process_gateway
from tidegate.config import read

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "recall.md").read_text()
TOML = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
((TALK, INDEX),) = [
    (talk, code)
    for talk in re.findall(r"^```\n(> .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
]
MEANING, OWN_INDEX = (next(block for block in TOML if key in block) for key in ("embeddings =", "index ="))
MODEL = '[models.main]\napi = "demo"\n'


def timeless(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME", text).strip()


async def test_the_documented_conversation_is_exact(tmp_path: Path) -> None:
    """X19: with the settings of the page."""
    async with in_process_gateway(tmp_path, toml=MODEL + TOML[0]) as h:
        for part in TALK.removeprefix("> ").split("\n> "):
            said, _, wanted = part.partition("\n")
            answer = (await h.chat(said, "talk"))["choices"][0]["message"]["content"]
            assert not wanted or timeless(answer) == timeless(wanted), said


def test_the_settings_for_meaning_on_the_page_are_valid(tmp_path: Path) -> None:
    found = read(MODEL + MEANING, tmp_path)
    assert found.models[found.context.embeddings].kind == "embeddings"


def _put(home: Path) -> None:
    (home / "plugins").mkdir()
    (home / "plugins" / "nearby.py").write_text(INDEX)


async def test_the_index_on_the_page_answers(tmp_path: Path) -> None:
    _put(tmp_path)
    text = MODEL + '[agents.main]\ntools = ["context"]\n' + OWN_INDEX
    assert read(text, tmp_path).context.index == "nearby"
    async with in_process_gateway(tmp_path, toml=text) as h:
        assert h.components.recall is not None and h.components.recall.index is not None
        for said in ("my boat is red", "my dog is brown"):
            await h.chat(said, "talk")
        await h.components.recall.index.feed()
        answer = (await h.chat("search for a boat", "talk"))["choices"][0]["message"]["content"]
        assert "| my boat is red" in answer.split("message 3")[0] and "full-text" not in answer


def test_every_documented_call_is_valid() -> None:
    from tidegate.tools import builtin_toolsets

    tools = {tool.name: tool for tool in builtin_toolsets(["context"])["context"].tools}
    calls = re.findall(r"`(context_\w+)\(([^)]*)\)`", PAGE)
    assert {name for name, _ in calls} == set(tools)
    for name, arguments in calls:
        schema = tools[name].definition.parameters
        for argument in re.findall(r"(\w+)=", arguments):
            assert f'"{argument}"'.encode() in bytes(schema), (name, argument)
