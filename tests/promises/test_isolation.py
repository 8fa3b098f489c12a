"""Isolation: data of one session or principal never reaches another."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, BERT, WAIT, core
from tests.in_process import in_process_gateway as whole_house
from tests.web.client import call, chat
from tidegate.errors import NotFound
from tidegate.sessions import Sessions
from tidegate.tools import ToolContext, Toolset, tool

pytestmark = pytest.mark.anyio

TALKS = 12

AGENTS = "".join(
    f'\n[agents.agent{number}]\nmodel = "main"\nworkspace = "folder{number}"\ntools = ["witness"]\n'
    for number in range(3)
)


async def test_a_tool_sees_the_session_it_works_for_and_no_other(home: Path, model: ScriptedModel) -> None:
    """L26, X23: session, turn, principal, channel, agent and workspace of interleaved turns stay separate during a
    tool, before and after it has waited for all the others; also when a conversation continues on another channel."""
    everybody = asyncio.Barrier(TALKS)
    seen: dict[str, list[ToolContext]] = {}

    @tool(effect="write", contained=True)
    async def witness(ctx: ToolContext, *, canary: str) -> str:
        """Reports its context."""
        seen[canary].append(ctx)
        await everybody.wait()
        seen[canary].append(ctx)
        return f"{canary} {ctx.session} {ctx.principal}"

    async with core(home, AGENTS, model=model, toolsets={"witness": Toolset((witness,))}) as gateway:
        outcomes: dict[str, Any] = {}
        expected: dict[str, tuple[str, str, str, str]] = {}

        async def talk(number: int, turn: int) -> None:
            canary = f"canary-{number}-"
            who, agent = (ANNA, BERT)[number % 2], f"agent{number % 3}"
            channel = ("http", "page", "terminal", "http")[(number + turn) % 4]
            name = None if number >= TALKS - 2 else f"talk {number}"
            expected[canary] = (who.id, channel, agent, agent)
            seen[canary] = []
            script = f'[tool witness {{"canary": "{canary}"}}] [tool witness {{"canary": "{canary}"}}] [say {canary}]'
            outcomes[canary] = await gateway.say(
                script, name=name, principal=who.id, agent=agent, channel=channel, extra_prompt=f"{canary}prompt"
            )

        for turn in range(2):
            with anyio.fail_after(WAIT):
                async with anyio.create_task_group() as group:
                    for number in range(TALKS):
                        group.start_soon(talk, number, turn)
            for canary, outcome in outcomes.items():
                assert outcome.text == canary
                assert len(seen[canary]) == 4
                for ctx in seen[canary]:
                    assert (ctx.session, ctx.turn) == (outcome.session, outcome.turn)
                    assert ctx.workspace.session == outcome.session
                    assert (ctx.principal, ctx.channel, ctx.agent, ctx.workspace.agent) == expected[canary]
        for request in model.recorded:
            assert len(set(re.findall(rb"canary-\d+-", request.body))) == 1


ATTEMPTS: dict[str, Callable[[Sessions, str], Awaitable[Any]]] = {
    "set": lambda service, id: service.operations.set_setting(id, BERT, "model", "other", source="command"),
    "clear": lambda service, id: service.operations.clear_setting(id, BERT, "model"),
    "title": lambda service, id: service.operations.set_title(id, BERT, "mine"),
    "undo": lambda service, id: service.operations.undo(id, BERT),
    "retry": lambda service, id: service.operations.retry(id, BERT),
    "reload": lambda service, id: service.operations.reload(id, BERT),
    "resume": lambda service, id: service.operations.resume(id, BERT),
}


@pytest.mark.parametrize("ended", [False, True])
async def test_a_principal_cannot_change_conversations_of_another(
    home: Path, model: ScriptedModel, ended: bool
) -> None:
    """X06: it does not exist for them, live or ended, and stays unchanged."""
    async with core(home, model=model) as gateway:
        outcome = await gateway.say("private")
        await gateway.service.operations.set_setting(outcome.session, ANNA, "model", "main", source="command")
        if ended:
            await gateway.service.end(outcome.session, ANNA, "new")
        before = await gateway.service.session(outcome.session, ANNA)
        exported = [line async for line in gateway.service.export(outcome.session, ANNA)]
        for name, attempt in ATTEMPTS.items():
            with pytest.raises(NotFound):
                await attempt(gateway.service, outcome.session)
                pytest.fail(f"{name} was let in")
        with pytest.raises(NotFound):
            _ = [line async for line in gateway.service.export(outcome.session, BERT)]
        assert await gateway.service.session(outcome.session, ANNA) == before
        assert [line async for line in gateway.service.export(outcome.session, ANNA)] == exported
        assert await gateway.service.sessions(BERT, ended=None) == []


async def test_every_endpoint_with_a_session_or_turn_checks_its_principal(home: Path, model: ScriptedModel) -> None:
    """X06, X07: every endpoint, including new ones, answers a stranger with the same 404 as for an unknown id, and does
    nothing."""
    async with whole_house(home, model=model) as h:
        anna, bert = await h.add_key("anna"), await h.add_key("bert")
        said = await chat(h, "a word of Anna", key=anna, session="notes")
        turn = said.headers["X-Turn-Id"]
        [session] = (await call(h, "GET", "/api/sessions", key=anna)).json["sessions"]
        described = (await call(h, "GET", "/openapi.json")).json["paths"]
        walked = 0
        for path, methods in described.items():
            if not path.startswith(("/api/sessions/{id}", "/api/turns/{id}")):
                continue
            real = turn if "turns" in path else session["id"]
            for method in methods:
                if method not in ("get", "post", "delete", "put", "patch"):
                    continue
                walked += 1
                replies = []
                for id in (real, real[:2] + "0" * (len(real) - 2), "..%2f..%2fetc"):
                    at = re.sub(r"{\w+}", "model", path.replace("{id}", id))
                    reply = await call(h, method.upper(), at, key=bert)
                    assert reply.status in (403, 404), (method, path, reply.status)
                    replies.append((reply.status, reply.error["code"], reply.error["message"].replace(id, "…")))
                assert replies[0] == replies[1], (method, path)
                assert "Anna" not in str(replies)
        assert walked >= 10
        again = (await call(h, "GET", f"/api/sessions/{session['id']}", key=anna)).json
        assert (again["ended"], again["title"]) == (session["ended"], session["title"])
        assert (await chat(h, "and again", key=anna, session="notes")).status == 200
        assert b"a word of Anna" in model.recorded[-1].body
