"""`/api/sessions`, `/api/messages` and `/api/turns`, for the chat page, the terminal client and programs.

Every operation is authorised by the session service with the caller's principal, so users cannot see or change each
other's conversations. Messages are handled in the same way as in `/v1`. Lists are bounded and paged.
"""

import hashlib
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from tidegate.errors import Conflict, NotAllowed, NotFound, Refused
from tidegate.sessions import AgentView, Sessions, SessionView
from tidegate.slash_commands import CommandInfo, Commands
from tidegate.store import MessageRow
from tidegate.turns import WindowUsage
from tidegate.values import IDEMPOTENCY, Acceptance, BusyMode, Call, Inbound, Media, Message, Outcome, Receipt
from tidegate.web.api.byte_ranges import parse_range
from tidegate.web.api.event_stream import EventStream
from tidegate.web.app.auth import Caller
from tidegate.web.app.disconnect import run_until_disconnect
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_request import idempotency_key
from tidegate.web.app.http_response import HttpResponse, json_response

MOST_LISTED = 500
IDEMPOTENCY_SECONDS = 86400.0

Id = Annotated[str, Meta(min_length=1, max_length=200)]
Limit = Annotated[int, Meta(ge=1, le=MOST_LISTED)]
Place = Annotated[int, Meta(ge=0, le=2**53)]


class ListQuery(msgspec.Struct):
    q: Annotated[str, Meta(max_length=1000, description="Words of its title, name or messages.")] | None = None
    ended: Annotated[bool, Meta(description="Ended conversations instead of active ones.")] = False
    everyone: Annotated[bool, Meta(description="For the owner: conversations of all principals.")] = False
    limit: Limit = 50
    before: Annotated[str, Meta(max_length=300, description="`next` of the previous page.")] | None = None


class SessionsAnswer(msgspec.Struct, frozen=True):
    """Conversations, most recently used first."""

    sessions: list[SessionView]
    next: str | None
    """Pass this as `before` for the next page. The value is null on the last page and for searches, which return only
    the first `limit` results."""


class PageQuery(msgspec.Struct):
    after: Annotated[Place, Meta(description="Rows after this position, in order.")] | None = None
    before: Annotated[Place, Meta(description="The newest rows before this position.")] | None = None
    limit: Limit = 200


class MessagesAnswer(msgspec.Struct, frozen=True):
    """Transcript rows, in order. Without `after`, these are the newest rows. If messages are long, there may be fewer
    than `limit`. Each row is complete except for the bytes of its media, which are fetched separately."""

    messages: tuple[MessageRow, ...]
    next: int | None
    """The position of the next page. Pass it as `after` if you used `after`, otherwise as `before`. Null on the last
    page."""


class MessageIn(msgspec.Struct):
    """A message to the conversation `session`, which must exist, or to a new conversation with `agent`."""

    text: str
    session: Id | None = None
    agent: Id | None = None
    busy: BusyMode = "queue"
    attended: (
        Annotated[
            bool,
            Meta(description="Whether a user is present to answer questions. The default for keys is false."),
        ]
        | None
    ) = None


class AcceptedAnswer(msgspec.Struct, frozen=True):
    """The response to a message that was accepted and stored durably. `how` says how it will be handled."""

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
    """The reply to a command. `session` is the current conversation, or null if the next message begins a new one."""

    reply: ReplyView


class StoppedAnswer(msgspec.Struct, frozen=True):
    stopped: str | None
    """The turn that was stopped; null if none was running."""


