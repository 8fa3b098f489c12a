"""The time limit of a tool, the output that a model is shown, and the number of parallel calls."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import WAIT, core
from tests.effects import results
from tidegate.tools import ToolContext, Toolset, tool
from tidegate.tools.tool import Effect
from tidegate.values import MessageAdded, ToolEnded, ToolProgress, ToolStarted

pytestmark = pytest.mark.anyio


async def test_a_tool_that_takes_too_long_is_stopped_and_the_model_informed(home: Path, model: ScriptedModel) -> None:
    """L23: its own timeout, long before the turn's; the turn continues."""
    left: list[str] = []

    @tool(effect="read", timeout=0.05)
    async def dawdle(ctx: ToolContext) -> str:
        """Never comes back."""
        try:
            await anyio.sleep_forever()
        finally:
            left.append(ctx.call)
        return ""

    async with core(home, model=model, tools='"slow"', toolsets={"slow": Toolset((dawdle,))}) as gateway:
        outcome = await gateway.say("[tool dawdle {}] [say went on]")
        assert outcome.text == "went on"
        assert results(gateway) == ["dawdle did not finish within 0.05 s and was stopped."]
        assert len(left) == 1


async def test_a_model_is_shown_no_more_of_a_tools_output_than_its_bound(home: Path, model: ScriptedModel) -> None:
    """D1: limits.tool_output_bytes for all tools, less if a tool says so; the omitted part is named."""

    async def much(ctx: ToolContext) -> str:
        """Says much."""
        return "".join(f"line {number} {'-' * 400}\n" for number in range(100))

    shout = tool(effect="read", name="shout")(much)
    brief = tool(effect="read", name="brief", output_bytes=600)(much)
    options = {"tools": '"loud"', "toolsets": {"loud": Toolset((shout, brief))}}
    async with core(home, "[limits]\ntool_output_bytes = 4096", model=model, **options) as gateway:
        await gateway.say("[tool shout {}] [tool brief {}] [say done]")
        long, short = results(gateway)
        assert 2048 < len(long.encode()) <= 4096
        assert len(short.encode()) <= 600
        for shown in (long, short):
            assert shown.startswith("line 0 ") and "left out" in shown and "the full text is sp_" in shown


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("x" * 16 * 1024, True),
        ("x" * (16 * 1024 + 1), False),
        ("\n".join("y" * 400), True),
        ("\n".join("y" * 401), False),
    ],
)
async def test_by_default_at_most_16_kib_or_400_lines_of_output_are_shown(
    home: Path, model: ScriptedModel, text: str, whole: bool
) -> None:
    """D1, D2: the defaults without any configuration."""

    @tool(effect="read")
    async def tell(ctx: ToolContext) -> str:
        """Tells all."""
        return text

    async with core(home, model=model, tools='"tell"', toolsets={"tell": Toolset((tell,))}) as gateway:
        await gateway.say("[tool tell {}] [say done]")
        [shown] = results(gateway)
        assert (shown == text) is whole
        assert ("the full text is sp_" in shown) is not whole


async def test_no_more_calls_run_in_parallel_than_allowed(home: Path, model: ScriptedModel) -> None:
    """P15: limits.tools_parallel; the next calls begin when those have ended, and the results keep their order."""

    @tool(effect="read", parallel=True)
    async def echo(ctx: ToolContext, *, name: str) -> str:
        """Says its name."""
        return name

    script = "[together " + " ".join(f'echo {{"name": "{name}"}}' for name in "abcde") + "] [say done]"
    options = {"tools": '"echo"', "toolsets": {"echo": Toolset((echo,))}}
    async with core(home, "[limits]\ntools_parallel = 2", model=model, **options) as gateway:
        accepted = await gateway.accept(script)
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        await gateway.answered(accepted.turn)
        assert results(gateway) == list("abcde")
        running = most = 0
        for event in log.events:
            running += isinstance(event, ToolStarted) - isinstance(event, ToolEnded)
            most = max(most, running)
        assert (most, running) == (2, 0)


