"""A strict, scripted model server that speaks OpenAI's chat completions.

Guarantee: it refuses what a strict provider refuses (orphan or duplicate tool calls and results, duplicate tool names,
bad roles, empty messages, unknown fields, images that are none), answers the same to the same request, and counts
truthfully how much of each conversation's previous request came again unchanged. It is cheap, because it shares a
machine with what it measures: raw asyncio and httptools, canned bytes for the plain answer, one write. Everything it
keeps is bounded.

The last user message may direct it; each directive takes `times=N` (only the first N requests that meet it) and
`step=K` (only before the K-th tool step's answer, counted from 0):

    [tool NAME {json}]          call a tool; several directives are steps, one after the other
    [together A {json} B {..}]  call several tools in one step
    [loop NAME {json}]          call it again after every result
    [badargs NAME] [unknowntool]  a call with broken arguments; of a tool that is not there
    [saying WORDS]              said before the tool calls, in the same answer
    [say WORDS] [words N] [finish REASON]     the final answer: its text; N words; its finish reason
    [status CODE retry-after=S code=C echo quote]   an HTTP error; it quotes the caller's credential, and what was said
    [slow ms=N] [hold NAME after=N]     a pause between pieces; wait for POST /release/NAME, perhaps after N pieces
    [hang after=N] [cut after=N] [badjson after=N] [error after=N code=C quote]   stop, hang up, spoil after N pieces
    [hugeline bytes=N] [nodone] [close] [html]     a line without end; no end mark; hang up at once; a web page

Also: GET /stats, GET /requests, GET /v1/models, POST /reset, POST /release/NAME, POST /close-idle.
"""

import argparse
import asyncio
import signal
import ssl
from collections import Counter, OrderedDict, deque
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

import httptools
import msgspec

from bench.scripted_wire import (
    ANSWER,
    DONE,
    END,
    STEPS,
    STREAM_HEAD,
    VIOLATIONS,
    Directive,
    Plan,
    Refusal,
    Request,
    Reuse,
    check_messages,
    check_tools,
    completion_of,
    error_of,
    events_of,
    framed,
    read_request,
    read_script,
    reply_of,
    tokens_of,
    usage_event_of,
    usage_of,
)

RECORDED = 200
RECORDED_BYTES = 8 * 1024 * 1024
COUNTERS = 10_000
CANNED = 64
BODY_BYTES = 64 * 1024 * 1024
# Events to one write, when nothing is to happen between them.
BATCH = 64
LONGEST_WAIT = 600.0
CANNED_END = framed(DONE) + END
FAULTS = frozenset({"status", "slow", "hold", "hang", "cut", "badjson", "error", "hugeline", "nodone", "close", "html"})


# -- the server --------------------------------------------------------------------------------------------------------


class Recorded(msgspec.Struct, frozen=True):
    """A request as it came. `authorization` is the header's value, or empty."""

    path: str
    authorization: str
    headers: dict[str, str]
    body: bytes

    def decoded(self) -> Any:
        return msgspec.json.decode(self.body)


