"""One command that runs, and its streams taken to where they belong.

Guarantee: output goes to the sink as fast as the sink takes it and never into memory; what the state channel tells is
kept up to its bound. The command is over when `conduct` returns or raises, with everything that came of it: after its
own end, after its time, or, when the caller is cancelled, within a second.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from anyio import CancelScope

from tidegate.lifetimes import Scope, gather, outlast
from tidegate.workspaces.backends.interface import Child
from tidegate.workspaces.backends.shell_script import STATE_BYTES

Sink = Callable[[bytes], Awaitable[None]]
Look = Callable[[], Awaitable[None]]

END_GRACE = 0.3
"""Seconds between asking a command to end and killing it: with what else there is to do, it is gone within a second."""

DRAIN_SECONDS = 5.0
"""In which what was already put out is taken, when nothing runs any more that could put out more."""

LOOK_SECONDS, LOOK_RARELY_SECONDS = 0.25, 2.0
"""Between two looks at what a running command uses: what goes wrong mostly does so at once."""


class CommandResult(NamedTuple):
    """`code` is None when its time was over; `left` are the processes that it had left behind."""

    code: int | None
    left: int
    state: bytes


async def run_child(
    child: Child,
    sink: Sink,
    *,
    scope: Scope | None = None,
    timeout: float | None = None,
    look: Look | None = None,
    grace: Callable[[], float] = lambda: 0,
) -> CommandResult:
    """`look` is called every now and then while it runs; what it leaves behind has `grace` seconds to end by itself.
    `scope` is where it is ended when the caller is cancelled, however often that happens."""
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
        code = await _until_over(child, timeout, look)
        left = await child.end(grace() if code is not None else END_GRACE)
        # Somebody else may have got hold of the streams, whom nobody knows.
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
    """Nothing of it runs and its streams are closed when this returns or raises. Who calls may be cancelled more than
    once, since a stop and the end of the time may come together: in a scope that makes no difference."""

    async def over() -> None:
        try:
            await child.end(grace)
        finally:
            child.close()

    if scope is None or not scope.open:  # closed, the box is closed with it
        with CancelScope(shield=True):
            await over()
        return
    task = scope.start(over, name="end of a command", at_close="finish")
    cancelled = await outlast(task)
    if cancelled is not None:
        raise cancelled
    task.result()


async def _until_over(child: Child, timeout: float | None, look: Look | None) -> int | None:
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout if timeout is not None else None
    pause = LOOK_SECONDS
    while True:
        left = pause if until is None else min(pause, until - loop.time())
        if left <= 0:
            return None
        try:
            async with asyncio.timeout(left):
                return await child.wait()
        except TimeoutError:
            if look is not None:
                await look()
        pause = min(2 * pause, LOOK_RARELY_SECONDS)
