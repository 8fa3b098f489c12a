"""The program that answers one file request on the machine that has the files.

It behaves like `LocalFiles`, because it is sent together with the same modules, and exits after one response. It
reaches the same folders as a command of the session: the working folder, the session's home and its temporary folder,
plus the folders listed as readable.

A request is a JSON frame followed by the bytes to write; a response is a JSON frame followed by the bytes that were
read.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from tidegate.errors import ToolFailed
from tidegate.workspaces.files.file_values import FileFilter, SearchQuery
from tidegate.workspaces.files.filesystem import CHUNK, Filesystem
from tidegate.workspaces.files.line_matcher import matching_lines
from tidegate.workspaces.files.mounts import Mount, shown
from tidegate.workspaces.files.patterns import Pattern
from tidegate.workspaces.files.search_input import SearchInput, search_result

Question = dict[str, Any]
Answer = tuple[Any, bytes]


def serve() -> None:
    question = json.loads(_taken(int(_line())))
    filesystem = Filesystem(_mounts(question.pop("read_only")))
    answers: dict[str, Callable[[Filesystem, Question], Answer]] = {
        "lines": _lines, "load": _load, "write": _write, "list": _list, "search": _search
    }  # fmt: skip
    try:
        what = question.pop("what")
        if what == "open":
            _send(filesystem, question["path"], question["limit"])
            return
        result, data = answers[what](filesystem, question)
    except ToolFailed as error:
        _send_answer({"failed": error.message}, b"")
        return
    _send_answer({"result": result, "bytes": len(data)}, data)


def _mounts(read_only: list[str]) -> list[Mount]:
    # lint: allow it is the environment of a command, in which this runs
    work, home, temporary = Path.cwd(), Path(os.environ["HOME"]), Path(os.environ["TMPDIR"])
    return [  # the same as those of `local`: commands run there without a sandbox
        Mount(inner=str(work), folder=work, guarded=True),
        Mount(inner=str(home), folder=home, writable=False),
        Mount(inner=str(temporary), folder=temporary),
        *(Mount(inner=name, folder=Path(name), writable=False) for name in read_only),
    ]


def _lines(filesystem: Filesystem, question: Question) -> Answer:
    page = filesystem.lines(**question)
    return page._replace(data="", head=page.head.hex()), page.data  # type: ignore[arg-type]


def _load(filesystem: Filesystem, question: Question) -> Answer:
    loaded = filesystem.load(**question)
    return loaded.version, loaded.data


def _write(filesystem: Filesystem, question: Question) -> Answer:
    return filesystem.write(question["path"], _taken(question["bytes"]), question["expected"]), b""


def _list(filesystem: Filesystem, question: Question) -> Answer:
    return filesystem.list(**{**question, "choice": FileFilter(**question["choice"])}), b""


def _search(filesystem: Filesystem, question: Question) -> Answer:
    """Search the text in a pipe that a thread fills, so that no text is kept in memory. The caller limits the time."""
    fields = question["query"]
    query = SearchQuery(**{**fields, "pattern": Pattern(**fields["pattern"]), "choice": FileFilter(**fields["choice"])})
    feed = SearchInput(filesystem.mounts, question["path"], query.choice)
    reading, writing = os.pipe()
    failed: list[ToolFailed] = []

    def fill() -> None:
        try:
            with closing(feed.text()) as text, open(writing, "wb", buffering=0) as pipe:  # noqa: PTH123
                for chunk in text:
                    pipe.write(chunk)
        except BrokenPipeError:  # enough was found
            return
        except ToolFailed as error:
            failed.append(error)

    filling = threading.Thread(target=fill)
    filling.start()
    pattern = re.compile(query.pattern.python, re.MULTILINE)
    places = list(islice(matching_lines(pattern, reading), query.limit + 1))
    os.close(reading)
    filling.join()
    if failed:
        raise failed[0]
    return search_result(feed, filesystem.mounts, places, query), b""


def _send(filesystem: Filesystem, path: str, limit: int) -> None:
    """Send a whole file while reading it."""
    fd = filesystem.open(path)
    size = os.fstat(fd).st_size
    if size > limit:
        raise ToolFailed(f"{shown(path)} has {size} bytes, more than the limit of {limit}.")
    _send_answer({"result": None, "bytes": size}, b"")
    while size > 0 and (chunk := os.read(fd, min(CHUNK, size))):
        _write_all(chunk)
        size -= len(chunk)


def _line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1) or sys.exit(1)
    return line


def _taken(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += os.read(0, min(CHUNK, size - len(data))) or sys.exit(1)
    return bytes(data)


def _send_answer(answer: Any, data: bytes) -> None:
    header = json.dumps(answer).encode()
    _write_all(b"%d\n%s" % (len(header), header))
    _write_all(data)


def _write_all(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]
