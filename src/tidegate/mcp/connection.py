"""One connection to a server, over the SDK's `ClientSession`: the handshake, the listing, and calls.

A connection has one task, which holds the transport and the session open. `open` returns when the handshake is done and
the server's tools are listed; if `open` fails or is cancelled, everything is closed. The connection ends when the
transport ends, and all calls then fail immediately. The protocol version is negotiated on the same connection, never in
a second process.

Results are not checked against the server's output schema: a check would run an untrusted party's patterns on the event
loop, and the model reads the result in any case.

This module imports the SDK, so it is imported only when a server is first connected.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from tidegate import __version__
from tidegate.lifetimes import Scope, ServiceFailed
from tidegate.log import Log
from tidegate.mcp.errors import CallFailed, ConnectionLost, NotSent
from tidegate.mcp.listing import ListingBuilder, ServerListing

log = Log(__name__)

PROBE_SECONDS = 5.0
"""Time limit for the response to the first request of the newer protocol, which some older servers ignore."""

PAGES_AT_MOST = 50
"""Maximum number of pages read from one list."""

ROUNDS_AT_MOST = 10
"""Maximum number of times that a server may ask for input during one call."""

CLOSE_SECONDS = 10.0
"""Time limit for closing the session and the transport. Processes are killed before this limit is reached."""

LIST_PAUSE = 1.0
"""Minimum number of seconds between two listings, however often the server announces changes."""

REASON_SECONDS = 2.0
"""Time limit for finding out why a connection has ended, such as the exit code of the process."""

ENDED = "The connection to the server has ended."

_ToolResult: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_Prompt: TypeAdapter[types.GetPromptResult | types.InputRequiredResult] = TypeAdapter(
    types.GetPromptResult | types.InputRequiredResult
)
_Resource: TypeAdapter[types.ReadResourceResult | types.InputRequiredResult] = TypeAdapter(
    types.ReadResourceResult | types.InputRequiredResult
)

Revision = Literal["auto", "2025", "2026"]
Questions = Callable[[types.ElicitRequestParams], Awaitable[types.ElicitResult]]


class Requester(Protocol):
    """The maker of a request: passes the server's questions to the user, and receives progress updates."""

    async def answer(self, params: types.ElicitRequestParams) -> types.ElicitResult: ...

    async def progressed(self, progress: float, total: float | None, message: str | None) -> None: ...


class Streams(Protocol):
    """An open transport. `ended` is done when the transport has ended, with the failure if there is one."""

    read: Any
    write: Any
    ended: asyncio.Future[ServiceFailed | None]

    async def failure(self) -> ServiceFailed | None:
        """Returns the reason why the transport ended, or None if the server ended normally."""
        ...

    def refused(self) -> ServiceFailed | None:
        """Returns a failure that the transport noticed outside the protocol, such as missing authorisation."""
        ...


