"""The gateway's MCP client, as the official conformance suite runs it: `… URL`, with the scenario in the environment.

It connects to the server, calls every tool with values that its schema accepts, answers every question with its
default, and exits with 0 unless something fails.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from tests.mcp.harness import open_servers
from tidegate.config import McpSettings
from tidegate.errors import ToolFailed

WAIT = 25.0
SAMPLES = {"number": 5, "integer": 5, "string": "text", "boolean": True, "array": [], "object": {}}
EXPECTED_TO_FAIL = ("error", "header", "invalid", "schema")
"""Words in the names of scenarios in which calls may fail, as the server intends."""


def arguments_for(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        name: field.get("default", (field.get("enum") or [SAMPLES.get(field.get("type"), "text")])[0])
        for name, field in schema.get("properties", {}).items()
        if isinstance(field, dict)
    }


async def use(url: str, scenario: str) -> int:
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    settings = McpSettings(url=url, call_timeout=WAIT, list_timeout=WAIT, start_timeout=WAIT)
    with tempfile.TemporaryDirectory() as folder:
        async with open_servers(Path(folder) / "home", {"suite": settings}) as servers:
            await servers.servers.test("suite")
            asked: list[str] = []

            async def ask(question: str, choices: Any) -> str:
                asked.append(question)
                return "skip" if "skip" in choices else choices[0] if choices else ""

            failures = 0
            calls = [(call["name"], call.get("arguments", {})) for call in context.get("toolCalls", [])]
            offered = {tool.name.removeprefix("suite__"): tool for tool in servers.toolset() if tool.name != "output"}
            for name, arguments in calls or [(name, None) for name in offered]:
                tool = offered.get(name)
                if tool is None:
                    continue
                if arguments is None:
                    arguments = arguments_for(msgspec.json.decode(tool.definition.parameters))
                if name == "json_schema_echo":
                    arguments = {
                        "schema": msgspec.json.decode(offered["json_schema_2020_12_tool"].definition.parameters)
                    }
                try:
                    found = await tool.run(
                        msgspec.structs.replace(servers.context(), ask=ask), msgspec.json.encode(arguments).decode()
                    )
                    print(name, found)
                except ToolFailed as error:
                    print(name, "failed:", error.message)
                    failures += not any(word in scenario for word in EXPECTED_TO_FAIL)
            print("asked", len(asked))
            return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(use(sys.argv[-1], os.environ.get("MCP_CONFORMANCE_SCENARIO", ""))))
