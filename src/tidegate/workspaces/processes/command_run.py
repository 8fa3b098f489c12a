"""Running a child process until it ends, and forwarding its streams.

Output goes to the sink as fast as the sink accepts it and is not kept in memory; data on the state channel is kept up
to its limit. When `run_child` returns or raises, the command and everything it started have ended: on their own, after
the timeout, or within a second if the caller is cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from anyio import CancelScope

from tidegate.lifetimes import Scope, gather, outlast
from tidegate.workspaces.backends.interface import Child
from tidegate.workspaces.backends.shell_script import STATE_BYTES

Sink = Callable[[bytes], Awaitable[None]]
Check = Callable[[], Awaitable[None]]

END_GRACE = 0.3
"""Seconds between SIGTERM and SIGKILL. Including the rest of the work, a command is stopped within a second."""

DRAIN_SECONDS = 5.0
"""Time limit for reading the remaining output once nothing is running any more."""

CHECK_SECONDS, CHECK_RARELY_SECONDS = 0.25, 2.0
"""The first and the longest interval between checks of a running command's usage. Most problems occur soon after the
start."""


class CommandResult(NamedTuple):
    """The result of a command. `code` is None after a timeout; `left` counts the processes that the command left
    behind."""

    code: int | None
    left: int
    state: bytes


async def run_child(
    child: Child,
    sink: Sink,
    *,
    scope: Scope | None = None,
    timeout: float | None = None,
    check: Check | None = None,
    grace: Callable[[], float] = lambda: 0,
) -> CommandResult:
    """Runs a child process until it ends. `check` is called at intervals while it is running. Processes that it leaves
    behind have `grace` seconds to exit. If the caller is cancelled, however often, the child is stopped in `scope`."""
    loop = asyncio.get_running_loop()
    state = bytearray()
    code: int | None = None
    left: int | None = None
    closing: asyncio.TimerHandle | None = None

    async def output() -> None:
        while data := await child.read():
            await sink(data)

    async def saved() -> None:
        while data := await child.read_state():
            if len(state) <= STATE_BYTES:
                state.extend(data)

    async def life() -> None:
        nonlocal code, left, closing
        code = await _until_over(child, timeout, check)
        left = await child.end(grace() if code is not None else END_GRACE)
        # A process unknown to us may still have the streams open.
        closing = loop.call_later(DRAIN_SECONDS, child.close)

    try:
        await gather([output(), saved(), life()])
    finally:
        if closing is not None:
            closing.cancel()
        if left is None:
            await end(child, END_GRACE, scope)
        else:
            child.close()
    return CommandResult(code, left or 0, bytes(state))


async def end(child: Child, grace: float, scope: Scope | None) -> None:
    """Stops a child process and closes its streams; this is done when the function returns or raises. The caller may be
    cancelled more than once, since a stop and a timeout can coincide. With a scope, this makes no difference."""

    async def over() -> None:
        try:
            await child.end(grace)
        finally:
            child.close()

    if scope is None or not scope.open:  # if the scope is closed, so is the sandbox
        with CancelScope(shield=True):
            await over()
        return
    task = scope.start(over, name="end of a command", at_close="finish")
    cancelled = await outlast(task)
    if cancelled is not None:
        raise cancelled
    task.result()


async def _until_over(child: Child, timeout: float | None, check: Check | None) -> int | None:
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout if timeout is not None else None
    pause = CHECK_SECONDS
    while True:
        left = pause if until is None else min(pause, until - loop.time())
        if left <= 0:
            return None
        try:
            async with asyncio.timeout(left):
                return await child.wait()
        except TimeoutError:
            if check is not None:
                await check()
        pause = min(2 * pause, CHECK_RARELY_SECONDS)
