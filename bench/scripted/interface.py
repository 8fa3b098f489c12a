"""The interface between the server and its formats: `Format`, a format-independent request, and refusals.

Nothing here depends on a format, and formats depend neither on connections nor on faults.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from bench.scripted.reuse import Ledger
    from bench.scripted.script import Plan


class Refusal(Exception):
    """The refusal of a request that a strict provider would refuse, with the reason. Each format writes its own error
    body."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a request: in total, read from a cache, written to a cache, and written for the longer time."""

    prompt: int
    cached: int = 0
    written: int = 0
    lasting: int = 0


@dataclass(slots=True)
class Asked:
    """An accepted request."""

    request: Any
    """The request in the format's own type."""
    model: str
    stream: bool
    text: str
    """The last message of a user, which may contain directives."""
    last: int
    """The index of that message; -1 if there is none."""
    names: tuple[str, ...]
    key: int
    """The key of the conversation."""
    tokens: Tokens
    most: int | None
    """The caller's limit on the pieces of the answer."""
    canned: bool
    """Whether the plain answer may be sent from canned bytes."""
    stops: tuple[str, ...] = ()
    """Stop sequences."""
    thinks: bool = False
    thinks_when_told: bool = False
    system: str = ""
    """The system prompt."""
    bound: str = ""
    """The digest of everything before the answer, if its thinking is bound to that."""


class Format(Protocol):
    """One wire format. Everything it keeps is bounded; it owns no connection."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str:
        """The path of the endpoint."""

    @property
    def head(self) -> bytes:
        """The HTTP head of a streamed answer."""

    @property
    def identified(self) -> str:
        """Header lines of all other answers."""

    @property
    def spoiled(self) -> bytes:
        """An event that is not JSON."""

    @property
    def huge(self) -> tuple[bytes, bytes]:
        """The start and the end of an event with a very long text."""

    @property
    def ledger(self) -> "Ledger": ...

    def admit(self, headers: dict[str, str], key: str | None) -> None:
        """Raise Refusal for missing or wrong headers. If `key` is given, no other key is accepted."""

    def read(self, body: bytes, headers: dict[str, str]) -> Asked:
        """Parse and check a request. Raises Refusal."""

    def step(self, asked: Asked) -> int:
        """The number of tool steps since the message with directives."""

    def said(self, asked: Asked) -> str:
        """The text of the last message."""

    def heard(self, asked: Asked) -> str:
        """The text of all messages, without the system prompt."""

    def call_id(self, asked: Asked, place: int) -> str: ...

    def plain(self, asked: Asked) -> bytes:
        """The complete streamed plain answer, including head and end."""

    def beats(self, asked: Asked, plan: "Plan") -> Iterator[bytes]:
        """The events of an answer in pieces, by which faults are counted; without those of `end`."""

    def end(self, asked: Asked, plan: "Plan", *, marked: bool) -> bytes:
        """The events after the last piece; `marked`: with the end mark."""

    def whole(self, asked: Asked, plan: "Plan") -> bytes:
        """The body of an answer that is not streamed."""

    def error(
        self, status: int, message: str, *, code: str | None = None, kind: str | None = None, param: str | None = None
    ) -> bytes:
        """The body of an error."""

    def complaint(self, asked: Asked, plan: "Plan", message: str, code: str, words: list[str]) -> bytes:
        """An error inside a stream, as an event."""