class Latch:
    """What `[hold NAME]` waits at; once released it stays open."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.arrived = asyncio.Event()
        self.waiting = 0


class ScriptedModel:
    """`async with ScriptedModel() as model`: listens on loopback, at `model.base_url`; owns its connections."""

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, key: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._host, self._port, self._key, self._tls = host, port, key, tls
        self._server: asyncio.Server | None = None
        self._canned: dict[str, tuple[bytes, bytes]] = {}
        self._toolsets: OrderedDict[bytes, tuple[tuple[str, ...], int]] = OrderedDict()
        self.connections: set[Connection] = set()
        self.latches: OrderedDict[str, Latch] = OrderedDict()
        self.reuse = Reuse()
        self.reset()

    def reset(self) -> None:
        self.reuse.clear()
        self.recorded: deque[Recorded] = deque()
        self._recorded_bytes = 0
        self._met: OrderedDict[tuple[int, str, int], int] = OrderedDict()
        self.counts: Counter[str] = Counter()
        self.refusals: deque[str] = deque(maxlen=VIOLATIONS)
        for latch in self.latches.values():
            latch.opened.set()
        self.latches.clear()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), self._host, self._port, backlog=1024, ssl=self._tls
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        ending = [connection.end() for connection in tuple(self.connections)]
        await asyncio.gather(*(task for task in ending if task is not None), return_exceptions=True)
        await asyncio.wait_for(self._server.wait_closed(), LONGEST_WAIT)

    @property
    def root(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self._host}:{self._port}"

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    def latch(self, name: str) -> Latch:
        found = self.latches.get(name)
        if found is None:
            found = self.latches[name] = Latch()
            if len(self.latches) > COUNTERS:
                self.latches.popitem(last=False)[1].opened.set()
        return found

    def release(self, name: str) -> None:
        self.latch(name).opened.set()

    async def held(self, name: str) -> None:
        """Returns when a request has come to `[hold NAME]`."""
        await asyncio.wait_for(self.latch(name).arrived.wait(), LONGEST_WAIT)

    def close_idle(self) -> int:
        """Half-closes the connections that wait for a request, as an impatient proxy does."""
        idle = [connection for connection in self.connections if not connection.busy]
        for connection in idle:
            connection.half_close()
        return len(idle)

    def stats(self) -> dict[str, Any]:
        return {
            "requests": self.counts["requests"],
            "refused": self.counts["refused"],
            "refusals": list(self.refusals),
            "disconnects": self.counts["disconnects"],
            "connections": len(self.connections),
            "accepted_connections": self.counts["connections"],
            "busy": sum(connection.busy for connection in self.connections),
            "holding": {name: latch.waiting for name, latch in self.latches.items() if latch.waiting},
            **self.reuse.view(),
        }

    def record(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.recorded.append(Recorded(path, headers.get("authorization", ""), headers, body))
        self._recorded_bytes += len(body)
        while len(self.recorded) > RECORDED or (self._recorded_bytes > RECORDED_BYTES and len(self.recorded) > 1):
            self._recorded_bytes -= len(self.recorded.popleft().body)

    def answer(self, connection: "Connection", headers: dict[str, str], body: bytes) -> None:
        """One chat completion: refused, answered at once from canned bytes, or played by a task."""
        self.counts["requests"] += 1
        try:
            if self._key is not None and headers.get("authorization") != f"Bearer {self._key}":
                raise Refusal("Incorrect API key provided.", code="invalid_api_key", status=401)
            request, names, tools = self._read(body)
        except Refusal as refusal:
            self.counts["refused"] += 1
            self.refusals.append(refusal.message)
            connection.write(
                reply_of(refusal.status, error_of(refusal.message, param=refusal.param, code=refusal.code))
            )
            return
        prompt = tokens_of(request.messages)
        key, cached = self.reuse.note(request, tools, prompt)
        last = max((place for place, message in enumerate(request.messages) if message.directs()), default=-1)
        text = request.messages[last].text() if last >= 0 else ""
        most = request.max_completion_tokens or request.max_tokens or len(ANSWER)
        options = request.stream_options
        if "[" not in text and most >= len(ANSWER) and request.stream and options is not None and options.include_usage:
            begin, model = self._canned.get(request.model) or self._can(request.model)
            usage = usage_event_of(model, usage_of(prompt, cached, len(ANSWER)))
            connection.write(b"".join((begin, framed(usage), CANNED_END)))
            return
        plan = self._plan(request, names, key, text, last)
        connection.play(self._perform(connection, request, plan, headers, (prompt, cached)))

    def _can(self, name: str) -> tuple[bytes, bytes]:
        model = msgspec.json.encode(name)
        events = events_of(Plan(ANSWER, [], "stop"), model)
        if len(self._canned) >= CANNED:
            self._canned.clear()
        self._canned[name] = (STREAM_HEAD + b"".join(framed(event) for event in events), model)
        return self._canned[name]

    def _read(self, body: bytes) -> tuple[Request, tuple[str, ...], int]:
        try:
            request = read_request(body)
            if not (raw := bytes(request.tools)):
                names: tuple[str, ...] = ()
                tools = 0
                if request.tool_choice is not None:
                    raise Refusal("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
            else:
                names, tools = self._toolset(raw)
        except msgspec.ValidationError as error:
            raise Refusal(f"Invalid request: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refusal("We could not parse the JSON body of your request.") from error
        if request.stream_options is not None and not request.stream:
            raise Refusal("'stream_options' is only allowed when 'stream' is enabled.", param="stream_options")
        for limit in (request.max_tokens, request.max_completion_tokens):
            if limit is not None and limit < 1:
                raise Refusal("the limit of tokens must be at least 1.", param="max_tokens")
        if request.temperature is not None and not 0 <= request.temperature <= 2:
            raise Refusal("'temperature' must be between 0 and 2.", param="temperature")
        check_messages(request.messages)
        return request, names, tools

    def _toolset(self, raw: bytes) -> tuple[tuple[str, ...], int]:
        found = self._toolsets.get(raw)
        if found is None:
            found = self._toolsets[raw] = check_tools(raw)
            if len(self._toolsets) > CANNED:
                self._toolsets.popitem(last=False)
        return found

    def _plan(self, request: Request, names: tuple[str, ...], key: int, text: str, last: int) -> Plan:
        script = read_script(text)
        since = request.messages[last + 1 :]
        step = sum(message.tool_calls is not None for message in since)
        wanted: list[tuple[str, str]] = []
        steps = [directive for directive in script if directive.name in STEPS]
        loop = next((directive for directive in script if directive.name == "loop"), None)
        if loop is not None:
            wanted = loop.calls()
        elif step < len(steps):
            doing = steps[step]
            offered = doing.words[0] if doing.words else names[0] if names else "no_such_tool"
            if doing.name == "badargs":
                wanted = [(offered, '{"path": ')]
            elif doing.name == "unknowntool":
                wanted = [("no_such_tool", "{}")]
            else:
                wanted = doing.calls()
        calls = [(f"call_{len(request.messages)}_{n}", name, given) for n, (name, given) in enumerate(wanted)]
        pieces: tuple[str, ...] = () if calls else ANSWER
        finish = "tool_calls" if calls else "stop"
        faults: dict[str, Directive] = {}
        for place, directive in enumerate(script):
            if directive.name == ("saying" if calls else "say"):
                pieces = tuple(word if n == 0 else " " + word for n, word in enumerate(directive.words))
            elif directive.name == "words" and not calls:
                pieces = tuple("w0" if n == 0 else f" w{n}" for n in range(int(directive.words[0])))
            elif directive.name == "finish" and not calls:
                finish = directive.words[0]
            elif directive.name in FAULTS and self._meets(directive, step, (key, text, place)):
                faults[directive.name] = directive
        most = request.max_completion_tokens or request.max_tokens
        if most is not None and len(pieces) > most:
            pieces, finish = pieces[:most], "length"
        plan = Plan(pieces, calls, finish)
        plan.faults = faults
        return plan

    def _meets(self, directive: Directive, step: int, place: tuple[int, str, int]) -> bool:
        if directive.number("step", step) != step:
            return False
        times = directive.options.get("times")
        if times is None:
            return True
        met = self._met[place] = self._met.get(place, 0) + 1
        if len(self._met) > COUNTERS:
            self._met.popitem(last=False)
        return met <= int(times)

    async def _perform(
        self, connection: "Connection", request: Request, plan: Plan, headers: dict[str, str], tokens: tuple[int, int]
    ) -> None:
        faults = plan.faults
        if "hold" in faults and not (request.stream and "after" in faults["hold"].options):
            await self._hold(faults["hold"].words[0])
        if "close" in faults:
            connection.hang_up()
            return
        if status := faults.get("status"):
            connection.write(_failure(status, headers, request))
            return
        if "html" in faults:
            connection.write(reply_of(200, b"<html><body>Sign in to the hotel network</body></html>", kind="text/html"))
            return
        model = msgspec.json.encode(request.model)
        usage = usage_of(*tokens, len(plan.pieces) + 8 * len(plan.calls))
        if not request.stream:
            if pause := faults.get("slow"):
                await asyncio.sleep(pause.number("ms", 20) / 1000)
            connection.write(reply_of(200, completion_of(plan, model, usage)))
            return
        if "hang" in faults and "after" not in faults["hang"].options:
            await asyncio.sleep(LONGEST_WAIT)
        connection.write(STREAM_HEAD)
        if await self._stream(connection, plan, model, request):
            return
        if request.stream_options is not None and request.stream_options.include_usage:
            connection.write(framed(usage_event_of(model, usage)))
        connection.write(END if "nodone" in faults else CANNED_END)

    async def _hold(self, name: str) -> None:
        latch = self.latch(name)
        latch.waiting += 1
        latch.arrived.set()
        try:
            await asyncio.wait_for(latch.opened.wait(), LONGEST_WAIT)
        finally:
            latch.waiting -= 1

    async def _stream(self, connection: "Connection", plan: Plan, model: bytes, request: Request) -> bool:
        """Writes the answer's events; True when it went wrong on purpose and nothing may follow."""
        faults = plan.faults
        slow = faults["slow"].number("ms", 20) / 1000 if "slow" in faults else 0.0
        after = {name: int(directive.number("after", 1)) for name, directive in faults.items()}
        batch: list[bytes] = []
        for place, event in enumerate(events_of(plan, model)):
            if place in after.values() or slow or len(batch) >= BATCH:
                connection.write(b"".join(batch))
                batch.clear()
                await connection.writable()
                if slow and place:
                    await asyncio.sleep(slow)
            if after.get("cut") == place:
                connection.hang_up()
                return True
            if after.get("hold") == place and "after" in faults["hold"].options:
                await self._hold(faults["hold"].words[0])
            if after.get("hang") == place:
                await asyncio.sleep(LONGEST_WAIT)
            if after.get("badjson") == place:
                connection.write(framed(b'data: {"choices": [oops\n\n'))
            if after.get("error") == place:
                code = faults["error"].options.get("code", "server_error")
                message = "Scripted error." + _quoted(faults["error"], request)
                connection.write(framed(b"data: " + error_of(message, code=code, kind=code) + b"\n\n"))
            if after.get("hugeline") == place:
                await _huge_line(connection, int(faults["hugeline"].number("bytes", 4 * 1024 * 1024)))
            batch.append(framed(event))
        connection.write(b"".join(batch))
        await connection.writable()
        return False


