"""Reasoning carried by model answers: sent back while the model accepts it, and left out otherwise."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.scripted import seal
from bench.scripted.interface import Refusal
from tests.core import ANNA, Core
from tests.effects import until
from tests.faulty_model import FaultyModel
from tests.logs import capture_logs
from tests.turns.test_fallback import follow_turn, notices
from tests.turns.test_reasoning import thinking
from tidegate.store import messages

pytestmark = pytest.mark.anyio

SEALING = ("openai-responses", "anthropic", "anthropic by budget")


@pytest.fixture
async def server() -> AsyncIterator[FaultyModel]:
    async with FaultyModel() as server:
        yield server


def thoughts(body: dict[str, Any]) -> int:
    """The reasoning in a request, in either format."""
    found = [item for item in body.get("input", ()) if item.get("type") == "reasoning"]
    for message in body.get("messages", ()):
        if isinstance(message["content"], list):
            found += [block for block in message["content"] if block["type"] in ("thinking", "redacted_thinking")]
    return len(found)


def refused(server: FaultyModel) -> int:
    return int(server.stats()["refused"])


async def ready(gateway: Core) -> str:
    outcome = await gateway.say("hello [tool clock {}]")
    assert outcome.state == "answered", outcome.error
    return outcome.session


@pytest.mark.parametrize("how", SEALING)
async def test_thoughts_go_back_with_a_history_that_was_kept(home: Path, server: FaultyModel, how: str) -> None:
    """B4, P16: a long conversation comes back as it was unloaded, in every format."""
    async with thinking(home, server, how, 'reasoning = "high"') as gateway:
        session = (await gateway.say("the tide comes in. " * 1000 + "[tool clock {}]")).session
        for number in range(2):
            assert gateway.components.presence.unload(session, reason="test")
            await until(lambda: gateway.components.runner.histories.stats().size == 1)
            await gateway.say(f"on {number} [tool clock {{}}]")
            assert gateway.components.runner.histories.stats().hits == number + 1
    assert refused(server) == 0 and server.stats()["reuse"] == 1.0


def change_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the server refuses what it has sealed so far, as if the key belonged to another account."""
    monkeypatch.setattr(seal, "_KEY", b"another account's hand")


@pytest.mark.parametrize("how", SEALING)
async def test_thoughts_go_back_over_turns_unload_and_restart(home: Path, server: FaultyModel, how: str) -> None:
    """S32, S33: all of it, so that the prefix stays intact."""
    async with thinking(home, server, how, 'reasoning = "high"') as gateway:
        session = await ready(gateway)
        await gateway.say("and now?")
        here = thoughts(server.recorded[-1].decoded())
        assert here >= 2
        gateway.components.presence.unload(session, reason="test")
        await gateway.say("and then?")
        assert thoughts(server.recorded[-1].decoded()) == here + 1
    async with thinking(home, server, how, 'reasoning = "high"') as gateway:
        await gateway.say("still there?")
        assert thoughts(server.recorded[-1].decoded()) == here + 2
    assert refused(server) == 0


@pytest.mark.parametrize("how", SEALING)
async def test_after_a_reload_thoughts_of_before_stay_at_home(home: Path, server: FaultyModel, how: str) -> None:
    """S33: a provider may refuse reasoning after a change of the prompt; the texts are all sent."""
    async with thinking(home, server, how, 'reasoning = "high"') as gateway:
        session = await ready(gateway)
    async with thinking(home, server, how, 'reasoning = "high"', prompt="You are another test.") as gateway:
        assert await gateway.service.operations.reload(session, ANNA)
        assert (await gateway.say("and now?")).state == "answered"
        body = server.recorded[-1].decoded()
        assert thoughts(body) == 0 and "hello" in str(body)
        assert (await gateway.say("and then?")).state == "answered"
        assert thoughts(server.recorded[-1].decoded()) == 1
    assert refused(server) == 0


