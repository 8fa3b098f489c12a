"""Delegation: tasks that one agent gives another, inside its turn.

Guarantee: a task is a turn like any other: it enters by the door, as a session of its own that is gone with its answer,
under the same principal, limits and budgets. It is given once, however often the process dies: the step that gave it
finds it again. It ends with the turn that gave it, at the latest. Only agents that are named in `delegates`, and that
the person may use, are given any; one turn has at most limits.delegates worked on at once, and none deeper than
limits.delegate_depth. What comes of it, also a failure, is a result for the model that gave it, which decides.
The service holds only which turns wait for tasks now.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from tidegate.agent import Parked
from tidegate.engine import PARENT_ENDED
from tidegate.errors import NotFound, Refused, Stopping, ToolFailed
from tidegate.sessions.relay import TaskProgress
from tidegate.store import principals, receipts
from tidegate.tools import ToolContext
from tidegate.turns.channels import DELEGATE
from tidegate.values import Acceptance, Inbound, Message, Outcome

if TYPE_CHECKING:
    from tidegate.sessions.service import Sessions

HEADING = "With the tool `delegate` you can give tasks to these agents:"


class _Room:
    """How many tasks of one turn may still be given."""

    __slots__ = ("places", "users")

    def __init__(self, most: int) -> None:
        self.places = asyncio.Semaphore(most)
        self.users = 0


class Delegation:
    name = "agents"
    """Of the part of the prompt that says who there is."""
    needs_tools = True

    def __init__(self, service: "Sessions") -> None:
        self._service = service
        self._rooms: dict[str, _Room] = {}  # by turn, while tasks of its are worked on

    # -- who may be given tasks --

    def serves(self, agent: str) -> bool:
        settings = self._service.config.agents[agent]
        return DELEGATE in settings.tools and bool(settings.delegates)

    async def part(self, agent: str, principal: str) -> str:
        """What a prompt says of the agents that there are: fixed with it when a session starts."""
        agents = self._service.config.agents
        lines = [
            f"- {name}: {about}" if (about := agents[name].description) else f"- {name}"
            for name in await self._open_to(agent, principal)
        ]
        return "\n".join([HEADING, *lines]) if lines else ""

    async def _open_to(self, agent: str, principal: str) -> list[str]:
        """The agents that this one may give tasks to for this principal, in the order of their names."""
        named = self._service.config.agents[agent].delegates if agent in self._service.config.agents else ()
        known = await self._service.store.read(principals.get, principal)
        if known is None:
            return []
        return sorted(name for name in set(named) if known.agents is None or name in known.agents)

    # -- for the tool --

    async def work(self, ctx: ToolContext, agent: str, task: str) -> str:
        """The other agent's answer; ToolFailed when there is none. Parked when the gateway stops meanwhile: the task
        and the turn that gave it go on in the next process."""
        await self._check(ctx, agent)
        async with self._room(ctx.turn):
            with self._service.engine.delegating(ctx.turn):
                return told(agent, await self._outcome(ctx, agent, task))

    async def _check(self, ctx: ToolContext, agent: str) -> None:
        most = self._service.config.limits.delegate_depth
        if ctx.depth >= most:
            raise ToolFailed(
                f"What you work on was handed on {ctx.depth} times already (limits.delegate_depth is {most}): do it "
                "yourself, or answer with what is missing."
            )
        names = await self._open_to(ctx.agent, ctx.principal)
        if agent not in names:
            there_are = f"there are: {', '.join(names)}" if names else "there is none"
            raise ToolFailed(f"There is no agent {agent!r} that you may give tasks to; {there_are}.")

    @asynccontextmanager
    async def _room(self, turn: str) -> AsyncIterator[None]:
        """One of the tasks of this turn that are worked on at once."""
        room = self._rooms.get(turn)
        if room is None:
            room = self._rooms[turn] = _Room(self._service.config.limits.delegates)
        room.users += 1
        try:
            async with room.places:
                yield
        finally:
            room.users -= 1
            if not room.users:
                del self._rooms[turn]

    async def _outcome(self, ctx: ToolContext, agent: str, task: str) -> Outcome:
        accepted = await self._give(ctx, agent, task)
        relay = TaskProgress(self._service.engine, ctx, agent)
        relay.begin()
        try:
            if (log := self._service.live(accepted.turn)) is not None:
                async with aclosing(log.read()) as batches:
                    async for batch in batches:
                        for event in batch:
                            relay.tell(event)
            return await self._ended(accepted.turn)
        except BaseException:
            if not self._service.engine.is_stopping:
                self._service.engine.interrupt(accepted.turn, PARENT_ENDED)
            raise
        finally:
            relay.end()

    async def _give(self, ctx: ToolContext, agent: str, task: str) -> Acceptance:
        """The task, or the one that this very step has given before."""
        given = hashlib.sha256(b"%d:%b" % (len(agent.encode()), agent.encode()) + task.encode(errors="replace"))
        inbound = Inbound(
            principal=ctx.principal,
            channel=DELEGATE,
            agent=agent,
            messages=(Message(role="user", text=task, aside=provenance(ctx.agent)),),
            on_disconnect="continue",
            receipts=(receipts.of_task(ctx.turn, ctx.step, given.digest()),),
            within=ctx.turn,
            depth=ctx.depth + 1,
        )
        try:
            return await self._service.accept(inbound)
        except Stopping:
            raise Parked from None
        except Refused as error:
            raise ToolFailed(f"The task was not given: {error.message}") from None

    async def _ended(self, turn: str) -> Outcome:
        try:
            outcome = await self._service.wait(turn)
        except Stopping:
            raise Parked from None
        except NotFound:
            raise ToolFailed("The task was deleted before it was answered.") from None
        if outcome.state in ("queued", "running"):
            raise Parked
        return outcome


def provenance(agent: str) -> str:
    """What the agent that is given a task is told of where it comes from."""
    return f"This task was given by the agent {agent!r}, which gets your answer; no person reads it but by that agent."


def told(agent: str, outcome: Outcome) -> str:
    """The result as the model is shown it: whose answer it is, and that answer. ToolFailed when it is none."""
    if outcome.state == "answered":
        if not outcome.text:
            return f"The agent {agent!r} answered with nothing."
        cut = ", cut off where its model's answers end" if outcome.finish == "length" else ""
        return f"The answer of the agent {agent!r}{cut}:\n\n{outcome.text}"
    why = outcome.error.message if outcome.error is not None else "It says nothing of why."
    said = f"\n\nIt had said until then:\n\n{outcome.text}" if outcome.text else ""
    did = "was stopped" if outcome.state == "stopped" else "failed"
    raise ToolFailed(
        f"The agent {agent!r} {did} before it had an answer. {why} What it had done until then is not undone.{said}"
    )
