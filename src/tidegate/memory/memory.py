"""Memory: the notes that agents keep from one conversation to the next, and the permissions to change them.

Permissions depend on the principal, who is identified by the channel, and never on the content of a message. Notes
about a person can be written only by that person, or in that person's conversations. Notes about an agent's work become
part of the prompts for all of its users, so they can be written only by the owner, or in the owner's conversations. The
owner may also see and edit everyone's notes. Every note names its author.

Memory is loaded only if an agent has the `memory` toolset; agents without it cost nothing.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidegate.agent import part_of
from tidegate.config import Config
from tidegate.errors import NotAllowed, NotFound, Refused, ToolFailed
from tidegate.lifetimes import BoundedCache, CacheStats, Holding
from tidegate.memory.related_notes import best, message_of
from tidegate.memory.stored_notes import NoteMarks, NoteStore, StoredNotes, line_of
from tidegate.memory.views import Notebook, NoteView
from tidegate.plugins import Draft, Note
from tidegate.security import Principal
from tidegate.store import About, SessionRow, Store, messages, notes, principals, sessions
from tidegate.tools import ToolContext
from tidegate.values import Frozen, Inbound, Message

if TYPE_CHECKING:
    from tidegate.plugins.host import Plugin

TOOLSET = "memory"

CONVERSATIONS = 1024
"""Maximum number of conversations for which the gateway remembers the recently offered notes."""
OFFERED_AGAIN_AFTER = 20
"""Number of messages after which a note may be offered again, since the model may no longer see the earlier offer."""

_NUMBERED = re.compile(r"\[(\d{1,15})\]\s*(.*)")

CHANGED = "The notes have changed since this conversation began. They are now:"

EDIT_HEADER = """\
# Notes about {}, one per line.
# Change a line to change the note, remove it to forget it, add one without a number to add a note.
# Lines that begin with # are ignored.
"""


class NoteSubject(Frozen, frozen=True):
    """The subject of notes. `key` is a principal's id or an agent's name, and `name` is the display name."""

    about: About
    key: str
    name: str


class Memory:
    """Provides the `Notes` service for tools, the notes for prompts (as a `PromptSource`), and the notes that users see
    and edit."""

    name = "memory"
    needs_tools = False

    def __init__(
        self, config: Config, store: Store, clock: Callable[[], float], provider: "Plugin | None" = None
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._agents = frozenset(name for name, agent in config.agents.items() if TOOLSET in agent.tools)
        self._marks = NoteMarks(store)
        self._offered: BoundedCache[tuple[str, str], tuple[tuple[int, ...], ...]] = BoundedCache(
            "offered notes", cap=CONVERSATIONS
        )
        self.note_store: NoteStore
        if provider is None:
            self.note_store = StoredNotes(store, config.memory, self._marks, clock)
        else:
            from tidegate.memory.provider_notes import ProviderNotes  # only where it is used

            self.note_store = ProviderNotes(provider, store, config.memory, self._marks, clock)

    # -- the prompt --

    def serves(self, agent: str) -> bool:
        return agent in self._agents

    async def part(self, agent: str, principal: str) -> str:
        return await self.note_store.part(agent, principal)

    async def queue_current_notes(self, session: SessionRow) -> None:
        """Queues the current notes for the next message if they differ from the notes in the session's prompt, since
        the model may no longer see earlier notices about changes."""
        if not session.memory_seen or session.prefix is None:
            return
        frozen = part_of(await self._store.read(sessions.prefix, session.prefix), self.name)
        now = (await self.part(session.agent, session.principal)).strip()
        if now != frozen:
            lines = [CHANGED, *(now.splitlines() or ["There are none left."])]
            await self._store.write(messages.add_notice_lines, session.id, lines, self._clock())

    async def related(self, inbound: Inbound) -> Message | None:
        """Returns a message with the notes that do not fit into the prompt and match this message."""
        room = self._config.memory.related_bytes
        conversation = inbound.session or inbound.name
        if not room or inbound.agent not in self._agents or not (conversation or inbound.new):
            return None
        text = inbound.messages[-1].text if inbound.messages[-1].role == "user" else ""
        found = (
            *await self.note_store.left_out("person", inbound.principal),
            *await self.note_store.left_out("agent", inbound.agent),
        )
        if not text or not found:
            return None
        key = (inbound.principal, conversation or "")
        seen = (conversation and self._offered.get(key)) or ()
        offered = await self._store.read(best, text, found, frozenset(itertools.chain.from_iterable(seen)))
        message, numbers = message_of(offered, room)
        if conversation:
            self._offered.put(key, (*seen, tuple(numbers))[-OFFERED_AGAIN_AFTER:])
        return message

    async def mark(self, agent: str) -> int:
        """Returns the number of the first change to announce in a new conversation with this agent, or 0 if changes are
        not announced."""
        return await self._marks.next() if agent in self._agents else 0

    def measure(self) -> Iterator[tuple[str, Holding]]:
        """Reports the open provider to the ledger."""
        if count := self.note_store.holds:
            yield "process", Holding(count)

    def stats(self) -> CacheStats:
        return self.note_store.stats()

    def caches(self) -> tuple[CacheStats, ...]:
        return (*self.note_store.caches(), self._offered.stats())

    # -- for agents --

    async def remember(self, ctx: ToolContext, text: str, *, about: About, replaces: int | None) -> str:
        whose = ctx.principal if about == "person" else ctx.agent
        try:
            author = await self._author(ctx)
            if about == "agent" and not author.may("configure"):
                raise NotAllowed(
                    "Notes about your work can be written only in conversations with the owner of this gateway; this "
                    'is not one. Use about = "person" for a note about the person here.'
                )
            draft = Draft(
                about=about,
                whose=whose,
                text=text,
                author=author.id,
                by=author.name,
                source="tool",
                session=ctx.session,
                replaces=replaces,
            )
            note, changed = await self.note_store.remember(draft)
            stored = await self.note_store.listing(about, whose)
        except Refused as error:
            raise ToolFailed(error.message) from None
        what = f"Remembered: {line_of(note)}" if changed else f"Already known: {line_of(note)}"
        return f"{what}\n{self._usage(stored)}"

    async def forget(self, ctx: ToolContext, note: int) -> str:
        try:
            author = await self._author(ctx)
            kinds: list[tuple[About, str]] = [("person", ctx.principal)]
            if author.may("configure"):
                kinds.append(("agent", ctx.agent))
            for about, whose in kinds:
                stored = await self.note_store.listing(about, whose)
                if note in [each.id for each in stored]:
                    removed = await self.note_store.forget(about, whose, note, ctx.session)
                    left = [each for each in stored if each.id != note]
                    return f"Forgotten: {line_of(removed)}\n{self._usage(left)}"
        except Refused as error:
            raise ToolFailed(error.message) from None
        raise ToolFailed(f"There is no note {note} that this conversation may delete.")

    async def _author(self, ctx: ToolContext) -> Principal:
        """Returns the person in the conversation, with their role from the store. An unknown person has no role."""
        row = await self._store.read(principals.get, ctx.principal)
        if row is None:
            return Principal(id=ctx.principal, name=ctx.principal)
        return Principal(id=row.id, name=row.name, role=row.role)

    def _usage(self, stored: Sequence[Note]) -> str:
        used = sum(notes.size_of(note.text) for note in stored)
        count = "1 note" if len(stored) == 1 else f"{len(stored)} notes"
        return f"Now stored: {count}, {used:,} of {self._config.memory.notes_bytes:,} bytes."

    # -- for users --

    async def subject(
        self, caller: Principal, *, principal: str | None = None, agent: str | None = None
    ) -> NoteSubject:
        """Returns the subject of the requested notes, by default the caller. Raises an error if the caller may not see
        the notes."""
        if agent is not None:
            if principal is not None:
                raise Refused("Name a principal or an agent, not both.", param="agent")
            if not caller.may_use(agent) or agent not in self._config.agents:
                raise NotFound(f"There is no agent {agent[:100]!r} that you may use.", code="model_not_found")
            if agent not in self._agents:
                raise NotFound(
                    f"The agent {agent!r} has no memory; give it the {TOOLSET!r} toolset in tidegate.toml.",
                    code="no_memory",
                )
            return NoteSubject(about="agent", key=agent, name=agent)
        if principal is None or principal == caller.name:
            return NoteSubject(about="person", key=caller.id, name=caller.name)
        row = await self._store.read(principals.by_name, principal) if caller.may("configure") else None
        if row is None:
            raise NotFound(
                f"There is no principal {principal[:100]!r} whose notes you may see.", code="principal_not_found"
            )
        return NoteSubject(about="person", key=row.id, name=row.name)

    async def notebook(self, subject: NoteSubject) -> Notebook:
        return self._notebook(subject, await self.note_store.listing(subject.about, subject.key))

    async def put(self, caller: Principal, subject: NoteSubject, text: str, replaces: int | None = None) -> NoteView:
        """Adds a user's note or, with `replaces`, changes an existing note."""
        _check(caller, subject)
        draft = Draft(
            about=subject.about,
            whose=subject.key,
            text=text,
            author=caller.id,
            by=caller.name,
            source="person",
            replaces=replaces,
        )
        note, _ = await self.note_store.remember(draft)
        return note_view(note)

    async def drop(self, caller: Principal, subject: NoteSubject, note: int) -> NoteView:
        _check(caller, subject)
        return note_view(await self.note_store.forget(subject.about, subject.key, note, None))

    async def rewrite(self, caller: Principal, subject: NoteSubject, text: str, seen: str) -> Notebook:
        """Replaces the notes with an edited text if their version is still `seen`."""
        _check(caller, subject)
        lines = list(read_lines(text))
        found = await self.note_store.rewrite(subject.about, subject.key, lines, seen, caller.id, caller.name)
        return self._notebook(subject, found)

    def _notebook(self, subject: NoteSubject, found: Sequence[Note]) -> Notebook:
        of = "the work of the agent" if subject.about == "agent" else "the person"
        return Notebook(
            about=subject.about,
            whose=subject.name,
            notes=tuple(note_view(note) for note in found),
            bytes=sum(notes.size_of(note.text) for note in found),
            most=self._config.memory.notes_bytes,
            version=notes.version((note.id, note.text) for note in found),
            text=EDIT_HEADER.format(f"{of} {' '.join(subject.name.split())}")
            + "".join(f"[{note.id}] {note.text}\n" for note in found),
        )


def note_view(note: Note) -> NoteView:
    return NoteView(
        id=note.id,
        text=note.text,
        author=note.author,
        by=note.by,
        source=note.source,
        at=note.at,
        session=note.session,
    )


def read_lines(text: str) -> list[tuple[int | None, str]]:
    """Returns the notes in an edited text, each with its number; a new note has None instead."""
    found: list[tuple[int | None, str]] = []
    for line in text.split("\n"):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        numbered = _NUMBERED.fullmatch(line)
        if numbered is None:
            found.append((None, line))
        elif numbered[2]:
            found.append((int(numbered[1]), numbered[2]))
    return found


def _check(caller: Principal, subject: NoteSubject) -> None:
    """Raises `NotAllowed` if the caller may not write these notes. Only the caller's identity counts."""
    if not caller.may("configure") and (subject.about == "agent" or subject.key != caller.id):
        raise NotAllowed("Only the owner may write notes about an agent's work; you may write your own.")