class EndedAnswer(msgspec.Struct, frozen=True):
    ended: bool
    """False if the conversation had already ended."""


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
                query=ListQuery, responses={200: SessionsAnswer},
            ),
            Endpoint(
                method="GET", path=one, handler=self.session, summary="Show a conversation",
                responses={200: SessionView}, refusals=(404,),
            ),
            Endpoint(
                method="DELETE", path=one, handler=self.delete, summary="Delete a conversation with its transcript",
                responses={202: None, 204: None}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path=f"{one}/messages", handler=self.messages, summary="Read a transcript",
                query=PageQuery, responses={200: MessagesAnswer}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path=f"{one}/messages/{{seq}}/media/{{number}}", handler=self.media,
                summary="Fetch an image, a sound or a document of a transcript: the row's sequence number, and the "
                "index of the media in the row, from 0",
                responses={200: "*/*", 206: "*/*"}, refusals=(404, 416), headers=("Range",),
            ),
            Endpoint(
                method="GET", path=f"{one}/export", handler=self.export, summary="Export a conversation as JSON lines",
                responses={200: "application/x-ndjson"}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path=f"{one}/events", handler=self._events.follow,
                summary="Follow a conversation: its rows, then new events, as server-sent events",
                responses={200: "text/event-stream"}, refusals=(404, 429), headers=("Last-Event-ID",),
            ),
            Endpoint(
                method="GET", path=f"{one}/context", handler=self.context,
                summary="Show what fills the context window of a conversation's model, by part",
                responses={200: WindowUsage}, refusals=(404,),
            ),
            Endpoint(
                method="POST", path=f"{one}/end", handler=self.end, summary="End a conversation",
                responses={200: EndedAnswer}, refusals=(404,),
            ),
            Endpoint(
                method="POST", path=f"{one}/stop", handler=self.stop, summary="Stop the running turn",
                responses={200: StoppedAnswer}, refusals=(404,),
            ),
            Endpoint(
                method="POST", path="/api/messages", handler=self.send, summary="Send a message or a command",
                body=MessageIn, responses={200: ReplyAnswer, 202: AcceptedAnswer},
                refusals=(403, 404, 409, 413, 422, 429, 503), headers=("Idempotency-Key",),
            ),
            Endpoint(
                method="GET", path="/api/turns/{id}", handler=self.turn, summary="Show the state or outcome of a turn",
                responses={200: Outcome}, refusals=(404,),
            ),
            Endpoint(
                method="GET", path="/api/commands", handler=self.commands, summary="List the slash commands",
                responses={200: CommandsAnswer},
            ),
            Endpoint(
                method="GET", path="/api/agents", handler=self.agents, summary="List the agents that you may use",
                responses={200: AgentsAnswer},
            ),
        ]  # fmt: skip

    # -- conversations --

    async def sessions(self, request: Request) -> HttpResponse:
        query: ListQuery = request.query
        found = await self._service.sessions(
            request.caller.principal,
            limit=query.limit,
            before=_cursor(query.before),
            ended=query.ended,
            query=query.q,
            everyone=query.everyone,
        )
        last = found[-1] if len(found) == query.limit and not query.q else None
        return json_response(SessionsAnswer(found, f"{last.active!r}:{last.id}" if last is not None else None))

    async def session(self, request: Request) -> HttpResponse:
        return json_response(await self._service.session(request.path["id"], request.caller.principal))

    async def context(self, request: Request) -> HttpResponse:
        return json_response(await self._service.window_usage(request.path["id"], request.caller.principal))

    async def delete(self, request: Request) -> HttpResponse:
        """Returns 204 if the conversation was deleted, or 202 if it will be deleted when its pending work is done."""
        deleted = await self._service.delete(request.path["id"], request.caller.principal)
        return HttpResponse(204, [], b"") if deleted else HttpResponse(202, [(b"content-length", b"0")], b"")

    async def end(self, request: Request) -> HttpResponse:
        return json_response(
            EndedAnswer(await self._service.end(request.path["id"], request.caller.principal, "request"))
        )

    async def stop(self, request: Request) -> HttpResponse:
        return json_response(StoppedAnswer(await self._service.stop(request.path["id"], request.caller.principal)))

    async def messages(self, request: Request) -> HttpResponse:
        query: PageQuery = request.query
        if query.after is not None and query.before is not None:
            raise Refused("Use after or before, not both.", param="before")
        page = await self._service.transcript(
            request.path["id"], request.caller.principal, after=query.after, before=query.before, limit=query.limit
        )
        edge = 0 if query.after is None else -1
        return json_response(MessagesAnswer(page.rows, page.rows[edge].seq if page.more else None))

    async def media(self, request: Request) -> HttpResponse:
        """Returns a media file. Ranges are supported because browsers that play audio request it in parts."""
        place, number = (_path_number(request.path[name]) for name in ("seq", "number"))
        media, data = await self._service.media(request.path["id"], request.caller.principal, place, number)
        part = parse_range(request.headers.get(b"range"), len(data))
        status, placed = (200, []) if part is None else (206, [(b"content-range", part.header)])
        data = data if part is None else data[part.start : part.end]
        headers = [
            (b"content-type", media.media_type.encode()),
            (b"content-length", str(len(data)).encode()),
            (b"accept-ranges", b"bytes"),
            *placed,
            *_attachment_headers(media),
            (b"content-security-policy", b"default-src 'none'; sandbox"),  # the media's type is not trusted
        ]
        return HttpResponse(status, headers, data)

    async def export(self, request: Request) -> None:
        """Exports a transcript. The response is streamed because a transcript may be too long to be kept in memory."""
        lines = self._service.export(request.path["id"], request.caller.principal)
        first = await anext(lines)  # a refusal is raised before the response begins
        disposition = f'attachment; filename="{request.path["id"]}.jsonl"'.encode()
        headers = [(b"content-type", b"application/x-ndjson"), (b"content-disposition", disposition)]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        await request.send({"type": "http.response.body", "body": first, "more_body": True})

        async def send_rest() -> None:
            async for line in lines:
                await request.send({"type": "http.response.body", "body": line, "more_body": True})
            await request.send({"type": "http.response.body", "body": b""})

        await run_until_disconnect(request.receive, send_rest)

    # -- messages and turns --

    async def send(self, request: Request) -> HttpResponse:
        message: MessageIn = request.body
        caller = request.caller
        if not message.text.strip():
            raise Refused("text is empty.", param="text")
        if message.agent is not None:
            _may_use(caller, message.agent)
        if self._commands.is_command(message.text.strip()):
            return await self._command(message, caller)
        accepted = await self._accept(message, request)
        answer = AcceptedAnswer(accepted.turn, accepted.session, accepted.how, accepted.ahead)
        return json_response(answer, status=202, headers=[(b"x-turn-id", accepted.turn.encode())])

    async def _command(self, message: MessageIn, caller: Caller) -> HttpResponse:
        if message.session is not None:
            await self._writable_session(message.session, caller)
        reply = await self._commands.run(
            message.text.strip(),
            principal=caller.principal,
            channel=caller.channel(attended=message.attended is not False),
            session=message.session,
            agent=message.agent or _default_agent(caller),
        )
        ended = message.session is not None and reply.session is None
        return json_response(ReplyAnswer(ReplyView(reply.text, reply.session, reply.turn, ended)))

    async def _accept(self, message: MessageIn, request: Request) -> Acceptance:
        caller = request.caller
        if message.session is not None:
            agent = (await self._writable_session(message.session, caller)).agent
            _may_use(caller, agent)
        else:
            agent = message.agent or _default_agent(caller)
        key = idempotency_key(request.headers)
        channel = caller.channel(attended=message.attended is not False)
        by_default = message.attended in (None, channel != "http")
        return await self._service.accept(
            Inbound(
                principal=caller.principal.id,
                channel=channel,
                call=Call() if by_default else Call(attended=message.attended),
                agent=agent,
                messages=(Message(role="user", text=message.text),),
                session=message.session,
                busy=message.busy,
                new=message.session is None,
                receipts=() if key is None else (_receipt(key, message),),
            )
        )

    async def _writable_session(self, session: str, caller: Caller) -> SessionView:
        """Returns the conversation if this caller may send messages to it. The owner can see other users'
        conversations, but cannot write in them."""
        view = await self._service.session(session, caller.principal)
        if view.principal != caller.principal.id:
            raise NotAllowed(
                "This is another user's conversation; you may read, end or delete it, but not write in it."
            )
        if view.kind == "ephemeral":
            raise Conflict(
                "This is a one-shot call or a task, which ends with its answer; write to a conversation instead.",
                code="ephemeral",
            )
        return view

    async def turn(self, request: Request) -> HttpResponse:
        return json_response(await self._service.outcome(request.path["id"], request.caller.principal))

    # -- commands and agents --

    async def commands(self, request: Request) -> HttpResponse:
        allowed = [
            info
            for info in self._commands.catalogue()
            if request.caller.principal.may("configure") or not info.owner_only
        ]
        return json_response(CommandsAnswer(allowed))

    async def agents(self, request: Request) -> HttpResponse:
        return json_response(AgentsAnswer(self._service.agents(request.caller.principal)))


