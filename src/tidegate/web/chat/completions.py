"""`POST /v1/chat/completions`, complete or streamed.

The caller is authenticated before the body is read. The message is stored durably before any part of the response is
sent. Responses have OpenAI's format. When the client disconnects, the session service decides whether to stop the turn
or let it continue. The request's bytes are released as soon as the message is accepted, however long the turn takes.
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
from tidegate.web.app.auth import Caller, Credentials
from tidegate.web.app.disconnect import run_until_disconnect
from tidegate.web.app.endpoint import Endpoint
from tidegate.web.app.http_request import (
    Headers,
    RequestBodies,
    busy_mode,
    client_attempt,
    decode,
    disconnect_mode,
    idempotency_key,
    parse_headers,
    refuse_duplicates,
    session_name,
    wants_all_events,
)
from tidegate.web.app.http_response import ErrorResponses, HttpResponse, json_response, send_response
from tidegate.web.app.sse import OpenStreams, Stream
from tidegate.web.chat.chat_stream import ChatStream
from tidegate.web.chat.messages import parse_conversation, parse_new_messages
from tidegate.web.chat.request import ChatRequest, field_aliases, has_tools, is_present, parse_call, parse_extras
from tidegate.web.chat.response import Chunks, Completion, completion

IDEMPOTENCY_SECONDS = 86400.0
RETRY_SECONDS = 600.0

_STOPPING = Failure(
    message="The gateway is stopping. A turn of a named session or with an Idempotency-Key continues after the "
    "restart; fetch it by its X-Turn-Id.",
    code="stopping",
    status=503,
    retry=True,
)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class SteeredAnswer(msgspec.Struct, frozen=True):
    """The response to a message that joined the running turn. The answer is sent in the response to the request that
    started the turn."""

    id: str
    session: str
    object: str = "turn"
    status: str = "steered"


CHAT = Endpoint(
    method="POST",
    path="/v1/chat/completions",
    summary="Send messages to an agent (OpenAI's chat completions)",
    body=ChatRequest,
    responses={200: Completion, 202: SteeredAnswer},
    refusals=(404, 409, 413, 422, 429, 502, 503, 504),
    headers=("X-Session-Id", "X-Busy", "X-On-Disconnect", "X-Events", "Idempotency-Key"),
)
"""The endpoint's description. The app handles this path before any routing, since it is the most frequent one."""


class ResponseOptions(msgspec.Struct, frozen=True):
    """How the client wants the response."""

    model: str
    stream: bool
    usage: bool
    old_functions: bool
    full: bool
    may_cancel: bool
    """True if the turn may be stopped when the client disconnects."""
    ignores_tools: bool = False
    """True if the request contains tools that the agent ignores."""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """The request's names for fields that have a different name in `Call`."""


class AcceptedRequest(msgspec.Struct, frozen=True):
    """A request whose message was accepted, with its turn and the response options."""

    acceptance: Acceptance
    options: ResponseOptions


