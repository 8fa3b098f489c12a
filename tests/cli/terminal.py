"""A simulated user at a terminal, for tests of the command line."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from tests.gateway.process import WAIT, environment

# The terminal becomes the controlling one, so that Ctrl-C is a signal, as it is for a person.
ON_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "tidegate", *sys.argv[1:]])
"""
CTRL_C = "\x03"
CTRL_D = "\x04"


class Terminal:
    """A simulated user at a terminal."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def leave(self, process: "subprocess.Popen[bytes]") -> int:
        """Presses Ctrl-D, and again if the first press came between two prompts."""
        deadline = time.monotonic() + WAIT
        while process.poll() is None and time.monotonic() < deadline:
            self.type(CTRL_D)
            ready, _, _ = select.select([self._master], [], [], 0.2)
            with contextlib.suppress(OSError):
                self.seen += os.read(self._master, 65536).decode(errors="replace") if ready else ""
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        return process.wait(WAIT)

    def press(self, key: str, pattern: str) -> None:
        """Presses a key until there is a reaction, since a key pressed while a prompt is drawn is read only with the
        next one."""
        deadline = time.monotonic() + WAIT
        while re.search(pattern, self.seen) is None and time.monotonic() < deadline:
            self.type(key)
            patience = time.monotonic() + 1
            while re.search(pattern, self.seen) is None and (left := patience - time.monotonic()) > 0:
                ready, _, _ = select.select([self._master], [], [], left)
                self.seen += os.read(self._master, 65536).decode(errors="replace") if ready else ""
        self.until(pattern)

    def until(self, pattern: str) -> str:
        """Reads until the output since the last match matches the pattern."""
        deadline = time.monotonic() + WAIT
        while (found := re.search(pattern, self.seen)) is None:
            ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            try:
                data = os.read(self._master, 65536) if ready else b""
            except OSError:  # the other side of a terminal has gone
                data = b""
            if not data:
                raise AssertionError(f"{pattern!r} did not come; this did: {self.seen[-2000:]!r}")
            self.seen += data.decode(errors="replace")
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text


@contextlib.contextmanager
def at_terminal(
    home: Path, *arguments: str, command: tuple[str, ...] = ("chat",), **env: str
) -> Iterator[tuple[Terminal, "subprocess.Popen[bytes]"]]:
    """Runs the program on its own terminal, and ends it in any case."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (50, 300))  # so wide that no sentence a test looks for is broken
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, *command, "--home", str(home), *arguments],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment(**env),
    )  # fmt: skip
    os.close(slave)
    try:
        yield Terminal(master), process
    finally:
        process.kill()
        process.wait(WAIT)
        os.close(master)
