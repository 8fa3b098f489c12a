"""`python -m tests.clients.mcp_reference`: the gateway as a client of MCP's reference servers and conformance suite.

    python -m tests.clients.mcp_reference                       everything
    python -m tests.clients.mcp_reference time suite-2025       only these

The reference servers are programs of PyPI and npm, which run in sandboxes as they do in a gateway. The conformance
suite runs every client scenario except those about signing in by OAuth, which the gateway does not support. Everything
is installed below `.clients/`. The exit status is 1 if a check failed, 2 if something could not be installed.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.clients.environments import ROOT, Client, Failed, install
from tests.mcp.harness import ServerHarness, open_servers
from tidegate.config import McpSettings
from tidegate.errors import ToolFailed
from tidegate.lifetimes import ServiceFailed

PYTHON = Client(
    "mcp-python",
    "",
    python=("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19", "mcp-server-fetch==2026.10.24"),
)
NODE = Client(
    "mcp-node",
    "",
    node=(
        "@modelcontextprotocol/server-filesystem@2026.8.31",
        "@modelcontextprotocol/server-memory@2026.8.31",
        "@modelcontextprotocol/server-everything@2026.8.31",
    ),
)
SUITES = {
    "suite-2025": Client("mcp-suite-2025", "", node=("@modelcontextprotocol/conformance@0.1.16", "node@22.23.3")),
    "suite-2026": Client(
        "mcp-suite-2026", "", node=("@modelcontextprotocol/conformance@0.2.0-alpha.12", "node@22.23.3")
    ),
}
REVISIONS = {"suite-2025": "2025-11-25", "suite-2026": "2026-07-28"}
FAULTS_OF_THE_SUITE: dict[str, str] = {}
"""Scenarios of the alpha that fail because of the suite itself, with the reason."""

SCENARIO = re.compile(r"^  - (\S+) \[(.*)\]$")
WAIT = 120.0
PASSED = "OVERALL: PASSED"
TAIL = 1500


class Reference(NamedTuple):
    """A reference server, and calls with a text that their results contain."""

    client: Client
    program: str
    arguments: tuple[str, ...]
    calls: tuple[tuple[str, dict[str, Any], str], ...]
    network: bool = False
    environment: Mapping[str, str] = MappingProxyType({})


ANY_OWNER = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
"""If root runs this, the folder belongs to another user than the server."""

MEMO = {"entities": [{"name": "Anna", "entityType": "person", "observations": ["likes tea"]}]}
SERVERS = {
    "time": Reference(PYTHON, "mcp-server-time", (), (("get_current_time", {"timezone": "Asia/Tokyo"}, "Asia/Tokyo"),)),
    "git": Reference(
        PYTHON, "mcp-server-git", (), (("git_status", {"repo_path": "/workspace"}, "On branch"),), environment=ANY_OWNER
    ),
    "fetch": Reference(PYTHON, "mcp-server-fetch", (), (), network=True),
    "filesystem": Reference(
        NODE,
        "mcp-server-filesystem",
        ("/workspace",),
        (
            ("write_file", {"path": "/workspace/a.txt", "content": "tide"}, "a.txt"),
            ("read_text_file", {"path": "/workspace/a.txt"}, "tide"),
        ),
    ),
    "memory": Reference(
        NODE,
        "mcp-server-memory",
        (),
        (("create_entities", MEMO, "Anna"), ("search_nodes", {"query": "tea"}, "Anna")),
        environment={"MEMORY_FILE_PATH": "/home/agent/memory.json"},
    ),
    "everything": Reference(
        NODE,
        "mcp-server-everything",
        (),
        (
            ("echo", {"message": "tide"}, "tide"),
            ("get-sum", {"a": 2, "b": 3}, "5"),
            ("get-tiny-image", {}, "[picture: "),  # its picture is damaged, which the result says
            ("trigger-long-running-operation", {"duration": 1, "steps": 2}, "completed"),
            ("get-structured-content", {"location": "New York"}, "temperature"),
        ),
    ),
}


def settings(reference: Reference, folder: Path) -> McpSettings:
    place = reference.client.folder
    interpreter = (str(Path(sys.base_prefix)),) if reference.client.python else ()
    program = place / ("bin" if reference.client.python else "node_modules/.bin") / reference.program
    return McpSettings(
        command=str(program),
        args=reference.arguments,
        env=reference.environment,
        cwd=str(folder),
        read_only=(str(place), *interpreter),
        network=reference.network,
        start_timeout=WAIT,
        list_timeout=WAIT,
        call_timeout=WAIT,
    )


def prepare(name: str, folder: Path) -> None:
    """Makes the folder in which a server works."""
    work = folder / "work"
    folder.chmod(0o755)
    work.mkdir()
    if name == "git":
        subprocess.run(["git", "init", "-q", str(work)], check=True)
    subprocess.run(["chmod", "-R", "a+rwX", str(work)], check=True)


async def use(name: str, folder: Path) -> list[tuple[str, str]]:
    """Calls the tools of one server. Returns (check, failure); the failure is empty if the check passed."""
    reference, work = SERVERS[name], folder / "work"
    async with open_servers(folder / "home", {name: settings(reference, work)}) as servers:
        try:
            await servers.servers.test(name)
        except ServiceFailed as error:
            return [("start", str(error))]
        found = [("start", "")]
        for tool, arguments, expected in reference.calls:
            found.append((tool, await _failure(servers, f"{name}__{tool}", arguments, expected)))
        status = servers.state(name)
        print(f"  {name}: {status.server}, revision {status.revision}, {status.tools} tools, pid {status.pid}")
    return found


async def _failure(servers: ServerHarness, tool: str, arguments: dict[str, Any], expected: str) -> str:
    try:
        found = await servers.call(tool, **arguments)
    except (ToolFailed, AssertionError) as error:
        return str(error)
    return "" if expected in found.text and not found.failed else f"unexpected: {found.text[:300]!r}"


def run_suite(name: str) -> list[tuple[str, str]]:
    """Runs the scenarios for clients. Returns (scenario, failure)."""
    place = SUITES[name].folder
    node = place / "node_modules" / "node" / "bin" / "node"
    program = place / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(node), str(program), *arguments],
            cwd=place, env=environment, capture_output=True, text=True, timeout=WAIT, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    listed = run("list").partition("Client scenarios")[2].partition("\n\n")[0].splitlines()
    found: list[tuple[str, str]] = []
    for line in listed:
        matched = SCENARIO.match(line)
        if matched is None or matched[1].startswith("auth/") or REVISIONS[name] not in matched[2].split(","):
            continue
        version = ["--spec-version", REVISIONS[name]] if name == "suite-2026" else []
        command = f"{sys.executable} -m tests.clients.mcp_conformance_client"
        said = run("client", *version, "--command", command, "--scenario", matched[1], "-o", str(place / "results"))
        why = "" if PASSED in said else FAULTS_OF_THE_SUITE.get(matched[1], said[-TAIL:])
        found.append((matched[1], why))
    return found or [("list", "no scenario was found")]


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.clients.mcp_reference")
    options.add_argument("name", nargs="*", choices=[*SERVERS, *SUITES, []], help="only these")
    options.add_argument("--json", action="store_true", help="print the results as JSON")
    given = options.parse_args()
    results: dict[str, list[tuple[str, str]]] = {}
    checks: dict[str, tuple[Client, Callable[[], list[tuple[str, str]]]]] = {
        **{name: (reference.client, _in_folder(name)) for name, reference in SERVERS.items()},
        **{name: (client, _suite(name)) for name, client in SUITES.items()},
    }
    for name, (client, check) in checks.items():
        if given.name and name not in given.name:
            continue
        try:
            install(client, lambda message: print(message, file=sys.stderr))
        except Failed as failed:
            print(failed, file=sys.stderr)
            return 2
        results[name] = check()
        for what, why in results[name]:
            print(f"{'FAILED' if why else 'ok':7} {name} {what}{f': {why}' if why else ''}", file=sys.stderr)
    if given.json:
        print(json.dumps(results, indent=1))
    failures = sum(bool(why) for found in results.values() for _, why in found)
    print(f"{sum(map(len, results.values()))} checks of MCP, {failures} failed.")
    return 1 if failures else 0


def _in_folder(name: str) -> Callable[[], list[tuple[str, str]]]:
    def run() -> list[tuple[str, str]]:
        with tempfile.TemporaryDirectory(prefix="tidegate-mcp-") as folder:
            prepare(name, Path(folder))
            return asyncio.run(use(name, Path(folder)))

    return run


def _suite(name: str) -> Callable[[], list[tuple[str, str]]]:
    return lambda: run_suite(name)


if __name__ == "__main__":
    sys.exit(main())
