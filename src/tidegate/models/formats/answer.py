"""The interface of incoming answers, in any format.

Only a complete answer within the limits becomes a message. Any other raises `BrokenAnswer`, or `AnswerError` if the
endpoint itself reports an error.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from tidegate.values import Message

DEPTH = 64
"""Maximum nesting of JSON that an endpoint expects back: ten times the deepest nesting that endpoints send. The
decoder's own limit depends on the call stack, so a value near that limit might be stored and then be unreadable."""


class BrokenAnswer(Exception):
    """The stream is not a valid answer. `limit` is the name of the limit that was exceeded, if any."""

    def __init__(self, what: str, *, limit: str = "") -> None:
        super().__init__(what)
        self.limit = limit


class AnswerError(Exception):
    """The answer contains an error object; `complaint` is its JSON."""

    def __init__(self, complaint: bytes) -> None:
        super().__init__("error in the answer")
        self.complaint = complaint


class IncomingAnswer(Protocol):
    """An answer as it arrives. It belongs to one attempt at one model step."""

    @property
    def shown(self) -> bool:
        """True if any of the answer's text has been passed to `on_text`."""
        ...

    @property
    def received_bytes(self) -> int:
        """The number of bytes of text, reasoning and tool calls received so far, shown or not."""
        ...

    @property
    def done(self) -> bool:
        """True if the end mark has arrived, so that no data follows."""
        ...

    @property
    def complete(self) -> bool:
        """True if the answer would be complete if the stream ended now."""
        ...

    def feed(self, received: bytes) -> None:
        """Parses received bytes and passes their text on in one piece."""
        ...

    def end(self) -> None:
        """Called at the end of the stream."""
        ...

    def whole(self, body: bytes) -> None:
        """Parses an answer that arrived as one body, from an endpoint that does not stream."""
        ...

    def message(self, model: str) -> Message: ...


def check_depth(value: Any) -> None:
    """Raises BrokenAnswer if a JSON value is nested deeper than DEPTH."""
    level = [value]
    for _ in range(DEPTH + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise BrokenAnswer(f"JSON that the endpoint expects back is nested deeper than {DEPTH} levels")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
