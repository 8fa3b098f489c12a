"""A real HTTP proxy (proxy.py) in a process of its own, which finds names that end in `.test` on this machine."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio import to_thread
from proxy.http.proxy import HttpProxyBasePlugin

WAIT = 60.0
USER, PASSWORD = "ada", "correct-horse-4711"


class LoopbackNames(HttpProxyBasePlugin):  # type: ignore[misc]
    """Resolves every name that ends in `.test` to this machine, inside the proxy's process."""

    def resolve_dns(self, host: str, port: int) -> tuple[str | None, None]:
        return {"page.test": "127.0.0.2"}.get(host, "127.0.0.1") if host.endswith(".test") else None, None


class Proxy:
    """A running proxy. `log` is what it wrote, with one line for each connection."""

    def __init__(self, port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.with_password = f"http://{USER}:{PASSWORD}@127.0.0.1:{port}"
        self._log = log

    async def carried(self, text: str) -> bool:
        """Whether it carried a request in whose line of the log this text is. The line is written at the end of the
        connection."""
        with anyio.move_on_after(10):
            while text not in self._log.read_text():
                await anyio.sleep(0.02)
            return True
        return False

    def carried_nothing(self) -> bool:
        return "access_log" not in self._log.read_text()


@asynccontextmanager
async def proxy(*, password: bool = False) -> AsyncIterator[Proxy]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "proxy", "--hostname", "127.0.0.1", "--port", "0"]
        command += ["--port-file", str(folder / "port"), "--num-workers", "1", "--num-acceptors", "1"]
        command += ["--data-dir", name, "--plugins", "tests.http_client.proxies.LoopbackNames"]
        command += ["--basic-auth", f"{USER}:{PASSWORD}"] if password else []
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: ASYNC220
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "HOME": name},
            )  # fmt: skip
        try:
            port = await to_thread.run_sync(_port, folder, process)
            yield Proxy(port, folder / "log")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await to_thread.run_sync(process.wait)


def _port(folder: Path, process: "subprocess.Popen[bytes]") -> int:
    until = time.monotonic() + WAIT
    while time.monotonic() < until and process.poll() is None:
        if (folder / "port").exists() and (text := (folder / "port").read_text().strip()):
            return int(text)
        time.sleep(0.02)
    raise AssertionError(f"the proxy did not start: {(folder / 'log').read_text()}")
