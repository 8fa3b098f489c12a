"""Child processes of a run: the scripted model, the floor, the gateway, the load driver.

A child is started in a `with` block and ends with it (SIGTERM, then SIGKILL after a deadline), always by its own
process id. Its output is kept in a file and quoted when it fails.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
READY_WITHIN = 30.0
END_WITHIN = 30.0
DRIVE_WITHIN = 1800.0
POLL = 0.002
TAIL = 2000


class Failed(Exception):
    """A child process failed; the message quotes its last output."""


class Child:
    """A child process that prints `ready URL` when it can be used."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self.command = [sys.executable, *command]
        self.folder = folder
        self.temporary = folder / "tmp"
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.born = 0.0
        self.starts = 0

    @property
    def pid(self) -> int:
        if self.process is None:
            raise Failed(f"{self.name} is not running")
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def spawn(self) -> None:
        """Start the process without waiting for it."""
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        self.url = ""
        self.output = self.folder / f"{self.name}.{self.starts}.out"
        self.errors = self.folder / f"{self.name}.err"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(self.temporary)}
        # Bytecode is kept, as in normal use: compiling at each start would cost time and memory.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with self.output.open("wb") as out, self.errors.open("ab") as err:
            self.born = time.perf_counter()
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT, env=environment
            )

    def find_ready(self) -> bool:
        """Whether the process has printed `ready`; sets `url`."""
        for line in self.output.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith("ready ") and line.endswith("\n"):
                self.url = line.split()[1]
                return True
        if not self.running:
            raise Failed(f"{self.name} ended before it was ready: {self.last_words()}")
        return False

    def wait_ready(self) -> float:
        """Wait for `ready`; returns the seconds since the start."""
        deadline = self.born + READY_WITHIN
        while not self.find_ready():
            if time.perf_counter() > deadline:
                raise Failed(f"{self.name} was not ready within {READY_WITHIN:.0f} s: {self.last_words()}")
            time.sleep(POLL)
        return time.perf_counter() - self.born

    def start(self) -> float:
        self.spawn()
        return self.wait_ready()

    def kill(self) -> None:
        """Send SIGKILL and wait for the process."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait(END_WITHIN)
            self.process = None

    def stop(self) -> float:
        """Send SIGTERM, then SIGKILL after the deadline; returns the seconds it took."""
        began = time.perf_counter()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_WITHIN)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process = None
        return time.perf_counter() - began

    def last_words(self) -> str:
        return "".join(
            path.read_text(errors="replace")[-TAIL:] for path in (self.output, self.errors) if path.exists()
        ).strip()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def drive(plan: dict[str, Any]) -> dict[str, Any]:
    """Run the load driver in a separate process and return its result."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.drive"],
        input=json.dumps(plan).encode(),
        capture_output=True,
        cwd=ROOT,
        timeout=DRIVE_WITHIN,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"the load driver failed: {done.stderr.decode(errors='replace')[-TAIL:].strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
