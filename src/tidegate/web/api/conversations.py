"""`/api`: conversations, messages and turns, for the page, the terminal client and programs.

Guarantee: everything here goes through the door with the caller's principal, so that nobody sees or changes what is
not his; a message enters by the same way as over `/v1`. Lists are bounded and paged.
"""

import hashlib
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from tidegate.commands import CommandInfo, Commands
from tidegate.errors import Conflict, NotAllowed, NotFound, Refused
from tidegate.sessions import AgentView, Sessions, SessionView, WindowUsage
from tidegate.store import MessageRow
from tidegate.values import IDEMPOTENCY, Acceptance, BusyMode, Call, Inbound, Media, Message, Outcome, Receipt
from tidegate.web.api.byte_ranges import wanted
from tidegate.web.api.event_stream import EventStream
from tidegate.web.app import headers as given
from tidegate.web.app.auth import Caller
from tidegate.web.app.endpoint import Ask, Endpoint
from tidegate.web.app.error_responses import HttpResponse, json_answer

MOST_LISTED = 500
IDEMPOTENCY_SECONDS = 86400.0

Id = Annotated[str, Meta(min_length=1, max_length=200)]
Limit = Annotated[int, Meta(ge=1, le=MOST_LISTED)]
Place = Annotated[int, Meta(ge=0, le=2**53)]


class ListQuery(msgspec.Struct):
    q: Annotated[str, Meta(max_length=1000, description="Words of its title or name, or said in it.")] | None = None
    ended: Annotated[bool, Meta(description="Ended conversations instead of live ones.")] = False
    everyone: Annotated[bool, Meta(description="For the owner: those of all principals.")] = False
    limit: Limit = 50
    before: Annotated[str, Meta(max_length=300, description="`next` of the page before.")] | None = None


class SessionsAnswer(msgspec.Struct, frozen=True):
    """Conversations, the last used first."""

    sessions: list[SessionView]
    next: str | None
    """Give this as `before` for the next page; null at the end, and for a search, which gives its first `limit`."""


class PageQuery(msgspec.Struct):
    after: Annotated[Place, Meta(description="Rows after this place, in order.")] | None = None
    before: Annotated[Place, Meta(description="The newest rows before this place.")] | None = None
    limit: Limit = 200


class MessagesAnswer(msgspec.Struct, frozen=True):
    """Rows of a transcript, in order; without `after`, the newest ones. There are fewer than `limit` where their
    messages are long; each of them is whole, but for the bytes of its media, which can be fetched one by one."""

    messages: tuple[MessageRow, ...]
    next: int | None
    """Where to go on: give it as `after` if you gave that, else as `before`. Null when these were the last."""


class MessageIn(msgspec.Struct):
    """A message to a conversation: `session` for one that exists, else a new one with `agent`."""

    text: str
    session: Id | None = None
    agent: Id | None = None
    busy: BusyMode = "queue"
    attended: (
        Annotated[
            bool,
            Meta(description="Whether somebody is there who can be asked; by default a key is a program's."),
        ]
        | None
    ) = None


class AcceptedAnswer(msgspec.Struct, frozen=True):
    """The message is durable; `how` says what happens to it."""

    turn: str
    session: str
    how: Literal["started", "queued", "steered", "interrupting", "attached", "replayed"]
    ahead: int


class ReplyView(msgspec.Struct, frozen=True):
    text: str
    session: str | None
    turn: str | None
    ended: bool


class ReplyAnswer(msgspec.Struct, frozen=True):
    """What a command says. `session` is the conversation one is in now, null when the next message begins a new one."""

    reply: ReplyView


class StoppedAnswer(msgspec.Struct, frozen=True):
    stopped: str | None
    """The turn that was stopped, if one ran."""


class EndedAnswer(msgspec.Struct, frozen=True):
    ended: bool
    """False if it had ended before."""


class CommandsAnswer(msgspec.Struct, frozen=True):
    commands: list[CommandInfo]


class AgentsAnswer(msgspec.Struct, frozen=True):
    agents: tuple[AgentView, ...]


