"""An MCP server over HTTP, in the test's process: of either revision, and with faults that a test sets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

TOOLS = [
    {
        "name": "say",
        "description": "Says the text.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "annotations": {"readOnlyHint": True},
    },
    {"name": "ask", "description": "Asks for a name.", "inputSchema": {"type": "object"}},
]


class HttpServer:
    """`requests` collects the received messages with their headers. `status` replaces the answer of every request."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        self.url = ""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.status: int | None = None
        self.response_headers: dict[str, str] = {}
        self.sessions: set[str] = set()
        self.events = False
        self.pieces: list[bytes] | None = None
        self.cancelled = asyncio.Event()
        self.redirect = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        if request.method == "DELETE":
            self.sessions.discard(headers.get("mcp-session-id", ""))
            return web.Response(status=200)
        if request.method == "GET":
            return web.Response(status=405)
        message = json.loads(await request.read())
        self.requests.append((message.get("method", ""), headers))
        if self.redirect:
            raise web.HTTPTemporaryRedirect(self.redirect)
        if self.status is not None:
            return web.Response(status=self.status, headers=self.response_headers)
        begins = message.get("method") in ("initialize", "server/discover") or self.revision.startswith("2026")
        if not begins and headers.get("mcp-session-id") not in self.sessions:
            return web.Response(status=404)
        if "id" not in message:
            return web.Response(status=202)
        if self.pieces is not None and message["method"] == "tools/call":
            return await self._pieces(request)
        try:
            result = await self.answer(message["method"], message.get("params") or {})
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        reply = {"jsonrpc": "2.0", "id": message["id"], **result}
        more = {}
        if message["method"] == "initialize" and "result" in result:
            session = f"session-{len(self.requests)}"
            self.sessions.add(session)
            more["mcp-session-id"] = session
        if not self.events:
            return web.json_response(reply, headers=more)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **more})
        await response.prepare(request)
        await response.write(b"event: message\ndata: " + json.dumps(reply).encode() + b"\n\n")
        return response

    async def _pieces(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        assert self.pieces is not None
        for piece in self.pieces:
            await response.write(piece)
        return response

    async def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        modern = self.revision.startswith("2026")
        end = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"} if modern else {}
        info = {"name": "http", "version": "1"}
        if method == "server/discover" and modern:
            found = {"supportedVersions": [self.revision], "capabilities": {"tools": {}}, "instructions": "Be kind."}
            return {"result": {**found, **end}}
        if method == "initialize" and not modern:
            return {"result": {"protocolVersion": self.revision, "capabilities": {"tools": {}}, "serverInfo": info}}
        if method == "tools/list":
            return {"result": {"tools": TOOLS, **end}}
        if method == "tools/call":
            done: dict[str, Any] = {}  # complete, although it does not say so
            arguments = params.get("arguments") or {}
            if params["name"] == "ask":
                answers = params.get("inputResponses")
                if not answers:
                    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
                    wanted = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": schema}}
                    return {
                        "result": {
                            "resultType": "input_required",
                            "inputRequests": {"who": wanted},
                            "requestState": "x",
                        }
                    }
                assert params["requestState"] == "x"
                return {"result": {"content": [{"type": "text", "text": json.dumps(answers["who"])}], **done}}
            if arguments.get("text") == "never":
                await asyncio.sleep(3600)
            return {"result": {"content": [{"type": "text", "text": arguments.get("text", "")}], **done}}
        return {"error": {"code": -32601, "message": "Method not found"}}


@asynccontextmanager
async def http_server(revision: str) -> AsyncIterator[HttpServer]:
    server = HttpServer(revision)
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/mcp", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    server.url = f"http://{host}:{port}/mcp"
    try:
        yield server
    finally:
        await runner.cleanup()
