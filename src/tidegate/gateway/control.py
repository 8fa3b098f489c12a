"""The control socket, through which the CLI on the same machine talks to the running gateway.

Only root and the user who runs the gateway get an answer, whatever the folder's permissions. A request is one JSON line
of bounded length and must arrive within a deadline; the response is also one JSON line. A client that hangs does not
delay other clients. The socket is owned by the scope in which it was opened, and its file is removed when that scope
closes. The socket's path may be of any length. If the process has run out of file descriptors, requests use the
reserved ones.

    {"do": "status", "memory": true}   the output of `tidegate status`
    {"do": "stop"}                     graceful stop; answered immediately, done when the home's lock is free. A second
                                       request does not wait for turns, unless it has "hurry": false
    {"do": "code"}                     a new one-time link to the chat page
    {"do": "mcp", "what": "list"}      about MCP servers (gateway/mcp_requests.py)
    {"do": "check"}                    full integrity check of the database
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec

from tidegate.errors import TidegateError
from tidegate.gateway.control_client import SOCKET_NAME, FolderPath
from tidegate.lifetimes import Descriptors, Listener, Scope
from tidegate.log import Log
from tidegate.status_report import StatusReport

_REQUEST_BYTES = 4096  # the longest request is under a hundred bytes
_REQUEST_SECONDS = 5.0  # for a client to send its line and to read the response
_VERB_SECONDS = 300.0  # the longest verb is an integrity check of a large database
_CONNECTIONS = 8  # at the same time; a command line needs one
_BACKLOG = 100
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid

Answer = dict[str, Any] | StatusReport
Verb = Callable[[dict[str, Any]], Awaitable[Answer]]


class Control:
    """The server side of the socket. `verbs` maps each request's name to its handler."""

    def __init__(self, home: Path, verbs: Mapping[str, Verb], descriptors: Descriptors | None = None) -> None:
        self._home = home
        self._verbs = verbs
        self._descriptors = descriptors or Descriptors()
        self._connections = 0
        self._log = Log("tidegate.control")

    async def open(self, scope: Scope) -> None:
        """Listens until `scope` closes. The caller must hold the home folder's lock, so an existing socket can only be
        left over from a dead gateway."""
        path = self._home / SOCKET_NAME
        path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with FolderPath(self._home) as folder:
                bound.bind(f"{folder}/{SOCKET_NAME}")
            path.chmod(0o600)
            listener = Listener(
                bound,
                room=lambda _: "reserve",
                accepted=lambda connection, _: self._connected(scope, connection),
                descriptors=self._descriptors,
            )
            listener.start(_BACKLOG)
        except BaseException:
            bound.close()
            path.unlink(missing_ok=True)
            raise

        async def close() -> None:
            listener.close()
            path.unlink(missing_ok=True)

        scope.on_close(close, name="control socket")

    def _connected(self, scope: Scope, connection: socket.socket) -> None:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        allowed = _PEER.unpack(peer)[1] in (os.getuid(), 0)
        if not allowed or self._connections >= _CONNECTIONS or not scope.open:
            connection.close()
            return
        self._connections += 1
        scope.start(self._serve, connection, name="control request")

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_REQUEST_BYTES)
            with contextlib.closing(writer):
                line = await self._line(reader)
                if line:
                    writer.write(msgspec.json.encode(await self._answer(line)) + b"\n")
                    with anyio.move_on_after(_REQUEST_SECONDS):
                        await writer.drain()
        except ConnectionError as error:
            self._log.debug("a control client disconnected", error=str(error))
        finally:
            self._connections -= 1

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        try:
            with anyio.move_on_after(_REQUEST_SECONDS):
                return await reader.readline()
        except ValueError:  # the line is longer than the stream's limit
            return b"too long"
        return b""

    async def _answer(self, line: bytes) -> Answer:
        try:
            request = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return {"error": f"A request is one line of JSON of at most {_REQUEST_BYTES} bytes."}
        verb = self._verbs.get(str(request.get("do")))
        if verb is None:
            return {"error": f"Unknown request; this gateway knows: {', '.join(sorted(self._verbs))}."}
        try:
            with anyio.fail_after(_VERB_SECONDS), self._descriptors.reserve():
                return await verb(request)
        except TidegateError as error:
            return {"error": error.message}
        except TimeoutError:
            return {"error": f"The gateway did not finish this within {_VERB_SECONDS:.0f} s; check its log."}