class ConversationsApi:
    def __init__(self, service: Sessions, commands: Commands, events: EventStream) -> None:
        self._service = service
        self._commands = commands
        self._events = events

    def endpoints(self) -> list[Endpoint]:
        one = "/api/sessions/{id}"
        return [
            Endpoint(
                method="GET", path="/api/sessions", handler=self.sessions, summary="List conversations",
                query=ListQuery, answers={200: SessionsAnswer},
            ),
            Endpoint(
                method="GET", path=one, handler=self.session, summary="Show a conversation",
                answers={200: SessionView}, refusals=(404,),
            ),
            Endpoint(
                method="DELETE", path=one, handler=self.delete, summary="Delete a conversation with its transcript",
                answers={202: None, 204: None}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path=f"{one}/messages", handler=self.messages, summary="Read a transcript",
                query=PageQuery, answers={200: MessagesAnswer}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path=f"{one}/messages/{{seq}}/media/{{number}}", handler=self.media,
                summary="Fetch a picture, a sound or a document of a transcript: of the row at this place, the n-th of "
                "its media, from 0",
                answers={200: "*/*", 206: "*/*"}, refusals=(404, 416), headers=("Range",),
            ),
            Endpoint(
                method="GET", path=f"{one}/export", handler=self.export, summary="Export a conversation as JSON lines",
                answers={200: "application/x-ndjson"}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path=f"{one}/events", handler=self._events.follow,
                summary="Follow a conversation: its rows, then what happens, as server-sent events",
                answers={200: "text/event-stream"}, refusals=(404, 429), headers=("Last-Event-ID",),
            ),
            Endpoint(
                method="GET", path=f"{one}/context", handler=self.context,
                summary="What fills the window of a conversation's model, by part",
                answers={200: WindowUsage}, refusals=(404,),
            ),
            Endpoint(
                method="POST", path=f"{one}/end", handler=self.end, summary="End a conversation",
                answers={200: EndedAnswer}, refusals=(404,),
            ),
            Endpoint(
                method="POST", path=f"{one}/stop", handler=self.stop, summary="Stop the running turn",
                answers={200: StoppedAnswer}, refusals=(404,),
            ),
            Endpoint(
                method="POST", path="/api/messages", handler=self.say, summary="Send a message or a command",
                body=MessageIn, answers={200: ReplyAnswer, 202: AcceptedAnswer},
                refusals=(403, 404, 409, 413, 422, 429, 503), headers=("Idempotency-Key",),
            ),
            Endpoint(
                method="GET", path="/api/turns/{id}", handler=self.turn, summary="How a turn stands or ended",
                answers={200: Outcome}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path="/api/commands", handler=self.commands, summary="What can be said with a slash",
                answers={200: CommandsAnswer},
            ),
            Endpoint(
                method="GET", path="/api/agents", handler=self.agents, summary="The agents that you may use",
                answers={200: AgentsAnswer},
            ),
        ]  # fmt: skip

    # -- conversations --

    async def sessions(self, ask: Ask) -> HttpResponse:
        query: ListQuery = ask.query
        found = await self._service.sessions(
            ask.caller.principal,
            limit=query.limit,
            before=_cursor(query.before),
            ended=query.ended,
            query=query.q,
            everyone=query.everyone,
        )
        last = found[-1] if len(found) == query.limit and not query.q else None
        return json_answer(SessionsAnswer(found, f"{last.active!r}:{last.id}" if last is not None else None))

    async def session(self, ask: Ask) -> HttpResponse:
        return json_answer(await self._service.session(ask.path["id"], ask.caller.principal))

    async def context(self, ask: Ask) -> HttpResponse:
        return json_answer(await self._service.filling(ask.path["id"], ask.caller.principal))

    async def delete(self, ask: Ask) -> HttpResponse:
        """204 when it is gone, 202 when it goes as soon as nothing of it is owed any more."""
        gone = await self._service.delete(ask.path["id"], ask.caller.principal)
        return HttpResponse(204, [], b"") if gone else HttpResponse(202, [(b"content-length", b"0")], b"")

    async def end(self, ask: Ask) -> HttpResponse:
        return json_answer(EndedAnswer(await self._service.end(ask.path["id"], ask.caller.principal, "request")))

    async def stop(self, ask: Ask) -> HttpResponse:
        return json_answer(StoppedAnswer(await self._service.stop(ask.path["id"], ask.caller.principal)))

    async def messages(self, ask: Ask) -> HttpResponse:
        query: PageQuery = ask.query
        if query.after is not None and query.before is not None:
            raise Refused("Give after or before, not both.", param="before")
        page = await self._service.transcript(
            ask.path["id"], ask.caller.principal, after=query.after, before=query.before, limit=query.limit
        )
        edge = 0 if query.after is None else -1
        return json_answer(MessagesAnswer(page.rows, page.rows[edge].seq if page.more else None))

    async def media(self, ask: Ask) -> HttpResponse:
        """Also a part of it: a browser that plays a sound asks for what it plays."""
        place, number = (_whole(ask.path[name]) for name in ("seq", "number"))
        media, data = await self._service.media(ask.path["id"], ask.caller.principal, place, number)
        part = wanted(ask.headers.get(b"range"), len(data))
        status, placed = (200, []) if part is None else (206, [(b"content-range", part.header)])
        data = data if part is None else data[part.start : part.end]
        headers = [
            (b"content-type", media.media_type.encode()),
            (b"content-length", str(len(data)).encode()),
            (b"accept-ranges", b"bytes"),
            *placed,
            *_attached(media),
            (b"content-security-policy", b"default-src 'none'; sandbox"),  # media, whatever it says that it is
        ]
        return HttpResponse(status, headers, data)

    async def export(self, ask: Ask) -> None:
        """Streams: a transcript may be longer than memory should hold."""
        lines = self._service.export(ask.path["id"], ask.caller.principal)
        first = await anext(lines)  # a refusal comes before the response begins
        disposition = f'attachment; filename="{ask.path["id"]}.jsonl"'.encode()
        headers = [(b"content-type", b"application/x-ndjson"), (b"content-disposition", disposition)]
        await ask.send({"type": "http.response.start", "status": 200, "headers": headers})
        await ask.send({"type": "http.response.body", "body": first, "more_body": True})
        async for line in lines:
            await ask.send({"type": "http.response.body", "body": line, "more_body": True})
        await ask.send({"type": "http.response.body", "body": b""})

    # -- messages and turns --

    async def say(self, ask: Ask) -> HttpResponse:
        said: MessageIn = ask.body
        caller = ask.caller
        if not said.text.strip():
            raise Refused("text is empty.", param="text")
        if said.agent is not None:
            _may_use(caller, said.agent)
        if self._commands.is_command(said.text.strip()):
            return await self._command(said, caller)
        accepted = await self._accept(said, ask)
        answer = AcceptedAnswer(accepted.turn, accepted.session, accepted.how, accepted.ahead)
        return json_answer(answer, status=202, headers=[(b"x-turn-id", accepted.turn.encode())])

    async def _command(self, said: MessageIn, caller: Caller) -> HttpResponse:
        if said.session is not None:
            await self._own(said.session, caller)
        reply = await self._commands.run(
            said.text.strip(),
            principal=caller.principal,
            channel=caller.channel(attended=said.attended is not False),
            session=said.session,
            agent=said.agent or _first(caller),
        )
        ended = said.session is not None and reply.session is None
        return json_answer(ReplyAnswer(ReplyView(reply.text, reply.session, reply.turn, ended)))

    async def _accept(self, said: MessageIn, ask: Ask) -> Acceptance:
        caller = ask.caller
        if said.session is not None:
            agent = (await self._own(said.session, caller)).agent
            _may_use(caller, agent)
        else:
            agent = said.agent or _first(caller)
        key = given.idempotency_key(ask.headers)
        channel = caller.channel(attended=said.attended is not False)
        by_default = said.attended in (None, channel != "http")
        return await self._service.accept(
            Inbound(
                principal=caller.principal.id,
                channel=channel,
                call=Call() if by_default else Call(attended=said.attended),
                agent=agent,
                messages=(Message(role="user", text=said.text),),
                session=said.session,
                busy=said.busy,
                new=said.session is None,
                receipts=() if key is None else (_receipt(key, said),),
            )
        )

    async def _own(self, session: str, caller: Caller) -> SessionView:
        """A conversation that this caller may speak in: an owner sees others' conversations, and stays silent there."""
        view = await self._service.session(session, caller.principal)
        if view.principal != caller.principal.id:
            raise NotAllowed("This conversation is somebody else's: you may read, end or delete it, not speak in it.")
        if view.kind == "ephemeral":
            raise Conflict(
                "This is a one-shot call or a task, which is gone with its answer: speak in a conversation.",
                code="ephemeral",
            )
        return view

    async def turn(self, ask: Ask) -> HttpResponse:
        return json_answer(await self._service.outcome(ask.path["id"], ask.caller.principal))

    # -- what there is --

    async def commands(self, ask: Ask) -> HttpResponse:
        allowed = [
            info for info in self._commands.catalogue() if ask.caller.principal.may("configure") or not info.owner_only
        ]
        return json_answer(CommandsAnswer(allowed))

    async def agents(self, ask: Ask) -> HttpResponse:
        return json_answer(AgentsAnswer(self._service.agents(ask.caller.principal)))


