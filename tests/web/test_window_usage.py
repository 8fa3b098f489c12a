"""The content of a conversation's context window, and the number of compactions, over HTTP."""

from pathlib import Path

import pytest

from bench.scripted.behaviour import Behaviour
from bench.scripted_model import ScriptedModel
from tests.in_process import in_process_gateway
from tests.web.client import call, chat
from tidegate.models import SUMMARY_TASK

pytestmark = pytest.mark.anyio

SMALL = """
[models.main]
api = "openai-chat"
base_url = "{url}"
model = "scripted"
context_window = 2048
max_output = 256
[agents.main]
model = "main"
"""
WORDS = "the tide comes in and the tide goes out " * 10


async def test_users_see_what_fills_the_window_of_their_own_conversations(home: Path, model: ScriptedModel) -> None:
    """X05: not those of others."""
    model.behave(Behaviour(marker=SUMMARY_TASK, windows={"*": 2048}))
    async with in_process_gateway(home, model=model, toml=SMALL.format(url=model.base_url)) as h:
        anna = await h.add_key("anna")
        for _ in range(30):
            assert (await chat(h, WORDS, session="long", key=anna)).status == 200
        (view,) = (await call(h, "GET", "/api/sessions", key=anna)).json["sessions"]
        found = await call(h, "GET", f"/api/sessions/{view['id']}/context", key=anna)
        assert found.status == 200
        assert found.json["tokens"] <= found.json["hard"] < found.json["window"] == 2048
        assert found.json["summaries"] >= 1 and found.json["summarised"] > 20
        assert abs(sum(part["tokens"] for part in found.json["parts"]) - found.json["tokens"]) <= len(
            found.json["parts"]
        )
        bert = await h.add_key("bert")
        assert (await call(h, "GET", f"/api/sessions/{view['id']}/context", key=bert)).status == 404
        assert (await call(h, "GET", "/api/sessions/s_none/context", key=anna)).status == 404
        metrics = (await call(h, "GET", "/metrics")).body.decode()
        assert 'tidegate_compactions_total{how="summary"}' in metrics
        assert 'tidegate_compactions_total{how="useless"} 0' in metrics
    assert model.stats()["too_much"] == 0
