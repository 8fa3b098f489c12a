"""A real gateway in a process of its own, for tests."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

WAIT = 30.0
"""Seconds before a test gives up; nothing asserts on how long something took."""

TIDEGATE = (sys.executable, "-m", "tidegate")


def environment(**more: str) -> dict[str, str]:
    # Compiled modules are kept: a gateway starts many times here, and half of its start would be compiling.
    unwanted = ("TIDEGATE", "MALLOC_", "PYTHONDONTWRITEBYTECODE", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "dumb", **more}


class GatewayProcess:
    """A started process and what it said on standard output."""

    def __init__(
        self,
        home: Path,
        *arguments: str,
        descriptors: int | None = None,
        program: tuple[str, ...] = TIDEGATE,
        **env: str,
    ) -> None:
        bounded = () if descriptors is None else ("sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh")
        self.home = home
        self.said: list[str] = []
        self.log = home.with_name(home.name + ".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*bounded, *program, "up", "--home", str(home), "--port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(**env),
            )
        self._rest = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        return next(line for line in self.said if line.startswith("ready ")).split()[1]

    @property
    def link(self) -> str:
        return next(line for line in self.said if line.startswith("chat ")).split()[1]

    def until(self, pattern: str) -> str:
        """Read what it says until a line matches."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + WAIT
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                self.said.append(line.decode())
                if re.search(pattern, self.said[-1]):
                    return self.said[-1]
            ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
            data = os.read(descriptor, 65536) if ready else b""
            if not data:
                raise AssertionError(f"it did not say {pattern!r} but: {self.said}\n{self.log.read_text()}")
            self._rest += data

    def wait_ready(self) -> "GatewayProcess":
        self.until("^chat ")
        return self

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = self.read(method, path, body, **headers)
        return json.loads(data) if data else None

    def read(self, method: str, path: str, body: Any = None, **headers: str) -> bytes:
        """The body of an answer; with the home folder's key, unless the headers have another."""
        if "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {(self.home / 'api-key').read_text().strip()}"
        request = Request(self.address + path, method=method, headers=headers)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with urlopen(request, timeout=WAIT) as response:
            return bytes(response.read())

    def say(self, text: str, session: str | None = None) -> str:
        """One message over the API, and its answer."""
        headers = {} if session is None else {"X-Session-Id": session}
        body = {"model": "main", "messages": [{"role": "user", "content": text}]}
        answer = self.call("POST", "/v1/chat/completions", body, **headers)
        return str(answer["choices"][0]["message"]["content"])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(WAIT)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def gateway(
    home: Path,
    *arguments: str,
    descriptors: int | None = None,
    program: tuple[str, ...] = TIDEGATE,
    **env: str,
) -> Iterator[GatewayProcess]:
    """A gateway that is ready, with at most so many descriptors; whatever happens, it is gone afterwards."""
    running = GatewayProcess(home, *arguments, descriptors=descriptors, program=program, **env)
    try:
        yield running.wait_ready()
    finally:
        running.end()


def tidegate(*arguments: str, home: Path | None = None, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end."""
    given = [*arguments, "--home", str(home)] if home is not None else list(arguments)
    return subprocess.run(
        [*TIDEGATE, *given], capture_output=True, text=True, timeout=WAIT, env=environment(), check=False, **options
    )