class ChatCompletions:
    def __init__(
        self,
        service: Sessions,
        credentials: Credentials,
        bodies: RequestBodies,
        errors: ErrorResponses,
        streams: OpenStreams,
        config: Config,
    ) -> None:
        self._service = service
        self._credentials = credentials
        self._bodies = bodies
        self._errors = errors
        self._streams = streams
        self._agents = config.agents
        self._message_bytes = config.limits.message_bytes
        self._decoder = msgspec.json.Decoder(ChatRequest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = parse_headers(scope["headers"])
        await self._credentials.caller("POST", headers)
        request = await self._accept(headers, receive)
        if request.acceptance.how == "steered":
            steered = SteeredAnswer(id=request.acceptance.turn, session=request.acceptance.session)
            await send_response(send, json_response(steered, status=202, headers=_turn_headers(request)))
            return
        if not request.options.may_cancel:
            await self._respond(request, send)
            return
        if await run_until_disconnect(receive, partial(self._respond, request, send)):
            await self._service.abandon(request.acceptance.turn)

    # -- the request --

    async def _accept(self, headers: Headers, receive: Receive) -> AcceptedRequest:
        body = await self._bodies.read(headers.get(b"content-length"), receive)
        size = len(body)
        try:
            caller = await self._credentials.caller("POST", headers)  # the key may have been revoked in the meantime
            inbound, options = self._parse(caller, headers, body)
            del body  # while waiting for the store, only the message stays in memory
            try:
                return AcceptedRequest(await self._service.accept(inbound), options)
            except Refused as error:
                error.param, error.message = _caller_names(error.param, error.message, options)
                raise
        finally:
            self._bodies.release(size)

    def _parse(self, caller: Caller, headers: Headers, body: bytes) -> tuple[Inbound, ResponseOptions]:
        request = decode(body, self._decoder)
        extras = b""
        if not _is_plain(body, request):
            refuse_duplicates(body)
            extras = parse_extras(body)
        if request.model not in caller.agents:
            raise NotFound(
                f"There is no model {request.model[:100]!r}; this key may use: {', '.join(caller.agents) or 'none'}.",
                code="model_not_found",
                param="model",
            )
        name = session_name(headers)
        call = parse_call(request, self._agents[request.model].caller_tools, extras)
        if caller.via == "cookie":
            call = msgspec.structs.replace(call, attended=False)  # the page cannot show questions for this response
        parse_messages = parse_conversation if name is None else parse_new_messages
        parsed = parse_messages(request.messages, self._message_bytes)
        key = idempotency_key(headers)
        on_disconnect = disconnect_mode(headers)
        full = wants_all_events(headers)
        inbound = Inbound(
            principal=caller.principal.id,
            channel=caller.channel(attended=False),
            agent=request.model,
            messages=parsed.messages,
            name=name,
            extra_prompt=parsed.extra_prompt,
            attachments=parsed.attachments,
            call=call,
            busy=busy_mode(headers),
            on_disconnect=on_disconnect,
            receipts=_receipts(key, client_attempt(headers), name, body),
        )
        return inbound, ResponseOptions(
            model=request.model,
            stream=bool(request.stream),
            usage=bool(request.stream_options and request.stream_options.include_usage),
            old_functions=is_present(request.functions),
            full=full,
            may_cancel=on_disconnect == "cancel" or (on_disconnect is None and name is None and key is None),
            ignores_tools=call.caller_tools is None and has_tools(request),
            names=field_aliases(request),
        )

    # -- the response --

    async def _respond(self, request: AcceptedRequest, send: Send) -> None:
        if request.options.stream:
            await self._stream(request, send)
            return
        try:
            outcome = await self._outcome(request)
        except TidegateError as error:
            await self._send_error(self._errors.from_error(error), request, send)
        else:
            await self._send_completion(outcome, request, send)

    async def _outcome(self, request: AcceptedRequest) -> Outcome:
        if request.acceptance.how == "replayed":
            return await self._service.outcome(request.acceptance.turn)
        return await self._service.wait(request.acceptance.turn)

    async def _send_completion(self, outcome: Outcome, request: AcceptedRequest, send: Send) -> None:
        if outcome.error is not None and not _is_partial(outcome):
            await self._send_error(
                self._errors.from_failure(_with_caller_names(outcome.error, request.options)), request, send
            )
            return
        headers = _turn_headers(request)
        if outcome.state == "stopped":
            headers.append((b"x-turn-state", b"stopped"))
        value = completion(outcome, request.options.model, old_functions=request.options.old_functions)
        await send_response(send, json_response(value, headers=headers))

    async def _send_error(self, response: HttpResponse, request: AcceptedRequest, send: Send) -> None:
        """Sends an error with the turn's id, since the turn exists whatever its outcome."""
        response.headers.extend(_turn_headers(request))
        await send_response(send, response)

    async def _stream(self, request: AcceptedRequest, send: Send) -> None:
        log = self._service.turn_log(request.acceptance.turn)
        outcome: Outcome | None = None
        if log is None:
            outcome = await self._outcome(request)
        created = int(outcome.accepted if outcome is not None else self._service.now())
        options = request.options
        chunks = Chunks(
            request.acceptance.turn, options.model, created, usage=options.usage, old_functions=options.old_functions
        )
        chat_stream = ChatStream(chunks, full=options.full)
        broke = False
        async with Stream(send, self._streams, _turn_headers(request)) as stream:
            try:
                if log is not None:
                    await self._follow(log, chat_stream, request, stream, send)
                else:
                    await self._end(chat_stream, outcome, request, stream, send, b"")
            except Exception as error:
                if not stream.is_active:
                    raise  # the response has not begun, or is already complete
                broke = True
                await stream.finish(self._errors.error_event(error))
        if chat_stream.broken or broke:
            await self._service.abandon(request.acceptance.turn)

    async def _follow(
        self, log: TurnLog, chat_stream: ChatStream, request: AcceptedRequest, stream: Stream, send: Send
    ) -> None:
        async with aclosing(log.read()) as batches:
            async for batch in batches:
                data = chat_stream.encode(batch)
                if chat_stream.broken or chat_stream.outcome is not None:
                    await self._end(chat_stream, chat_stream.outcome, request, stream, send, data)
                    return
                if data:
                    await stream.write(data)
        await self._end(chat_stream, None, request, stream, send, b"")

    async def _end(
        self,
        chat_stream: ChatStream,
        outcome: Outcome | None,
        request: AcceptedRequest,
        stream: Stream,
        send: Send,
        data: bytes,
    ) -> None:
        if chat_stream.broken:
            failure = Failure(
                message=f"The model's answer was interrupted after text was sent ({chat_stream.broken}), and the turn "
                f"restarted it. Fetch the new answer with GET /api/turns/{request.acceptance.turn}.",
                type="model_error",
                code="answer_restarted",
                status=502,
            )
        elif outcome is None:
            failure = await self._missing_outcome(request)
        elif outcome.error is None or _is_partial(outcome):
            await stream.finish(data + chat_stream.ending(outcome))
            return
        else:
            failure = _with_caller_names(outcome.error, request.options)
        if stream.started or chat_stream.broken:
            await stream.finish(data + self._errors.failure_event(failure))
            return
        await self._send_error(self._errors.from_failure(failure), request, send)

    async def _missing_outcome(self, request: AcceptedRequest) -> Failure:
        """Returns the reason why a turn's log was closed early: the gateway is stopping, or the session was deleted."""
        try:
            outcome = await self._service.wait(request.acceptance.turn)
        except Stopping:
            return _STOPPING
        except Refused as error:
            return Failure(message=error.message, type="invalid_request_error", code=error.code, status=error.status)
        return outcome.error or _STOPPING


def _is_partial(outcome: Outcome) -> bool:
    """True if the turn was stopped after it had produced text, which is then the answer."""
    return outcome.state == "stopped" and bool(outcome.text)


def _with_caller_names(failure: Failure, options: ResponseOptions) -> Failure:
    param, message = _caller_names(failure.param, failure.message, options)
    return failure if param == failure.param else msgspec.structs.replace(failure, param=param, message=message)


def _caller_names(param: str | None, message: str, options: ResponseOptions) -> tuple[str | None, str]:
    """Returns an error's field and message, with the field names used in the request."""
    if param not in options.names:
        return param, message
    for field, name in options.names.items():
        message = message.replace(f"`{field}`", f"`{name}`")
    return options.names[param], message


def _turn_headers(request: AcceptedRequest) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-turn-id", request.acceptance.turn.encode())]
    notes = ["ignored"] if request.options.ignores_tools else []
    if request.acceptance.tools.changed:
        notes.append("changed")
    if request.acceptance.tools.shadowed:
        notes.append(f"shadowed={' '.join(request.acceptance.tools.shadowed)}")
    if notes:
        headers.append((b"x-caller-tools", ", ".join(notes).encode()))
    return headers


def _is_plain(body: bytes, request: ChatRequest) -> bool:
    """True if the body contains only the model, messages with a role and text, and possibly `stream`. In that case, it
    has exactly as many strings as these fields need, so no name is repeated. Any other body is decoded again to check
    this."""
    if b"\\" in body:
        return False
    strings = 3 if request.stream is None else 4
    for message in request.messages:
        if type(message.content) is not str:
            return False
        strings += 4
    return body.count(b'"') == 2 * strings


def _canonical(body: bytes) -> bytes:
    """Returns the same bytes for equal JSON, regardless of formatting. If an ignored field contains a number that is
    too large to decode, returns the body unchanged."""
    try:
        return msgspec.json.encode(msgspec.json.decode(body), order="sorted")
    except (msgspec.DecodeError, ValueError, OverflowError):
        return body


def _receipts(key: str | None, attempt: str, name: str | None, body: bytes) -> tuple[Receipt, ...]:
    """Returns the identities used to recognise a repeated request: the idempotency key and, for official clients, which
    retry on their own, a digest of the body."""
    receipts: list[Receipt] = []
    where = (name or "").encode()
    if key is not None:
        digest = hashlib.sha256(b"%d:%b" % (len(where), where) + _canonical(body)).digest()
        receipts.append(Receipt(source=IDEMPOTENCY, key=key, digest=digest, keep=IDEMPOTENCY_SECONDS))
    if attempt != "none":
        hashed = hashlib.sha256(b"%d:%b" % (len(where), where))
        hashed.update(body)
        source = RETRY if attempt == "again" else RETRY_MARK
        receipts.append(Receipt(source=source, key=hashed.hexdigest(), digest=hashed.digest(), keep=RETRY_SECONDS))
    return tuple(receipts)
