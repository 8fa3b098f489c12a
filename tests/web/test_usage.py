"""Usage, cost and budgets, as a client sees them."""

from pathlib import Path
from typing import Any

import openai
import pytest

from bench.scripted_model import ScriptedModel
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import call, chat
from tidegate.store import usage
from tidegate.values import Usage

pytestmark = pytest.mark.anyio

PRICED = """
[models.main]
api = "openai-chat"
base_url = "{url}"
model = "scripted"
retries = 0
price_input = 1000
price_output = 2000
[agents.main]
model = "main"
[agents.second]
model = "main"
"""


def priced(model: ScriptedModel, budgets: str = "") -> str:
    return PRICED.format(url=model.base_url) + budgets


async def used(h: InProcessGateway, key: str | None = None, **query: Any) -> Any:
    reply = await call(h, "GET", "/api/usage", params=query, **({} if key is None else {"key": key}))
    assert reply.status == 200, reply.body
    return reply.json


async def test_users_see_their_own_usage_and_the_owner_all(home: Path, model: ScriptedModel) -> None:
    """X05, X22: tokens and dollars, by every grouping."""
    async with in_process_gateway(home, model=model, toml=priced(model)) as h:
        anna = await h.add_key("anna")
        told = [(await chat(h, "hello", session="mine")).json["usage"], (await chat(h, "one-shot")).json["usage"]]
        hers = (await chat(h, "hi", session="hers", key=anna)).json["usage"]
        mine = await used(h, anna)
        (row,) = mine["rows"]
        assert (row["key"], row["calls"]) == ("scripted", 1)
        assert (row["input"], row["output"]) == (hers["prompt_tokens"], hers["completion_tokens"])
        cost = hers["prompt_tokens"] / 1000 + hers["completion_tokens"] / 500
        assert row["cost"] == pytest.approx(cost)
        assert mine["total"] == {**row, "key": ""} and mine["more"] is False
        everything = await used(h, by="principal")
        assert {row["name"]: row["calls"] for row in everything["rows"]} == {"owner": 2, "anna": 1}
        tokens = sum(each["total_tokens"] for each in (*told, hers))
        assert everything["total"]["input"] + everything["total"]["output"] == tokens
        assert [row["name"] for row in (await used(h, anna, by="principal"))["rows"]] == ["anna"]


@pytest.mark.parametrize("by", usage.BY)
async def test_usage_can_be_grouped_by_every_attribute_of_a_call(home: Path, model: ScriptedModel, by: str) -> None:
    async with in_process_gateway(home, model=model, toml=priced(model)) as h:
        await chat(h, "hello", session="mine")
        found = await used(h, by=by)
        assert found["by"] == by and len(found["rows"]) == 1 and found["until"] is None
        assert found["total"]["calls"] == 1


async def test_a_time_is_a_span_or_a_date_of_utc(home: Path, model: ScriptedModel) -> None:
    """From its first moment, and before its last; if there are too many rows, the newest are returned."""
    rows = [("2026-11-01T00:00:00", 1), ("2026-11-01T23:59:59", 2), ("2026-11-02T00:00:00", 4), ("2026-12-24", 8)]

    def fill(db: Any) -> None:
        from datetime import UTC, datetime

        for text, tokens in rows:
            usage.add(
                db, session=None, principal=None, agent="main", channel="http", model="m", turn=None,
                tokens=Usage(input=tokens), now=datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp(),
            )  # fmt: skip

    async with in_process_gateway(home, model=model, toml=priced(model)) as h:
        await h.store.write(fill)
        for since, until, tokens in (
            ("2026-11-01", "2026-11-02", 3),
            ("2026-11-01T00:00:01", "2026-11-03", 6),
            ("2026-11-01T12:00", None, 14),
            ("2026-11-02T01:00:00+01:00", "2026-12-24", 4),
            ("36500d", None, 15),
        ):
            query = {"since": since} | ({} if until is None else {"until": until})
            assert (await used(h, **query))["total"]["input"] == tokens
        days = await used(h, by="day", since="2026-11-01", limit=2)
        assert [row["key"] for row in days["rows"]] == ["2026-11-02", "2026-12-24"]
        assert days["more"] is True and days["total"]["input"] == 15


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"by": "colour"}, "by"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-13-01"}, "since"),
        ({"since": "7d", "until": "30d"}, "until"),
        ({"until": "0001-01-01"}, "until"),
        ({"until": "soon"}, "until"),
        ({"limit": "0"}, "limit"),
        ({"limit": "many"}, "limit"),
    ],
)
async def test_a_wrong_value_is_refused_by_its_name(
    gateway: InProcessGateway, query: dict[str, str], param: str
) -> None:
    """H20: with 400 and one sentence."""
    reply = await call(gateway, "GET", "/api/usage", params=query)
    assert reply.status == 400
    assert reply.error["param"] == param and param in reply.error["message"]
    assert reply.error["message"].count("\n") == 0


