"""A resident conversation: a session as the model sees it, kept in memory between turns.

Guarantee: every message is encoded once, when it is appended, and the encoded history only grows at its end. Loading
the same rows from the store again produces the same bytes. Only the newest part of a conversation is in memory, however
long the conversation is. The results of one step are encoded together, once the last result has arrived. Spooled media
are loaded only while a request is being written. A conversation owns its history and one lease on the shared model
client. `release` releases both and does nothing else: unloading a session does not end it.
"""

import asyncio
import hashlib
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import cast

import msgspec

from tidegate.agent.history import Group, History, Overflow
from tidegate.agent.history_cache import HistoryState
from tidegate.http_client import Lease
from tidegate.log import Log
from tidegate.models import EncodedPrefix, Model
from tidegate.tools import Toolset
from tidegate.values import Call, Media, Message

log = Log(__name__)

BASE_OVERHEAD = 1024
"""Size of the conversation object itself, in bytes: its record, lists and lease."""

REQUEST_OVERHEAD = 2048
"""Size of a request without its messages, in bytes: the list of pieces, the headers and the parameters."""

MEDIA_OVERHEAD = 256
"""Bytes of memory per picture, audio clip or document of which only the name is kept in memory."""

LOADED_BYTES = 20 * 1024 * 1024
"""Maximum total size of the spooled media in one request, before base64 encoding. This is the strictest provider's
limit. Beyond it, only the first media are sent, so that the request still begins like the previous one."""

PICTURE_TEXT_BYTES = 6400
"""Bytes of text that cost about as many tokens as one picture of any size."""

DOCUMENT_PAGE_BYTES = 50_000
"""Assumed size of a document page: more than a page of text, less than a scanned page. A page costs about as many
tokens as a picture, since providers pass it to the model as one."""

DOCUMENT_PAGES = 100
"""Maximum number of pages assumed for a document, since the size of a long scanned document says little about its
cost."""

FRAME_BYTES = 64
"""Bytes that any wire format adds around a message's text."""

SOUND_TEXT_BYTES = 128
"""Bytes of text that cost about as many tokens as one second of audio."""

SOUND_SECONDS = 60.0
"""Assumed length of an audio clip whose length is unknown."""

CONTINUE = Message(
    role="user",
    aside="The answer above is not complete. Continue exactly where it breaks off, without repeating any of it.",
)
"""Appended if a conversation ends with an answer and the model's wire format does not allow this."""

Keep = Callable[[HistoryState, Sequence[bytes]], Awaitable[None]]
"""Caches an encoded history until the conversation is loaded again."""

Load = Callable[[str], Awaitable[bytes]]
"""Reads a file of the session's spool by its id. Raises OSError if it cannot be read."""


async def load_nothing(id: str) -> bytes:
    raise RuntimeError(f"the media {id} cannot be loaded: this conversation has no loader")


