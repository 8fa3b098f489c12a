"""Notes from a memory provider: a plug-in that stores them elsewhere.

Every wait for the provider is bounded. A provider that fails or hangs is not called again for a while. During that
time, users get a one-sentence error, and new conversations begin without the provider's notes; their prompt says so.
The provider's notes are bounded and marked as data, like the notes in the gateway's store. Running conversations are
notified of changes made through the gateway. The plug-in host starts and stops the provider; a failed start is retried
later.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import msgspec

from tidegate.config import MemorySettings
from tidegate.errors import Busy, NotFound, TidegateError
from tidegate.lifetimes import CacheStats
from tidegate.log import Log
from tidegate.memory.related_notes import IndexedNote
from tidegate.memory.stored_notes import NoteMarks, Write, marked
from tidegate.plugins import Draft, MemoryProvider, Note
from tidegate.plugins.host import Plugin, PluginFailed
from tidegate.store import About, SessionRow, Store, notes

T = TypeVar("T")

WAIT_SECONDS = 5.0
"""Time limit for one call to a provider. It is short because a person may be waiting for a conversation to begin."""

OPEN_SECONDS = 10.0
"""Time limit for starting the provider, including the wait for another start in progress."""

REST_SECONDS = 30.0
"""Pause after a failure, so that not every new conversation waits for the provider."""

MOST_NOTES = 1000
"""Maximum number of notes accepted from the provider in one response."""

log = Log(__name__)


class ProviderUnanswered(Busy):
    code = "memory_unavailable"


class ProviderNotes:
    def __init__(
        self,
        plugin: Plugin,
        store: Store,
        settings: MemorySettings,
        marks: NoteMarks,
        clock: Callable[[], float],
    ) -> None:
        self._plugin = plugin
        self._store = store
        self._settings = settings
        self._marks = marks
        self._clock = clock
        self._paused_until = 0.0

    @property
    def holds(self) -> int:
        return int(self._plugin.object is not None)

    async def part(self, agent: str, principal: str) -> str:
        try:
            text = await self._ask(lambda provider: provider.part(agent, principal))
        except ProviderUnanswered as error:
            return f"# Notes about the person you talk with\n{error.message} This conversation begins without them."
        # Each line is a list item, so that none can imitate one of the gateway's headings.
        lines = [f"- {line.strip().lstrip('#-* ')}" for line in text.splitlines() if line.strip()]
        return marked("person", lines, 2 * self._settings.prompt_bytes) if lines else ""

    async def left_out(self, about: About, whose: str) -> tuple[IndexedNote, ...]:
        """Returns nothing, since a provider itself decides which notes a conversation starts with."""
        return ()

    async def listing(self, about: About, whose: str) -> list[Note]:
        return list(await self._ask(lambda provider: provider.listing(about, whose)))[:MOST_NOTES]

    async def remember(self, draft: Draft) -> tuple[Note, bool]:
        draft = msgspec.structs.replace(draft, text=notes.clean(draft.text))
        note = await self._ask(lambda provider: provider.remember(draft), draft.replaces)
        text = notes.change_text(note.id, draft.source, draft.by, notes.clean(note.text), new=draft.replaces is None)
        await self._announce(draft.about, draft.whose, text, draft.session if draft.source == "tool" else None)
        return note, True

    async def forget(self, about: About, whose: str, note: int, session: str | None) -> Note:
        known = {each.id: each for each in await self.listing(about, whose)}
        if note not in known:
            raise _missing(note)
        await self._ask(lambda provider: provider.forget(about, whose, note), note)
        await self._announce(about, whose, notes.removal_text(note), session)
        return known[note]

    async def rewrite(
        self, about: About, whose: str, lines: Sequence[tuple[int | None, str]], seen: str, author: str, by: str
    ) -> list[Note]:
        """Changes the notes one by one, since a provider has no transactions. If one change fails, the failure is
        reported and earlier changes remain."""
        present = {note.id: note for note in await self.listing(about, whose)}
        notes.check_seen(((note.id, note.text) for note in present.values()), seen)
        given = notes.check_lines(lines, list(present))
        for gone in set(present) - given:
            await self.forget(about, whose, gone, None)
        for number, text in lines:
            if number is None or present[number].text != text:
                await self.remember(
                    Draft(about=about, whose=whose, text=text, author=author, by=by, source="person", replaces=number)
                )
        return await self.listing(about, whose)

    async def add_extracted(self, session: SessionRow, by: str, texts: Sequence[str]) -> Write | None:
        """Stores extracted notes. Since the provider has a separate store, the notes cannot be committed in the same
        transaction as the mark that they were extracted. Their keys are stable, so notes sent again after a crash are
        stored only once."""
        for number, text in enumerate(texts):
            await self.remember(
                Draft(
                    about="person",
                    whose=session.principal,
                    text=text,
                    author=session.principal,
                    by=by,
                    source="end",
                    session=session.id,
                    key=f"{session.id}/{number}",
                )
            )
        return None

    def extracted_committed(self, session: SessionRow) -> None:
        """Does nothing, since sessions were notified when the notes were stored."""

    def stats(self) -> CacheStats:
        return CacheStats("notes", 0, 1, 0, 0, 0, 0)

    def caches(self) -> tuple[CacheStats, ...]:
        return (self.stats(),)

    async def _ask(self, what: Callable[[MemoryProvider], Awaitable[T]], number: int | None = None) -> T:
        if self._clock() < self._paused_until:
            raise self._unanswered()
        try:
            with anyio.fail_after(OPEN_SECONDS):
                provider: MemoryProvider = await self._plugin.open()
            with anyio.fail_after(WAIT_SECONDS):
                return await what(provider)
        except LookupError:
            raise _missing(number or 0) from None
        except Exception as error:  # any error from the provider
            if isinstance(error, TidegateError) and not isinstance(error, PluginFailed):
                raise
            self._paused_until = self._clock() + REST_SECONDS
            log.warning(
                "a memory provider failed and will not be called for a while",
                provider=self._plugin.name,
                error=repr(error),
            )
            raise self._unanswered() from error

    async def _announce(self, about: About, whose: str, text: str, session: str | None) -> None:
        await self._store.write_then(
            self._marks.moved, notes.add_change, about, whose, text[: 2 * notes.NOTE_BYTES], session, self._clock()
        )

    def _unanswered(self) -> ProviderUnanswered:
        return ProviderUnanswered(
            f"The memory provider {self._plugin.name!r} does not answer, so its notes are unavailable; try again "
            "soon, or see the operator's log.",
            retry_after=REST_SECONDS,
        )


def _missing(number: int) -> NotFound:
    return NotFound(f"There is no note {number} here.", code="note_not_found")