@pytest.mark.parametrize("how", SEALING)
async def test_a_conversation_continues_without_refused_reasoning(
    home: Path, server: FaultyModel, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2, S33: as after a change to another account's key; the transcript keeps it, and new reasoning is sent back."""
    async with thinking(home, server, how, 'reasoning = "high"') as gateway:
        session = await ready(gateway)
        change_account(monkeypatch)
        with capture_logs() as logged:
            outcome = await gateway.say("and now?")
        assert outcome.state == "answered", outcome.error
        assert [line["event"] for line in logged] == [
            "a model refuses its earlier reasoning; the turn continues without it"
        ]
        assert refused(server) == 1
        assert thoughts(server.recorded[-1].decoded()) == 0
        assert (await gateway.say("and then?")).state == "answered"
        assert thoughts(server.recorded[-1].decoded()) == 1
        assert refused(server) == 1
        rows = await gateway.store.read(messages.history, session)
        assert sum(bool(row.carried) for row in rows) >= 3
        gateway.components.presence.unload(session, reason="test")
        assert (await gateway.say("after an absence")).state == "answered"
        assert (refused(server), thoughts(server.recorded[-1].decoded())) == (1, 2), "what was refused stays at home"
    async with thinking(home, server, how, 'reasoning = "high"') as gateway:
        assert (await gateway.say("after a restart")).state == "answered"
    assert (refused(server), thoughts(server.recorded[-1].decoded())) == (1, 3)


class Stubborn(FaultyModel):
    """Refuses reasoning from some time on, whether or not there is any."""

    complains = False

    def answer(self, connection: Any, form: Any, headers: dict[str, str], body: bytes) -> None:
        super().answer(connection, _Complaining(form) if self.complains else form, headers, body)


class _Complaining:
    def __init__(self, form: Any) -> None:
        self._form = form

    def read(self, *request: Any) -> Any:
        raise Refusal("messages.1.content.0: Invalid `signature` in `thinking` block")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._form, name)


async def test_a_model_that_refuses_absent_reasoning_is_not_called_a_third_time(home: Path) -> None:
    """S33: its own model is called once with it and once without; the others, which got none, once."""
    async with Stubborn() as server, thinking(home, server, "anthropic", 'reasoning = "high"') as gateway:
        await ready(gateway)
        server.complains = True
        server.requested.clear()
        outcome = await gateway.say("and now?")
        assert outcome.state == "failed"
        assert server.requested == ["first", "first", "second", "third"]


async def test_hidden_reasoning_is_left_out_too_when_it_is_refused(
    home: Path, server: FaultyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2, S33: the provider has another error message for it."""
    async with thinking(home, server, "anthropic", 'reasoning = "high"') as gateway:
        assert (await gateway.say("hello [redacted]")).state == "answered"
        change_account(monkeypatch)
        assert (await gateway.say("and now?")).state == "answered"
        assert server.requested == ["first"] * 3
        assert thoughts(server.recorded[-1].decoded()) == 0


async def test_the_user_is_notified_that_reasoning_was_dropped(
    home: Path, server: FaultyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S33: the provider's cache is lost, and every rebuild is announced, once."""
    async with thinking(home, server, "anthropic", 'reasoning = "high"') as gateway:
        await ready(gateway)
        change_account(monkeypatch)
        for expected in (1, 0):
            _, events = await follow_turn(gateway, "and now?")
            assert [text.startswith("The model first refuses its earlier reasoning") for text in notices(events)] == [
                True
            ] * expected


async def test_thoughts_that_are_refused_in_mid_turn_do_not_end_it(
    home: Path, server: FaultyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2: the calls of the turn are made once, and their results are kept."""
    async with thinking(home, server, "anthropic", 'reasoning = "high"') as gateway:
        await ready(gateway)
        change_account(monkeypatch)
        outcome = await gateway.say("twice [tool clock {}] [tool clock {}]")
        assert outcome.state == "answered", outcome.error
        assert outcome.steps == 3
        rows = await gateway.store.read(messages.history, outcome.session)
        assert sum(row.role == "tool" for row in rows) == 3
