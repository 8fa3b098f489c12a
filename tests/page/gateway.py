"""A real gateway in its own process, with the demo model, as `tidegate up` starts it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

from tidegate.gateway import ask

START_SECONDS = 60
STOP_SECONDS = 60


class Gateway:
    """Starts, stops and kills a gateway on a home folder. It restarts on the same port, like a service."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = 0
        self.link = ""
        self._process: subprocess.Popen[str] | None = None
        self._drain: threading.Thread | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "tidegate", "up", "--home", str(self.home), "--port", str(self.port)]
        self._process = process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "NO_COLOR": "1"}
        )
        watchdog = threading.Timer(START_SECONDS, process.kill)
        watchdog.start()
        try:
            self._wait_ready(process)
        finally:
            watchdog.cancel()
            watchdog.join()
        self._drain = threading.Thread(target=self._read_away, args=(process,))
        self._drain.start()

    def _wait_ready(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        said: list[str] = []
        self.link = ""
        for line in process.stdout:
            said.append(line)
            words = line.split()
            if words[:1] == ["ready"]:
                self.port = int(words[1].rstrip("/").rpartition(":")[2])
            self.link = next((word for word in words if "#code=" in word), self.link)
            if self.port and self.link:
                return
        raise AssertionError("the gateway did not start:\n" + "".join(said))

    @staticmethod
    def _read_away(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for _ in process.stdout:
            pass

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        process, drain = self._process, self._drain
        if process is None:
            return
        self._process = self._drain = None
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(STOP_SECONDS)
            if drain is not None:
                drain.join(STOP_SECONDS)
            if process.stdout is not None:
                process.stdout.close()

    def new_link(self) -> str:
        """A new one-time link, over the control socket like `tidegate status --link`."""
        return str(ask(self.home, {"do": "code"}, within=START_SECONDS)["link"])

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """One request with the owner's key."""
        request = urllib.request.Request(
            self.origin + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {(self.home / 'api-key').read_text().strip()}",
                "Content-Type": "application/json",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return json.loads(answer.read() or b"null")
