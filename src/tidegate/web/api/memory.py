"""What is remembered, over HTTP: seen, edited as text, added to and forgotten.

Guarantee: a principal sees and writes his own notes, and sees those about the work of agents that he may use; the owner
sees and writes all. A text takes the place of notes only if they are still those that its writer saw.
"""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from tidegate.errors import NotFound
from tidegate.memory import Notebook, NoteView
from tidegate.sessions import Sessions
from tidegate.web.app.endpoint import Ask, Endpoint
from tidegate.web.app.error_responses import HttpResponse, json_answer

if TYPE_CHECKING:
    from tidegate.memory import Memory, NoteSubject

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Whose = Annotated[Name, Meta(description="For the owner: about the principal of this name.")]
Agent = Annotated[Name, Meta(description="About the work of this agent, instead of a person.")]
Number = Annotated[int, Meta(ge=1, le=2**53)]


class MemoryQuery(msgspec.Struct):
    principal: Whose | None = None
    agent: Agent | None = None


class NoteIn(msgspec.Struct):
    """A note of one line; with `replaces` it takes the place of the one of that number."""

    text: str
    principal: Whose | None = None
    agent: Agent | None = None
    replaces: Number | None = None


class MemoryIn(msgspec.Struct):
    """All notes as a text, one a line with its number in brackets or without one if it is new; `version` is that of the
    answer that the text was made from."""

    text: str
    version: Annotated[str, Meta(min_length=1, max_length=100)]
    principal: Whose | None = None
    agent: Agent | None = None


class MemoryApi:
    def __init__(self, service: Sessions) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        path = "/api/memory"
        return [
            Endpoint(
                method="GET", path=path, handler=self.show, query=MemoryQuery,
                summary="What is remembered: about you, or about an agent's work", answers={200: Notebook},
                refusals=(404, 429),
            ),
            Endpoint(
                method="POST", path=path, handler=self.add, body=NoteIn, summary="Remember a note, or change one",
                answers={201: NoteView}, refusals=(404, 413, 429),
            ),
            Endpoint(
                method="PUT", path=path, handler=self.rewrite, body=MemoryIn,
                summary="Put an edited text in the place of the notes", answers={200: Notebook},
                refusals=(404, 409, 413, 429),
            ),
            Endpoint(
                method="DELETE", path=f"{path}/{{number}}", handler=self.forget, query=MemoryQuery,
                summary="Forget a note", answers={204: None}, refusals=(404, 429),
            ),
        ]  # fmt: skip

    async def show(self, ask: Ask) -> HttpResponse:
        memory, subject = await self._find(ask, ask.query)
        return json_answer(await memory.notebook(subject))

    async def add(self, ask: Ask) -> HttpResponse:
        memory, subject = await self._find(ask, ask.body)
        note = await memory.put(ask.caller.principal, subject, ask.body.text, ask.body.replaces)
        return json_answer(note, status=201)

    async def rewrite(self, ask: Ask) -> HttpResponse:
        memory, subject = await self._find(ask, ask.body)
        return json_answer(await memory.rewrite(ask.caller.principal, subject, ask.body.text, ask.body.version))

    async def forget(self, ask: Ask) -> HttpResponse:
        memory, subject = await self._find(ask, ask.query)
        number = ask.path["number"]
        known = number.isascii() and number.isdecimal() and len(number) <= 15
        await memory.drop(ask.caller.principal, subject, int(number) if known else 0)
        return HttpResponse(204, [], b"")

    async def _find(self, ask: Ask, named: Any) -> "tuple[Memory, NoteSubject]":
        memory = self._service.memory
        if memory is None:
            raise NotFound(
                "No agent here has a memory; give one the toolset 'memory' in tidegate.toml.", code="no_memory"
            )
        principal, agent = named.principal, named.agent
        return memory, await memory.subject(ask.caller.principal, principal=principal, agent=agent)
