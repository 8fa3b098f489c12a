"""Agents that give each other tasks, for the tests of delegation in every package."""

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, WAIT, Core, core, settings
from tidegate.store import Db
from tidegate.tools import Toolset
from tidegate.values import Outcome

AGENTS = """
delegates = ["helper", "second"]
description = "Talks with people."
[agents.helper]
approvals = "{approvals}"
model = "main"
prompt = "You help."
description = "Looks things up."
tools = ["delegate", "files", "ask"{more}]
delegates = ["second"]
[agents.second]
approvals = "{approvals}"
model = "main"
prompt = "You help the helper."
tools = ["clock", "ask"{more}]
[agents.stranger]
model = "main"
"""

ASKING = """
[models.main]
api = "demo"
[agents.main]
model = "main"
tools = ["delegate"]
delegates = ["helper"]
[agents.helper]
model = "main"
tools = ["clock"]
rules = ["ask clock zone=Europe/*"]
"""
ASKING_TASK = 'delegate to helper: call clock {"zone": "Europe/Paris"}'
"""A task whose agent asks for an approval first."""


DEEDS = ["ask push", "ask linger"]
"""Rules of `balanced` agents."""


def task(agent: str, text: str, *, together: tuple[tuple[str, str], ...] = ()) -> str:
    """The directive that delegates a task; with `together`, several in one step."""
    calls = [f"delegate {json.dumps({'agent': name, 'task': words})}" for name, words in ((agent, text), *together)]
    return f"[{'together' if together else 'tool'} {' '.join(calls)}]"


def configured(model: ScriptedModel, extra: str = "", *, tools: str = "", approvals: str = "autonomous") -> str:
    names = "".join(f', "{name}"' for name in tools.split())
    text = settings(model, AGENTS.format(more=names, approvals=approvals) + extra, tools=f'"delegate", "clock"{names}')
    rules = f"\nrules = {json.dumps(DEEDS)}" if approvals == "balanced" else ""
    text = text.replace('approvals = "autonomous"', f'approvals = "{approvals}"', 1)
    return text.replace(f'approvals = "{approvals}"', f'approvals = "{approvals}"{rules}')


def delegating(
    home: Path,
    model: ScriptedModel,
    extra: str = "",
    *,
    toolsets: Mapping[str, Toolset] | None = None,
    approvals: str = "autonomous",
    **options: Any,
) -> AbstractAsyncContextManager[Core]:
    toml = options.pop("toml", "") or configured(model, extra, tools=" ".join(toolsets or ()), approvals=approvals)

    @asynccontextmanager
    async def entered() -> Any:
        async with core(home, model=model, toml=toml, toolsets=toolsets, **options) as gateway:
            await gateway.know(ANNA)
            yield gateway

    return entered()


def result(gateway: Core, number: int = -1) -> list[str]:
    """The tool results in one request to the model, by default the last."""
    return [message["content"] for message in gateway.requests()[number]["messages"] if message["role"] == "tool"]


async def rows(gateway: Core) -> dict[str, int]:
    """The number of rows in each table."""

    def count(db: Db) -> dict[str, int]:
        tables = ("sessions", "turns", "intents", "receipts", "approvals", "workspaces", "spooled")
        return {table: int(db.execute(f"SELECT count(*) FROM {table}").get) for table in tables}

    return await gateway.store.read(count)


async def until_idle(gateway: Core) -> None:
    """Waits until no turn runs or waits."""
    with anyio.fail_after(WAIT):
        while any(count for name, count in gateway.service.census().items() if name.startswith("turns_")):
            await anyio.sleep(0.001)


def error(outcome: Outcome) -> str:
    assert outcome.error is not None
    return outcome.error.message
