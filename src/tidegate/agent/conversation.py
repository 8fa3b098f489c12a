"""A session as the model sees it, held in memory between turns: the resident.

Guarantee: every message is encoded once, when it is appended, and the encoded history only ever grows at its end; the
same rows give the same bytes again when they are loaded from the store. A conversation owns its encoded bytes and one
lease on the shared model client; `release` gives both back and touches nothing else (unload is not end).
"""

from collections.abc import Callable, Iterable, Sequence

from tidegate.models import Encoded, Lease, Model
from tidegate.tools import Toolset
from tidegate.values import Call, Message

ROW_OVERHEAD = 64
"""Bytes that an encoded message costs beside its text: the object's header and its slot in the list."""

BASE_OVERHEAD = 1024
"""Bytes of the conversation itself: its record, lists and lease."""


class Conversation:
    __slots__ = ("_asking", "_lease", "history", "model", "prefix", "signature", "tools", "version", "weight")

    def __init__(
        self,
        *,
        model: Model,
        lease: Lease,
        prefix: Encoded,
        tools: Toolset,
        signature: bytes,
        messages: Iterable[Message] = (),
    ) -> None:
        self.model = model
        self.prefix = prefix
        self.tools = tools
        self.signature = signature
        self.version = -1
        """The session's version in the store when this was last known to be equal to it."""
        self.weight = BASE_OVERHEAD
        self.history: list[bytes] = []
        self._asking = False
        self._lease: Lease | None = lease
        for message in messages:
            self.append(message)

    def append(self, message: Message) -> None:
        # The encoder's result keeps the spare room of its buffer (512 bytes at least, up to half of a long text); what
        # is held for hours is an exact copy.
        encoded = bytes(memoryview(self.model.wire.encode(message)))
        self.history.append(encoded)
        self.weight += len(encoded) + ROW_OVERHEAD

    def extend(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.append(message)

    async def ask(self, call: Call, *, on_text: Callable[[str], None], on_reset: Callable[[str], None]) -> Message:
        self._asking = True
        try:
            return await self.model.ask(self.prefix, self.history, call, on_text=on_text, on_reset=on_reset)
        finally:
            self._asking = False

    @property
    def request_bytes(self) -> int:
        """Bytes of a request as the conversation stands: prefix and history in one piece."""
        history = self.weight - BASE_OVERHEAD - ROW_OVERHEAD * len(self.history)
        return history + len(self.prefix.system) + len(self.prefix.tools)

    @property
    def asked_bytes(self) -> int:
        """Bytes of the request that the model is working on; it is kept for another try."""
        return self.request_bytes if self._asking else 0

    async def release(self) -> None:
        lease, self._lease = self._lease, None
        self.history = []
        if lease is not None:
            lease.release()
