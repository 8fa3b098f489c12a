"""The output of a running tool in the terminal client."""

import re
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.cli.terminal import at_terminal
from tests.core import settings
from tests.fixtures import home, model
from tests.gateway.process import tidegate
from tests.in_process import WAIT, in_process_gateway
from tidegate.gateway import HomeLock
from tidegate.tools import ToolContext, Toolset, tool

__all__ = ["home", "model"]

pytestmark = pytest.mark.anyio


async def test_progress_is_shown_as_it_arrives_up_to_a_limit(home: Path, model: ScriptedModel) -> None:
    """D6: before the tool has ended, without cursor movements, and up to a limit; not at all in a pipe."""
    goes_on = anyio.Event()

    @tool(effect="read", timeout=None)
    async def build(ctx: ToolContext) -> str:
        """Builds something."""
        ctx.progress("10 %\r20 %\r\n\x1b[2Jlinking\n")
        await goes_on.wait()
        ctx.progress("x" * 20_000)
        return "built"

    config = settings(model, tools='"builds"')
    async with in_process_gateway(home, toml=config, model=model, toolsets={"builds": Toolset((build,))}) as running:
        lock = HomeLock(home)
        await anyio.to_thread.run_sync(lock.take)
        try:
            lock.write_address(running.url)
            (home / "api-key").write_text(running.key)
            text = "[tool build {}] [say done]"
            with at_terminal(home, "--new") as (terminal, process), anyio.fail_after(2 * WAIT):

                async def until(pattern: str) -> str:
                    return await anyio.to_thread.run_sync(terminal.until, pattern)

                await until("> ")
                terminal.type(f"{text}\r")
                assert "\x1b[2J" not in await until(r"10 %\s+20 %\s+\[2Jlinking")
                goes_on.set()
                shown = await until("further output from this call is not shown")
                assert 3000 < len(re.findall("x", shown)) <= 4000
                await until(r"done\s")
                await until("> ")
                assert await anyio.to_thread.run_sync(terminal.leave, process) == 0
            run = await anyio.to_thread.run_sync(lambda: tidegate("chat", home=home, input=f"{text}\n"))
            assert run.stdout.strip() == "done" and "linking" not in run.stderr
        finally:
            lock.release()
