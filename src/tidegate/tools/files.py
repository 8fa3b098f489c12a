"""The toolset `files`: reading text files of the workspace, page by page.

Guarantee: nothing outside the workspace folder can be read. A path is walked component by component from the
workspace's own descriptor without following a symbolic link anywhere, so that nothing can be exchanged between the
check and the use. For that reason links that stay inside are refused as well. Only regular files are opened; memory
and time of a call are bounded whatever the file's size. (A hard link is the file itself, and is read as one.)
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

from anyio import from_thread, to_thread
from msgspec import Meta

from tidegate.errors import ToolFailed
from tidegate.tools.tool import ToolContext, tool

PAGE_LINES = 300
PAGE_BYTES = 12 * 1024
"""A page with the line about its place stays below the default limits of a tool's output, which would cut it."""

CHUNK = 256 * 1024
SCANNED_AT_MOST = 512 * 1024 * 1024
"""To find a line, all before it must be read; beyond this the answer would come too late to be of use."""

LONGEST_PATH = 4096
SHOWN_PATH = 200
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class _Page(NamedTuple):
    """Lines of a file: those from `first` up to `after`, counted from 0. `more` says that some follow; `cut` that the
    one line here is longer than a page, this is its beginning, and what follows it was not looked for."""

    data: bytes
    first: int
    after: int
    more: bool = False
    cut: bool = False


@tool(effect="read", timeout=30, parallel=True)
async def read_file(
    ctx: ToolContext,
    *,
    path: Annotated[str, Meta(description="Path of the file, relative to the workspace.")],
    offset: Annotated[int, Meta(ge=0, description="How many lines to skip.")] = 0,
    lines: Annotated[int, Meta(ge=1, le=PAGE_LINES, description="How many lines to return.")] = 200,
) -> str:
    """Reads a UTF-8 text file of the workspace, a page of lines at a time."""
    return await to_thread.run_sync(_read, ctx.workspace, path, offset, lines)


def _read(workspace: Path, path: str, offset: int, lines: int) -> str:
    parts = _parts(workspace, path)
    with _opened(workspace, parts, path) as fd:
        size = os.fstat(fd).st_size
        page = _page(fd, offset, lines, path)
    if not page.data:
        if page.first == 0:
            return "[the file is empty]"
        raise ToolFailed(f"read_file: offset {offset} is past the end; {_shown(path)} has {page.first} lines")
    try:
        text = page.data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ToolFailed(f"read_file: {_shown(path)} is binary or not UTF-8 text ({size} bytes); it cannot be shown")
    return text + _place(page, text)


def _place(page: _Page, text: str) -> str:
    """The line that says which part of the file this is; none when it is all of it."""
    if page.first == 0 and not page.more and not page.cut:
        return ""
    if page.cut:
        place = (
            f"line {page.after} is longer than a page, this is its beginning; what follows is at offset={page.after}"
        )
    elif page.more:
        place = f"lines {page.first + 1} to {page.after}; more follow, go on with offset={page.after}"
    else:
        place = f"lines {page.first + 1} to {page.after}; the file ends here"
    return f"{'' if text.endswith(chr(10)) else chr(10)}[{place}]"


def _shown(path: str) -> str:
    return f'"{path}"' if len(path) <= SHOWN_PATH else f'"{path[:SHOWN_PATH]}…"'


def _parts(workspace: Path, path: str) -> tuple[str, ...]:
    if not path or "\0" in path or len(path) > LONGEST_PATH:
        raise ToolFailed('read_file: the argument "path" must be the path of a file in the workspace')
    pure = PurePosixPath(path)
    if pure.is_absolute():
        if not pure.is_relative_to(workspace):
            raise ToolFailed(f"read_file: {_shown(path)} is outside the workspace; give a path relative to it")
        pure = pure.relative_to(workspace)
    if ".." in pure.parts:
        raise ToolFailed(f'read_file: {_shown(path)} contains ".."; give a path relative to the workspace, without it')
    if not pure.parts:
        raise ToolFailed(f"read_file: {_shown(path)} is a folder, not a file")
    return pure.parts


