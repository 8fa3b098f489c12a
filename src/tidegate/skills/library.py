"""The skills of all agents: listed for sessions that begin, read when a tool asks.

Guarantee: an agent has the skills of its own folders, narrowed by its settings, and no others. What is read is read
anew, so that an edit is seen by the next call; nothing outside the skill's folder is, whatever is put there, and
nothing that the reader is not to trust (`workspaces.provenance`). All of it is done in worker threads. It holds names
and descriptions, within the bounds of its caches, and no instructions.
"""

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from anyio import to_thread

from tidegate.config import Config
from tidegate.lifetimes import CacheStats
from tidegate.log import Log
from tidegate.skills import file_access
from tidegate.skills.discovery import Looker, misnamed
from tidegate.skills.discovery_cache import For, Looks, look
from tidegate.skills.frontmatter import FILE_BYTES, Unfit, body, decoded
from tidegate.skills.log_once import Told
from tidegate.skills.skill import FILE, Entry, Shelf, Skill
from tidegate.workspaces.files import Choice
from tidegate.workspaces.files.walk import Walk
from tidegate.workspaces.provenance import UNTRUSTED, Provenance, Reader

log = Log(__name__)

T = TypeVar("T")

TOOLSET = "skills"

FILES_LISTED = 200
"""Of one skill, beside its SKILL.md."""

READ_BYTES = 1024 * 1024
"""Of one file. A model is shown less of it anyway, and the rest from the spool."""

BINARY_WITHIN = 8192
"""A file with a zero byte in so many first ones is binary."""


class Contents(NamedTuple):
    """A skill as it is now: its instructions, the paths of its other files, whether there are more of them, and where
    the agent's commands see its folder, if they do."""

    skill: Skill
    text: str
    files: tuple[str, ...]
    more: bool
    seen: str


class Page(NamedTuple):
    """A file of a skill; `text` is None when it is binary, and its beginning when it is not `whole`."""

    text: str | None
    size: int
    whole: bool
    seen: str


class Library:
    """As a source of prompts it brings the list of skills."""

    name = TOOLSET
    needs_tools = True

    def __init__(
        self, config: Config, provenance: Provenance | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._provenance = provenance
        self._looker = Looker(config)
        self._told = Told(log)
        self._looks = Looks("looks at skills", self._look, Shelf(), _weigh, clock=clock)

    def serves(self, agent: str) -> bool:
        settings = self._config.agents.get(agent)
        return settings is not None and TOOLSET in settings.tools

    async def part(self, agent: str, principal: str) -> str:
        return (await self.shelf(agent, principal)).listing

    async def shelf(self, agent: str, principal: str = "") -> Shelf:
        """What the agent has in a session of this principal; empty for one without the toolset."""
        return await look(self._looks, agent, principal, self._provenance) if self.serves(agent) else Shelf()

    async def open(self, entry: Entry, principal: str = "") -> Contents:
        """Raises `Unfit` when it is no skill any more."""
        return await self._read(principal, partial(self._open, entry))

    async def file(self, entry: Entry, path: str, principal: str = "") -> Page | None:
        """One of its files; None when there is none. Raises `Unfit` when it may not be read."""
        return await self._read(principal, partial(self._file, entry, path))

    async def _read(self, principal: str, read: Callable[[Reader], T]) -> T:
        async def make(reader: Reader) -> T:
            return await to_thread.run_sync(read, reader)

        return await (make(Reader()) if self._provenance is None else self._provenance.steady(principal, make))

    def caches(self) -> tuple[CacheStats, ...]:
        return (*self._looker.stats(), *self._looks.stats())

    def _look(self, whom: For) -> Shelf:
        shelf = self._looker.look(whom.agent, whom.reader)
        for left in shelf.left_out:
            if left.covered:
                self._told.inform("a skill is covered by another", left.where, left.why)
            else:
                self._told.warn("a skill is left out", left.where, left.why)
        return shelf

    def _open(self, entry: Entry, reader: Reader) -> Contents:
        try:
            with file_access.place(entry.place) as place:
                if place is None:
                    raise Unfit("its folder is not there any more.")
                with file_access.skill_folder(entry.place, place, entry.name) as folder:
                    if (
                        folder is None
                        or (found := file_access.load(file_access.held(folder), FILE, FILE_BYTES + 1)) is None
                    ):
                        raise Unfit("it is not there any more.")
                    if not reader.admits(found.path, found.digest):
                        raise Unfit(UNTRUSTED)
                    skill = self._looker.parse(found.data)
                    if skill.name != entry.name:
                        raise Unfit(misnamed(skill, entry.name))
                    files, more = _files(folder)
                    seen = _seen(self._config, entry, Path(file_access.held(folder).inner))
        except OSError as error:
            raise Unfit(f"it cannot be read ({error.strerror}).") from None
        return Contents(skill, body(decoded(found.data)), files, more, seen)

    def _file(self, entry: Entry, path: str, reader: Reader) -> Page | None:
        try:
            with file_access.place(entry.place) as place:
                if place is None:
                    return None
                with file_access.skill_folder(entry.place, place, entry.name) as folder:
                    # What a link leads to must be a skill, too: it could have been put there meanwhile.
                    if folder is None or file_access.marked(file_access.held(folder), FILE) is None:
                        return None
                    found = file_access.load(file_access.held(folder), path, READ_BYTES)
                    seen = _seen(self._config, entry, Path(file_access.held(folder).inner))
        except OSError as error:
            raise Unfit(f"it cannot be read ({error.strerror}).") from None
        if found is None:
            return None
        if not reader.admits(found.path, found.digest):
            raise Unfit(UNTRUSTED)
        return Page(_text(found), found.mark.size, found.whole, f"{seen}/{path}" if seen else "")


def _weigh(shelf: Shelf) -> int:
    """The skills themselves are on their cache's account."""
    return 2 * len(shelf.listing) + 200 * (len(shelf.entries) + len(shelf.left_out))


def _files(folder: int) -> tuple[tuple[str, ...], bool]:
    """The paths of what lies beside a SKILL.md, in order, and whether there are more."""
    found: list[str] = []
    walk = Walk(Choice(), recursive=True)
    with closing(walk.steps(folder)) as steps:
        for step in steps:
            if step.kind not in ("file", "link") or step.path == FILE:
                continue
            if len(found) == FILES_LISTED:
                return tuple(found), True
            found.append(step.path)
    return tuple(found), bool(walk.stopped)


def _seen(config: Config, entry: Entry, real: Path) -> str:
    """Under which path the agent's commands see the folder of a skill; empty when they do not."""
    if entry.place.project is not None:
        return f"{entry.place.within}/{entry.name}"
    if config.workspaces.backend == "local":
        return str(entry.folder)
    if config.workspaces.backend != "ssh":
        for text in config.workspaces.read_only:
            folder = config.path(text)
            if (outer := Path(os.path.realpath(folder))) == real or outer in real.parents:
                return str(folder / real.relative_to(outer))
    return ""


def _text(found: file_access.Opened) -> str | None:
    if b"\0" in found.data[:BINARY_WITHIN]:
        return None
    try:
        return found.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The last character may have been cut in two.
        if found.whole or error.start < len(found.data) - 3:
            return None
        return found.data[: error.start].decode("utf-8-sig")
