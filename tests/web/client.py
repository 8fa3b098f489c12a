"""A client for the tests of this package."""

import contextlib
from collections.abc import Mapping
from typing import Any

import aiohttp
import anyio
import msgspec

from tests.in_process import WAIT, InProcessGateway

CHAT = "/v1/chat/completions"


def chat_body(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat request with one user message."""
    return {"model": "main", "messages": [{"role": "user", "content": text}], **fields}


class Reply:
    """A complete response."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> Any:
        """The error, after checking that it has all members."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"] and error["type"]
        return error

    @property
    def text(self) -> str:
        return str(self.json["choices"][0]["message"]["content"])

    @property
    def chunks(self) -> list[Any]:
        """The data of a stream's unnamed events, without the end marker."""
        found = []
        for block in self.body.decode().split("\n\n"):
            lines = block.split("\n")
            if any(line.startswith("event:") for line in lines):
                continue
            found += [line[6:] for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
        return [msgspec.json.decode(data) for data in found]

    @property
    def streamed(self) -> str:
        """The text of a streamed answer."""
        deltas = (choice["delta"] for chunk in self.chunks for choice in chunk.get("choices", ()))
        return "".join(delta.get("content") or "" for delta in deltas)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """The named events of a stream."""
        found = []
        for block in self.body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and line[0] != ":")
            if "event" in fields:
                found.append((fields["event"], msgspec.json.decode(fields["data"])))
        return found

    @property
    def comments(self) -> list[str]:
        return [line[2:] for line in self.body.decode().split("\n") if line.startswith(": ")]


async def raw(h: InProcessGateway, request: bytes) -> tuple[bytes, bytes]:
    """Send raw bytes. Returns head and body of the response, read until the gateway hangs up."""
    with anyio.fail_after(WAIT):
        async with await anyio.connect_tcp("127.0.0.1", int(h.url.rpartition(":")[2])) as stream:
            await stream.send(request)
            data = b""
            try:
                while True:
                    data += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


async def call(h: InProcessGateway, method: str, path: str, **options: Any) -> Reply:
    """One request; `key=""` sends none, another key is sent instead of the owner's."""
    key = options.pop("key", None)
    headers = dict(options.pop("headers", {}))
    if key:
        headers["Authorization"] = f"Bearer {key}"
    with anyio.fail_after(WAIT):
        async with contextlib.AsyncExitStack() as stack:
            client = h.client if key != "" else await stack.enter_async_context(aiohttp.ClientSession(h.url))
            response = await stack.enter_async_context(client.request(method, path, headers=headers, **options))
            return Reply(response.status, response.headers, await response.read())


async def signed_in(h: InProcessGateway) -> dict[str, str]:
    """The headers of a browser that is signed in as the owner: its cookie and its page token."""
    reply = await call(h, "POST", "/api/login", json={"code": await h.code()}, headers={"Origin": h.url}, key="")
    assert reply.status == 200, reply.body
    return {"Cookie": reply.headers["Set-Cookie"].split(";")[0], "X-Page-Token": reply.json["page_token"]}


async def chat(
    h: InProcessGateway,
    text: str = "hello",
    *,
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
    session: str | None = None,
    **fields: Any,
) -> Reply:
    """A chat request with one user message, or with `messages`."""
    sent = dict(headers or {})
    if session is not None:
        sent["X-Session-Id"] = session
    return await call(h, "POST", CHAT, json=chat_body(text, **fields), headers=sent, key=key)
