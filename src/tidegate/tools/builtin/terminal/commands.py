"""The `terminal` tool: runs commands in the session's own shell.

A command runs until it exits or times out, or until its turn ends, and never leaves a process running. Clients that
follow the turn see the output as it arrives; the model sees the beginning and the end, and is told how to read the
rest. Anything unexpected (a timeout, killed background processes, a lost shell) is reported on a separate line.
"""

import codecs
from typing import Annotated

from msgspec import Meta

from tidegate.tools.tool import Result, ToolContext, tool
from tidegate.workspaces import CommandEnd

DEFAULT_SECONDS = 120.0
"""Default time limit. It is enough for most builds and tests; longer commands should be started in the background."""


@tool(effect="execute", long_results=True, timeout=None, contained=True)
async def terminal(
    ctx: ToolContext,
    *,
    command: Annotated[str, Meta(description="The bash command.")],
    timeout: Annotated[float, Meta(gt=0, description="Seconds after which the command is stopped.")] = DEFAULT_SECONDS,
    pty: Annotated[bool, Meta(description="Run it in a terminal, for programs that require one.")] = False,
) -> Result:
    """Runs a command in this conversation's shell and returns its output. The working directory, exported variables
    and functions are kept for the next command. A command gets no input, and processes that it leaves running in the
    background are ended: use the tool process for servers and other long-running commands."""
    seconds = min(timeout, ctx.workspace.command_seconds)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async with ctx.spool.record("terminal") as recorder:

        async def sink(data: bytes) -> None:
            await recorder.write(data)
            if text := decoder.decode(data):
                ctx.progress(text)

        finished = await ctx.workspace.run(command, timeout=seconds, sink=sink, pty=pty)
        printed = await recorder.finish()
    lines = "".join(f"\n[{line}]" for line in _remarks(finished, seconds))
    text = f"{printed.rstrip()}{lines}".strip() or "[no output]"
    return Result(text=text, failed=finished.timed_out or finished.code != 0)


def _remarks(finished: CommandEnd, seconds: float) -> list[str]:
    """Returns the remarks shown after the output."""
    remarks = []
    if finished.timed_out:
        remarks.append(
            f"it took longer than {seconds:g} s and was stopped; give it a longer timeout, or start it with the tool "
            "process"
        )
    elif finished.code and finished.code < 0:
        remarks.append(f"it was killed by signal {-finished.code}")
    elif finished.code:
        remarks.append(f"exit code {finished.code}")
    if left := finished.left_behind:
        remarks.append(
            f"{left} process{'es' * (left != 1)} that it had left running in the background "
            f"{'were' if left != 1 else 'was'} killed; use the tool process for anything that should keep running"
        )
    if finished.note:
        remarks.append(finished.note.rstrip("."))
    return remarks
