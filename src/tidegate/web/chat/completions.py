"""`POST /v1/chat/completions`: a message in, an answer out, whole or streamed.

Guarantee: the caller is known before a byte of the body is read; the message is durable before anything is answered;
the answer is OpenAI's shape; a turn whose reader went away is given to the door, which stops it or lets it go on. The
request's own bytes are dropped as soon as the message is accepted, however long the turn takes.
"""

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec

from tidegate.config import Config
from tidegate.engine import TurnLog
from tidegate.errors import NotFound, Refused, Stopping, TidegateError
from tidegate.sessions import Sessions
from tidegate.values import IDEMPOTENCY, RETRY, RETRY_MARK, Acceptance, Failure, Inbound, Outcome, Receipt
from tidegate.web.app import headers as given
from tidegate.web.app.auth import Caller, Credentials
from tidegate.web.app.disconnect import unless_gone
from tidegate.web.app.endpoint import Endpoint
from tidegate.web.app.error_responses import ErrorResponses, HttpResponse, json_answer, send_answer
from tidegate.web.app.request_body import RequestBodies, decode, refuse_duplicates
from tidegate.web.app.sse import Pulse, Stream
from tidegate.web.chat.chat_stream import ChatStream
from tidegate.web.chat.request import (
    ChatRequest,
    brings_tools,
    call_of,
    conversation,
    extras_of,
    is_given,
    new_message,
    other_names,
)
from tidegate.web.chat.response import Chunks, Completion, completion

IDEMPOTENCY_SECONDS = 86400.0
RETRY_SECONDS = 600.0

_STOPPING = Failure(
    message="The gateway is stopping; a turn of a named session or with an Idempotency-Key goes on after its next "
    "start: fetch it by its X-Turn-Id.",
    code="stopping",
    status=503,
    retry=True,
)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class SteeredAnswer(msgspec.Struct, frozen=True):
    """The message joined a turn that runs; that turn's own response tells its answer."""

    id: str
    session: str
    object: str = "turn"
    status: str = "steered"


CHAT = Endpoint(
    method="POST",
    path="/v1/chat/completions",
    summary="Ask an agent: OpenAI's chat completions",
    body=ChatRequest,
    answers={200: Completion, 202: SteeredAnswer},
    refusals=(404, 409, 413, 422, 429, 502, 503, 504),
    headers=("X-Session-Id", "X-Busy", "X-On-Disconnect", "X-Events", "Idempotency-Key"),
)
"""Described here, but served before any routing: it is the hot path."""


class ResponseWish(msgspec.Struct, frozen=True):
    """How a caller wants to be answered."""

    model: str
    stream: bool
    usage: bool
    old_functions: bool
    full: bool
    may_cancel: bool
    """Whether a caller that goes away may mean that the turn is stopped."""
    ignores_tools: bool = False
    """Whether the request has tools that the agent does not take."""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """Fields that the request has under another of their names."""


class AcceptedRequest(msgspec.Struct, frozen=True):
    """What is left of a request once its message is accepted."""

    accepted: Acceptance
    wish: ResponseWish