async def test_a_spent_budget_is_429_and_its_state_is_visible(home: Path, model: ScriptedModel) -> None:
    """X22, H20: users see their own budgets and those of their conversation; the owner, all; others', none."""
    budgets = """
    [budgets.people]
    per = "principal"
    each = "total"
    tokens = 10
    only = ["anna"]
    [budgets.talk]
    per = "session"
    each = "day"
    money = 100
    """
    async with in_process_gateway(home, model=model, toml=priced(model, budgets)) as h:
        anna = await h.add_key("anna")
        first = await chat(h, "hello", session="hers", key=anna)
        session = (await call(h, "GET", "/api/sessions", key=anna)).json["sessions"][0]["id"]
        refused = await chat(h, "again", session="hers", key=anna)
        assert refused.status == 429 and refused.error["code"] == "budget_spent"
        assert "budgets.people" in refused.error["message"]
        assert "Retry-After" not in refused.headers and refused.headers["x-should-retry"] == "false"
        mine = (await call(h, "GET", "/api/budgets", key=anna)).json
        (budget,) = mine["budgets"]
        spent = first.json["usage"]["total_tokens"]
        assert (budget["setting"], budget["name"], budget["tokens"]) == ("budgets.people", "anna", spent)
        assert budget["used"] == spent / 10 and budget["opens"] is None and mine["more"] is False
        with_session = (await call(h, "GET", "/api/budgets", params={"session": session}, key=anna)).json["budgets"]
        assert [each["setting"] for each in with_session] == ["budgets.people", "budgets.talk"]
        assert with_session[1]["money"] > 0 and with_session[1]["money_limit"] == 100
        bert = await h.add_key("bert")
        assert (await call(h, "GET", "/api/budgets", key=bert)).json["budgets"] == []
        assert (await call(h, "GET", "/api/budgets", params={"session": session}, key=bert)).status == 404
        everything = (await call(h, "GET", "/api/budgets")).json["budgets"]
        assert [each["setting"] for each in everything] == ["limits.day_tokens", "budgets.people"]
        assert (await chat(h, "hello", key=bert)).status == 200


async def test_the_official_client_does_not_retry_when_waiting_does_not_help(home: Path, model: ScriptedModel) -> None:
    """X22, H19: one call is one turn."""
    budgets = '[budgets.all]\nper = "gateway"\neach = "total"\ntokens = 10\n'
    async with in_process_gateway(home, model=model, toml=priced(model, budgets)) as h:
        await chat(h, "one")
        async with openai.AsyncOpenAI(base_url=f"{h.url}/v1", api_key=h.key, timeout=WAIT, max_retries=2) as client:
            with pytest.raises(openai.RateLimitError, match="raise that limit"):
                await client.chat.completions.create(model="main", messages=[{"role": "user", "content": "two"}])
        assert h.service.status().turns.failed == 1


async def test_metrics_show_tokens_cost_and_budgets(home: Path, model: ScriptedModel) -> None:
    """X22: by model and kind, and by the gateway's own budgets; no label comes from a client."""
    budgets = '[budgets.all]\nper = "gateway"\neach = "month"\nmoney = 1\n'
    budgets += '[budgets.each]\nper = "principal"\neach = "month"\nmoney = 1\n'
    async with in_process_gateway(home, model=model, toml=priced(model, budgets)) as h:
        first = (await chat(h, "hello", session="s")).json["usage"]
        again = (await chat(h, "again", session="s")).json["usage"]
        metrics = (await call(h, "GET", "/metrics")).body.decode()
        tokens = {
            "input": first["prompt_tokens"] + again["prompt_tokens"],
            "cached": again["prompt_tokens_details"]["cached_tokens"],
            "output": first["completion_tokens"] + again["completion_tokens"],
        }
        assert tokens["cached"] > 0
        for kind, count in tokens.items():
            assert f'tidegate_tokens_total{{kind="{kind}",model="scripted"}} {float(count)}' in metrics
        cost = tokens["input"] / 1000 + tokens["output"] / 500
        (line,) = (line for line in metrics.splitlines() if line.startswith("tidegate_cost_dollars_total{"))
        assert float(line.split()[1]) == pytest.approx(cost) and 'model="scripted"' in line
        assert 'tidegate_model_calls_total{model="scripted"} 2.0' in metrics
        ratios = [line for line in metrics.splitlines() if line.startswith("tidegate_budget_used_ratio{")]
        assert [line.partition("}")[0].partition("{")[2] for line in ratios] == [
            'budget="limits.day_tokens"',
            'budget="budgets.all"',
        ]
        assert float(ratios[1].split()[1]) == pytest.approx(cost)


async def test_the_notice_at_four_fifths_is_an_event_of_the_stream(home: Path, model: ScriptedModel) -> None:
    """X22: for clients that get all events; the answer itself is unchanged."""
    budgets = '[budgets.all]\nper = "gateway"\neach = "day"\ntokens = 20\n'
    async with in_process_gateway(home, model=model, toml=priced(model, budgets)) as h:
        reply = await chat(h, "hello", stream=True, headers={"X-Events": "full"})
        notices = [data["text"] for name, data in reply.events if name == "notice"]
        assert reply.status == 200 and reply.streamed
        assert len(notices) == 1 and "of 20 tokens today (budgets.all)" in notices[0]
