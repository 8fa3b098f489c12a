"""What an answer is while it arrives, whichever format it comes in.

Guarantee: one that is not complete and bounded is never given out as a message: it ends as `AnswerBroken`, or as
`AnswerError` where the endpoint itself says what went wrong.
"""

from typing import Protocol

from tidegate.values import Message


class AnswerBroken(Exception):
    """The stream is not an answer. `limit` names the bound that was exceeded, if it was one."""

    def __init__(self, what: str, *, limit: str = "") -> None:
        super().__init__(what)
        self.limit = limit


class AnswerError(Exception):
    """The endpoint put an error object into its answer; `complaint` is its JSON."""

    def __init__(self, complaint: bytes) -> None:
        super().__init__("error in the answer")
        self.complaint = complaint


class Answer(Protocol):
    """Belongs to one attempt of one model step."""

    @property
    def shown(self) -> bool:
        """Whether text of it was handed on."""
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
