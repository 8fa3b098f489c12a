"""A guard against blocking calls on the event loop.

While it is installed, a call that may block (sleep, files, processes, name lookups, databases) raises
`BlockingCallOnLoop` if our own code makes it in a thread whose event loop is running. The call is also recorded, so a
broad `except` cannot hide it. Calls by libraries and by tests are allowed, and so is everything in worker threads. A
line with `# lint: allow <reason>` is exempt.
"""

import asyncio
import builtins
import io
import linecache
import os
import socket
import sqlite3
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import apsw

ALLOWED = "# lint: allow"
NEAR = 12
"""Maximum number of standard library frames between a call and the code that made it."""

STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
FOREIGN = (STANDARD + "asyncio", STANDARD + "site-packages", STANDARD + "concurrent")
TRANSPARENT = ("<frozen ", "<string>", __file__)


class BlockingCallOnLoop(AssertionError):
    """A call that may block was made where it would delay every session."""


class BlockingGuard:
    """Watches the code below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = str(root.resolve()) + os.sep
        self.seen: list[BlockingCallOnLoop] = []

    @contextmanager
    def installed(self) -> Iterator["BlockingGuard"]:
        """Replaces blocking functions, and restores them on exit."""
        places: list[tuple[Any, str]] = [
            (time, "sleep"),
            (builtins, "open"),
            (io, "open"),
            (os, "open"),
            (os, "system"),
            (os, "fsync"),
            (subprocess.Popen, "__init__"),
            (socket, "create_connection"),
            (socket, "getaddrinfo"),
            (sqlite3, "connect"),
        ]
        before = [(owner, name, getattr(owner, name)) for owner, name in places]
        connection = apsw.Connection
        for owner, name, original in before:
            setattr(owner, name, self._guarded(_called(owner, name), original))
        apsw.Connection = self._guarded_connection(connection)  # type: ignore[misc]
        try:
            yield self
        finally:
            apsw.Connection = connection  # type: ignore[misc]
            for owner, name, original in before:
                setattr(owner, name, original)

    def _guarded(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            self.check(name)
            return original(*args, **options)

        return call

    def _guarded_connection(self, base: type[apsw.Connection]) -> Any:
        guard = self

        class Connection(base):  # type: ignore[misc, valid-type]
            def __init__(self, *args: Any, **options: Any) -> None:
                guard.check("apsw.Connection")
                super().__init__(*args, **options)

            def execute(self, *args: Any, **options: Any) -> Any:
                guard.check("apsw.Connection.execute")
                return super().execute(*args, **options)

            def executemany(self, *args: Any, **options: Any) -> Any:
                guard.check("apsw.Connection.executemany")
                return super().executemany(*args, **options)

        return Connection

    def check(self, name: str) -> None:
        if asyncio._get_running_loop() is None:
            return
        where = self._caller()
        if where is not None:
            error = BlockingCallOnLoop(f"{name} blocks the event loop; it was called at {where}")
            self.seen.append(error)
            raise error

    def _caller(self) -> str | None:
        """Where our own code made the call; None if the caller is not our code."""
        frame = sys._getframe(2)
        for _ in range(NEAR):
            file = frame.f_code.co_filename
            if file.startswith(self._root):
                allowed = ALLOWED in linecache.getline(file, frame.f_lineno)
                return None if allowed else f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
            ours = file.startswith(TRANSPARENT)
            if not ours and (not file.startswith(STANDARD) or file.startswith(FOREIGN)):
                return None
            if frame.f_back is None:
                return None
            frame = frame.f_back
        return None


def _called(owner: Any, name: str) -> str:
    return "subprocess.Popen" if owner is subprocess.Popen else f"{owner.__name__}.{name}".removeprefix("builtins.")
