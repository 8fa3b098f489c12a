"""A session's keeper on another machine, where it represents the gateway.

It runs as long as the gateway is running and reachable. When the connection is closed, or after a period of silence, it
exits; the guardians of the session's commands, which watch it, then stop everything. It creates the session's folders,
forwards signals to guardians, and reports what is running below them.

It is a program that is sent, together with `guardian`, to a machine on which nothing from Tidegate is installed. It
first receives a frame that names its session, then lines; it answers each request with a line that begins with the
request's number. When a session has ended, `discard_folders` is started instead of a keeper.
"""

import os
import pwd
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from tidegate.workspaces.backends.guardian import UP, load, process_identity, receive_fields, sweep

BEAT_SECONDS = 15.0
SILENT_SECONDS = 90.0
"""A keeper exits if it receives nothing for this long. The gateway sends something every `BEAT_SECONDS`."""

REFUSED = b"\0no "
"""The beginning of a line that says why the keeper cannot run."""

SIGNALS = ("TERM", "USR1")
"""The signals forwarded to guardians."""

OLDEST_PYTHON = (3, 10)
_LINE_BYTES = 64 * 1024
_FOLDER_MODE = 0o700


def keep() -> None:
    fields = receive_fields(0)
    if not fields:
        return
    try:
        if sys.version_info < OLDEST_PYTHON:
            raise OSError("Python 3.10 or newer is required there")
        root, folder = _folders(*fields)
        os.close(os.pidfd_open(os.getpid()))  # guardians need this call, which older kernels lack
    except OSError as error:
        _answer(REFUSED + str(error).encode("utf-8", "replace"))
        return
    known = (process_identity(os.getpid()), pwd.getpwuid(os.geteuid()).pw_name, str(root), str(folder))
    _answer(UP + "\0".join(known).encode("utf-8", "surrogateescape"))
    attend()


def _folders(session: str, project: str) -> tuple[Path, Path]:
    """Creates the session's folders. Returns the session's folder and its working folder, which is either its own or
    one of the user's projects."""
    root = _base() / "workspaces" / session
    for name in ("home", "tmp", "work"):
        (root / name).mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    if project and not Path(project).is_dir():
        raise OSError(f"the agent's workspace is set to {project}, which does not exist")
    return root, Path(project) if project else root / "work"


def _base() -> Path:
    os.umask(0o077)  # private, whatever the account's own umask allows
    return Path.home() / ".tidegate" / "remote"  # separate from the home folder of a gateway run by that account


def attend(silent_seconds: float = SILENT_SECONDS) -> None:
    """Handles lines until the end of the input, or until nothing has arrived for too long."""
    rest = b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while poll.poll(silent_seconds * 1000):
        data = os.read(0, _LINE_BYTES)
        if not data or len(rest) > _LINE_BYTES:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            _handle(line.decode().split())


def _handle(words: list[str]) -> None:
    if words[:1] == ["signal"]:
        question, name, known = words[1:]
        pid = int(known.partition(":")[0])
        exists = name in SIGNALS and process_identity(pid) == known
        if exists:
            os.kill(pid, getattr(signal, f"SIG{name}"))
        _answer(b"%d %d" % (int(question), exists))
    elif words[:1] == ["load"]:
        number, most, *guardians = map(int, words[1:])
        _answer(b"%d %d %d" % (number, *load(guardians, most)))
    elif words[:1] == ["sweep"]:
        _answer(b"%d %d" % (int(words[1]), sweep(words[2])))


def _answer(line: bytes) -> None:
    os.write(1, line + b"\n")


def discard_folders() -> None:
    """Moves an ended session's folder to the trash if it is to be kept; otherwise, deletes it. Then deletes everything
    that has been in the trash for more than `age` seconds."""
    fields = receive_fields(0)
    if not fields:
        return
    session, kept, age = fields
    trash = _base() / "trash"
    trash.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    folder, place = _base() / "workspaces" / session, trash / session
    if folder.is_dir():
        _remove(place)
        folder.rename(place)
        os.utime(place)
    if not kept:
        _remove(place)
    before = time.time() - float(age)
    for entry in list(trash.iterdir()):
        if entry.lstat().st_mtime < before:
            _remove(entry)
    _answer(UP)


def _remove(folder: Path) -> None:
    """Removes a folder and its contents, whatever their permissions."""
    for here, names, _files in os.walk(folder):
        for name in names:
            inner = Path(here, name)
            if not inner.is_symlink():
                inner.chmod(_FOLDER_MODE)
    shutil.rmtree(folder, ignore_errors=True)
