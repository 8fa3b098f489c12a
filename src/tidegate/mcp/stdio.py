"""Messages to and from a server over the standard streams of its process, each as one line of JSON.

`StdioStreams` provides the SDK's two streams without tasks or buffers in between: the SDK's loop reads lines directly
from the pipe, and each request is written by the task that makes it. A server whose output is not read therefore has to
stop writing, and a caller knows whether its request was written. If a line exceeds a limit, the line is skipped and
only the call that it answers fails; if the line does not answer a call, the connection fails. Lines that are not
messages are kept together with the error output.

The error output is read continuously, and its latest part is kept in an `OutputTail`.
"""

import asyncio
import re
from collections import deque
from types import TracebackType

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

from tidegate.errors import ToolFailed
from tidegate.lifetimes import ServiceFailed
from tidegate.mcp.errors import NotSent
from tidegate.mcp.message_limits import MessageRefused, RateLimit, check_values
from tidegate.mcp.tail import OutputTail
from tidegate.workspaces.server_process import ServerProcess

SKIPPED_FACTOR = 64
"""An overlong line is skipped up to this multiple of the limit; beyond it, the connection fails."""

_ENDS_BYTES = 512  # of a line that is too long, at each end, where its id is found
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')


class StdioStreams:
    """Both streams of one process, as the SDK uses them. `ended` is done when the last line has been read; its result
    is the failure, if any."""

    def __init__(self, process: ServerProcess, tail: OutputTail, *, message_bytes: int, rate: RateLimit) -> None:
        self.assumes_complete = False
        """True for a server that uses the newer protocol, whose results may omit the mark that they are complete."""
        self._process = process
        self._tail = tail
        self._limit = message_bytes
        self._rate = rate
        self._lines: deque[bytes] = deque()  # lint: allow the lines of one read, emptied before the next
        self._parts: list[bytes] = []
        self._size = 0
        self._at_end = False
        self._owed = 0
        self._writing = asyncio.Lock()
        self.ended: asyncio.Future[ServiceFailed | None] = asyncio.get_running_loop().create_future()

    # -- reading --

    def __aiter__(self) -> "StdioStreams":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            message = await self._next()
        except ServiceFailed as error:
            self._end(error)
            raise StopAsyncIteration from None
        if message is None:
            self._end(None)
            raise StopAsyncIteration
        return message

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _next(self) -> SessionMessage | None:
        while (line := await self._line()) is not None:
            if not line.strip():
                continue
            try:
                check_values(line)
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except MessageRefused as error:
                return self._refused(line, f"The server's message {error}.")
            except ValueError:
                self._tail.add_line(line)
                await self._rate.admit()
                continue
            if isinstance(message, JSONRPCResponse | JSONRPCError) and self._owed:
                self._owed -= 1
            else:
                await self._rate.admit()
            made = SessionMessage(message)
            if self.assumes_complete:
                complete(made)
            return made
        return None

    async def _line(self) -> bytes | None:
        """Returns the next line, without its end. Raises ServiceFailed if it can neither be read nor skipped."""
        while not self._lines:
            if self._at_end:
                return None
            data = await self._process.read()
            if not data:
                self._at_end = True
                return None  # a line without an end was cut off
            self._add(data)
            if self._size > self._limit:
                if self._lines:  # the lines before it
                    break
                await self._skip()
        return self._lines.popleft()

    def _add(self, data: bytes) -> None:
        first, *others = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        for each in others:
            self._lines.append(b"".join(self._parts))
            self._parts, self._size = [each], len(each)

    async def _skip(self) -> None:
        """Skips a line that is too long. If the line answers a request, an error takes the place of the answer."""
        whole = b"".join(self._parts)
        head, tail = whole[:_ENDS_BYTES], whole[-_ENDS_BYTES:]
        del whole
        size, self._parts, self._size = self._size, [], 0
        while True:
            data = await self._process.read()
            if not data:
                raise ServiceFailed(
                    f"The server ended in the middle of a message of more than {size:,} bytes.", "crashed"
                )
            last, found, rest = data.partition(b"\n")
            size += len(last)
            tail = (tail + last)[-_ENDS_BYTES:]
            if found:
                break
            if size > SKIPPED_FACTOR * self._limit:
                raise ServiceFailed(f"The server sent a message of more than {size:,} bytes.", "crashed")
        why = f"The server's message has {size:,} bytes; the limit is {self._limit:,} (message_bytes)."
        replaced = self._refused(head + b"\n" + tail, why)
        self._lines.append(replaced.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
        self._add(rest)

    def _refused(self, line: bytes, why: str) -> SessionMessage:
        """Returns an error for the request that a refused line answers. Raises ServiceFailed if the line does not
        answer a request."""
        found = _ID.search(line[:_ENDS_BYTES]) or _ID.search(line[-_ENDS_BYTES:])
        if found is None:
            raise ServiceFailed(why, "crashed")
        return SessionMessage(
            JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=ErrorData(code=INTERNAL_ERROR, message=why))
        )

    def _end(self, error: ServiceFailed | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    # -- writing --

    async def send(self, item: SessionMessage) -> None:
        """Writes a message. Raises NotSent if a request was not written, in which case the server never sees it."""
        is_request = isinstance(item.message, JSONRPCRequest)
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        try:
            async with self._writing:
                if self.ended.done():
                    raise ToolFailed("It has ended.")
                if is_request:
                    self._owed += 1
                await self._process.write(data)
        except ToolFailed as error:
            if is_request:
                raise NotSent(error.message) from None
            raise anyio.BrokenResourceError from None

    # -- as context managers: the connection closes them --

    async def aclose(self) -> None:
        self._end(None)

    async def __aenter__(self) -> "StdioStreams":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def complete(item: SessionMessage | Exception) -> None:
    """Marks a result without a type as complete. The SDK requires this mark, but servers may omit it."""
    if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
        item.message.result.setdefault("resultType", "complete")


async def keep_tail(process: ServerProcess, tail: OutputTail) -> None:
    """Reads the error output of a process until its end."""
    while data := await process.read_errors():
        tail.add(data)
        await asyncio.sleep(0)  # a flood must not keep others from running


def ended_by(code: int, process: ServerProcess, tail: OutputTail) -> ServiceFailed | None:
    """Returns the failure of a process that exited with this code, or None if the process succeeded."""
    if process.close_reason:
        return ServiceFailed(process.close_reason, "crashed")
    if code == 0:
        return None
    how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
    text = f"The process {how}{f': {tail.last}' if tail.last else '.'}"
    return ServiceFailed(text, "unavailable" if code == 127 else "crashed")
