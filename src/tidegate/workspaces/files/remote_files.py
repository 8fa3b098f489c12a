"""A session's files on another machine.

`RemoteFiles` has the same guarantees as `LocalFiles`, because the same code runs on the other machine: each call sends
the code into the session's sandbox, where it handles one request and exits. The size of a response is checked before it
is read. Responses are only data: nothing that the other machine sends is executed here. Nothing is kept between calls.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import msgspec
from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.line_search import read_pattern
from tidegate.values import Frozen, new_id
from tidegate.workspaces.backends import shell_script
from tidegate.workspaces.backends.remote_program import BOOTSTRAP, program
from tidegate.workspaces.files import remote_server
from tidegate.workspaces.files.file_values import (
    FileContents,
    FileFilter,
    FileLines,
    Listing,
    SearchQuery,
    SearchResult,
    WriteResult,
)
from tidegate.workspaces.processes.children import kill_and_close

if TYPE_CHECKING:
    from tidegate.workspaces.backends.interface import Child, OpenSandbox

T = TypeVar("T")

SECONDS = 60.0
"""Time limit for one call, even for a large file."""

SEARCH_SECONDS = 20.0
"""Time limit for a search, the same as for a local one. If it is too short, a narrower search is the better option."""

ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of a response. The limits on individual calls are far lower."""

OPENED_BYTES = 64 * 1024 * 1024
"""Maximum size of a file that is opened, since it is copied to this machine."""

_LENGTH_BYTES = 20  # in the line before an answer, which contains its length
_WHY = 500  # characters of an error message
_FILES = "tidegate.workspaces.files"
_STANDINS = {
    "anyio": """
class from_thread:
    check_cancelled = staticmethod(lambda: None)  # cancelling the call kills this program
to_thread = None  # nothing here is asynchronous
""",
    "tidegate.values": """
class Frozen:
    def __init_subclass__(cls, **options):
        pass
    def __init__(self, **fields):
        for name in type(self).__annotations__:
            setattr(self, name, fields[name] if name in fields else getattr(type(self), name))
""",
}
"""Minimal replacements for the modules that the sent modules import."""

_MODULES = (
    "anyio", "tidegate.errors", "tidegate.values", "tidegate.line_search", "tidegate.text_parts",
    f"{_FILES}.file_values", f"{_FILES}.file_user", f"{_FILES}.protected_paths", f"{_FILES}.mounts",
    f"{_FILES}.walk", f"{_FILES}.atomic_write", f"{_FILES}.globs", f"{_FILES}.file_search", f"{_FILES}.filesystem",
    remote_server.__name__,
)  # fmt: skip


