"""`python -m tests.clients`: foreign clients of OpenAI's API, run for real against a gateway with the scripted model.

    python -m tests.clients                 install and run all
    python -m tests.clients llm aider       only these
    python -m tests.clients llm --check tools --check stream
    python -m tests.clients --json          the results as JSON on standard output

Clients run one after the other, each in its own environment, process group and temporary folder; everything listens on
loopback. The exit status is 1 if a check failed, 2 if a client could not be run. Not part of the tests that pytest
collects, since it installs packages.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.children import Failed as ChildFailed
from tests.clients.environments import Client, Failed, install, read_clients
from tests.clients.gateway import Running, running
from tests.clients.report import Result, table

TAIL = 1500
END_WITHIN = 10.0


def say(client: Client, message: str) -> None:
    print(f"{client.name}: {message}", file=sys.stderr, flush=True)


def run_client(client: Client, gateway: Running, folder: Path, checks: list[str]) -> list[Result]:
    """All results of one client; missing results at the deadline are a separate failure."""
    folder.mkdir()
    results: list[Result] = []
    errors = folder / "stderr"
    with errors.open("wb") as err:
        process = subprocess.Popen(
            [*client.command(), *checks],
            cwd=folder, env=gateway.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
            start_new_session=True,
        )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=client.within)
        ended = "" if process.returncode == 0 else f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        end(process)
        out, _ = process.communicate(timeout=END_WITHIN)
        ended = f"no end within {client.within:.0f} s"
    finally:
        end(process)
    for line in out.decode(errors="replace").splitlines():
        found: dict[str, Any] = json.loads(line)
        results.append(Result(client.name, found["check"], found["agent"], found["ok"], found["why"]))
    if ended or not results:
        said = errors.read_text(errors="replace")[-TAIL:].strip()
        results.append(Result(client.name, "run", "", False, f"{ended or 'no results'}: {said}"))
    return results


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the client and its child processes, which are one process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def chosen(names: list[str]) -> list[Client]:
    clients = read_clients()
    if unknown := [name for name in names if name not in clients]:
        sys.exit(f"No such client: {', '.join(unknown)}. There are {', '.join(clients)}.")
    return [client for client in clients.values() if not names or client.name in names]


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.clients", description=(__doc__ or "").partition("\n")[0])
    options.add_argument("client", nargs="*", help="names from tests/clients/clients.toml; all if none are given")
    options.add_argument("--check", action="append", default=[], help="run only this check (repeatable)")
    options.add_argument("--json", action="store_true", help="print the results as JSON")
    options.add_argument("--install-only", action="store_true", help="make the environments and stop")
    options.add_argument("--keep", type=Path, help="a new folder for what the processes print; kept")
    given = options.parse_args()
    # If this process is ended from outside, it ends its child processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="tidegate-clients-") as temporary:
        folder = given.keep.resolve() if given.keep else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for client in chosen(given.client):
            began = time.monotonic()
            try:
                install(client, lambda message, client=client: say(client, message))  # type: ignore[misc]
                if given.install_only:
                    continue
                # One gateway per client, so that no client can change the results of the next.
                with running(folder / client.name) as gateway:
                    found = run_client(client, gateway, folder / client.name / "run", given.check)
            except (Failed, ChildFailed) as failed:
                found = [Result(client.name, "run", "", False, str(failed))]
            results += found
            failures = sum(result.ok is False for result in found)
            say(client, f"{len(found)} checks, {failures} failed, {time.monotonic() - began:.0f} s")
    if given.install_only and not results:
        return 0
    if given.json:
        print(json.dumps([result.as_json() for result in results], indent=1))
    else:
        print(table(results))
    if any(result.check == "run" for result in results):
        return 2
    return 1 if any(result.ok is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
