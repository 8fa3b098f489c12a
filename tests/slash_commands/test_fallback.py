"""Fallbacks as users see them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.core import Core, core
from tests.faulty_model import KEY, FaultyModel, toml
from tests.slash_commands.test_commands import run
from tests.turns.test_fallback import Clock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server() -> AsyncIterator[FaultyModel]:
    async with FaultyModel() as server:
        yield server


def falling(home: Path, server: FaultyModel, clock: Clock, agent: str = "") -> Any:
    text = toml(server.base_url, agent)
    return core(home, model=server, toml=text, clock=clock, environment={KEY: "sesame"})


async def lines(gateway: Core, line: str, session: str) -> str:
    return (await run(gateway, line, session)).text


async def test_status_shows_the_fallback_its_reason_and_its_end(home: Path, server: FaultyModel) -> None:
    """S05: and nothing about it once it is over."""
    clock = Clock()
    server.directives["first"] = "[status 402]"
    async with falling(home, server, clock) as gateway:
        session = (await gateway.say("one")).session
        for line in ("/status", "/model"):
            told = await lines(gateway, line, session)
            assert "second (instead of the agent's own, first, which has no quota left)" in told
            assert "first is tried again not before 20" in told and "(in 15 minutes)" in told
        server.directives.clear()
        clock.now += 1000
        assert "first (the agent's own)" in await lines(gateway, "/status", session)
        await gateway.say("two")
        assert "instead" not in await lines(gateway, "/status", session)


async def test_status_shows_the_longer_of_cooldown_and_fallback(home: Path, server: FaultyModel) -> None:
    clock = Clock()
    server.directives["first"] = "[status 402 retry-after=7200]"
    async with falling(home, server, clock) as gateway:
        session = (await gateway.say("one")).session
        assert "(in 2 hours)" in await lines(gateway, "/status", session)
        clock.now += 3600
        assert "(in 1 hour)" in await lines(gateway, "/status", session)


async def test_a_choice_overrides_a_fallback_and_default_tries_the_own_model_at_once(
    home: Path, server: FaultyModel
) -> None:
    """S05: choice and fallback are independent."""
    clock = Clock()
    server.directives["first"] = "[status 503]"
    async with falling(home, server, clock) as gateway:
        session = (await gateway.say("one")).session
        await lines(gateway, "/model third", session)
        told = await lines(gateway, "/status", session)
        assert "third (chosen with /model" in told and "instead of" not in told
        assert "once it is back; until then second answers" in await lines(gateway, "/model default", session)
        clock.now += 100
        server.directives.clear()
        assert "from now on" in await lines(gateway, "/model default", session)
        await gateway.say("two")
    assert server.requested == ["first", "second", "first"], "it has rested, and the stay was given up"


async def test_reasoning_shows_its_source(home: Path, server: FaultyModel) -> None:
    """A3: an agent's own, when its configuration has one."""
    async with falling(home, server, Clock(), 'reasoning = "low"') as gateway:
        session = (await gateway.say("one")).session
        assert "reasoning     low (the agent's own)" in await lines(gateway, "/status", session)
        await lines(gateway, "/reasoning high", session)
        assert "it overrides the agent's own" in await lines(gateway, "/status", session)
        assert "The agent's own default again" in await lines(gateway, "/reasoning default", session)
