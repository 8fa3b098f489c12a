"""The floor: a minimal gateway as the baseline of all measurements.

A relay that could be written in an afternoon: starlette on uvicorn, aiohttp towards the model, the history of each
session as a list in memory, one row committed to SQLite for the question and one for the answer, in the handler itself.
No keys, no queue, no recovery, no bounds. It owns one database file.

    python -m bench.floor --model http://127.0.0.1:18080/v1 --home DIR [--port 0]
"""

import argparse
import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PROMPT = "You are a helpful assistant."

SCHEMA = """
CREATE TABLE IF NOT EXISTS messages(
    id INTEGER PRIMARY KEY, session TEXT NOT NULL, role TEXT NOT NULL, text TEXT NOT NULL, at REAL DEFAULT (julianday())
)
"""


class Relay:
    """Histories by session, one database, one HTTP client. `open()` owns the last two."""

    def __init__(self, model: str, file: Path) -> None:
        self.endpoint = f"{model}/chat/completions"
        self.file = file
        self.histories: dict[str, list[dict[str, Any]]] = {}

    @asynccontextmanager
    async def open(self, _app: Starlette) -> AsyncIterator[None]:
        self.database = sqlite3.connect(self.file, isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("PRAGMA synchronous=NORMAL")
        self.database.execute(SCHEMA)
        try:
            async with aiohttp.ClientSession() as self.client:
                yield
        finally:
            self.database.close()

    def keep(self, session: str, history: list[dict[str, Any]], role: str, text: str) -> None:
        """Add a message to the history and commit it to the database."""
        self.database.execute("INSERT INTO messages(session, role, text) VALUES (?, ?, ?)", (session, role, text))
        history.append({"role": role, "content": text})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        session = request.headers.get("x-session-id", "")
        history = self.histories.get(session)
        if history is None:
            history = self.histories[session] = [{"role": "system", "content": PROMPT}]
        self.keep(session, history, "user", body["messages"][-1]["content"])
        asked = {"model": body["model"], "messages": history, "stream": bool(body.get("stream"))}
        if asked["stream"]:
            return StreamingResponse(self.stream(session, history, asked), media_type="text/event-stream")
        async with self.client.post(self.endpoint, json=asked) as answer:
            result = await answer.json()
        if answer.status == 200:
            self.keep(session, history, "assistant", result["choices"][0]["message"]["content"])
        return JSONResponse(result, status_code=answer.status)

    async def stream(self, session: str, history: list[dict[str, Any]], asked: dict[str, Any]) -> AsyncIterator[bytes]:
        """Pass on the model's events as they arrive, and keep their text."""
        pieces: list[str] = []
        async with self.client.post(self.endpoint, json=asked) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:]).get("choices", ()):
                        pieces.append(choice["delta"].get("content") or "")
                elif line.startswith(b"data: [DONE]"):
                    self.keep(session, history, "assistant", "".join(pieces))
                yield line


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.floor")
    parser.add_argument("--model", required=True, help="base address of an OpenAI chat endpoint, ending in /v1")
    parser.add_argument("--home", required=True, type=Path, help="folder for the database")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    options.home.mkdir(parents=True, exist_ok=True)
    relay = Relay(options.model, options.home / "floor.db")
    app = Starlette(routes=[Route("/v1/chat/completions", relay.complete, methods=["POST"])], lifespan=relay.open)
    config = uvicorn.Config(
        app, port=options.port, http="httptools", loop="asyncio", lifespan="on", log_level="warning", access_log=False
    )
    server = uvicorn.Server(config)

    async def serve() -> None:
        serving = asyncio.ensure_future(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.001)
        port = server.servers[0].sockets[0].getsockname()[1]
        print(f"ready http://127.0.0.1:{port}", flush=True)
        await serving

    asyncio.run(serve())


if __name__ == "__main__":
    main()