class McpConnection:
    """One connection. `listing` is what the server offered last; `on_listing` is called when the listing has
    changed."""

    def __init__(
        self,
        server: str,
        transport: AbstractAsyncContextManager[Streams],
        scope: Scope,
        *,
        revision: Revision,
        known: str,
        clock: Callable[[], float],
        on_listing: Callable[[ServerListing], Awaitable[None]],
    ) -> None:
        """`known` is the protocol version that an earlier connection negotiated, or an empty string."""
        self.server = server
        self.listing = ServerListing(revision="")
        self._transport = transport
        self._scope = scope.child(f"connection of {server}", close_within=CLOSE_SECONDS)
        self._wanted = revision
        self._known = known
        self._clock = clock
        self._on_listing = on_listing
        self._session: ClientSession | None = None
        self._streams: Streams | None = None
        self._closing = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[ServiceFailed | None] = loop.create_future()
        self._generation = 0
        self._changed = asyncio.Event()
        self._callers: list[Requester] = []  # lint: allow the calls in progress

    @property
    def streams(self) -> Any:
        return self._streams

    @property
    def is_open(self) -> bool:
        if not self._opened.done() or self._ended.done() or self._closing.is_set():
            return False
        return self._streams is not None and not self._streams.ended.done()

    async def open(self, within: float) -> None:
        """Connects, and lists what the server offers. Raises ServiceFailed."""
        self._scope.start(self._run, name=f"connection of {self.server}")
        try:
            with anyio.move_on_after(within) as limit:
                await _first_of(self._opened, self._ended)
            if limit.cancelled_caught:
                raise ServiceFailed(f"The server was not ready within {within:g} s{self._said()}.", "start-timeout")
            if not self._opened.done():
                raise self._ended.result() or ServiceFailed(
                    f"The server ended before it was ready{self._said()}.", "unavailable"
                )
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise
        self._scope.start(self._follow_changes, name=f"changes of {self.server}")

    async def wait(self) -> None:
        """Waits until the connection ends. Raises ServiceFailed if it ended with a failure."""
        await asyncio.wait({self._ended})
        if (error := self._ended.result()) is not None:
            raise error

    async def reason(self) -> str:
        """Returns a sentence that says why the connection has ended, or an empty string if it is open."""
        if self.is_open:
            return ""
        await asyncio.wait({self._ended}, timeout=REASON_SECONDS)
        error = self._ended.result() if self._ended.done() else None
        return ENDED if error is None else str(error)

    async def close(self) -> None:
        self._closing.set()
        await self._scope.close()
        if not self._ended.done():
            self._ended.set_result(None)

    def _said(self) -> str:
        tail = getattr(self._streams, "tail", None)
        return f": {tail.last}" if tail is not None and tail.last else ""

    # -- the task --

    async def _run(self) -> None:
        error: ServiceFailed | None = None
        try:
            error = await self._hold()
        except (NotSent, MCPError, ValidationError, RuntimeError, TimeoutError) as failure:
            error = self._refusal() or ServiceFailed(_sentence(failure), "unavailable")
            error.__cause__ = failure
        except ServiceFailed as failure:
            error = failure
        except BaseExceptionGroup as failures:
            error = self._refusal() or ServiceFailed(_sentence(_first(failures)), "transport")
            error.__cause__ = failures
        except Exception as failure:
            error = ServiceFailed(_sentence(failure), "transport")
            error.__cause__ = failure
        finally:
            self._session = None
            if not self._ended.done():
                self._ended.set_result(error)

    async def _hold(self) -> ServiceFailed | None:
        """Holds the transport and the session open until one of them ends or the connection is closed. Handshake errors
        are raised outside both, since task groups would wrap them."""
        refused: Exception | None = None
        async with self._transport as streams:
            self._streams = streams
            async with ClientSession(
                streams.read,
                streams.write,
                elicitation_callback=self._elicit,
                message_handler=self._receive,
                client_info=types.Implementation(name="tidegate", version=__version__),
            ) as session:
                closing = self._scope.start(self._closing.wait, name="close")
                greeting = self._scope.start(self._greet, session, name="handshake")
                await _first_of(greeting, streams.ended, closing)
                if greeting.done() and not streams.ended.done() and (refused := greeting.result()) is None:
                    self._session = session
                    self._opened.set_result(None)
                    await _first_of(streams.ended, closing)
                self._session = None
                greeting.cancel()
            if self._closing.is_set():
                return None
            failure = await streams.failure() if streams.ended.done() else None
        if refused is not None and failure is None:
            raise refused
        return failure or self._refusal()

    def _refusal(self) -> ServiceFailed | None:
        return None if self._streams is None else self._streams.refused()

    async def _greet(self, session: ClientSession) -> Exception | None:
        """Performs the handshake and lists what the server offers. Returns the error if either fails."""
        try:
            await self._negotiate(session)
            self.listing = await self._list(session)
            await self._on_listing(self.listing)
        except Exception as error:  # whatever it is, the connection fails with it
            return error
        return None

    async def _negotiate(self, session: ClientSession) -> None:
        """Negotiates the protocol version. Unless the response shows that the server supports the newer protocol, the
        older handshake follows on the same connection."""
        if self._wanted == "2025":
            await session.initialize()
            return
        if self._wanted == "auto" and self._known in HANDSHAKE_PROTOCOL_VERSIONS:
            try:
                await session.initialize()
                return
            except MCPError as error:
                if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
                    raise
        version = LATEST_MODERN_VERSION
        for attempt in range(2):
            try:
                with anyio.fail_after(PROBE_SECONDS):
                    found = types.DiscoverResult.model_validate(await session.send_discover(version))
                if any(each in found.supported_versions for each in MODERN_PROTOCOL_VERSIONS):
                    session.adopt(found)
                    if self._streams is not None:
                        self._streams.read.assumes_complete = True
                    return
                reason = f"The server supports {', '.join(found.supported_versions)[:200]}."
            except (MCPError, TimeoutError, ValidationError) as error:
                if self._streams is not None and self._streams.ended.done():
                    raise
                reason = _sentence(error)
                if isinstance(error, MCPError) and error.code == types.UNSUPPORTED_PROTOCOL_VERSION:
                    mutual = [each for each in MODERN_PROTOCOL_VERSIONS if each in _supported(error)]
                    if mutual and attempt == 0:
                        version = mutual[-1]
                        continue
            break
        if self._wanted == "2026":
            raise ServiceFailed(f"The server does not support protocol version {LATEST_MODERN_VERSION}: {reason}")
        await session.initialize()

    # -- what it offers --

    async def _list(self, session: ClientSession) -> ServerListing:
        builder = ListingBuilder(self.server)
        capabilities = _capabilities(session)
        ttl: float | None = None
        if capabilities.tools is not None:
            ttl = await self._list_tools(session, builder)
        if capabilities.prompts is not None:
            await self._list_prompts(session, builder)
        found = session.discover_result or session.initialize_result
        info = session.server_info
        return builder.build(
            revision=session.protocol_version or "",
            server=f"{info.name} {info.version}" if info is not None else "",
            instructions=(found.instructions if found is not None else None) or "",
            has_resources=capabilities.resources is not None,
            at=self._clock(),
            ttl=ttl,
        )

    async def _list_tools(self, session: ClientSession, builder: ListingBuilder) -> float | None:
        cursor: str | None = None
        ttl: float | None = None
        for _ in range(PAGES_AT_MOST):
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            for tool in page.tools:
                hints = tool.annotations
                builder.add_tool(
                    tool.name,
                    tool.description or tool.title or "",
                    tool.input_schema,
                    read_only=hints is not None and hints.read_only_hint is True,
                    idempotent=hints is not None and hints.idempotent_hint is True,
                )
            if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                ttl = page.ttl_ms / 1000
            cursor = page.next_cursor
            if cursor is None or builder.is_full:
                break
        return ttl

    async def _list_prompts(self, session: ClientSession, builder: ListingBuilder) -> None:
        cursor: str | None = None
        for _ in range(PAGES_AT_MOST):
            page = await session.list_prompts(params=types.PaginatedRequestParams(cursor=cursor))
            for prompt in page.prompts:
                arguments = [
                    (each.name, each.description or "", bool(each.required)) for each in prompt.arguments or ()
                ]
                builder.add_prompt(prompt.name, prompt.description or prompt.title or "", arguments)
            cursor = page.next_cursor
            if cursor is None:
                break

    async def _receive(self, message: IncomingMessage) -> None:
        """Records that a list has changed."""
        if isinstance(message, types.ToolListChangedNotification | types.PromptListChangedNotification):
            self._generation += 1
            self._changed.set()

    async def _follow_changes(self) -> None:
        """Lists again after each change. A listing is discarded if another change was announced in the meantime."""
        if self.listing.revision in MODERN_PROTOCOL_VERSIONS:
            self._scope.start(self._subscribe, name=f"subscription to {self.server}")
        while True:
            await self._changed.wait()
            self._changed.clear()
            generation, session = self._generation, self._session
            if session is None:
                return
            try:
                listing = await self._list(session)
            except (MCPError, ValidationError, NotSent) as error:
                log.warning("the tools of a server cannot be listed again", server=self.server, error=str(error)[:300])
            else:
                if generation == self._generation:
                    self.listing = listing
                    await self._on_listing(listing)
            await asyncio.sleep(LIST_PAUSE)

    async def _subscribe(self) -> None:
        """Asks a server that uses the newer protocol to announce changes to its tools and prompts."""
        session = self._session
        if session is None:
            return
        capabilities = _capabilities(session)
        tools = capabilities.tools is not None and bool(capabilities.tools.list_changed)
        prompts = capabilities.prompts is not None and bool(capabilities.prompts.list_changed)
        if not (tools or prompts):
            return
        with contextlib.suppress(MCPError, SubscriptionLost, NotSent, TimeoutError, RuntimeError):
            async with listen(session, tools_list_changed=tools, prompts_list_changed=prompts) as events:
                async for _ in events:
                    self._generation += 1
                    self._changed.set()

    def refresh(self) -> None:
        """Lists again in the background."""
        self._changed.set()

    # -- requests --

    async def call_tool(self, name: str, arguments: Mapping[str, Any], caller: Requester) -> types.CallToolResult:
        """Calls a tool. Raises CallFailed, ConnectionLost or NotSent. Cancelling this method cancels the call but
        leaves the connection open."""

        def request(answers: types.InputResponses | None, state: str | None) -> types.CallToolRequest:
            return types.CallToolRequest(
                params=types.CallToolRequestParams(
                    name=name, arguments=dict(arguments), input_responses=answers, request_state=state
                )
            )

        result: types.CallToolResult = await self._request(request, _ToolResult, caller)
        return result

    async def get_prompt(self, name: str, arguments: Mapping[str, str], caller: Requester) -> types.GetPromptResult:
        def request(answers: types.InputResponses | None, state: str | None) -> types.GetPromptRequest:
            return types.GetPromptRequest(
                params=types.GetPromptRequestParams(
                    name=name, arguments=dict(arguments), input_responses=answers, request_state=state
                )
            )

        result: types.GetPromptResult = await self._request(request, _Prompt, caller)
        return result

    async def read_resource(self, uri: str, caller: Requester) -> types.ReadResourceResult:
        def request(answers: types.InputResponses | None, state: str | None) -> types.ReadResourceRequest:
            return types.ReadResourceRequest(
                params=types.ReadResourceRequestParams(uri=uri, input_responses=answers, request_state=state)
            )

        result: types.ReadResourceResult = await self._request(request, _Resource, caller)
        return result

    async def list_resources(self, cursor: str | None) -> types.ListResourcesResult:
        session = self._ready_session()
        with self._errors():
            return await session.list_resources(params=types.PaginatedRequestParams(cursor=cursor))

    async def _request(self, request: Callable[..., Any], adapter: TypeAdapter[Any], caller: Requester) -> Any:
        session = self._ready_session()
        self._callers.append(caller)
        try:
            with self._errors():
                answers: types.InputResponses | None = None
                state: str | None = None
                for _ in range(ROUNDS_AT_MOST):
                    result = await session.send_request(
                        request(answers, state), adapter, progress_callback=caller.progressed
                    )
                    if not isinstance(result, types.InputRequiredResult):
                        return result
                    answers = await self._answers(result, caller)
                    state = result.request_state
                raise CallFailed(f"The server asked for input more than {ROUNDS_AT_MOST} times.")
        finally:
            self._callers.remove(caller)

    def _ready_session(self) -> ClientSession:
        if self._session is None or not self.is_open:
            raise NotSent(ENDED)
        return self._session

    @contextlib.contextmanager
    def _errors(self) -> Any:
        try:
            yield
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED and self._is_lost(error.message):
                raise ConnectionLost(error.message) from None
            if error.code == NOT_SENT:
                raise NotSent(error.message) from None
            if error.code == LOST:
                raise ConnectionLost(error.message) from None
            raise CallFailed(error.message or f"error {error.code}") from None
        except ValidationError as error:
            raise CallFailed(f"The server's answer is not valid ({error.error_count()} errors).") from None

    def _is_lost(self, message: str) -> bool:
        """True if an error with the SDK's code for a lost connection comes from the SDK. Servers use the same code."""
        return self._streams is None or self._streams.ended.done() or message.startswith(_LOST_STREAM)

    async def _answers(self, result: types.InputRequiredResult, caller: Requester) -> types.InputResponses:
        answers: types.InputResponses = {}
        for key, wanted in list((result.input_requests or {}).items())[:8]:
            if not isinstance(wanted, types.ElicitRequest):
                raise CallFailed(f"The server asked for {wanted.method}, which is disabled.")
            answers[key] = await caller.answer(wanted.params)
        if not answers:
            await asyncio.sleep(0.1)  # the server only wants to be asked again
        return answers

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answers a question that a server with the older protocol asks during a call. The question does not name the
        call, so nobody is asked if several calls are in progress."""
        if len(self._callers) != 1:
            return types.ErrorData(code=types.INVALID_REQUEST, message="It is not known whom to ask.")
        return await self._callers[0].answer(params)


_LOST_STREAM = ("SSE stream ended", "SSE stream failed")
"""The beginnings of the SDK's messages about a response that can no longer arrive although the connection is still
open."""

NOT_SENT, LOST = -32_090, -32_091
"""Error codes that the gateway's own transports return in place of a response: the request was not sent, or its
connection broke."""


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    """Waits until one of the futures is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _capabilities(session: ClientSession) -> types.ServerCapabilities:
    found = session.discover_result or session.initialize_result
    return types.ServerCapabilities() if found is None else found.capabilities


def _supported(error: MCPError) -> tuple[str, ...]:
    try:
        return tuple(types.UnsupportedProtocolVersionErrorData.model_validate(error.error.data).supported)
    except ValidationError:
        return ()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())[:500]
    return text or type(error).__name__
