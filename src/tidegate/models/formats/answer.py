"""What an answer is while it arrives, whichever format it comes in.

Guarantee: one that is not complete and bounded is never given out as a message: it ends as `BrokenAnswer`, or as
`AnswerError` where the endpoint itself says what went wrong.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from tidegate.values import Message

DEPTH = 64
"""Of what an endpoint wants back, ten times what any sends. How deep the program itself can read depends on where it
does, so that a thing near that bound might be taken in and never be read again."""


class BrokenAnswer(Exception):
    """The stream is not an answer. `limit` names the bound that was exceeded, if it was one."""

    def __init__(self, what: str, *, limit: str = "") -> None:
        super().__init__(what)
        self.limit = limit


class AnswerError(Exception):
    """The endpoint put an error object into its answer; `complaint` is its JSON."""

    def __init__(self, complaint: bytes) -> None:
        super().__init__("error in the answer")
        self.complaint = complaint


class IncomingAnswer(Protocol):
    """Belongs to one attempt of one model step."""

    @property
    def shown(self) -> bool:
        """Whether text of it was handed on."""
        ...

    @property
    def heard(self) -> int:
        """Bytes of what was said, thought and called so far, whether or not anybody was shown it."""
        ...

    @property
    def done(self) -> bool:
        """Whether its end mark was seen: nothing more is to come."""
        ...

    @property
    def complete(self) -> bool:
        """Whether it may be given out, if nothing more comes."""
        ...

    def feed(self, received: bytes) -> None:
        """Takes what the network gave; hands on the text in it in one piece."""
        ...

    def end(self) -> None:
        """The stream has ended."""
        ...

    def whole(self, body: bytes) -> None:
        """It came in one piece, from an endpoint that does not stream."""
        ...

    def message(self, model: str) -> Message: ...


def check_depth(value: Any) -> None:
    """AnswerBroken if a JSON value is nested deeper than may be kept."""
    level = [value]
    for _ in range(DEPTH + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise BrokenAnswer(f"what the endpoint wants back is nested deeper than {DEPTH} levels")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
