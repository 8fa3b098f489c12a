"""Takeover of a home folder from a running gateway.

If several gateways try at the same time, the first to claim the folder takes over and the others fail immediately. When
`take_over` returns with the lock, the old gateway has released it or is dead, so its database connections are closed
and its port is free. Only the process that holds the lock is signalled. No message that the old gateway has accepted is
lost.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import anyio
from anyio import to_thread

from tidegate.errors import TidegateError
from tidegate.gateway.control_client import ask
from tidegate.gateway.lock import BeingTakenOver, Holder, HomeHeld, HomeLock, process_mark

_POLL_SECONDS = 0.02  # between two attempts to take the lock
_ASK_SECONDS = 5.0  # for the old gateway to confirm the stop; it does so immediately unless it hangs
_KILL_GRACE_SECONDS = 5.0  # after SIGKILL, the kernel releases the lock as soon as the process has exited


def claim(home: Path, takeover: HomeLock) -> None:
    """Claims the right to take over, which only one gateway can have at a time, or raises `BeingTakenOver`."""
    try:
        takeover.take()
    except HomeHeld as held:
        raise BeingTakenOver(home, held.holder) from None


async def take_over(
    home: Path,
    lock: HomeLock,
    *,
    within: float,
    say: Callable[[str], None],
    given_up: Callable[[], bool] = lambda: False,
) -> None:
    """Takes the lock. If another process holds it, that process receives a stop request through the control socket, or
    SIGTERM if the socket does not respond, and is killed after `within` seconds. A process that takes the lock in the
    meantime is treated the same way. Returns without the lock once `given_up()` is true."""
    asked: Holder | None = None
    killed = False
    deadline = time.monotonic() + within
    while not given_up():
        try:
            await to_thread.run_sync(lock.take)
            return
        except HomeHeld as held:
            holder = held.holder
        if holder.pid and (asked is None or not holder.is_same(asked)):
            say(f"Taking over from the running gateway ({holder}).")
            asked, killed = holder, False
            deadline = time.monotonic() + within
            await to_thread.run_sync(_ask_to_stop, home, holder)
        elif time.monotonic() > deadline:
            if asked is None or killed:
                raise HomeHeld(home, holder)
            say(
                f"The old gateway ({holder}) did not stop within {within:.0f} s and is being killed; nothing it has "
                f"accepted is "
                "lost."
            )
            await to_thread.run_sync(_signal, holder, signal.SIGKILL)
            killed = True
            deadline = time.monotonic() + _KILL_GRACE_SECONDS
        await anyio.sleep(_POLL_SECONDS)


def _ask_to_stop(home: Path, holder: Holder) -> None:
    """Requests a graceful stop. If the gateway is already stopping, its turns keep their remaining time."""
    try:
        ask(home, {"do": "stop", "hurry": False}, within=_ASK_SECONDS)
    except TidegateError:
        # The gateway is starting, closing or stuck, so the control socket does not answer.
        _signal(holder, signal.SIGTERM)


def _signal(holder: Holder, number: signal.Signals) -> None:
    """Sends a signal to the holder, unless its pid has been recycled."""
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
