"""A running tool's live output, for the turn's followers.

Guarantee: small pieces are combined and sent at most a few times per second. At most `SHOWN_CHARACTERS` are sent per
call, because the turn's log has to hold everything that its readers have not read yet; after that, one line says that
the rest is not shown. Nothing is sent after the call has ended. The complete output is in the tool's result.
"""

import asyncio
from types import TracebackType

from tidegate.agent.interface import Turn
from tidegate.values import ToolCall, ToolProgress

PAUSE_SECONDS = 0.1
"""Pause between two pieces of output. Nobody can read faster than this."""

PIECE_CHARACTERS = 4096
"""The size at which a piece is sent immediately."""

SHOWN_CHARACTERS = 64 * 1024
"""Maximum number of characters sent of one call's output. The result contains the rest."""

CUT_OFF = "\n[more output is not shown here]\n"


class Progress:
    """A receiver for the pieces of a tool's output, used as a context manager for the duration of the call."""

    def __init__(self, turn: Turn, call: ToolCall) -> None:
        self._turn = turn
        self._call = call
        self._pieces: list[str] = []  # lint: allow emptied at PIECE_CHARACTERS
        self._held = 0
        self._left = SHOWN_CHARACTERS
        self._timer: asyncio.TimerHandle | None = None
        self._open = True

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._flush()

    def __call__(self, text: str) -> None:
        if not self._open or not text or self._left <= 0:
            return
        self._left -= len(text)
        if self._left <= 0:
            text = text[: self._left or None] + CUT_OFF
        self._pieces.append(text)
        self._held += len(text)
        if self._held >= PIECE_CHARACTERS or self._left <= 0:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pieces:
            text, self._pieces, self._held = "".join(self._pieces), [], 0
            self._turn.emit(ToolProgress(call_id=self._call.id, name=self._call.name, text=text))
