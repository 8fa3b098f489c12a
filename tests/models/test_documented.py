"""The documentation page about models is correct."""

import re
from pathlib import Path

import pytest

from tidegate.config import Config, ModelSettings, read
from tidegate.models.catalog.catalog import Catalog
from tidegate.models.catalog.facts import UNKNOWN_OUTPUT, UNKNOWN_WINDOW

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text()
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PROVIDERS = ("openai", "claude", "router", "azure", "gemini", "llamacpp", "vllm", "ollama")
SHIPPED = Catalog.shipped()


OTHER_KINDS = ("near", "ears", "voice")
CHAT = '[models.a-chat-model]\napi = "demo"\n'


def config(block: str) -> Config:
    """The configuration of an example; with a chat model, if it is of another kind."""
    other = any(f"[models.{name}]" in block for name in OTHER_KINDS) and "[models.openai]" not in block
    return read(CHAT + block if other else block, ROOT)


def test_there_is_an_example_for_every_kind_of_provider() -> None:
    names = [name for block in BLOCKS for name in config(block).models if name != "a-chat-model"]
    assert set(PROVIDERS) | set(OTHER_KINDS) <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("]")[0].strip("["))
def test_an_example_can_be_copied(block: str) -> None:
    """X22: it is valid as it is, all its models are known, and keys occur in it only as references."""
    found = config(block)
    assert not found.demo
    for model in found.models.values():
        if model.api == "demo":
            continue
        facts = SHIPPED.facts_of(model)
        assert facts.known
        assert facts.prices is not None, model.model
        local = model.base_url.startswith("http://127.0.0.1")
        assert bool(model.references) != local
        assert not local or (model.context_window and facts.prices.input == 0)
        assert model.base_url.rpartition("/")[2] in ("v1", "openai")


def test_all_examples_fit_into_one_file() -> None:
    assert len(config("\n".join(BLOCKS)).models) == len(PROVIDERS) + len(OTHER_KINDS) + 2


def test_the_documented_defaults_of_unknown_models_are_correct() -> None:
    table = dict(re.findall(r"^\| (`[a-z_`, ]+`) \| (.*) \|$", PAGE.partition("## What is known")[2], re.MULTILINE))
    assert table["`context_window`"].startswith(f"{UNKNOWN_WINDOW:,} ")
    assert table["`max_output`"].startswith(f"{UNKNOWN_OUTPUT:,} ")
    for api in ("openai-chat", "openai-responses", "anthropic"):
        facts = SHIPPED.facts_of(ModelSettings(api=api, model="nobody-knows-this"))  # type: ignore[arg-type]
        words = table["`efforts`"].partition(",")[2 if api == "anthropic" else 0]
        assert [facts.efforts[0], facts.efforts[-1]] == re.findall("`(low|high|max)`", words)
        assert f"`{facts.thinking}` for" in table["`thinking`"]


def test_every_documented_setting_exists() -> None:
    settings = {*ModelSettings.__struct_fields__, "fallback", "reasoning"}
    for name in re.findall(r"`((?:price|cache|max|context|first)_[a-z_]+|keys?|efforts|thinking|vision|audio)`", PAGE):
        assert name in settings
