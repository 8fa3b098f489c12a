"""Facts about models, from the shipped catalogue and from the configuration."""

import gc
import time
import tomllib
import tracemalloc
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config import ModelSettings
from tidegate.models.catalog.catalog import ANTHROPIC_EFFORTS, CHAT_EFFORTS, FILE, Catalog, Family
from tidegate.models.catalog.facts import UNKNOWN_OUTPUT, UNKNOWN_WINDOW, Facts, Prices
from tidegate.models.formats.call_parameters import nearest_effort
from tidegate.values import Usage

SHIPPED = Catalog.shipped()
TABLES: dict[str, dict[str, Any]] = tomllib.loads(FILE.read_text())
PATTERNS = sorted(pattern for table in TABLES.values() for pattern in table["models"])
WORDS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def facts(model: str, api: Any = "openai-chat", **given: Any) -> Facts:
    return SHIPPED.facts_of(ModelSettings(api=api, base_url="https://h/v1", model=model, **given))


def made(**models: list[float]) -> Catalog:
    """A catalogue in which the window identifies the pattern."""
    families = {
        pattern: Family(window=1000 + number, thinking="none", models={pattern.replace("_", "*"): prices})
        for number, (pattern, prices) in enumerate(models.items())
    }
    return Catalog(families)


OTHER_KINDS = ("text-embedding", "whisper", "tts")


@pytest.mark.parametrize("title", TABLES)
def test_every_family_of_the_file_is_consistent(title: str) -> None:
    """An error there would be a wrong bill or a refused request."""
    table = TABLES[title]
    assert 1024 <= table["window"] <= 2_000_000
    assert 1024 <= table.get("output", UNKNOWN_OUTPUT) <= table["window"]
    is_chat = not any(pattern.startswith(OTHER_KINDS) for pattern in table["models"])
    assert is_chat or table["thinking"] == "none"
    assert (table.get("minute", 0) == 0 or not is_chat) and (table.get("characters", 0) == 0 or not is_chat)
    efforts, chat = table.get("efforts", []), table.get("chat", [])
    assert [word for word in WORDS if word in efforts] == efforts
    assert set(chat) <= set(efforts)
    assert bool(efforts) == (table["thinking"] in ("effort", "adaptive"))
    assert table["models"]
    for pattern, prices in table["models"].items():
        assert pattern == pattern.lower() and ":" not in pattern and "/" not in pattern
        assert prices == [] or 2 <= len(prices) <= 5
        if not is_chat:
            assert prices[1:] == [0] and (0 < prices[0] <= 1 or "minute" in table or "characters" in table)
        elif prices:
            asked, answered, *others = prices
            assert 0 < asked < answered <= 200
            assert all(0 < price <= 2 * asked for price in others)
            assert len(others) < 1 or others[0] < asked, "the cache is no bargain"
            assert len(others) < 2 or others[1] == pytest.approx(1.25 * asked)
            assert len(others) < 3 or others[2] == pytest.approx(2 * asked)
    if "long" in table:
        tokens, *times = table["long"]
        assert tokens < table["window"] and all(1 < each <= 5 for each in times)


def test_no_pattern_occurs_twice() -> None:
    """Otherwise the order of the file would matter."""
    assert len(set(PATTERNS)) == len(PATTERNS)


def test_every_pattern_can_be_reached_by_its_own_name() -> None:
    for title, table in TABLES.items():
        for pattern in table["models"]:
            assert facts(pattern.replace("*", "-x-")).window == table["window"], (title, pattern)


