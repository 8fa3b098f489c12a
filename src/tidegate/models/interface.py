"""What the agent knows of a model: how to encode for it (Wire) and how to ask it (Model).

Guarantee: everything a Wire makes is a pure function of its arguments, byte for byte, so that a history encoded once,
or encoded again after a reload, gives the same request prefix. Neither protocol holds anything per conversation: what
is encoded belongs to the caller.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.token_estimate import TokenEstimate
from tidegate.models.http.clients import Lease
from tidegate.values import Call, Frozen, Message, Prefix


class EncodedPrefix(Frozen, frozen=True):
    """A session's frozen prefix in wire format: the system message (one JSON object, or nothing) and the tool list
    (a JSON array, or nothing). `caller_tools` names those that the caller runs."""

    system: bytes = b""
    tools: bytes = b""
    caller_tools: frozenset[str] = frozenset()


class Wire(Protocol):
    """A provider's wire format, for one model: what that model cannot be shown is told in words instead.

    `version` is a number of the format in thousands, and rises by one whenever the same message would encode to other
    bytes; it is stored with the session, because a change of it rebuilds the prefix."""

    @property
    def version(self) -> int: ...

    @property
    def continues_answers(self) -> bool:
        """Whether a request may end with an answer, which the model then goes on with."""
        ...

    def unsent_stops(self, stops: tuple[str, ...]) -> tuple[str, ...]:
        """The stop sequences for which the format has no place: the gateway cuts the answer at them."""
        ...

    def takes(self, media_type: str) -> bool:
        """Whether media of this type is sent as what it is, so that it must be loaded before it is encoded."""
        ...

    def encode(self, message: Message) -> bytes:
        """What a user or a model said: one or more JSON objects joined by a comma, or nothing at all."""
        ...

    def encode_results(self, results: Sequence[Message]) -> bytes:
        """All results of one model step, in the order of its calls, with what they show."""
        ...

    def encode_prefix(self, prefix: Prefix) -> EncodedPrefix: ...

    def body(self, prefix: EncodedPrefix, history: Sequence[bytes], call: Call) -> list[bytes]:
        """The whole request for a stream, in pieces that are sent one after the other. `history` holds what was
        encoded, in order; several of them may stand in one, joined by a comma."""
        ...


class Model(Protocol):
    """A configured model. `signature` tells whether two configurations reach the same thing in the same way; the
    credential is in it, but cannot be read from it."""

    @property
    def name(self) -> str: ...

    @property
    def provider_model(self) -> str:
        """The provider's name of it, under which its tokens are written down."""
        ...

    @property
    def wire(self) -> Wire: ...

    @property
    def facts(self) -> Facts: ...

    @property
    def token_estimate(self) -> TokenEstimate:
        """How many tokens its text has, as far as its provider has told."""
        ...

    @property
    def signature(self) -> bytes: ...

    async def ask(
        self,
        prefix: EncodedPrefix,
        history: Sequence[bytes],
        call: Call,
        *,
        on_text: Callable[[str], None],
        on_reset: Callable[[str, int], None],
    ) -> Message:
        """One model step: the assistant's message, complete, with finish, usage and model.

        `on_text` gets the text as it arrives. `on_reset` says that all that came so far is void and comes again,
        why, and how many bytes it was, thoughts and calls that nobody was shown included.
        Raises ModelFailed. Cancelling it closes the stream at once.
        """
        ...

    def lease(self) -> Lease:
        """Counts one holder of this model's endpoint in the statistics until it is released."""
        ...
