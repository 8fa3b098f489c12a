"""Plausibility of token counts that providers report, in every format."""

from typing import Any
from urllib.parse import quote

import pytest

from bench.scripted_model import ScriptedModel
from tests.faulty_model import FORMATS
from tests.logs import capture_logs
from tests.models.support import ask, configured
from tidegate.models import checked_usage
from tidegate.values import Usage

pytestmark = pytest.mark.anyio

WINDOW = 50_000
COUNTS = ("input", "output", "cached", "written", "reasoning")
NO_COUNTS = {
    "huge": str(2**63 - 1),
    "long": "9" * 5000,
    "over": "1e999",
    "negative": "-5",
    "true": "true",
    "words": '"many"',
    "list": "[1,[2,{}]]",
    "object": '{"a":{"b":1}}',
    "deep": "[" * 3000 + "]" * 3000,
    "nan": "NaN",
    "infinite": "-Infinity",
    "octal": "007",
    "empty": "",
}


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", FORMATS)
async def test_no_implausible_count_fails_an_answer_or_is_charged(
    server: ScriptedModel, api: str, streamed: bool
) -> None:
    """X22, A2: with any value instead of a count, the answer is complete, and its charge is plausible and marked as
    estimated."""
    fields = [*COUNTS, "all"] if api == "anthropic" else [*COUNTS, "total", "all"]
    async with configured(server.base_url, api=api, key="env:CANARY", context_window=WINDOW) as model:
        directive = "" if streamed else "[whole]"
        for field in fields:
            for name, value in NO_COUNTS.items():
                with capture_logs() as lines:
                    answer = await ask(model, f"[say low tide] {directive} [usage {field}={quote(value)}]")
                    usage = checked_usage(model, answer.usage, asked=20_000, received=8)
                at = (api, field, name)
                assert answer.text == "low tide", at
                assert 0 < usage.input <= 20_000 and 0 < usage.output <= 8, at
                assert usage.cached + usage.written <= usage.input and usage.reasoning <= usage.output, at
                if field in ("input", "output", "all"):
                    assert usage.estimated, at
                missing = (field, name) == ("all", "object")
                assert len(lines) == (usage.estimated and not missing), at


@pytest.mark.parametrize("api", FORMATS)
async def test_a_plausible_count_is_kept(server: ScriptedModel, api: str) -> None:
    """A2: also as a float, and up to the window or the bytes, whichever is more."""
    async with configured(server.base_url, api=api, key="env:CANARY", context_window=WINDOW) as model:
        for count in ("40000", "40000.0", str(WINDOW)):
            with capture_logs() as lines:
                answer = await ask(model, f"[say low tide] [usage input={count} output=3 cached=0 written=0 total=0]")
                usage = checked_usage(model, answer.usage, asked=2000, received=8)
            assert (usage.input, usage.output, usage.estimated, lines) == (int(float(count)), 3, False, [])
        assert checked_usage(model, Usage(input=90_000, output=1), asked=90_000, received=8).input == 90_000
        assert checked_usage(model, Usage(input=90_001, output=1), asked=90_000, received=8).estimated


@pytest.mark.parametrize(
    ("reported", "charged"),
    [
        (None, {"input": 500, "output": 2}),
        (Usage(), {"input": 500, "output": 2}),
        (Usage(input=10), {"input": 10, "output": 2}),
        (Usage(output=5), {"input": 500, "output": 5}),
        (Usage(input=10, output=5, cached=11), {"input": 10, "output": 5, "cached": 0}),
        (Usage(input=10, output=5, cached=8, written=3), {"input": 10, "output": 5, "cached": 8, "written": 0}),
        (Usage(input=10, output=5, reasoning=6), {"input": 10, "output": 5, "reasoning": 0}),
        (Usage(input=10**9, output=5, cached=400), {"input": 500, "output": 5, "cached": 400}),
    ],
)
async def test_each_count_is_checked_separately(
    server: ScriptedModel, reported: Usage | None, charged: dict[str, Any]
) -> None:
    """X22: a missing or implausible count is estimated; the other counts stay. The price follows."""
    prices = {"price_input": 1.0, "price_output": 2.0}
    async with configured(server.base_url, context_window=WINDOW, **prices) as model:
        usage = checked_usage(model, reported, asked=2000, received=8)
        assert {name: getattr(usage, name) for name in charged} == charged
        assert usage.estimated
        assert usage.cost == 1000 * usage.input + 2000 * usage.output