def _may_use(caller: Caller, agent: str) -> None:
    if agent not in caller.agents:
        raise NotFound(
            f"There is no agent {agent[:100]!r}; you may use: {', '.join(caller.agents) or 'none'}.",
            code="model_not_found",
            param="agent",
        )


def _first(caller: Caller) -> str:
    """The agent of who names none: `main` if there is one."""
    if not caller.agents:
        raise NotFound("There is no agent that you may use.", code="model_not_found")
    return "main" if "main" in caller.agents else caller.agents[0]


def _receipt(key: str, said: MessageIn) -> Receipt:
    digest = hashlib.sha256(b"message:" + msgspec.json.encode(said)).digest()
    return Receipt(source=IDEMPOTENCY, key=key, digest=digest, keep=IDEMPOTENCY_SECONDS)


def _cursor(text: str | None) -> tuple[float, str] | None:
    if text is None:
        return None
    active, _, id = text.partition(":")
    try:
        return float(active), id
    except ValueError:
        raise Refused("before must be the `next` of the page before.", param="before") from None


def _attached(media: Media) -> list[tuple[bytes, bytes]]:
    """A document is downloaded, never opened in the gateway's own origin."""
    if not media.is_document:
        return []
    name = quote(media.name or "document.pdf", safe="")
    return [(b"content-disposition", f"attachment; filename*=UTF-8''{name}".encode())]


def _whole(text: str) -> int:
    """A number in a path; what is none leads nowhere."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else -1
