"""Delegation: tasks that one agent gives to another agent during its turn.

A task is a turn like any other. It is accepted in an ephemeral session with the same principal, limits and budgets.
After a restart, the step that delegated a task finds it again, so a task is delegated only once, however often the
process is killed. A task ends no later than the turn that delegated it. An agent may delegate only to agents in its
`delegates` setting, and only to agents that the user may use. A turn has at most limits.delegates tasks at a time, and
tasks are nested at most limits.delegate_depth levels deep. A task's outcome, even a failure, is a tool result for the
delegating model, which decides what to do next.

`Delegation` holds only the turns that are waiting for tasks. `TaskProgress` belongs to one task and holds the ids of
its open questions.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import msgspec

from tidegate.agent import Parked
from tidegate.config import Config
from tidegate.engine import PARENT_ENDED, Engine
from tidegate.errors import NotFound, Refused, Stopping, ToolFailed
from tidegate.store import Store, principals, receipts
from tidegate.tools import ToolContext
from tidegate.turns.channel_recovery import DELEGATE
from tidegate.values import (
    Acceptance,
    Event,
    Inbound,
    Message,
    Notice,
    Outcome,
    QuestionAnswered,
    QuestionAsked,
    TextDelta,
    TextReset,
    ToolEnded,
    ToolProgress,
    ToolStarted,
)

HEADING = "With the `delegate` tool you can delegate tasks to these agents:"

LINE_CHARACTERS = 200
"""Maximum length of a line about a tool call or failure. Lines are short, so that a reader can follow two agents at the
same time."""


class _TaskSlots:
    """The slots that limit how many of a turn's tasks run concurrently."""

    __slots__ = ("semaphore", "users")

    def __init__(self, most: int) -> None:
        self.semaphore = asyncio.Semaphore(most)
        self.users = 0


class Delegation:
    name = "agents"
    """The name of the prompt part that lists the agents."""
    needs_tools = True

    def __init__(
        self,
        config: Config,
        store: Store,
        engine: Callable[[], Engine],
        accept: Callable[[Inbound], Awaitable[Acceptance]],
    ) -> None:
        """`engine` is a function because the engine is built after the tools. `accept` accepts a message."""
        self._config = config
        self._store = store
        self._get_engine = engine
        self._accept = accept
        self._slots: dict[str, _TaskSlots] = {}  # by turn, while it has tasks

    @property
    def is_idle(self) -> bool:
        """True if no turn currently has tasks."""
        return not self._slots

    @property
    def _engine(self) -> Engine:
        return self._get_engine()

    # -- agents that may be given tasks --

    def serves(self, agent: str) -> bool:
        settings = self._config.agents[agent]
        return DELEGATE in settings.tools and bool(settings.delegates)

    async def part(self, agent: str, principal: str) -> str:
        """Returns the list of agents for the prompt. The list is frozen when a session starts."""
        agents = self._config.agents
        lines = [
            f"- {name}: {about}" if (about := agents[name].description) else f"- {name}"
            for name in await self._allowed_agents(agent, principal)
        ]
        return "\n".join([HEADING, *lines]) if lines else ""

    async def _allowed_agents(self, agent: str, principal: str) -> list[str]:
        """Returns the agents, sorted by name, to which this agent may give tasks on behalf of this principal."""
        named = self._config.agents[agent].delegates if agent in self._config.agents else ()
        known = await self._store.read(principals.get, principal)
        if known is None:
            return []
        return sorted(name for name in set(named) if known.agents is None or name in known.agents)

    # -- for the tool --

    async def work(self, ctx: ToolContext, agent: str, task: str) -> str:
        """Runs the task and returns the other agent's answer. Raises ToolFailed if there is no answer, and Parked if
        the gateway stops in the meantime. In the latter case, the task and its parent turn continue in the next
        process."""
        await self._check(ctx, agent)
        async with self._slot(ctx.turn):
            with self._engine.delegating(ctx.turn):
                return task_result(agent, await self._outcome(ctx, agent, task))

    async def _check(self, ctx: ToolContext, agent: str) -> None:
        most = self._config.limits.delegate_depth
        if ctx.depth >= most:
            raise ToolFailed(
                f"This task has already been delegated {ctx.depth} times (limits.delegate_depth is {most}): do it "
                "yourself, or answer with what is missing."
            )
        names = await self._allowed_agents(ctx.agent, ctx.principal)
        if agent not in names:
            known = f"choose one of: {', '.join(names)}" if names else "there is none"
            raise ToolFailed(f"There is no agent {agent!r} that you may give tasks to; {known}.")

    @asynccontextmanager
    async def _slot(self, turn: str) -> AsyncIterator[None]:
        """Waits for one of this turn's task slots and holds it within the block."""
        slots = self._slots.get(turn)
        if slots is None:
            slots = self._slots[turn] = _TaskSlots(self._config.limits.delegates)
        slots.users += 1
        try:
            async with slots.semaphore:
                yield
        finally:
            slots.users -= 1
            if not slots.users:
                del self._slots[turn]

    async def _outcome(self, ctx: ToolContext, agent: str, task: str) -> Outcome:
        accepted = await self._give(ctx, agent, task)
        progress = TaskProgress(self._engine, ctx, agent)
        progress.begin()
        try:
            if (log := self._engine.follow(accepted.turn)) is not None:
                async with aclosing(log.read()) as batches:
                    async for batch in batches:
                        for event in batch:
                            progress.show(event)
            outcome = await self._ended(accepted.turn)
        except Parked:
            raise  # the task will continue in the next process and ask its questions again
        except BaseException as error:
            if isinstance(error, Exception):  # a cancelled turn stops its tasks itself
                await self._engine.stop(accepted.turn, PARENT_ENDED)
            progress.end()
            raise
        progress.end()
        return outcome

    async def _give(self, ctx: ToolContext, agent: str, task: str) -> Acceptance:
        """Accepts the task or, if this step has already delegated it, finds it."""
        digest = hashlib.sha256(b"%d:%b" % (len(agent.encode()), agent.encode()) + task.encode(errors="replace"))
        inbound = Inbound(
            principal=ctx.principal,
            channel=DELEGATE,
            agent=agent,
            messages=(Message(role="user", text=task, aside=task_origin(ctx.agent)),),
            on_disconnect="continue",
            receipts=(receipts.of_task(ctx.turn, ctx.step, digest.digest()),),
            within=ctx.turn,
            depth=ctx.depth + 1,
        )
        try:
            return await self._accept(inbound)
        except Stopping:
            raise Parked from None
        except Refused as error:
            raise ToolFailed(f"The task was not delegated: {error.message}") from None

    async def _ended(self, turn: str) -> Outcome:
        try:
            outcome = await self._engine.result(turn)
        except Stopping:
            raise Parked from None
        except NotFound:
            raise ToolFailed("The task was deleted before it was answered.") from None
        return outcome