def _quoted(directive: Directive, request: Request) -> str:
    """What providers do that complain of a message: they say which."""
    return f" You said: {request.messages[-1].text()}" if "quote" in directive.words else ""


def _failure(directive: Directive, headers: dict[str, str], request: Request) -> bytes:
    options = directive.options
    message = "Scripted failure." + _quoted(directive, request)
    if "echo" in directive.words:
        message += f" Your credential was {headers.get('authorization', '')}."
    extra = f"Retry-After: {options['retry-after']}\r\n" if "retry-after" in options else ""
    body = error_of(message, code=options.get("code"), kind=options.get("type", "scripted_error"))
    return reply_of(int(directive.words[0]), body, extra=extra)


async def _huge_line(connection: "Connection", size: int) -> None:
    connection.write(framed(b'data: {"choices":[{"index":0,"delta":{"content":"'))
    piece = framed(b"x" * 65536)
    for _ in range(size // 65536 + 1):
        connection.write(piece)
        await connection.writable()
    connection.write(framed(b'"}}]}\n\n'))


class Connection(asyncio.Protocol):
    """One connection. A request that comes while another is answered waits its turn."""

    def __init__(self, server: ScriptedModel) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._waiting: deque[tuple[str, str, dict[str, str], bytes]] = deque()
        self.on_message_begin()

    @property
    def busy(self) -> bool:
        return self._task is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)
        self._server.counts["connections"] += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._transport = None
        self._room.set()
        if self._task is not None:
            self._server.counts["disconnects"] += 1
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.write(reply_of(400, error_of("This is not HTTP."), close=True))
            self.hang_up()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > BODY_BYTES:
            self.write(reply_of(413, error_of("The body is too large."), close=True))
            self.hang_up()
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("latin-1")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        if self._task is not None:
            self._waiting.append((method, self._url.decode("latin-1"), self._headers, body))
        else:
            self._route(method, self._url.decode("latin-1"), self._headers, body)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def writable(self) -> None:
        await asyncio.wait_for(self._room.wait(), LONGEST_WAIT) if not self._room.is_set() else None

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def half_close(self) -> None:
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def play(self, performance: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(performance, name="scripted answer")
        self._task.add_done_callback(self._played)

    def _played(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._server.refusals.append(f"the script failed: {error!r}")
            self.write(reply_of(500, error_of(f"The script failed: {error!r}"), close=True))
            self.hang_up()
        if self._waiting and self._transport is not None:
            self._route(*self._waiting.popleft())

    def end(self) -> asyncio.Task[None] | None:
        task = self._task
        if task is not None:
            task.cancel()
        if self._transport is not None:
            self._transport.abort()
        return task

    def _route(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        server = self._server
        if method == "POST" and path.endswith("/chat/completions"):
            server.record(path, headers, body)
            server.answer(self, headers, body)
        elif method == "GET" and path == "/stats":
            self.write(reply_of(200, msgspec.json.encode(server.stats())))
        elif method == "GET" and path == "/requests":
            shown = [
                {"path": one.path, "authorised": bool(one.authorization), "body": one.body.decode("utf-8", "replace")}
                for one in server.recorded
            ]
            self.write(reply_of(200, msgspec.json.encode(shown)))
        elif method == "GET" and path.endswith("/models"):
            self.write(reply_of(200, b'{"object":"list","data":[{"id":"scripted","object":"model"}]}'))
        elif method == "POST" and path == "/reset":
            server.reset()
            self.write(reply_of(200, b"{}"))
        elif method == "POST" and path.startswith("/release/"):
            server.release(path.removeprefix("/release/"))
            self.write(reply_of(200, b"{}"))
        elif method == "POST" and path == "/close-idle":
            self.write(reply_of(200, b'{"closed":%d}' % server.close_idle()))
        else:
            self.write(reply_of(404, error_of(f"There is no {method} {path}.")))


async def serve(host: str, port: int, key: str | None) -> None:
    """Until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with ScriptedModel(host=host, port=port, key=key) as model:
        print(f"ready {model.root}", flush=True)
        await stop.wait()


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.scripted_model", description="A strict scripted model.")
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--key", default=None, help="refuse any other key")
    given = options.parse_args()
    asyncio.run(serve(given.host, given.port, given.key))


if __name__ == "__main__":
    main()
