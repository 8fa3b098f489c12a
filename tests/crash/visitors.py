"""Callers that do what real ones do: follow a page, repeat themselves, interrupt, give commands, hang up, go wrong.

A visit leaves nothing that runs; the conversations it made are there to be ended. Each visit has connections of its
own and closes them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bench.wire import Connection, Reply

WITHIN = 60.0
PAUSE = 0.005
CHAT = "/v1/chat/completions"
OVER = ("answered", "failed", "stopped", "refused")
LONG = "[words 60] [slow ms=2]"
"""A turn that takes long enough for something to happen to it."""


class Visitors:
    """`unique` keeps the names of one party apart from those of another."""

    def __init__(self, url: str, headers: dict[str, str], unique: str) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", **headers}
        self._unique = unique

    async def come(self, count: int, at_once: int = 8) -> None:
        """So many visits, of each kind in turn."""
        kinds: list[Callable[[str], Awaitable[None]]] = [
            self.page, self.leave_named, self.leave_once, self.repeat, self.interrupt, self.stop, self.steer, self.err,
        ]  # fmt: skip
        numbers = iter(range(count))

        async def work() -> None:
            for number in numbers:
                await kinds[number % len(kinds)](f"{self._unique}-{number}")

        async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())

    # -- kinds of visits --

    async def page(self, name: str) -> None:
        """A page: a message, the stream of what happens, the same message again, commands, a new conversation."""
        said = {"text": f"{name} [tool clock {{}}]"}
        begun = await self.ask("POST", "/api/messages", said, **{"Idempotency-Key": name})
        async with self.stream(begun["session"]) as events:
            await self.over(begun["turn"])
            await until(lambda: b"\nid: 4\n" in events.body)
        again = await self.ask("POST", "/api/messages", said, **{"Idempotency-Key": name})
        assert (again["turn"], again["how"]) == (begun["turn"], "replayed")
        for line in ("/status", f"/title {name}", "/reasoning low", "/undo", "/new"):
            await self.ask("POST", "/api/messages", {"text": line, "session": begun["session"]})

    async def leave_named(self, name: str) -> None:
        """Hangs up in the middle of the text; the turn goes on."""
        turn = await self.leave(name, {"X-Session-Id": name})
        assert await self.over(turn) == "answered"

    async def leave_once(self, name: str) -> None:
        """The same without a session: nobody is left to read it."""
        await self.leave(name, {})

    async def repeat(self, name: str) -> None:
        """A one-shot call with a key, made again when it has its answer."""
        first, again = [await self.chat(f"{name} hello", {"Idempotency-Key": name}) for _ in range(2)]
        assert first.status == again.status == 200
        assert first.headers["x-turn-id"] == again.headers["x-turn-id"]

    async def interrupt(self, name: str) -> None:
        """A second thought in the middle of an answer."""
        first = await self.ask("POST", "/api/messages", {"text": f"{name} {LONG}"})
        second = {"text": "[say Better.]", "session": first["session"], "busy": "interrupt"}
        await self.over((await self.ask("POST", "/api/messages", second))["turn"])
        await self.over(first["turn"])

    async def stop(self, name: str) -> None:
        first = await self.ask("POST", "/api/messages", {"text": f"{name} {LONG}"})
        await self.ask("POST", f"/api/sessions/{first['session']}/stop", {})
        await self.over(first["turn"])

    async def steer(self, name: str) -> None:
        """Something said into a turn, and something behind it."""
        first = await self.ask("POST", "/api/messages", {"text": f"{name} {LONG} [tool clock {{}}]"})
        for busy in ("steer", "queue"):
            more = {"text": f"and {busy}", "session": first["session"], "busy": busy}
            await self.over((await self.ask("POST", "/api/messages", more))["turn"])

    async def err(self, name: str) -> None:
        """What goes wrong: at the model, in the request, with a key that was used for something else."""
        assert (await self.chat(f"{name} [status 400]", {"X-Session-Id": name})).status == 502
        assert (await self.chat(f"{name} [status 401]", {})).status == 502
        assert (await self.chat(None, {})).status == 400
        assert (await self.chat(f"{name} one", {"Idempotency-Key": name})).status == 200
        assert (await self.chat(f"{name} other", {"Idempotency-Key": name})).status == 422

    # -- how --

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        connection = await Connection.open(self._url)
        try:
            yield connection
        finally:
            connection.close()

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        async with self.connected() as connection:
            data = b"" if body is None else json.dumps(body).encode()
            reply = await connection.ask(method, path, {**self._headers, **headers}, data)
        assert reply.status in (200, 202), bytes(reply.body)
        found: dict[str, Any] = json.loads(reply.body)
        return found

    def said(self, text: str, *, stream: bool) -> bytes:
        return json.dumps({"model": "main", "messages": [{"role": "user", "content": text}], "stream": stream}).encode()

    async def chat(self, text: str | None, headers: dict[str, str]) -> Reply:
        async with self.connected() as connection:
            return await connection.ask("POST", CHAT, {**self._headers, **headers}, self.said(text, stream=False))

    async def leave(self, name: str, headers: dict[str, str]) -> str:
        async with self.connected() as connection:
            given = {**self._headers, **headers}
            reply = connection.begin("POST", CHAT, given, self.said(f"{name} {LONG}", stream=True))
            await reply.head
            await until(lambda: reply.body.count(b"data: ") > 3)
            return reply.headers["x-turn-id"]

    @asynccontextmanager
    async def stream(self, session: str) -> AsyncIterator[Reply]:
        async with self.connected() as connection:
            reply = connection.begin("GET", f"/api/sessions/{session}/events", self._headers)
            await reply.head
            assert reply.status == 200
            yield reply

    async def over(self, turn: str) -> str:
        """How a turn ended, once it has."""
        while (state := (await self.ask("GET", f"/api/turns/{turn}"))["state"]) not in OVER:
            await asyncio.sleep(PAUSE)
        return str(state)


async def until(true: Callable[[], bool]) -> None:
    """Until it is so; the party as a whole has a deadline."""
    while not true():
        await asyncio.sleep(PAUSE)
