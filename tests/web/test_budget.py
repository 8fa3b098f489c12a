"""The daily cap and the cost of a stopped turn, as a client sees them."""

from pathlib import Path

import anyio
import openai
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import open_ids
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import Reply, call, chat

pytestmark = pytest.mark.anyio

SMALL = "[limits]\nday_tokens = 10"


async def test_at_the_cap_clients_get_429_with_the_limit_and_a_retry_time(home: Path, model: ScriptedModel) -> None:
    """X22, H20, H21: in OpenAI's format, complete and streamed; reading continues, and the operator sees it."""
    async with in_process_gateway(home, SMALL, model=model) as h:
        assert (await chat(h, "one", session="n")).status == 200
        for stream in (False, True):
            refused = await chat(h, "two", session="n", stream=stream)
            assert refused.status == 429
            assert (refused.error["type"], refused.error["code"]) == ("rate_limit_error", "budget_spent")
            assert "limits.day_tokens" in refused.error["message"]
            assert 1 <= int(refused.headers["Retry-After"]) <= 86400
        assert (await call(h, "GET", "/api/sessions")).status == 200
        spent = (await call(h, "GET", "/api/status")).json["budgets"][0]["tokens"]
        assert spent > 10
        metrics = (await call(h, "GET", "/metrics")).body.decode()
        assert f"tidegate_day_tokens {float(spent)}" in metrics
        assert 'tidegate_limit{name="day_tokens"} 10.0' in metrics
        assert len(model.recorded) == 1


async def test_the_official_client_does_not_retry_at_the_cap(home: Path, model: ScriptedModel) -> None:
    """X22, H19: it is told to retry in hours, so one call is one turn."""
    async with in_process_gateway(home, SMALL, model=model) as h:
        await chat(h, "one")
        async with openai.AsyncOpenAI(base_url=f"{h.url}/v1", api_key=h.key, timeout=WAIT, max_retries=2) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(model="main", messages=[{"role": "user", "content": "two"}])
        if int(refused.value.response.headers["Retry-After"]) > 3600:  # not in the last minutes of a day
            assert h.service.status().turns.failed == 1


async def test_the_usage_of_a_stopped_answer_is_marked_as_estimated(
    gateway: InProcessGateway, model: ScriptedModel
) -> None:
    """H10, H13: the text that was sent is charged."""
    replies: list[Reply] = []

    async def say() -> None:
        replies.append(await chat(gateway, "one [words 400] [hang after=20]", session="n"))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(say)
            while not ((turns := await open_ids(gateway)) and (log := gateway.service.turn_log(turns[0]))):
                await anyio.sleep(0.005)
            while not log.draft():
                await anyio.sleep(0.005)
            await call(gateway, "POST", f"/api/sessions/{log.session}/stop")
    usage = replies[0].json["usage"]
    assert usage["estimated"] is True
    assert usage["prompt_tokens"] > 0 and usage["completion_tokens"] > 0
    whole = (await chat(gateway, "two", session="n")).json["usage"]
    assert "estimated" not in whole