class TaskProgress:
    def __init__(self, engine: Engine, ctx: ToolContext, agent: str) -> None:
        self._engine = engine
        self._ctx = ctx
        self._agent = agent
        self._open_questions: dict[str, None] = {}  # lint: allow open questions of one task, removed when answered
        self._fresh = True

    def show(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._say(event.text)
            case TextReset():
                self._note(f"is starting its answer over: {event.reason}")
            case ToolStarted():
                self._note(f"{event.name} {event.arguments}")
            case ToolProgress() if event.name == DELEGATE:
                self._say(event.text)  # text from a nested task; other tools' output is in their results
            case ToolEnded() if event.interrupted:
                self._note(f"{event.name}: {event.excerpt}")
            case ToolEnded() if event.failed:
                self._note(f"{event.name} failed: {event.excerpt}")
            case Notice():
                self._engine.tell(self._ctx.turn, Notice(text=f"{self._agent}: {event.text}"))
            case QuestionAsked():
                self._open_questions[event.id] = None
                asked = msgspec.structs.replace(event, agent=event.agent or self._agent)
                self._engine.tell(self._ctx.turn, asked)
            case QuestionAnswered():
                self._open_questions.pop(event.id, None)
                self._engine.tell(self._ctx.turn, event)
            case _:
                """The result contains the task's rows and its end."""

    def begin(self) -> None:
        self._note("is working on the task")

    def end(self) -> None:
        """Closes the task's open questions."""
        for id in self._open_questions:
            self._engine.tell(self._ctx.turn, QuestionAnswered(id=id, state="cancelled"))
        self._open_questions.clear()

    def _say(self, text: str) -> None:
        if text:
            self._ctx.progress(text)
            self._fresh = text.endswith("\n")

    def _note(self, text: str) -> None:
        line = " ".join(text.split())
        line = line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…"
        self._say(f"{'' if self._fresh else chr(10)}[{self._agent}] {line}\n")


def task_origin(agent: str) -> str:
    """Returns the note that tells the working agent where its task comes from."""
    return f"This task was given by the agent {agent!r}, which receives your answer; no person reads it directly."


def task_result(agent: str, outcome: Outcome) -> str:
    """Returns the tool result for the model, with the agent's name and its answer. Raises ToolFailed if there is no
    answer."""
    if outcome.state == "answered":
        if not outcome.text:
            return f"The agent {agent!r} returned an empty answer."
        cut = ", cut off at its model's output limit" if outcome.finish == "length" else ""
        return f"The answer from agent {agent!r}{cut}:\n\n{outcome.text}"
    why = outcome.error.message if outcome.error is not None else "It gave no reason."
    text = f"\n\nIts text until then:\n\n{outcome.text}" if outcome.text else ""
    state = "was stopped" if outcome.state == "stopped" else "failed"
    raise ToolFailed(
        f"The agent {agent!r} {state} before it had an answer. {why} Its actions until then are not undone.{text}"
    )
