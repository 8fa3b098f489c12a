"""What the agent knows of a model: how to encode for it (Wire) and how to ask it (Model).

Guarantee: everything a Wire makes is a pure function of its arguments, byte for byte, so that a history encoded once,
or encoded again after a reload, gives the same request prefix. Neither protocol holds anything per conversation: what
is encoded belongs to the caller.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.models.clients import Lease
from tidegate.values import Call, Frozen, Message, Prefix


class Encoded(Frozen, frozen=True):
    """A session's frozen prefix in wire format: the system message (one JSON object, or nothing) and the tool list
    (a JSON array, or nothing)."""

    system: bytes = b""
    tools: bytes = b""


class Wire(Protocol):
    """A provider's wire format. `version` rises whenever the same message would encode to other bytes; it is stored
    with the session, because a change of it rebuilds the prefix."""

    @property
    def version(self) -> int: ...

    def encode(self, message: Message) -> bytes:
        """One or more JSON objects joined by a comma."""
        ...

    def encode_prefix(self, prefix: Prefix) -> Encoded: ...

    def body(self, model: str, prefix: Encoded, history: Sequence[bytes], call: Call, *, stream: bool) -> bytes:
        """The whole request. `history` holds what `encode` gave, in order."""
        ...


class Model(Protocol):
    """A configured model. `signature` tells whether two configurations reach the same thing in the same way; the
    credential is in it, but cannot be read from it."""

    @property
    def name(self) -> str: ...

    @property
    def wire(self) -> Wire: ...

    @property
    def signature(self) -> bytes: ...

    async def ask(
        self,
        prefix: Encoded,
        history: Sequence[bytes],
        call: Call,
        *,
        on_text: Callable[[str], None],
        on_reset: Callable[[str], None],
    ) -> Message:
        """One model step: the assistant's message, complete, with finish, usage and model.

        `on_text` gets the text as it arrives. `on_reset` says that all text shown so far is void and comes again.
        Raises ModelFailed. Cancelling it closes the stream at once.
        """
        ...

    def lease(self) -> Lease:
        """Counts one holder of this model's endpoint in the statistics until it is released."""
        ...