@pytest.mark.parametrize(
    ("name", "as_if"),
    [
        ("openai/gpt-5-mini", "gpt-5-mini"),
        ("gpt-5-mini-2025-08-07", "gpt-5-mini"),
        ("openai/gpt-4o-2024-11-20:extended", "gpt-4o"),
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("anthropic/claude-opus-5.5", "claude-opus-5-5"),
        ("anthropic/claude-sonnet-4.5:beta", "claude-sonnet-4-5"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("accounts/someone/models/gpt-oss-120b", "gpt-oss-120b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-instruct-2507"),
        ("qwen3:8b", "qwen3-8b"),
        ("gemma4:31b", "gemma-4-31b-it"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3.3"),
        ("llama3.2-vision:11b", "llama-3.2-11b-vision-instruct"),
    ],
)
def test_a_model_is_found_with_vendor_suffix_and_date(name: str, as_if: str) -> None:
    found = facts(name)
    assert found.known
    assert found == facts(as_if)


@pytest.mark.parametrize(
    "name", ["gpt-4-1106-preview", "claude-opus-5-6", "gpt-5.9", "o33", "my-gpt-5", "gpt-5-minimax", "", "*", "gpt*"]
)
def test_a_similar_name_does_not_get_the_facts_of_a_known_model(name: str) -> None:
    """A later release may cost ten times as much."""
    assert not facts(name).known
    assert facts(name).prices is None


def test_the_most_specific_pattern_wins_in_any_order() -> None:
    names = {"a-b-c": [1.0, 2.0], "a-b_": [], "a_": [], "_": [], "a_c": []}
    one, other = made(**names), made(**dict(reversed(names.items())))
    for name, pattern in [("a-b-c", "a-b-c"), ("a-b-d", "a-b_"), ("a-x-c", "a_c"), ("a-x", "a_"), ("z", "_")]:
        settings = ModelSettings(api="openai-chat", model=name)
        assert one.facts_of(settings).window == 1000 + list(names).index(pattern)
        assert other.facts_of(settings).window == 1000 + list(reversed(names)).index(pattern)


@given(st.lists(st.text("ab-", max_size=4), min_size=1, max_size=4), st.text("ab-", max_size=10))
def test_patterns_match_like_shell_globs(parts: list[str], name: str) -> None:
    import fnmatch

    pattern = "*".join(parts)
    catalogue = Catalog({"x": Family(window=7777, thinking="none", models={pattern: []})})
    fits = catalogue.facts_of(ModelSettings(api="openai-chat", model=name)).known
    assert fits == fnmatch.fnmatchcase(name, pattern)


def test_an_unknown_model_gets_safe_defaults() -> None:
    """A small window, no pictures, no sounds, no price; and the efforts of its API."""
    unknown = Facts(
        window=UNKNOWN_WINDOW, output=UNKNOWN_OUTPUT, thinking="effort", efforts=CHAT_EFFORTS, thinking_unknown=True
    )
    assert facts("some-model") == facts("some-model", "openai-responses") == unknown
    found = facts("some-model", "anthropic")
    assert (found.thinking, found.efforts, found.known) == ("adaptive", ANTHROPIC_EFFORTS, False)
    assert not (found.vision or found.audio)


def test_efforts_are_those_of_the_official_types() -> None:
    """As in the official packages."""
    from anthropic.types import OutputConfigParam
    from openai.types.shared.reasoning_effort import ReasoningEffort

    theirs = next(each for each in get_args(ReasoningEffort) if each is not type(None))
    assert set(get_args(theirs)) == set(WORDS)
    for word in ANTHROPIC_EFFORTS:
        assert f"'{word}'" in str(OutputConfigParam.__annotations__["effort"]).replace('"', "'")


def test_settings_override_the_catalogue() -> None:
    known = facts("gpt-5-mini")
    assert (known.window, known.vision, known.audio) == (400_000, True, False)
    set_ = facts(
        "gpt-5-mini", context_window=50_000, max_output=3_000, vision=False, audio=True, thinking="none",
        price_input=1.0, price_output=2.0,
    )  # fmt: skip
    assert (set_.window, set_.output, set_.vision, set_.audio) == (50_000, 3_000, False, True)
    assert (set_.thinking, set_.efforts) == ("none", ())
    assert set_.prices == Prices(input=1.0, output=2.0), "the catalogue's price for cached tokens is another provider's"
    assert facts("x", thinking="effort", efforts=("none", "high")).efforts == ("none", "high")
    assert facts("x", "anthropic", thinking="budget").efforts == ()


def test_a_model_is_known_if_its_settings_are_complete() -> None:
    assert not facts("x", context_window=8192).known
    assert not facts("x", vision=True).known
    assert facts("x", context_window=8192, vision=False).known


def test_a_smaller_configured_window_limits_the_output() -> None:
    assert facts("gpt-5", context_window=16_000).output == 4_000
    assert facts("x", context_window=4_096).output == 1_024
    assert facts("x", context_window=4_096, max_output=4_000).output == 4_000


def test_models_of_other_vendors_use_the_efforts_of_the_api() -> None:
    assert (facts("claude-opus-5-5").thinking, facts("claude-opus-5-5").efforts) == ("effort", CHAT_EFFORTS)
    assert facts("claude-haiku-4-5").thinking == "effort"
    native = facts("claude-haiku-4-5", "anthropic")
    assert (native.thinking, native.efforts) == ("budget", ())
    found = facts("deepseek-v4-pro", "anthropic")
    assert (found.thinking, found.efforts) == ("adaptive", ("high", "max"))
    assert facts("gpt-4o").thinking == facts("gpt-4o", "anthropic").thinking == "none"


def test_a_model_that_always_thinks_gets_its_lowest_effort() -> None:
    assert nearest_effort("off", facts("claude-opus-5-5", "anthropic").efforts) == "low"
    assert nearest_effort("off", facts("claude-opus-5", "anthropic").efforts) == "none"
    assert nearest_effort("off", facts("claude-opus-5-6", "anthropic").efforts) == "low"


def test_efforts_that_an_endpoint_refuses_are_left_out() -> None:
    assert nearest_effort("max", facts("gpt-6.1-sol").efforts) == "xhigh"
    assert nearest_effort("max", facts("gpt-6.1-sol", "openai-responses").efforts) == "max"


def test_the_demo_model_can_do_everything_and_costs_nothing() -> None:
    found = facts("", "demo")
    assert found.known and found.vision and found.audio
    assert found.prices is not None and found.prices.cost(Usage(input=10**9, output=10**9)) == 0
    assert nearest_effort("max", found.efforts) == "max" and nearest_effort("off", found.efforts) == "none"


def test_free_models_cost_nothing() -> None:
    for name in ("meta-llama/llama-3.3-70b-instruct:free", "some/thing:free"):
        prices = facts(name).prices
        assert prices is not None and prices.cost(Usage(input=1000, output=1000)) == 0
    assert facts("some/thing:free", price_input=1, price_output=1).prices == Prices(input=1, output=1)


def test_the_price_of_cache_writes_depends_on_the_cache_time() -> None:
    usage = Usage(input=1_000_000, written=1_000_000)
    short, long = (facts("claude-opus-5", "anthropic", cache_ttl=ttl).prices for ttl in ("5m", "1h"))
    assert short is not None and long is not None
    assert (short.cost(usage), long.cost(usage)) == (6_250_000_000, 10_000_000_000)


def test_long_requests_have_higher_prices_for_some_models() -> None:
    """For all of their tokens."""
    prices = facts("claude-haiku-5-5", "anthropic").prices
    assert prices is not None
    assert prices.cost(Usage(input=100_000, output=1_000)) == 10_500_000
    assert prices.cost(Usage(input=100_001, output=1_000)) == 5 * 10_500_100
    openai = facts("gpt-6.1-sol", "openai-responses").prices
    assert openai is not None
    assert openai.cost(Usage(input=300_000, cached=100_000, output=1_000)) == 2 * 410_000_000 + 15_000_000


def test_the_catalogue_is_read_quickly_and_nothing_of_it_is_kept() -> None:
    """It is read at every start, and a gateway with one model holds the facts of one. The fastest of several readings
    counts, because the machine may be busy."""
    settings = ModelSettings(api="openai-chat", model="gpt-5")
    times = []
    for _ in range(10):
        begun = time.process_time()
        Catalog.shipped().facts_of(settings)
        times.append(time.process_time() - begun)
    assert min(times) < 0.03
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [Catalog.shipped().facts_of(settings) for _ in range(5)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept[0] == kept[-1]
    assert after - before < 16 * 1024
