"""Taking a home folder over from a running gateway.

Guarantee: when `take_over` returns, the lock is ours and the old gateway has given it up or is dead, so its database
connections are closed and its port is free; nobody else was signalled, and nothing that the old one accepted is lost.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
from anyio import to_thread

from tidegate.errors import TidegateError
from tidegate.gateway.ask import ask
from tidegate.gateway.lock import Holder, HomeHeld, HomeLock, holder_of, process_mark

_POLL_SECONDS = 0.02  # between two looks at a lock that is being given up
_KILL_GRACE_SECONDS = 5.0  # after SIGKILL the kernel releases the lock as soon as the process is gone


async def take_over(home: Path, lock: HomeLock, *, within: float, say: Callable[[str], None]) -> None:
    """Take the lock, ending its holder first if there is one: asked by the control socket, else by SIGTERM; one that
    has not gone after `within` seconds is killed."""
    try:
        await to_thread.run_sync(lock.take)
        return
    except HomeHeld as held:
        holder = held.holder
    say(f"Taking over from the running gateway ({holder}).")
    try:
        await to_thread.run_sync(ask, home, {"do": "stop"})
    except TidegateError:
        # It is starting, stopping or stuck, and cannot be asked.
        await to_thread.run_sync(_signal, holder, signal.SIGTERM)
    if await _wait_for(lock, within):
        return
    say(f"The old gateway ({holder}) did not stop within {within:.0f} s and is killed; nothing it accepted is lost.")
    await to_thread.run_sync(_signal, holder, signal.SIGKILL)
    if not await _wait_for(lock, _KILL_GRACE_SECONDS):
        raise HomeHeld(home, holder_of(home) or holder)


async def _wait_for(lock: HomeLock, within: float) -> bool:
    with anyio.move_on_after(within):
        while True:
            try:
                await to_thread.run_sync(lock.take)
                return True
            except HomeHeld:
                await anyio.sleep(_POLL_SECONDS)
    return False


def _signal(holder: Holder, number: signal.Signals) -> None:
    """Signal the holder if the pid is still its own."""
    if holder.pid <= 0 or holder.began == 0:
        return
    try:
        descriptor = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return
    try:
        if process_mark(holder.pid) == holder.began:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
