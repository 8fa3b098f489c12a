"""Budgets of a gateway in a process of its own: stop, notice, kill, and what keeps it from starting."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from bench.subjects import ScriptedModel
from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate

PRICE = "price_input = 1000\nprice_output = 1000\n"


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ScriptedModel]:
    with ScriptedModel(tmp_path / "model") as model:
        yield model


def home_with(tmp_path: Path, model: str, more: str) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    text = f'[models.main]\napi = "openai-chat"\nbase_url = "{model}/v1"\nmodel = "scripted"\nretries = 0\n'
    agent = '[agents.main]\nmodel = "main"\ntools = ["clock"]\napprovals = "autonomous"\n'
    (home / "tidegate.toml").write_text(f"{text}{more}")
    if "[agents" not in more:
        (home / "tidegate.toml").write_text(f"{text}{PRICE}{agent}{more}")
    return home


def refusal(running: GatewayProcess, text: str) -> Any:
    with pytest.raises(HTTPError) as caught:
        running.say(text)
    with caught.value as answer:
        assert answer.code == 429
        return {**json.loads(answer.read())["error"], "retry_after": answer.headers["Retry-After"]}


def notices(running: GatewayProcess, text: str) -> list[str]:
    """The notices of a turn, as a reader of its events gets them."""
    key = (running.home / "api-key").read_text().strip()
    body = {"model": "main", "stream": True, "messages": [{"role": "user", "content": text}]}
    request = Request(running.address + "/v1/chat/completions", data=json.dumps(body).encode(), method="POST")
    for name, value in (("Authorization", f"Bearer {key}"), ("X-Events", "full"), ("Content-Type", "application/json")):
        request.add_header(name, value)
    with urlopen(request, timeout=WAIT) as response:
        blocks = response.read().decode().split("\n\n")
    fields = [dict(line.split(": ", 1) for line in block.split("\n") if ": " in line) for block in blocks]
    return [json.loads(each["data"])["text"] for each in fields if each.get("event") == "notice"]


def spent(running: GatewayProcess) -> int:
    (budget,) = (each for each in running.call("GET", "/api/budgets")["budgets"] if each["setting"] == "budgets.owner")
    return int(budget["tokens"])


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline


def test_a_budget_warns_at_four_fifths_and_stops_at_its_limit_also_after_a_kill(
    tmp_path: Path, model: ScriptedModel
) -> None:
    """X22, F4: in the conversation, in the log, in `status` and `usage`; a restart gives nothing back."""
    home = home_with(tmp_path, model.url, "")
    with gateway(home) as running:
        running.say("hello")
        one = sum(running.call("GET", "/api/usage")["total"][kind] for kind in ("input", "output"))
    budget = f'[budgets.owner]\nper = "principal"\neach = "total"\ntokens = {5 * one}\n'
    budget += '[budgets.all]\nper = "gateway"\neach = "month"\nmoney = 1000\n'
    home_with(tmp_path, model.url, budget)
    with gateway(home) as running:
        assert spent(running) == one
        assert [notices(running, "hello") for _ in range(2)] == [[], []]
        (told,) = notices(running, "hello")
        assert told == f"You have spent {4 * one} of {5 * one} tokens in all (budgets.owner), 80% of that budget; at 100 % no model is called."  # noqa: E501  # fmt: skip
        assert "a budget is running out" in running.log.read_text()
        assert notices(running, "hello") == []
        error = refusal(running, "hello")
        assert (error["type"], error["code"], error["retry_after"]) == ("rate_limit_error", "budget_spent", None)
        assert "(budgets.owner), so no model is called for it any more: raise that limit" in error["message"]
        assert "of $1,000.00 this month (budgets.all)" in tidegate("status", home=home).stdout
        assert "100%" in tidegate("usage", "--budgets", home=home).stdout
        running.signal(signal.SIGKILL)
        running.wait()
    with gateway(home) as running:
        assert spent(running) == 5 * one
        assert refusal(running, "hello")["code"] == "budget_spent"
        assert len(model.call("GET", "/requests")) == 5


def test_a_kill_during_a_turn_refunds_no_committed_step(tmp_path: Path, model: ScriptedModel) -> None:
    """X22, F4: the usage of its first step is counted when it continues; only the call in progress may be lost."""
    budget = '[budgets.owner]\nper = "principal"\neach = "day"\ntokens = 1_000_000\n'
    home = home_with(tmp_path, model.url, budget)
    with gateway(home) as running:
        text = "[tool clock {}] [hold later step=1] [say done]"
        thread = threading.Thread(target=lambda: _say(running, text, "talk"))
        thread.start()
        until(lambda: len(model.call("GET", "/requests")) == 2)
        before = spent(running)
        assert before > 0
        running.signal(signal.SIGKILL)
        running.wait()
        thread.join()
    model.call("POST", "/release/later")
    with gateway(home) as running:
        until(lambda: running.call("GET", "/api/status")["turns"]["answered"] == 1)
        used = running.call("GET", "/api/usage")["total"]
        assert used["calls"] == 2
        assert spent(running) == used["input"] + used["output"] > before


def _say(running: GatewayProcess, text: str, session: str) -> None:
    try:
        running.say(text, session)
    except OSError:
        return


AGENT = '[agents.main]\nmodel = "main"\n'
MONEY = '[budgets.purse]\nper = "gateway"\neach = "day"\nmoney = 5\n'


def test_a_budget_of_money_needs_the_price_of_every_model(tmp_path: Path) -> None:
    """X22: one sentence with what to set; nothing is started that could not be kept in bounds."""
    home = home_with(tmp_path, "http://127.0.0.1:1", AGENT + MONEY)
    for command in (("config", "check"), ("up", "--port", "0")):
        refused = tidegate(*command, home=home)
        assert refused.returncode == 1
        (said,) = (line for line in (refused.stdout + refused.stderr).splitlines() if "price" in line)
        assert str(home / "tidegate.toml") in said
        assert "[models.main] has no known price, but [budgets.purse] limits money" in said
        assert "set its price_input and price_output" in said and "0 for a local model" in said
    for more in (
        "price_input = 0\nprice_output = 0\n" + AGENT + MONEY,
        AGENT + MONEY.replace("money", "tokens"),
    ):
        assert tidegate("config", "check", home=home_with(tmp_path, "http://127.0.0.1:1", more)).returncode == 0
    known = (home / "tidegate.toml").read_text().replace('"scripted"', '"gpt-4.1"') + MONEY.replace("purse", "other")
    (home / "tidegate.toml").write_text(known)
    assert tidegate("config", "check", home=home).returncode == 0
    (home / "tidegate.toml").write_text(MONEY)
    assert tidegate("config", "check", home=home).returncode == 0  # the demo model costs nothing


FORMATS = ("openai-chat", "openai-responses", "anthropic")


def test_absurd_token_counts_are_replaced_by_estimates_and_block_nobody(tmp_path: Path, model: ScriptedModel) -> None:
    """X22, A2: in every format the next message is answered, `usage` shows a sane figure that is marked, and the log
    has one line for each of them."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(
        "".join(
            f'[models.{api}]\napi = "{api}"\nbase_url = "{model.url}/v1"\nmodel = "{api}"\nkey = "env:KEY"\n{PRICE}'
            f'[agents.{api}]\nmodel = "{api}"\ntools = []\n'
            for api in FORMATS
        )
        + '[budgets.all]\nper = "gateway"\neach = "total"\nmoney = 100\n'
    )
    with gateway(home, KEY="any") as running:
        for api in FORMATS:
            for text in (f"[usage input={2**63 - 1}]", f"[usage output={2**63 - 1}]", "hello"):
                body = {"model": api, "messages": [{"role": "user", "content": text}]}
                answer = running.call("POST", "/v1/chat/completions", body)
                assert answer["choices"][0]["message"]["content"].startswith("The tide")
                assert answer["usage"].get("estimated", False) == (text != "hello")
        shown = json.loads(tidegate("usage", "--json", home=home).stdout)["total"]
        assert (shown["calls"], shown["estimated"]) == (9, 6)
        assert 0 < shown["input"] + shown["output"] < 10_000
        assert "Estimated for 6 of 9 calls" in tidegate("usage", home=home).stdout
    lines = [line for line in running.log.read_text().splitlines() if "impossible token counts" in line]
    assert len(lines) == 6
    assert all(api in "".join(lines) for api in FORMATS)
