"""The program that answers one file request on the machine with the files.

It behaves like `LocalFiles`, because it is sent together with the same modules, and exits after one response. It can
reach the same folders as the session's commands: the working folder, the session's home and its temporary folder, and
the folders listed as readable.

A request is a JSON frame followed by the bytes to write; a response is a JSON frame followed by the bytes that were
read.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.errors import ToolFailed
from tidegate.line_search import Span, per_line
from tidegate.workspaces.files.file_search import search
from tidegate.workspaces.files.file_values import FileFilter, SearchQuery
from tidegate.workspaces.files.filesystem import CHUNK, Filesystem
from tidegate.workspaces.files.mounts import Mount, shown

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
    # lint: allow this runs in a command's environment
    work, home, temporary = Path.cwd(), Path(os.environ["HOME"]), Path(os.environ["TMPDIR"])
    return [  # the same as for `local`, since commands run there without a sandbox
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
    """Searches the files. The caller limits the time."""
    fields = question["query"]
    query = SearchQuery(**{**fields, "choice": FileFilter(**fields["choice"])})
    return search(filesystem.mounts, question["path"], query, _PythonPattern(query)), b""


_CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "digit": "0-9", "lower": "a-z", "punct": "!-/:-@[-`{-~",
    "space": r"\s", "upper": "A-Z", "word": r"\w", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_DIFFERENT = re.compile(r"\\.|\[:(\^?\w+):\]|\{(?=,)", re.DOTALL)
"""Syntax that Python interprets differently from the engine that has accepted the pattern."""


class _PythonPattern:
    """A pattern that RE2 has accepted, for machines that only have Python's engine. The pattern finds the same lines,
    except that case is ignored only for ASCII letters. Syntax that Python does not support is refused."""

    whole_lines = True

    def __init__(self, query: SearchQuery) -> None:
        flags = re.ASCII | re.IGNORECASE * query.ignore_case
        text = per_line(query.pattern, literal=query.literal)
        try:
            self._pattern = re.compile(re.escape(text) if query.literal else _DIFFERENT.sub(_as_python, text), flags)
        except (re.error, OverflowError, RecursionError) as error:
            raise ToolFailed(
                f"The pattern cannot be used on the other machine, which has only Python's engine ({error})."
            ) from None

    def find(self, data: bytes, start: int, end: int) -> Span | None:
        while start <= end:
            begins = data.rfind(b"\n", 0, start) + 1
            ends = data.find(b"\n", start)
            ends = len(data) if ends < 0 else ends
            # An undecodable byte becomes one character, so that positions in the text can be converted to bytes.
            line, skipped = _text(data[begins:ends]), len(_text(data[begins:start]))
            if (found := self._pattern.search(line, skipped)) is not None:
                return begins + len(_bytes(line[: found.start()])), begins + len(_bytes(line[: found.end()]))
            start = ends + 1
        return None


def _as_python(found: "re.Match[str]") -> str:
    if found[1] is not None:
        if (members := _CLASSES.get(found[1])) is None:
            raise re.error(f"{found[0]} is not supported")
        return members
    return "\\{" if found[0] == "{" else found[0]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _send(filesystem: Filesystem, path: str, limit: int) -> None:
    """Sends a whole file while reading it."""
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