def _may_use(caller: Caller, agent: str) -> None:
    if agent not in caller.agents:
        raise NotFound(
            f"There is no agent {agent[:100]!r}; you may use: {', '.join(caller.agents) or 'none'}.",
            code="model_not_found",
            param="agent",
        )


def _default_agent(caller: Caller) -> str:
    """Returns the agent for messages that name none: `main` if the caller may use it, otherwise the first one
    allowed."""
    if not caller.agents:
        raise NotFound("You may not use any agent.", code="model_not_found")
    return "main" if "main" in caller.agents else caller.agents[0]


def _receipt(key: str, message: MessageIn) -> Receipt:
    digest = hashlib.sha256(b"message:" + msgspec.json.encode(message)).digest()
    return Receipt(source=IDEMPOTENCY, key=key, digest=digest, keep=IDEMPOTENCY_SECONDS)


def _cursor(text: str | None) -> tuple[float, str] | None:
    if text is None:
        return None
    active, _, id = text.partition(":")
    try:
        return float(active), id
    except ValueError:
        raise Refused("before must be the `next` of the previous page.", param="before") from None


def _attachment_headers(media: Media) -> list[tuple[bytes, bytes]]:
    """Returns the header that makes browsers download a document, so that it never opens in the gateway's own
    origin."""
    if not media.is_document:
        return []
    name = quote(media.name or "document.pdf", safe="")
    return [(b"content-disposition", f"attachment; filename*=UTF-8''{name}".encode())]


def _path_number(text: str) -> int:
    """Parses a number in a path. Returns -1, which matches nothing, for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else -1
