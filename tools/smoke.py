"""The smoke test of the readme's promise: `make up` starts a usable gateway, and a second time at once.

    python3 tools/smoke.py

In a fresh clone the first start makes the environment; the second must install nothing. Each time the health check is
requested, the link is opened, its code is used to sign in, and `tidegate stop` stops the gateway. All files are in a
temporary folder, only loopback is used, and every started process is ended in any case. Needs only Python and make.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / os.environ.get("VENV", ".venv")
FIRST_WITHIN = 900.0
"""Seconds; packages may have to be fetched."""
WITHIN = 60.0
LOOK = 0.05
INSTALLS = re.compile(r"\b(Making|Installing)\b")


class Failed(Exception):
    """A broken promise, in one sentence."""


@contextmanager
def make_up(home: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as out:
        started = subprocess.Popen(
            ["make", "up", f"ARGS=--home {home} --port 0"],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(WITHIN)


def said(started: subprocess.Popen[bytes], output: Path, word: str, within: float) -> str:
    """Wait for a line that starts with `word` and return the rest of it."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        ended = started.poll() is not None
        for line in output.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith(f"{word} ") and line.endswith("\n"):
                return line.split()[1]
        if ended:
            raise Failed(f"`make up` ended with {started.returncode} before it printed `{word}`.")
        time.sleep(LOOK)
    raise Failed(f"`make up` did not print `{word}` within {within:.0f} s.")


def fetch(address: str, body: object = None) -> bytes:
    given = None if body is None else json.dumps(body).encode()
    opener = build_opener(ProxyHandler({}))
    with opener.open(Request(address, given, {"Content-Type": "application/json"}), timeout=WITHIN) as answer:
        found: bytes = answer.read()
        return found


def use(address: str, link: str) -> None:
    """Check that the gateway is healthy, that the link opens the page, and that its code signs in."""
    if json.loads(fetch(f"{address}/healthz")) != {"status": "ok"}:
        raise Failed("/healthz did not say that it lives.")
    page, _, code = link.partition("#code=")
    if b"<html" not in fetch(page):
        raise Failed("The link did not open the chat page.")
    if not json.loads(fetch(f"{address}/api/login", {"code": code}))["signed_in"]:
        raise Failed("The link's code did not sign in.")


def once(folder: Path, number: int) -> str:
    """Start, use and stop the gateway once; returns its output."""
    home, output = folder / "home", folder / f"{number}.out"
    began = time.monotonic()
    with make_up(home, output) as started:
        try:
            link = said(started, output, "chat", FIRST_WITHIN if number == 1 else WITHIN)
            use(said(started, output, "ready", WITHIN), link)
            stop = [str(VENV / "bin" / "tidegate"), "stop", "--home", str(home)]
            subprocess.run(stop, check=True, stdout=subprocess.DEVNULL, timeout=WITHIN)
            if started.wait(WITHIN) != 0:
                raise Failed(f"`make up` ended with {started.returncode} after `tidegate stop`.")
        except BaseException:
            print(output.read_text(errors="replace"), file=sys.stderr)
            raise
    print(f"make up, time {number}: used and stopped after {time.monotonic() - began:.1f} s")
    return output.read_text(errors="replace")


def main() -> None:
    installed = VENV / ".installed"
    try:
        with tempfile.TemporaryDirectory(prefix="tidegate-smoke-") as name:
            once(Path(name), 1)
            before = installed.stat().st_mtime_ns
            again = once(Path(name), 2)
        if INSTALLS.search(again) or installed.stat().st_mtime_ns != before:
            raise Failed("The second `make up` installed something again.")
    except (Failed, OSError, subprocess.SubprocessError) as failed:
        sys.exit(f"smoke: {failed}")


if __name__ == "__main__":
    main()