class RemoteFiles:
    """A session's files on another machine. `open_sandbox` opens the session's sandbox. `read_only` are additional
    folders there that may be read. Opened files are copied to `folder` on this machine."""

    def __init__(
        self,
        open_sandbox: "OpenSandbox",
        read_only: Sequence[Path],
        folder: Path,
        *,
        search_seconds: float = SEARCH_SECONDS,
    ) -> None:
        self._open_sandbox = open_sandbox
        self._read_only = [str(path) for path in read_only]
        self._folder = folder
        self._search_seconds = search_seconds

    async def lines(self, path: str, *, offset: int, lines: int, max_bytes: int) -> FileLines:
        async with self._request("lines", path=path, offset=offset, lines=lines, max_bytes=max_bytes) as answer:
            fields = answer.result(tuple[str, int, int, int, str, bool, bool])
            return FileLines(await answer.data(), *fields[1:4], bytes.fromhex(fields[4]), *fields[5:])

    async def load(self, path: str, *, limit: int) -> FileContents:
        async with self._request("load", path=path, limit=limit) as answer:
            return FileContents(await answer.data(), answer.result(str))

    @asynccontextmanager
    async def opened(self, path: str) -> AsyncIterator[int]:
        copy = await to_thread.run_sync(_copy, self._folder)
        try:
            async with (
                self._request("open", path=path, limit=OPENED_BYTES) as answer,
                contextlib.aclosing(answer.pieces()) as pieces,
            ):
                async for data in pieces:
                    await to_thread.run_sync(copy.write, data)
            await to_thread.run_sync(copy.seek, 0)
            yield copy.fileno()
        finally:
            copy.close()

    async def write(self, path: str, data: bytes, *, expected: str | None = None) -> WriteResult:
        async with self._request("write", data=data, path=path, bytes=len(data), expected=expected) as answer:
            return answer.result(WriteResult)

    async def list(self, path: str, choice: FileFilter, *, recursive: bool, limit: int) -> Listing:
        fields = msgspec.structs.asdict(choice)
        async with self._request("list", path=path, choice=fields, recursive=recursive, limit=limit) as answer:
            return answer.result(Listing)

    async def search(self, path: str, query: SearchQuery) -> SearchResult:
        # The other machine only has Python's engine, so the pattern is checked here.
        await to_thread.run_sync(
            lambda: read_pattern(query.pattern, literal=query.literal, ignore_case=query.ignore_case)
        )
        fields = {**msgspec.structs.asdict(query), "choice": msgspec.structs.asdict(query.choice)}
        try:
            async with (
                asyncio.timeout(self._search_seconds),
                self._request("search", path=path, query=fields) as answer,
            ):
                return answer.result(SearchResult)
        except TimeoutError:
            stopped = (
                f"the search was stopped after {self._search_seconds:g} s; use a simpler pattern, a path or a glob"
            )
            return SearchResult(hits=(), files=0, stopped=stopped)

    @asynccontextmanager
    async def _request(self, what: str, *, data: bytes = b"", **question: Any) -> AsyncIterator["_Answer"]:
        sent = await to_thread.run_sync(program, _MODULES, "serve", _STANDINS)
        request = json.dumps({"what": what, "read_only": self._read_only, **question}).encode()
        sandbox = await self._open_sandbox()
        child = await sandbox.spawn(shell_script.frame(BOOTSTRAP), new_id("f"))
        try:
            async with asyncio.timeout(SECONDS):
                with contextlib.suppress(ToolFailed):  # if this fails, the output says why
                    await child.write(sent + b"%d\n%s" % (len(request), request) + data)
                yield await _Answer.of(child)
        except TimeoutError:
            raise ToolFailed(f"The other machine did not answer within {SECONDS:g} s; try again later.") from None
        except (ValueError, msgspec.ValidationError):
            raise ToolFailed("The other machine sent an answer that cannot be read.") from None
        finally:
            await kill_and_close(child)


class _AnswerHeader(Frozen, frozen=True):
    """A response's header: the result and the number of bytes that follow, or the error."""

    result: Any = None
    bytes: int = 0
    failed: str = ""


class _Answer:
    """The other machine's response, with the data that follows the header."""

    def __init__(self, child: "Child", header: _AnswerHeader, rest: bytes) -> None:
        self._child = child
        self._result = header.result
        self._left = header.bytes
        self._rest = rest

    @classmethod
    async def of(cls, child: "Child") -> "_Answer":
        rest = b""
        while b"\n" not in rest and len(rest) < _LENGTH_BYTES:
            if not (piece := await child.read()):
                why = " ".join((await child.read_state()).decode(errors="replace").split())
                raise ToolFailed(
                    f"Files on the other machine cannot be reached: {why[-_WHY:] or 'no reason was given'}."
                )
            rest += piece
        length, _, rest = rest.partition(b"\n")
        size = int(length)
        if size > ANSWER_BYTES:
            raise ValueError
        pieces = [rest]
        while sum(map(len, pieces)) < size and (piece := await child.read()):
            pieces.append(piece)
        rest = b"".join(pieces)
        header = msgspec.convert(json.loads(rest[:size]), _AnswerHeader)
        if header.failed:
            raise ToolFailed(header.failed)
        return cls(child, header, rest[size:])

    def result(self, type: type[T]) -> T:
        return msgspec.convert(self._result, type)

    async def pieces(self) -> AsyncGenerator[bytes]:
        while self._left > 0:
            piece, self._rest = self._rest or await self._child.read(), b""
            if not piece:
                raise ToolFailed("The file was changed while it was being read; read it again.")
            self._left -= len(piece)
            yield piece

    async def data(self) -> bytes:
        if self._left > ANSWER_BYTES:
            raise ValueError
        return b"".join([piece async for piece in self.pieces()])


def _copy(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)