class ChatCompletions:
    def __init__(
        self,
        service: Sessions,
        keyring: Credentials,
        bodies: RequestBodies,
        errors: ErrorResponses,
        pulse: Pulse,
        config: Config,
    ) -> None:
        self._service = service
        self._keyring = keyring
        self._bodies = bodies
        self._errors = errors
        self._pulse = pulse
        self._agents = config.agents
        self._message_bytes = config.limits.message_bytes
        self._decoder = msgspec.json.Decoder(ChatRequest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = given.headers_of(scope["headers"])
        await self._keyring.caller("POST", headers)
        asked = await self._accept(headers, receive)
        if asked.accepted.how == "steered":
            answer = SteeredAnswer(id=asked.accepted.turn, session=asked.accepted.session)
            await send_answer(send, json_answer(answer, status=202, headers=_turn_headers(asked)))
            return
        if not asked.wish.may_cancel:
            await self._answer(asked, send)
            return
        if await unless_gone(receive, partial(self._answer, asked, send)):
            await self._service.abandon(asked.accepted.turn)

    # -- in --

    async def _accept(self, headers: given.Headers, receive: Receive) -> AcceptedRequest:
        body = await self._bodies.read(headers.get(b"content-length"), receive)
        size = len(body)
        try:
            caller = await self._keyring.caller("POST", headers)  # who may have been revoked while the body was awaited
            inbound, wish = self._understand(caller, headers, body)
            del body  # what waits for the store is the message, not also the bytes that it came in
            return AcceptedRequest(await self._service.accept(inbound), wish)
        finally:
            self._bodies.release(size)

    def _understand(self, caller: Caller, headers: given.Headers, body: bytes) -> tuple[Inbound, ResponseWish]:
        request = decode(body, self._decoder)
        extras = b""
        if not _is_plain(body, request):
            refuse_duplicates(body)
            extras = extras_of(body)
        if request.model not in caller.agents:
            raise NotFound(
                f"There is no model {request.model[:100]!r}; this key may use: {', '.join(caller.agents) or 'none'}.",
                code="model_not_found",
                param="model",
            )
        name = given.session_name(headers)
        call = call_of(request, self._agents[request.model].caller_tools, extras)
        if caller.via == "cookie":
            call = msgspec.structs.replace(call, attended=False)  # whoever waits for this answer reads no questions
        understand = conversation if name is None else new_message
        understood = understand(request.messages, self._message_bytes)
        key = given.idempotency_key(headers)
        leaving = given.on_disconnect(headers)
        full = given.all_events(headers)
        inbound = Inbound(
            principal=caller.principal.id,
            channel=caller.channel(attended=False),
            agent=request.model,
            messages=understood.messages,
            name=name,
            extra_prompt=understood.extra_prompt,
            attachments=understood.brought,
            call=call,
            busy=given.busy(headers),
            on_disconnect=leaving,
            receipts=_receipts(key, given.retries(headers), name, body),
        )
        return inbound, ResponseWish(
            model=request.model,
            stream=bool(request.stream),
            usage=bool(request.stream_options and request.stream_options.include_usage),
            old_functions=is_given(request.functions),
            full=full,
            may_cancel=leaving == "cancel" or (leaving is None and name is None and key is None),
            ignores_tools=call.caller_tools is None and brings_tools(request),
            names=other_names(request),
        )

    # -- out --

    async def _answer(self, asked: AcceptedRequest, send: Send) -> None:
        if asked.wish.stream:
            await self._stream(asked, send)
            return
        try:
            outcome = await self._outcome(asked)
        except TidegateError as error:
            await self._refuse(self._errors.of(error), asked, send)
        else:
            await self._whole(outcome, asked, send)

    async def _outcome(self, asked: AcceptedRequest) -> Outcome:
        if asked.accepted.how == "replayed":
            return await self._service.outcome(asked.accepted.turn)
        return await self._service.wait(asked.accepted.turn)

    async def _whole(self, outcome: Outcome, asked: AcceptedRequest, send: Send) -> None:
        if outcome.error is not None and not _is_partial(outcome):
            await self._refuse(self._errors.of_failure(_named(outcome.error, asked.wish)), asked, send)
            return
        headers = _turn_headers(asked)
        if outcome.state == "stopped":
            headers.append((b"x-turn-state", b"stopped"))
        value = completion(outcome, asked.wish.model, old_functions=asked.wish.old_functions)
        await send_answer(send, json_answer(value, headers=headers))

    async def _refuse(self, answer: HttpResponse, asked: AcceptedRequest, send: Send) -> None:
        """The turn exists, whatever became of it: its id is told."""
        answer.headers.extend(_turn_headers(asked))
        await send_answer(send, answer)

    async def _stream(self, asked: AcceptedRequest, send: Send) -> None:
        log = self._service.live(asked.accepted.turn)
        outcome: Outcome | None = None
        if log is None:
            outcome = await self._outcome(asked)
        created = int(outcome.accepted if outcome is not None else self._service.clock())
        wish = asked.wish
        chunks = Chunks(asked.accepted.turn, wish.model, created, usage=wish.usage, old_functions=wish.old_functions)
        telling = ChatStream(chunks, full=wish.full)
        broke = False
        async with Stream(send, self._pulse, _turn_headers(asked)) as stream:
            try:
                if log is not None:
                    await self._follow(log, telling, asked, stream, send)
                else:
                    await self._end(telling, outcome, asked, stream, send, b"")
            except Exception as error:
                if not stream.speaks:
                    raise  # there is a status left to send, or nothing at all
                broke = True
                await stream.finish(self._errors.event_of(error))
        if telling.broken or broke:
            await self._service.abandon(asked.accepted.turn)

    async def _follow(
        self, log: TurnLog, telling: ChatStream, asked: AcceptedRequest, stream: Stream, send: Send
    ) -> None:
        async with aclosing(log.read()) as batches:
            async for batch in batches:
                data = telling.of(batch)
                if telling.broken or telling.outcome is not None:
                    await self._end(telling, telling.outcome, asked, stream, send, data)
                    return
                if data:
                    await stream.write(data)
        await self._end(telling, None, asked, stream, send, b"")

    async def _end(
        self,
        telling: ChatStream,
        outcome: Outcome | None,
        asked: AcceptedRequest,
        stream: Stream,
        send: Send,
        data: bytes,
    ) -> None:
        if telling.broken:
            failure = Failure(
                message=f"The model's answer broke off after text was shown ({telling.broken}); the turn began it "
                f"anew. Fetch it with GET /api/turns/{asked.accepted.turn}.",
                type="model_error",
                code="answer_restarted",
                status=502,
            )
        elif outcome is None:
            failure = await self._unended(asked)
        elif outcome.error is None or _is_partial(outcome):
            await stream.finish(data + telling.ending(outcome))
            return
        else:
            failure = _named(outcome.error, asked.wish)
        if stream.started or telling.broken:
            await stream.finish(data + self._errors.event(failure))
            return
        await self._refuse(self._errors.of_failure(failure), asked, send)

    async def _unended(self, asked: AcceptedRequest) -> Failure:
        """Why a turn's log was closed without its end: the gateway stops, or the session was deleted under it."""
        try:
            outcome = await self._service.wait(asked.accepted.turn)
        except Stopping:
            return _STOPPING
        except Refused as error:
            return Failure(message=error.message, type="invalid_request_error", code=error.code, status=error.status)
        return outcome.error or _STOPPING


def _is_partial(outcome: Outcome) -> bool:
    """Stopped by somebody after it had said something: that is its answer."""
    return outcome.state == "stopped" and bool(outcome.text)


def _named(failure: Failure, wish: ResponseWish) -> Failure:
    """The failure with the name by which this caller knows the field that is wrong."""
    name = wish.names.get(failure.param or "")
    if name is None:
        return failure
    message = failure.message.replace(f"`{failure.param}`", f"`{name}`")
    return msgspec.structs.replace(failure, param=name, message=message)


def _turn_headers(asked: AcceptedRequest) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-turn-id", asked.accepted.turn.encode())]
    told = ["ignored"] if asked.wish.ignores_tools else []
    if asked.accepted.tools.changed:
        told.append("changed")
    if asked.accepted.tools.shadowed:
        told.append(f"shadowed={' '.join(asked.accepted.tools.shadowed)}")
    if told:
        headers.append((b"x-caller-tools", ", ".join(told).encode()))
    return headers


def _is_plain(body: bytes, request: ChatRequest) -> bool:
    """Whether the body holds nothing but the model, messages of a role and a text, and perhaps `stream`: there are no
    more strings in it than those take once each, so that no name can be there twice. Any other body is read again."""
    if b"\\" in body:
        return False
    strings = 3 if request.stream is None else 4
    for message in request.messages:
        if type(message.content) is not str:
            return False
        strings += 4
    return body.count(b'"') == 2 * strings


def _canonical(body: bytes) -> bytes:
    """The same bytes for the same JSON, however it was written; the bytes themselves where a number in a field that we
    ignore is larger than any we could read."""
    try:
        return msgspec.json.encode(msgspec.json.decode(body), order="sorted")
    except (msgspec.DecodeError, ValueError, OverflowError):
        return body


def _receipts(key: str | None, retries: str, name: str | None, body: bytes) -> tuple[Receipt, ...]:
    """The outer identities of this request: the caller's own key, and an official client's retry."""
    found: list[Receipt] = []
    where = (name or "").encode()
    if key is not None:
        digest = hashlib.sha256(b"%d:%b" % (len(where), where) + _canonical(body)).digest()
        found.append(Receipt(source=IDEMPOTENCY, key=key, digest=digest, keep=IDEMPOTENCY_SECONDS))
    if retries != "none":
        hashed = hashlib.sha256(b"%d:%b" % (len(where), where))
        hashed.update(body)
        source = RETRY if retries == "again" else RETRY_MARK
        found.append(Receipt(source=source, key=hashed.hexdigest(), digest=hashed.digest(), keep=RETRY_SECONDS))
    return tuple(found)
