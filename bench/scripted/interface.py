"""What the server asks of a format, and a request as the server sees it: without its format.

Guarantee: nothing here knows a format; a format knows neither connections nor faults.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from bench.scripted.reuse import Ledger
    from bench.scripted.script import Plan


class Refusal(Exception):
    """A request that a strict provider would refuse, with the reason. Each format words the error body."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the request is made of: all of it, what came from a cache, what was written to one, and of that for
    longer."""

    prompt: int
    cached: int = 0
    written: int = 0
    lasting: int = 0


@dataclass(slots=True)
class Asked:
    """One request that was not refused."""

    request: Any
    """The format's own value."""
    model: str
    stream: bool
    text: str
    """What directs: the last message of a person."""
    last: int
    """Where that message is; -1 if there is none."""
    names: tuple[str, ...]
    key: int
    """The conversation."""
    tokens: Tokens
    most: int | None
    """The most pieces that the answer may have."""
    canned: bool
    """Whether the plain answer may be said from canned bytes."""
    stops: tuple[str, ...] = ()
    """Texts that end the answer before them."""
    thinks: bool = False
    thinks_when_told: bool = False
    system: str = ""
    """The system prompt, wherever the format has it."""
    bound: str = ""
    """What its thoughts are bound to, if they are: all that was said before."""


class Format(Protocol):
    """One wire format. Everything it keeps is bounded; it owns no connection."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str:
        """How the address ends."""

    @property
    def head(self) -> bytes:
        """What begins a streamed answer."""

    @property
    def identified(self) -> str:
        """Header lines that every other answer carries."""

    @property
    def spoiled(self) -> bytes:
        """An event that is no JSON."""

    @property
    def huge(self) -> tuple[bytes, bytes]:
        """How an event begins and ends whose text is without end."""

    @property
    def ledger(self) -> "Ledger": ...

    def admit(self, headers: dict[str, str], key: str | None) -> None:
        """Raises Refusal for headers that are missing or wrong; `key` is the only one that is right, if there is."""

    def read(self, body: bytes, headers: dict[str, str]) -> Asked:
        """Raises Refusal."""

    def step(self, asked: Asked) -> int:
        """How many tool steps have been answered since the message that directs."""

    def said(self, asked: Asked) -> str:
        """The text of the last message."""

    def heard(self, asked: Asked) -> str:
        """The text of all messages, without the system prompt."""

    def call_id(self, asked: Asked, place: int) -> str: ...

    def plain(self, asked: Asked) -> bytes:
        """The whole streamed plain answer, head and end included."""

    def beats(self, asked: Asked, plan: "Plan") -> Iterator[bytes]:
        """The events of an answer, in the pieces that faults are counted by; without what `end` says."""

    def end(self, asked: Asked, plan: "Plan", *, marked: bool) -> bytes:
        """What follows the last piece; `marked`: with the mark by which a reader knows that it was all."""

    def whole(self, asked: Asked, plan: "Plan") -> bytes:
        """The body of an answer that is not streamed."""

    def error(
        self, status: int, message: str, *, code: str | None = None, kind: str | None = None, param: str | None = None
    ) -> bytes:
        """The body of an error."""

    def complaint(self, asked: Asked, plan: "Plan", message: str, code: str, words: list[str]) -> bytes:
        """An error inside a stream, as an event."""
