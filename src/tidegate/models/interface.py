"""The two protocols through which the agent uses a model: `Wire` encodes requests, `Model` sends them.

Everything that a Wire produces is a pure function of its arguments, byte for byte. Encoding a history again after a
reload therefore results in the same request prefix. Neither stores anything per conversation: the encoded bytes belong
to the caller.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.http_client import Lease
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.token_counts import TokenEstimate
from tidegate.values import Call, Frozen, Message, Prefix


class EncodedPrefix(Frozen, frozen=True):
    """A session's frozen prefix in wire format: the system message (one JSON object, or empty) and the tool list (a
    JSON array, or empty). `caller_tools` contains the names of the tools that the API caller runs."""

    system: bytes = b""
    tools: bytes = b""
    caller_tools: frozenset[str] = frozenset()


class Wire(Protocol):
    """A provider's wire format, for one model. Media that the model does not accept are described in words instead.

    `version` starts at a multiple of 1000 that is unique to the format. Raise it by one whenever the same message would
    be encoded differently. It is stored with the session because the prefix is rebuilt when it changes."""

    @property
    def version(self) -> int: ...

    @property
    def continues_answers(self) -> bool:
        """True if a request may end with an assistant message that the model then continues."""
        ...

    def unsent_stops(self, stops: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the stop sequences that cannot be sent in this format. The gateway cuts the answer at them."""
        ...

    def takes(self, media_type: str) -> bool:
        """True if media of this type are sent as data, which must be loaded before they are encoded."""
        ...

    def encode(self, message: Message) -> bytes:
        """Encodes a user's or model's message. Returns JSON objects joined by commas, or no bytes."""
        ...

    def encode_results(self, results: Sequence[Message]) -> bytes:
        """Encodes all tool results of one model step, in the order of its calls, with their media."""
        ...

    def encode_prefix(self, prefix: Prefix) -> EncodedPrefix: ...

    def body(self, prefix: EncodedPrefix, history: Sequence[bytes], call: Call) -> list[bytes]:
        """Returns the complete body of a streaming request, in pieces to be sent in order. `history` contains the
        encoded messages in order. An entry may contain several messages, joined by commas."""
        ...


class Model(Protocol):
    """A configured model. Two models with the same `signature` use the same endpoint in the same way. The signature
    is a digest that covers the credential without revealing it."""

    @property
    def name(self) -> str: ...

    @property
    def provider_model(self) -> str:
        """The provider's name for the model. Token usage is recorded under it."""
        ...

    @property
    def wire(self) -> Wire: ...

    @property
    def facts(self) -> Facts: ...

    @property
    def token_estimate(self) -> TokenEstimate:
        """The estimated tokens per byte, based on the provider's token counts."""
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
        """Runs one model step. Returns the complete assistant message with its finish reason, usage and model.

        `on_text` receives the text as it arrives. `on_reset` is called before a new attempt to withdraw everything
        received so far, with the reason and the number of bytes, including reasoning and tool calls that were never
        shown. Raises ModelFailed. Cancellation closes the stream immediately.
        """
        ...

    def lease(self) -> Lease:
        """Counts one user of this model's endpoint in the statistics until the lease is released."""
        ...
