"""Processes for the figures about MCP servers. Each prints one JSON line.

python -m bench.mcp_client calls COUNT      µs per call: the gateway's way to a server, and the SDK's own client
python -m bench.mcp_client imported         private memory before and after the import of the SDK
python -m bench.mcp_client cycles COUNT     what a server leaves behind after so many starts and stops
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

BLOCK = 200
"""Calls of one kind after another, before calls of the other kind."""

PYTHON = "/usr/bin/python3"
SERVER = r"""
import json, sys
TOOL = {"name": "say", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
if "flood" in sys.argv:
    import threading
    def flood():
        while True:
            for stream in (sys.stderr, sys.stdout):
                stream.write('{"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": 1}}\n' * 50)
    threading.Timer(1, flood).start()
for line in sys.stdin:
    message = json.loads(line)
    method, result = message.get("method"), None
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "b", "version": "1"}
    elif method == "tools/list":
        result = {"tools": [TOOL]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": message["params"]["arguments"]["text"]}]}
    if "id" in message:
        reply = {"result": result} if result else {"error": {"code": -32601, "message": "unknown"}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}) + "\n")
        sys.stdout.flush()
"""
"""A server with one tool, which needs only Python."""


def private_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_Dirty:"))


async def calls(count: int) -> dict[str, Any]:
    from mcp import StdioServerParameters
    from mcp.client.client import Client

    from tests.mcp.harness import open_servers
    from tidegate.config import McpSettings

    settings = McpSettings(command=PYTHON, args=("-c", SERVER), sandbox=False, network=False)
    text = "x" * 200
    arguments = json.dumps({"text": text})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        async with (
            open_servers(Path(folder) / "home", {"b": settings}) as servers,
            Client(StdioServerParameters(command=PYTHON, args=["-c", SERVER]), mode="legacy") as client,
        ):
            await servers.ready("b")
            tool = servers.toolset().get("b__say")
            assert tool is not None
            context = servers.context()

            async def ours() -> None:
                await tool.run(context, arguments)

            async def theirs() -> None:
                await client.call_tool("say", {"text": text})

            taken: dict[str, list[float]] = {"ours": [], "theirs": []}
            cpu: dict[str, list[float]] = {"ours": [], "theirs": []}
            for name, call in (("ours", ours), ("theirs", theirs)) * (1 + count // BLOCK):
                seconds, used = await _timed(call)
                taken[name].append(seconds)
                cpu[name].append(used)
    return {
        "gateway": 1e6 * statistics.median(taken["ours"][1:]),
        "sdk": 1e6 * statistics.median(taken["theirs"][1:]),
        "gateway_cpu": 1e6 * statistics.median(cpu["ours"][1:]),
        "sdk_cpu": 1e6 * statistics.median(cpu["theirs"][1:]),
    }


async def _timed(call: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    began, used = time.perf_counter(), time.process_time()
    for _ in range(BLOCK):
        await call()
    return (time.perf_counter() - began) / BLOCK, (time.process_time() - used) / BLOCK


async def cycles(count: int) -> dict[str, Any]:
    from tests.mcp.harness import open_servers
    from tidegate.config import McpSettings

    settings = McpSettings(command=PYTHON, args=("-c", SERVER), sandbox=True, network=False)

    def census() -> dict[str, int]:
        return {
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "tasks": len(asyncio.all_tasks()),
            "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
            "private": private_bytes(),
        }

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        async with open_servers(Path(folder) / "home", {"b": settings}) as servers:
            configured = servers.servers.configured("b")
            assert configured is not None
            readings = []
            for number in range(count):
                await servers.ready("b")
                await servers.call("b__say", text="hello")
                await configured.running[""].stop()
                if number in (count // 10, count - 1):
                    readings.append(census())
    return {"early": readings[0], "late": readings[-1]}


def imported() -> dict[str, Any]:
    import tidegate.gateway.gateway

    assert tidegate.gateway.gateway
    before = private_bytes()
    import mcp

    assert mcp
    sdk = private_bytes()
    return {"before": before, "sdk": sdk - before}


MEASURES = {"calls": calls, "cycles": cycles}


def main() -> None:
    what, *numbers = sys.argv[1:]
    found = imported() if what == "imported" else asyncio.run(MEASURES[what](int(numbers[0])))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