@contextmanager
def _opened(workspace: Path, parts: tuple[str, ...], path: str) -> Iterator[int]:
    """A descriptor of the file, closed afterwards. The workspace itself may be a link: the operator named it."""
    try:
        fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ToolFailed(
            f"read_file: this agent's workspace folder {_shown(str(workspace))} does not exist; "
            "the operator must make it"
        ) from None
    except OSError as error:
        raise ToolFailed(f"read_file: this agent's workspace folder cannot be opened ({error.strerror})") from None
    try:
        for part in parts[:-1]:
            fd = _step(fd, part, os.O_DIRECTORY, path)
        fd = _step(fd, parts[-1], os.O_NONBLOCK | os.O_NOCTTY, path)
        yield fd
    finally:
        os.close(fd)


def _step(parent: int, name: str, extra: int, path: str) -> int:
    """Opens `name` in `parent` and closes that, or raises and leaves it open."""
    try:
        kind = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        # Before the opening, since to open a device can have effects; after it, since it may have been exchanged.
        _refuse_kind(kind, extra, path)
        fd = os.open(name, _FLAGS | extra, dir_fd=parent)
    except (OSError, UnicodeError) as error:
        raise ToolFailed(f"read_file: {_reason(error, path)}") from None
    try:
        _refuse_kind(os.fstat(fd).st_mode, extra, path)
    except ToolFailed:
        os.close(fd)
        raise
    os.close(parent)
    return fd


def _refuse_kind(mode: int, extra: int, path: str) -> None:
    if stat.S_ISLNK(mode):
        raise ToolFailed(f"read_file: {_shown(path)} leads through a symbolic link, which is not followed")
    if extra & os.O_DIRECTORY:
        if not stat.S_ISDIR(mode):
            raise ToolFailed(f"read_file: {_shown(path)} leads through something that is not a folder")
    elif stat.S_ISDIR(mode):
        raise ToolFailed(f"read_file: {_shown(path)} is a folder, not a file")
    elif not stat.S_ISREG(mode):
        raise ToolFailed(f"read_file: {_shown(path)} is a device, pipe or socket, not a file")


def _reason(error: OSError | UnicodeError, path: str) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENOENT:
        return f"there is no file {_shown(path)} in the workspace"
    if code in (errno.ELOOP, errno.ENOTDIR):
        return f"{_shown(path)} leads through a symbolic link or a file, which is not followed"
    return f"{_shown(path)} cannot be opened ({os.strerror(code) if code else 'the path is not valid'})"


def _page(fd: int, offset: int, lines: int, path: str) -> _Page:
    """The page after `offset` lines, read in chunks: at most a chunk and a page are in memory."""
    skipped = scanned = 0
    kept = bytearray()
    ended_with_break = True
    with open(fd, "rb", buffering=0, closefd=False) as file:
        while chunk := file.read(CHUNK):
            from_thread.check_cancelled()
            scanned += len(chunk)
            ended_with_break = chunk.endswith(b"\n")
            if skipped < offset:
                breaks = chunk.count(b"\n")
                if skipped + breaks < offset:
                    skipped += breaks
                    if scanned >= SCANNED_AT_MOST:
                        raise ToolFailed(
                            f"read_file: offset {offset} lies more than {SCANNED_AT_MOST} bytes into {_shown(path)}, "
                            "which is too far to be reached"
                        )
                    continue
                start = 0
                while skipped < offset:
                    start = chunk.index(b"\n", start) + 1
                    skipped += 1
                chunk = chunk[start:]
            kept += chunk
            if len(kept) > PAGE_BYTES or kept.count(b"\n") > lines:
                break
    if not kept:
        total = skipped + (not ended_with_break)
        return _Page(b"", total, total)
    return _cut_page(bytes(kept), skipped, lines)


def _cut_page(kept: bytes, first: int, lines: int) -> _Page:
    """Whole lines of `kept`, as many as a page may have; at least a part of the first."""
    end, after = 0, first
    while after < first + lines and end < len(kept):
        following = kept.find(b"\n", end) + 1 or len(kept)
        if following > PAGE_BYTES:
            break
        end, after = following, after + 1
    if end:
        return _Page(kept[:end], first, after, more=end < len(kept))
    end = PAGE_BYTES
    while end and kept[end] & 0xC0 == 0x80:
        end -= 1
    return _Page(kept[:end] or kept[:PAGE_BYTES], first, first + 1, cut=True)