async def test_events_have_an_excerpt_of_a_call_and_its_result_and_the_model_reads_all(
    home: Path, model: ScriptedModel
) -> None:
    """D6: followers read an excerpt; the full text is in the transcript."""

    @tool(effect="read")
    async def echo(ctx: ToolContext, *, text: str) -> str:
        """Says it again."""
        return text * 2

    said = "word " * 1000
    options = {"tools": '"echo"', "toolsets": {"echo": Toolset((echo,))}}
    async with core(home, model=model, **options) as gateway:
        accepted = await gateway.accept(f'[tool echo {{"text": "{said}"}}] [say done]')
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        await gateway.answered(accepted.turn)
        assert results(gateway) == [said * 2]
        [started] = [event for event in log.events if isinstance(event, ToolStarted)]
        [ended] = [event for event in log.events if isinstance(event, ToolEnded)]
        assert (len(started.arguments), len(ended.excerpt)) == (400, 400)
        assert (said * 2).startswith(ended.excerpt)
        told = [event.message for event in log.events if isinstance(event, MessageAdded)]
        assert [len(message.text) for message in told if message.role == "tool"] == [400]


@pytest.mark.parametrize("pieces", [1, 1000])
async def test_progress_is_bounded_and_says_when_no_more_is_shown(
    home: Path, model: ScriptedModel, pieces: int
) -> None:
    """P15, L21: 64 KiB of one call, in whatever pieces; the result itself is unchanged."""
    megabyte = 1024 * 1024

    @tool(effect="read")
    async def chatter(ctx: ToolContext) -> str:
        """Puts out much."""
        for _ in range(pieces):
            ctx.progress("x" * (megabyte // pieces))
            await anyio.lowlevel.checkpoint()
        return "done"

    options = {"tools": '"loud"', "toolsets": {"loud": Toolset((chatter,))}}
    async with core(home, model=model, **options) as gateway:
        accepted = await gateway.accept("[together chatter {} chatter {}] [say done]")
        log = gateway.service.turn_log(accepted.turn)
        assert log is not None
        await gateway.answered(accepted.turn)
        for call in {event.call_id for event in log.events if isinstance(event, ToolStarted)}:
            shown = [event.text for event in log.events if isinstance(event, ToolProgress) and event.call_id == call]
            text = "".join(shown)
            assert text.rstrip().endswith("[more output is not shown here]")
            assert text.count("x") == 64 * 1024
            assert len(text) < 64 * 1024 + 100


@pytest.mark.parametrize("effect", ["read", "write", "execute", "network"])
@pytest.mark.parametrize("repeatable", [True, False, None])
async def test_a_tool_decides_whether_its_interrupted_call_is_repeated(
    home: Path, model: ScriptedModel, effect: Effect, repeatable: bool | None
) -> None:
    """F4, P04: whatever its effect; if it does not say, only read-only calls are repeated."""
    started, times = anyio.Event(), 0

    @tool(effect=effect, repeatable=repeatable)
    async def deed(ctx: ToolContext) -> str:
        """Does something."""
        nonlocal times
        times += 1
        if times == 1:
            started.set()
            await anyio.sleep_forever()
        return "made again"

    options = {"tools": '"deeds"', "toolsets": {"deeds": Toolset((deed,))}}
    async with core(home, model=model, drain=None, **options) as gateway:
        accepted = await gateway.accept("[tool deed {}] [say went on]")
        with anyio.fail_after(WAIT):
            await started.wait()
    async with core(home, model=model, **options) as gateway:
        assert (await gateway.answered(accepted.turn)).text == "went on"
        again = effect == "read" if repeatable is None else repeatable
        assert times == (2 if again else 1)
        [result] = results(gateway)
        assert result == "made again" if again else "effect is unknown" in result
