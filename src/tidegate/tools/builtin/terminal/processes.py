"""The tool `process`, which runs long-running commands by name.

Starting a process that is already running does nothing. Each result is bounded and says how to continue. A process is
stopped when the conversation ends, never at the end of a turn. When it ends, this is reported to a call that is waiting
for the process, in a new turn, or with the next message.
"""

import time
from typing import Annotated, Literal

from msgspec import Meta

from tidegate.errors import ToolFailed
from tidegate.tools.tool import Result, ToolContext, tool
from tidegate.workspaces import OutputPage, ProcessView

SHOWN_BYTES = 8 * 1024
"""Maximum number of bytes of a process's output shown in one result. This is less than the limit for tool results."""

FIRST_SECONDS = 0.5
"""Seconds to wait after a start to see whether the process exits immediately, as most mistyped commands do."""

DEFAULT_SECONDS = 60.0
LONGEST_SECONDS = 600.0
"""Longest single wait. A turn that would only wait should end instead, since `notify` begins a new turn."""

COMMAND_CHARACTERS = 120
"""Maximum number of characters of a command shown in a list."""

Action = Literal["start", "list", "output", "write", "wait", "stop"]


@tool(effect="execute", long_results=True, timeout=None, contained=True)
async def process(
    ctx: ToolContext,
    *,
    action: Annotated[Action, Meta(description="What to do.")],
    name: Annotated[str, Meta(description="The process's name, which you choose; required except for list.")] = "",
    command: Annotated[
        str, Meta(description="start: the bash command, run in the current folder of the terminal.")
    ] = "",
    restart: Annotated[bool, Meta(description="start: run it again after a restart of the gateway.")] = False,
    notify: Annotated[bool, Meta(description="start: send a new message when it has ended.")] = False,
    since: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="output, wait: the byte to read from; by default, the latest output."),
    ] = None,
    input: Annotated[str, Meta(description="write: text for its standard input; end a line with a line break.")] = "",
    close: Annotated[bool, Meta(description="write: close its standard input afterwards.")] = False,
    pattern: Annotated[
        str,
        Meta(
            description="wait: return at the first line matching this extended regular expression; empty: at its end."
        ),
    ] = "",
    timeout: Annotated[
        float, Meta(gt=0, le=LONGEST_SECONDS, description="wait: the most seconds to wait.")
    ] = DEFAULT_SECONDS,
) -> Result:
    """Runs named commands in the background: start one (does nothing if it is already running), list all, read its
    output, write to its input, wait for a line of its output or for its end, stop it. Processes keep running between
    messages and end with the conversation."""
    if action == "list":
        return Result(text=_listed(await ctx.workspace.list()))
    if not name:
        raise ToolFailed(f"process: {action} needs the name of a process")
    if action == "start":
        return await _start(ctx, name, command, restart=restart, notify=notify)
    if action == "output":
        return Result(text=_shown(await ctx.workspace.output(name, since=since, limit=SHOWN_BYTES)))
    if action == "write":
        await ctx.workspace.write(name, input.encode(), close=close)
        return Result(text=f"[{len(input.encode())} bytes were written{', and its input was closed' if close else ''}]")
    if action == "wait":
        return await _wait(ctx, name, pattern, timeout, since)
    view = await ctx.workspace.stop(name)
    page = await ctx.workspace.output(name, limit=SHOWN_BYTES)
    return Result(text=f"[{name} was stopped{_code(view)}]\n{_shown(page)}")


async def _start(ctx: ToolContext, name: str, command: str, *, restart: bool, notify: bool) -> Result:
    view = await ctx.workspace.start(name, command, restart=restart, notify=notify)
    if not view.new:
        other = "" if view.command == command else f", with another command: {_brief(view.command)}"
        return Result(text=f"[{name} is already running{other}]", failed=bool(other))
    waited = await ctx.workspace.wait(name, pattern=None, timeout=FIRST_SECONDS)
    page = await ctx.workspace.output(name, since=0, limit=SHOWN_BYTES)
    if waited.process.live:
        return Result(text=f"[{name} is running]\n{_shown(page)}")
    return Result(text=f"[{name} ended immediately{_code(waited.process)}]\n{_shown(page)}", failed=True)


async def _wait(ctx: ToolContext, name: str, pattern: str, timeout: float, since: int | None) -> Result:
    waited = await ctx.workspace.wait(name, pattern=pattern or None, timeout=timeout, since=since or 0)
    page = await ctx.workspace.output(name, since=since, limit=SHOWN_BYTES)
    if waited.matched is not None:
        return Result(text=f"[{name} printed: {waited.matched[:COMMAND_CHARACTERS]}]\n{_shown(page)}")
    if not waited.process.live:
        return Result(text=f"[{name} has ended{_code(waited.process)}]\n{_shown(page)}", failed=bool(pattern))
    return Result(text=f"[{timeout:g} s have passed; {name} is still running]\n{_shown(page)}", failed=True)


def _listed(views: tuple[ProcessView, ...]) -> str:
    if not views:
        return "[there are no processes]"
    return "\n".join(
        f"{view.name}: {_state(view)}, {view.bytes} bytes of output{_marks(view)}, {_brief(view.command)}"
        for view in views
    )


def _state(view: ProcessView) -> str:
    if view.ended is None:
        return f"has been running for {_span(time.time() - view.started)}"
    how = {"exited": "has ended", "ended": "was stopped", "lost": "ended with the gateway or its sandbox"}[view.state]
    return f"{how}{_code(view)} after {_span(view.ended - view.started)}"


def _marks(view: ProcessView) -> str:
    return "".join(f", {mark}" for mark, is_set in (("restart", view.restart), ("notify", view.notify)) if is_set)


def _code(view: ProcessView) -> str:
    if view.exit_code is None:
        return ""
    return f" by signal {-view.exit_code}" if view.exit_code < 0 else f" with exit code {view.exit_code}"


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"


def _brief(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= COMMAND_CHARACTERS else f"{line[:COMMAND_CHARACTERS]}…"


def _shown(page: OutputPage) -> str:
    gone = f"[{page.dropped} bytes before this are not shown]\n" if page.dropped else ""
    return (
        f"{gone}{page.text}{'' if page.text.endswith(chr(10)) or not page.text else chr(10)}[next: since={page.next}]"
    )
