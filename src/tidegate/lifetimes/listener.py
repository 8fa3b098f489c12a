"""A listening socket that accepts connections one by one.

If the process runs out of descriptors or memory, the listener pauses with exponential back-off and logs each such
period once. During a pause, connections wait in the kernel's queue. (asyncio's servers would retry and log
continuously.) The owner's function `room` decides how the next connection is accepted. Accepted connections belong to
the owner; the listening socket belongs to the listener.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Literal

from tidegate.lifetimes.descriptors import Descriptors

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Shortest and longest pause, in seconds, when a connection cannot be accepted. The pause doubles each time."""

Room = Literal["free", "soon", "reserve", "none"]

_log = logging.getLogger(__name__)


class Listener:
    """A listening socket. `room(short)` decides how the next connection is accepted: `free` means normally; `reserve`,
    with a reserved descriptor if necessary; `soon`, in a later iteration of the event loop; `none`, only after a call
    of `resume` or after a second. `short` is true if no ordinary descriptor is left. `accepted` is called with the
    connection, and with True if the decision was `reserve`."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        room: Callable[[bool], Room],
        accepted: Callable[[socket.socket, bool], None],
        descriptors: Descriptors,
    ) -> None:
        self._socket = sock
        self._room = room
        self._accepted = accepted
        self._descriptors = descriptors
        self._loop = asyncio.get_running_loop()
        self._pause = FIRST_PAUSE
        self._timer: asyncio.TimerHandle | None = None
        self._listening = False
        self.failures = 0
        """The number of times that a connection could not be accepted."""
        self.failed_at: float | None = None
        """The time of the last failure, on the monotonic clock."""
        self._spell = 0

    def start(self, backlog: int) -> None:
        self._socket.setblocking(False)
        self._socket.listen(backlog)
        self.resume()

    def resume(self) -> None:
        """Accepts connections again."""
        self._stop_timer()
        if not self._listening and self._socket.fileno() >= 0:
            self._listening = True
            self._loop.add_reader(self._socket.fileno(), self._ready)

    def close(self) -> None:
        """Closes the listening socket. Connections that are waiting in the kernel's queue are refused. Idempotent."""
        self._pause_for(None)
        self._socket.close()

    def _pause_for(self, seconds: float | None) -> None:
        """Stops accepting connections for this many seconds, or until `resume` is called."""
        self._stop_timer()
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._socket.fileno())
        if seconds is not None:
            self._timer = self._loop.call_later(seconds, self.resume)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ready(self) -> None:
        room = self._room(False)  # only one connection is known to be waiting; the event loop reports the next one
        if room == "soon":
            return
        if room == "none":
            self._pause_for(LONGEST_PAUSE)
            return
        try:
            self._accept(reserve=room == "reserve")
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._failed(error)
            return
        if room == "free":
            self._recovered()

    def _accept(self, *, reserve: bool) -> None:
        if reserve:
            with self._descriptors.reserve():
                connection, _ = self._socket.accept()
        else:
            connection, _ = self._socket.accept()
        connection.setblocking(False)
        self._accepted(connection, reserve)

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        self.failed_at = time.monotonic()
        if not self._spell:
            _log.warning("connections cannot be accepted and are waiting: %s", error.strerror)
        self._spell += 1
        if self._room(True) == "reserve":
            try:
                self._accept(reserve=True)
                return
            except OSError:
                pass  # not even the reserve has a free descriptor
        self._pause_for(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _recovered(self) -> None:
        self._pause = FIRST_PAUSE
        if self._spell:
            _log.warning("connections are accepted again after %d failures", self._spell)
            self._spell = 0
