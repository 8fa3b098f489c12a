"""A session as the model sees it, held in memory between turns: the resident.

Guarantee: every message is encoded once, when it is appended, and the encoded history only ever grows at its end; the
same rows give the same bytes again when they are loaded from the store. However long it is, only its newest part is in
memory. What tools show follows the last result of their step, in one message of its own. Pictures that lie in the spool
are loaded while a request is written, and only then. A conversation owns its history and one lease on the shared model
client; `release` gives both back and touches nothing else (unload is not end).
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import cast

import msgspec

from tidegate.agent.history import History, Overflow
from tidegate.log import Log
from tidegate.models import Encoded, Lease, Model
from tidegate.tools import Toolset
from tidegate.values import Call, Media, Message

log = Log(__name__)

BASE_OVERHEAD = 1024
"""Bytes of the conversation itself: its record, lists and lease."""

PICTURE_OVERHEAD = 256
"""Bytes that a picture costs of which only the name is held."""

LOADED_BYTES = 20 * 1024 * 1024
"""Of spooled pictures in one request, as files: what the strictest provider takes, written as text. The first ones are
shown, so that the request still begins as the one before."""

PICTURE_TEXT_BYTES = 6400
"""Of text that costs about as many tokens as a picture does, large or small."""

Load = Callable[[str], Awaitable[bytes]]
"""What lies in the session's spool under an id. OSError when it cannot be read."""


async def load_nothing(id: str) -> bytes:
    raise RuntimeError(f"the picture {id} cannot be loaded: this conversation was given no loader")


class Conversation:
    __slots__ = (
        "_asking",
        "_estimated",
        "_lease",
        "_load",
        "_loaded",
        "_owed",
        "_shown",
        "_unloaded",
        "history",
        "model",
        "prefix",
        "signature",
        "tools",
        "version",
    )

    def __init__(
        self,
        *,
        model: Model,
        lease: Lease,
        prefix: Encoded,
        tools: Toolset,
        signature: bytes,
        messages: Iterable[Message] = (),
        load: Load = load_nothing,
        overflow: Overflow | None = None,
    ) -> None:
        self.model = model
        self.prefix = prefix
        self.tools = tools
        self.signature = signature
        self.version = -1
        """The session's version in the store when this was last known to be equal to it."""
        self.history = History(overflow)
        """Encoded messages; as it is one of which a picture lies in the spool."""
        self._load = load
        self._owed = 0
        """Results that the last answer still waits for."""
        self._shown: list[tuple[str, Media]] = []
        """What those that came have shown, with the names of their tools."""
        self._unloaded = 0
        """Messages in the history that are not encoded."""
        self._estimated = 0
        self._loaded = 0
        self._asking = False
        self._lease: Lease | None = lease
        for message in messages:
            self.append(message)

    def append(self, message: Message) -> None:
        if message.role == "tool":
            self._add(message)
            self._shown += [(message.name, picture) for picture in message.media]
            self._owed -= 1
            if self._owed <= 0 and self._shown:
                self._show()
            return
        if self._shown:  # a result is missing, and will not come
            self._show()
        self._owed = len(message.calls)
        self._add(message)

    def extend(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.append(message)

    async def ask(self, call: Call, *, on_text: Callable[[str], None], on_reset: Callable[[str], None]) -> Message:
        self._asking = True
        try:
            await self.history.settle()
            # The written history is nobody's but the model's, which lets it go once its request is made.
            return await self.model.ask(self.prefix, await self._write(), call, on_text=on_text, on_reset=on_reset)
        finally:
            self._asking = False
            self._loaded = 0

    @property
    def weight(self) -> int:
        """Bytes that it takes in memory."""
        return BASE_OVERHEAD + self.history.memory

    @property
    def estimated_bytes(self) -> int:
        """Bytes of text that would cost about as much as a request does as the conversation stands."""
        return self._estimated + len(self.prefix.system) + len(self.prefix.tools)

    @property
    def asked_bytes(self) -> int:
        """Bytes of the request that the model is working on; it is kept for another try."""
        if not self._asking:
            return 0
        return self.history.size + self._loaded + len(self.prefix.system) + len(self.prefix.tools)

    async def release(self) -> None:
        lease, self._lease = self._lease, None
        self.history.release()
        if lease is not None:
            lease.release()

    # -- pictures --

    def _show(self) -> None:
        """The pictures of a step's results, after the last of them: between them nothing may stand."""
        shown, self._shown = self._shown, []
        told = "; ".join(f"{name} {_described(picture)}" for name, picture in shown)
        said = f"Pictures that these results show, in this order: {told}."
        self._add(Message(role="user", aside=said, media=tuple(picture for _, picture in shown)))

    def _add(self, message: Message) -> None:
        pictures = message.media if message.role != "tool" else ()
        if any(picture.spooled for picture in pictures):
            self._unloaded += 1
            text = len(message.text) + len(message.aside)
            held = text + sum(PICTURE_OVERHEAD + len(picture.data) for picture in pictures)
            self.history.append_unencoded(message, held)
            self._estimated += text + PICTURE_TEXT_BYTES * len(pictures)
            return
        # The encoder's result keeps the spare room of its buffer (512 bytes at least, up to half of a long text); what
        # is held for hours is an exact copy.
        encoded = bytes(memoryview(self.model.wire.encode(message)))
        self.history.append(encoded)
        if pictures:
            self._estimated += len(message.text) + len(message.aside) + PICTURE_TEXT_BYTES * len(pictures)
        else:
            self._estimated += len(encoded)

    async def _write(self) -> Sequence[bytes]:
        """The history with every picture in its place."""
        history = await self.history.read()
        if not self._unloaded:
            return cast(Sequence[bytes], history)
        room = LOADED_BYTES
        written: list[bytes] = []
        for held in history:
            if isinstance(held, Message):
                loaded, room = await self._with_pictures(held, room)
                encoded = self.model.wire.encode(loaded)
                self._loaded += len(encoded)
                written.append(encoded)
            else:
                written.append(held)
        return written

    async def _with_pictures(self, message: Message, room: int) -> tuple[Message, int]:
        """The same with its spooled pictures loaded, and what is left of the room. One that cannot be loaded, or is too
        much, is told in words in its stead."""
        pictures: list[Media] = []
        aside = message.aside
        for place, picture in enumerate(message.media, 1):
            if picture.spooled:
                try:
                    data = await self._load(picture.spooled) if room >= 0 else b""
                except OSError as error:
                    log.warning("a picture cannot be read", id=picture.spooled, error=error.strerror)
                    aside += f"\nPicture {place} is no longer there."
                    continue
                room -= len(data)
                if room < 0:
                    aside += f"\nPicture {place} is left out: the pictures of one conversation are too many together."
                    continue
                picture = msgspec.structs.replace(picture, data=data, spooled="")
            pictures.append(picture)
        return msgspec.structs.replace(message, aside=aside, media=tuple(pictures)), room


def _described(picture: Media) -> str:
    note = f", {picture.note}" if picture.note else ""
    return f"({picture.width} x {picture.height}{note})"
