"""The client of a running gateway's control socket, used by the command line.

Within its deadline, a call either returns the response or raises an error with a one-sentence message. The socket's
path may be of any length.
"""

import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from tidegate.errors import TidegateError
from tidegate.gateway.lock import command_hint, holder_of

SOCKET_NAME = "control.sock"
_ANSWER_BYTES = 4 << 20  # a status with its ledger is a few kilobytes


class FolderPath:
    """A context manager that provides a short path to a folder whose own path may be of any length. Unix socket
    addresses are limited to 107 bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> str:
        how = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        self._descriptor = os.open(self._folder, how)  # lint: allow (the folder was just used; nothing is read)
        return f"/proc/self/fd/{self._descriptor}"

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class ControlUnanswered(TidegateError):
    """No gateway answers at the control socket of this home folder."""


def ask(home: Path, request: dict[str, Any], *, within: float = 10.0) -> dict[str, Any]:
    """Sends a request to the gateway of this home folder and waits for the response. Raises `ControlUnanswered`, or
    `TidegateError` with the message from the gateway."""
    replace = command_hint(home, "up --replace")
    silent = f"The gateway for {home} does not respond: check its log, or replace it with {replace}."
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, FolderPath(home) as folder:
            line.settimeout(within)
            line.connect(f"{folder}/{SOCKET_NAME}")
            line.sendall(msgspec.json.encode(request) + b"\n")
            with line.makefile("rb") as stream:
                text = stream.readline(_ANSWER_BYTES)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        if home.is_dir() and (holder := holder_of(home)) is not None and holder.address:
            raise ControlUnanswered(
                f"The gateway for {home} ({holder}) is running, but its {SOCKET_NAME} is missing: replace it with "
                f"{replace}."
            ) from None
        raise ControlUnanswered(
            f"No gateway is running for {home}: start one with {command_hint(home, 'up')}."
        ) from None
    except OSError as error:
        raise ControlUnanswered(silent) from error
    try:
        answer = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ControlUnanswered(silent) from error
    if "error" in answer:
        raise TidegateError(str(answer["error"]))
    return answer