class Conversation:
    __slots__ = (
        "_asking",
        "_bound",
        "_call_order",
        "_counted",
        "_ends_with_answer",
        "_estimated",
        "_keep",
        "_lease",
        "_load",
        "_loaded",
        "_missing_results",
        "_results",
        "_unloaded",
        "carries",
        "cooldown",
        "era",
        "fit_above",
        "history",
        "is_outdated",
        "mark",
        "model",
        "prefix",
        "prefix_bytes",
        "signature",
        "summary_task",
        "tools",
        "version",
    )

    def __init__(
        self,
        *,
        model: Model,
        lease: Lease,
        prefix: EncodedPrefix,
        tools: Toolset,
        signature: bytes,
        messages: Iterable[Message] = (),
        load: Load = load_nothing,
        overflow: Overflow | None = None,
        era: int = 0,
        mark: str = "",
        fit_above: int = sys.maxsize,
        keep: Keep | None = None,
    ) -> None:
        """`era` counts how often the provider has refused the reasoning carried by earlier answers. `mark` identifies
        the applied summaries and elisions (`View.mark`). A request of more than `fit_above` tokens is fitted into the
        model's window before it is sent. `keep` is called with the history when the conversation is released between
        two turns."""
        self.model = model
        self.prefix = prefix
        self.prefix_bytes = len(prefix.system) + len(prefix.tools)
        """Size of the prompt and the tools, in bytes."""
        self.tools = tools
        self.signature = signature
        self.version = -1
        """The session's version in the store when this conversation was last known to match it."""
        self.history = History(overflow)
        """The encoded messages. Messages with spooled media are stored unencoded."""
        self.carries = False
        """True if a request includes reasoning carried by earlier answers."""
        self._load = load
        self._keep = keep
        self._missing_results = 0
        """The number of results still missing for the last answer's calls."""
        self._results: list[Message] = []  # lint: allow at most as many as an answer has calls
        """The results received so far for the last answer's calls."""
        self._call_order: dict[str, int] = {}  # lint: allow one for each call of an answer
        """The position of each of the last answer's calls, by id. The caller's results may arrive in any order, and
        later than the results of the agent's tools. They are sorted so that the model reads all results in call order,
        just as when they are loaded from the store."""
        self._unloaded = 0
        """The number of history entries that are not encoded."""
        self._estimated = 0
        self._loaded = 0
        self._asking = False
        self._ends_with_answer = False
        self.era = era
        self.mark = mark
        self.fit_above = fit_above
        self.is_outdated = False
        """True if the conversation must be rebuilt before the next request because part of the current turn has been
        summarised."""
        self.summary_task: asyncio.Task[None] | None = None
        """The background task that writes a summary; it ends with this conversation."""
        self.cooldown: tuple[float, str] | None = None
        """The time until which no model is asked for a summary of the conversation, and the reason."""
        self._counted: tuple[int, int] | None = None
        """The provider's token count for a request, and that request's size in bytes."""
        self._bound = ""
        self._lease: Lease | None = lease
        self.extend(messages)

    def append(self, message: Message) -> None:
        self.extend((message,))

    def extend(self, messages: Iterable[Message]) -> None:
        """Appends messages in order. Each is encoded separately, and all are added to the history together. Reloading a
        conversation spends all its time here, so the code path for plain messages is kept short."""
        encode = self.model.wire.encode
        encoded: list[bytes] = []
        counted: list[tuple[Message, int]] = []
        message: Message | None = None
        for message in messages:
            if message.role == "tool":
                self._results.append(message)
                self._missing_results -= 1
                if self._missing_results <= 0:
                    self._close_step(encoded)
                continue
            if self._results:  # a result is missing and will not arrive
                self._close_step(encoded)
            self._missing_results = len(message.calls)
            if message.calls:
                self._call_order = {call.id: place for place, call in enumerate(message.calls)}
            if message.usage is not None:
                counted.append((message, self._estimated))
            if message.carried:
                message = self._with_carried(message)
            if message.media:
                self._add((message,), encoded)
            elif piece := encode(message):
                encoded.append(piece)
                self._estimated += len(piece)
        self.history.extend(encoded)
        if message is not None:
            self._ends_with_answer = message.role == "assistant" and not message.calls
        if counted:
            self._note_count(counted)

    def _with_carried(self, answer: Message) -> Message:
        """Returns the answer, without the reasoning that it carries if that may not be sent back."""
        if answer.bound != self.bound:
            return msgspec.structs.replace(answer, carried=())
        if answer.model == self.model.provider_model:
            self.carries = True
        return answer

    def _note_count(self, answers: Sequence[tuple[Message, int]]) -> None:
        """Takes the provider's token count from the last of these answers that belongs to the current view, so that
        estimates are as accurate after a reload as before. Each answer is paired with the size of the messages before
        it, in bytes."""
        for answer, size_before in reversed(answers):
            same = answer.model == self.model.provider_model and answer.bound.partition("/")[2] == self.mark
            tokens = 0 if answer.usage is None or answer.usage.estimated else answer.usage.input
            size = size_before + self.prefix_bytes
            if same and self.model.token_estimate.is_plausible(size, tokens):
                self._counted = (tokens, size)
                return

    def drop_carried(self, messages: Iterable[Message]) -> None:
        """Rebuilds the conversation without carried reasoning, because the provider has refused it. Later answers carry
        their reasoning again."""
        self.era += 1
        self.rebuild(messages, self.mark)

    def rebuild(self, messages: Iterable[Message], mark: str, *, tokens: int | None = None) -> None:
        """Replaces the messages with those of a new view, about `tokens` tokens long. Reasoning carried by answers from
        a view with another mark is left out."""
        self.mark = mark
        self.is_outdated = False
        self._bound = ""
        self._counted = None
        self.history.clear()
        self._missing_results = self._unloaded = self._estimated = 0
        self._results = []
        self.carries = False
        self.extend(messages)
        if tokens is not None:
            self._counted = (tokens, self.estimated_bytes)

    async def ask(self, call: Call, *, on_text: Callable[[str], None], on_reset: Callable[[str, int], None]) -> Message:
        self._asking = True
        try:
            await self.history.settle()
            # Only the model holds the written history, and drops it once the request has been sent.
            answer = await self.model.ask(self.prefix, await self._write(), call, on_text=on_text, on_reset=on_reset)
        finally:
            self._asking = False
            self._loaded = 0
        return msgspec.structs.replace(answer, bound=self.bound) if answer.carried or self.mark else answer

    @property
    def bound(self) -> str:
        """A fingerprint of the prefix, the mark and the era. A provider may refuse signed reasoning if the prefix
        before it differs from the one it was created with."""
        if not self._bound:
            digest = hashlib.blake2b(self.prefix.tools + b"," + self.prefix.system, digest_size=6).hexdigest()
            self._bound = f"{digest}.{self.era}" if self.era else digest
            if self.mark:
                self._bound += f"/{self.mark}"
        return self._bound

    def set_token_count(self, tokens: int) -> None:
        """Records the provider's token count of a request that contains exactly the current conversation."""
        self.model.token_estimate.learn(self.estimated_bytes, tokens)
        if self.model.token_estimate.is_plausible(self.estimated_bytes, tokens):
            self._counted = (tokens, self.estimated_bytes)

    @property
    def has_token_count(self) -> bool:
        """True if the provider has reported a token count for the current view."""
        return self._counted is not None

    @property
    def tokens(self) -> int:
        """The number of tokens that a request would have now: the provider's last count plus an estimate for later
        messages."""
        if self._counted is None:
            return self.model.token_estimate.tokens(self.estimated_bytes)
        tokens, size = self._counted
        return tokens + self.model.token_estimate.tokens(self.estimated_bytes - size)

    @property
    def needs_fitting(self) -> bool:
        """True if the next request must be fitted into the model's window, or rebuilt, before it is sent. Cheap, since
        it is checked before every step."""
        return self.is_outdated or self.tokens > self.fit_above

    @property
    def weight(self) -> int:
        """Bytes of memory used."""
        return BASE_OVERHEAD + self.history.memory

    @property
    def estimated_bytes(self) -> int:
        """The size that a request would have now, as the number of bytes of text that would cost about as much."""
        return self._estimated + self.prefix_bytes

    @property
    def prefix_tokens(self) -> int:
        """The estimated number of tokens of the prompt and the tools."""
        return self.model.token_estimate.tokens(self.prefix_bytes)

    @property
    def request_bytes(self) -> int:
        """Bytes of memory used by the request in progress, which is kept for a retry. Parts shared with the history or
        with other conversations are not included."""
        return REQUEST_OVERHEAD + self.history.filed + self._loaded if self._asking else 0

    async def release(self) -> None:
        lease, self._lease = self._lease, None
        if self.summary_task is not None:
            self.summary_task.cancel()
            self.summary_task = None
        if lease is not None:
            lease.release()
            await self._keep_history()
        self.history.release()

    async def _keep_history(self) -> None:
        """Caches the history if it matches the store, is fully encoded and contains a result for every call."""
        if self._keep is None or self.version < 0 or self._unloaded or self._missing_results > 0:
            return
        state = HistoryState(
            signature=self.signature,
            version=self.version,
            era=self.era,
            mark=self.mark,
            carries=self.carries,
            estimated=self._estimated,
            counted=self._counted,
        )
        await self._keep(state, cast(Sequence[bytes], await self.history.read()))

    def restore(self, state: HistoryState, pieces: Iterable[bytes]) -> None:
        """Fills an empty conversation from a cached history."""
        self.mark = state.mark
        self.carries = state.carries
        self._estimated = state.estimated
        self._counted = state.counted
        for piece in pieces:
            self.history.append(piece)

    # -- messages --

    def _close_step(self, encoded: list[bytes]) -> None:
        results = tuple(sorted(self._results, key=lambda result: self._call_order.get(result.call_id, 0)))
        self._results = []
        self._add(results, encoded)

    def _add(self, group: Group, encoded: list[bytes]) -> None:
        """Encodes a group of messages together, and adds the result to `encoded`, the pieces to append to the history
        next."""
        shown = [media for message in group for media in message.media if self.model.wire.takes(media.media_type)]
        if any(media.spooled for media in shown):
            self._unloaded += 1
            text = _framed(group)
            held = text + sum(MEDIA_OVERHEAD + len(media.data) for message in group for media in message.media)
            self.history.extend(encoded)
            encoded.clear()
            self.history.append_unencoded(group, held)
            self._estimated += text + sum(map(weigh_media, shown))
            return
        piece = self._encode(group)
        if not piece:
            return
        encoded.append(piece)
        if shown:
            self._estimated += _framed(group) + sum(map(weigh_media, shown))
        else:
            self._estimated += len(piece)

    def _encode(self, group: Group) -> bytes:
        wire = self.model.wire
        return wire.encode_results(group) if group[0].role == "tool" else wire.encode(group[0])

    async def _write(self) -> Sequence[bytes]:
        """Returns the history with all media loaded and with an ending that the model accepts."""
        history = await self.history.read()
        written = await self._write_media(history) if self._unloaded else cast(Sequence[bytes], history)
        if self._ends_with_answer and not self.model.wire.continues_answers:
            written = [*written, self.model.wire.encode(CONTINUE)]
        return written

    async def _write_media(self, history: Sequence[bytes | Group]) -> Sequence[bytes]:
        bytes_left = LOADED_BYTES
        written: list[bytes] = []
        for held in history:
            if isinstance(held, bytes):
                written.append(held)
                continue
            loaded: list[Message] = []
            for message in held:
                shown, bytes_left = await self._with_media(message, bytes_left)
                loaded.append(shown)
            encoded = self._encode(tuple(loaded))
            self._loaded += len(encoded)
            written.append(encoded)
        return written

    async def _with_media(self, message: Message, bytes_left: int) -> tuple[Message, int]:
        """Returns the message with its spooled media loaded, and the number of bytes left for further media. Media that
        cannot be loaded or exceed the limit are replaced with a short text."""
        kept: list[Media] = []
        lost: list[str] = []
        for place, media in enumerate(message.media, 1):
            if media.spooled and self.model.wire.takes(media.media_type):
                kind = media.kind.capitalize()
                try:
                    data = await self._load(media.spooled) if bytes_left >= 0 else b""
                except OSError as error:
                    log.warning("cannot read a conversation's media", id=media.spooled, error=error.strerror)
                    lost.append(f"{kind} {place} is no longer available.")
                    continue
                bytes_left -= len(data)
                if bytes_left < 0:
                    lost.append(f"{kind} {place} is omitted: this conversation has more media than fit in a request.")
                    continue
                media = msgspec.structs.replace(media, data=data, spooled="")
            kept.append(media)
        if not kept and not lost:
            return message, bytes_left
        notes = "\n".join(lost)
        if message.role == "tool":
            text, aside = "\n".join(filter(None, (message.text, notes))), message.aside
        else:
            text, aside = message.text, "\n".join(filter(None, (message.aside, notes)))
        return msgspec.structs.replace(message, text=text, aside=aside, media=tuple(kept)), bytes_left


def weigh(message: Message) -> int:
    """Returns the estimated cost of a message in a request, in bytes of text, whatever the wire format."""
    calls = sum(FRAME_BYTES + len(call.name) + len(call.arguments) for call in message.calls)
    text = len(message.text.encode(errors="replace")) + len(message.aside.encode(errors="replace"))
    return FRAME_BYTES + text + calls + sum(map(weigh_media, message.media))


def _framed(group: Group) -> int:
    """Returns the estimated size of these messages' text as it is sent, in bytes."""
    return sum(FRAME_BYTES + len(message.text) + len(message.aside) for message in group)


def weigh_media(media: Media) -> int:
    """Returns the number of bytes of text that cost about as much as this picture, audio clip or document."""
    if media.is_sound:
        return int((media.seconds or SOUND_SECONDS) * SOUND_TEXT_BYTES)
    pages = min(1 + media.size // DOCUMENT_PAGE_BYTES, DOCUMENT_PAGES) if media.is_document else 1
    return pages * PICTURE_TEXT_BYTES
