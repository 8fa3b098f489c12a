"""`/api/memory`: listing, adding, deleting and editing (as text) the notes that agents remember.

Users see and change their own notes, and can also read the notes about the work of agents that they may use. The owner
sees and changes all notes. An edited text replaces the notes only if they have not changed since it was read.
"""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from tidegate.errors import NotFound
from tidegate.memory import Notebook, NoteView
from tidegate.sessions import Sessions
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_response import HttpResponse, json_response

if TYPE_CHECKING:
    from tidegate.memory import Memory, NoteSubject

Name = Annotated[str, Meta(min_length=1, max_length=200)]
User = Annotated[Name, Meta(description="For the owner: the notes about the principal with this name.")]
Agent = Annotated[Name, Meta(description="The notes about the work of this agent, instead of a user.")]
Number = Annotated[int, Meta(ge=1, le=2**53)]


class MemoryQuery(msgspec.Struct):
    principal: User | None = None
    agent: Agent | None = None


class NoteIn(msgspec.Struct):
    """A note of one line. If `replaces` is set, the new note replaces the note with that number."""

    text: str
    principal: User | None = None
    agent: Agent | None = None
    replaces: Number | None = None


class MemoryIn(msgspec.Struct):
    """All notes as text, one per line. An existing note has its number in brackets; a new one has no number. `version`
    is the version in the response whose text was edited."""

    text: str
    version: Annotated[str, Meta(min_length=1, max_length=100)]
    principal: User | None = None
    agent: Agent | None = None


class MemoryApi:
    def __init__(self, service: Sessions) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        path = "/api/memory"
        return [
            Endpoint(
                method="GET", path=path, handler=self.show, query=MemoryQuery,
                summary="List the notes about you, or about an agent's work", responses={200: Notebook},
                refusals=(404, 429),
            ),
            Endpoint(
                method="POST", path=path, handler=self.add, body=NoteIn, summary="Add a note, or replace one",
                responses={201: NoteView}, refusals=(404, 413, 429),
            ),
            Endpoint(
                method="PUT", path=path, handler=self.rewrite, body=MemoryIn,
                summary="Replace the notes with an edited text", responses={200: Notebook},
                refusals=(404, 409, 413, 429),
            ),
            Endpoint(
                method="DELETE", path=f"{path}/{{number}}", handler=self.forget, query=MemoryQuery,
                summary="Delete a note", responses={204: None}, refusals=(404, 429),
            ),
        ]  # fmt: skip

    async def show(self, request: Request) -> HttpResponse:
        memory, subject = await self._find(request, request.query)
        return json_response(await memory.notebook(subject))

    async def add(self, request: Request) -> HttpResponse:
        memory, subject = await self._find(request, request.body)
        note = await memory.put(request.caller.principal, subject, request.body.text, request.body.replaces)
        return json_response(note, status=201)

    async def rewrite(self, request: Request) -> HttpResponse:
        memory, subject = await self._find(request, request.body)
        return json_response(
            await memory.rewrite(request.caller.principal, subject, request.body.text, request.body.version)
        )

    async def forget(self, request: Request) -> HttpResponse:
        memory, subject = await self._find(request, request.query)
        number = request.path["number"]
        known = number.isascii() and number.isdecimal() and len(number) <= 15
        await memory.drop(request.caller.principal, subject, int(number) if known else 0)
        return HttpResponse(204, [], b"")

    async def _find(self, request: Request, fields: Any) -> "tuple[Memory, NoteSubject]":
        memory = self._service.memory
        if memory is None:
            raise NotFound(
                "No agent has a memory; add the 'memory' toolset to an agent in tidegate.toml.", code="no_memory"
            )
        principal, agent = fields.principal, fields.agent
        return memory, await memory.subject(request.caller.principal, principal=principal, agent=agent)
