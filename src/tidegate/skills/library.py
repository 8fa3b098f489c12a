"""The agents' skills, which are listed in the prompts of new sessions and read with a tool.

An agent has only the skills in its own folders, restricted by its settings. Every call reads the file again, so edits
take effect immediately. Files outside the skill's folder are not read, even if the folder contains links, nor are files
that the reader should not trust (`workspaces.provenance`). All reads run in worker threads. The library caches names
and descriptions up to a fixed limit, but no instructions.
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
from tidegate.skills.discovery import SkillDiscovery, misnamed
from tidegate.skills.discovery_cache import DiscoveryCache, DiscoveryKey, LogOnce, discover
from tidegate.skills.frontmatter import FILE_BYTES, InvalidSkill, body, decoded
from tidegate.skills.skill import FILE, Skill, SkillEntry, SkillSet
from tidegate.workspaces.files import FileFilter
from tidegate.workspaces.files.walk import FolderWalk
from tidegate.workspaces.provenance import UNTRUSTED, Provenance, Reader

log = Log(__name__)

T = TypeVar("T")

TOOLSET = "skills"

FILES_LISTED = 200
"""Maximum number of a skill's files that are listed, not counting its SKILL.md."""

READ_BYTES = 1024 * 1024
"""Maximum number of bytes read from one file. A model sees fewer at a time anyway, and reads the rest from the
spool."""

BINARY_WITHIN = 8192
"""A file counts as binary if there is a zero byte among this many bytes at its beginning."""


class SkillContents(NamedTuple):
    """A skill's current content: its instructions, and the paths of its other files. `more` is True if there are
    further files. `seen` is the path under which the agent's commands see the skill's folder; it is empty if they do
    not see it."""

    skill: Skill
    text: str
    files: tuple[str, ...]
    more: bool
    seen: str


class SkillFile(NamedTuple):
    """One of a skill's files. `text` is None if the file is binary, and contains only the beginning unless `complete`
    is True."""

    text: str | None
    size: int
    complete: bool
    seen: str


class SkillLibrary:
    """The skills of all agents. Contributes the list of skills to prompts."""

    name = TOOLSET
    needs_tools = True

    def __init__(
        self, config: Config, provenance: Provenance | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._provenance = provenance
        self._discovery = SkillDiscovery(config)
        self._log_once = LogOnce(log)
        self._cache = DiscoveryCache("skill sets", self._look, SkillSet(), _weigh, clock=clock)

    def serves(self, agent: str) -> bool:
        settings = self._config.agents.get(agent)
        return settings is not None and TOOLSET in settings.tools

    async def part(self, agent: str, principal: str) -> str:
        return (await self.skill_set(agent, principal)).listing

    async def skill_set(self, agent: str, principal: str = "") -> SkillSet:
        """Returns the agent's skills in this principal's sessions. An agent without the toolset `skills` has none."""
        return await discover(self._cache, agent, principal, self._provenance) if self.serves(agent) else SkillSet()

    async def open(self, entry: SkillEntry, principal: str = "") -> SkillContents:
        """Reads a skill. Raises `InvalidSkill` if it is no longer a valid skill."""
        return await self._read(principal, partial(self._open, entry))

    async def file(self, entry: SkillEntry, path: str, principal: str = "") -> SkillFile | None:
        """Reads a file of a skill. Returns None if the file does not exist. Raises `InvalidSkill` if it must not be
        read."""
        return await self._read(principal, partial(self._file, entry, path))

    async def _read(self, principal: str, read: Callable[[Reader], T]) -> T:
        async def make(reader: Reader) -> T:
            return await to_thread.run_sync(read, reader)

        return await (make(Reader()) if self._provenance is None else self._provenance.steady(principal, make))

    def caches(self) -> tuple[CacheStats, ...]:
        return (*self._discovery.stats(), *self._cache.stats())

    def _look(self, key: DiscoveryKey) -> SkillSet:
        skill_set = self._discovery.discover(key.agent, key.reader)
        for left in skill_set.left_out:
            if left.covered:
                self._log_once.inform("a skill is hidden by another", left.where, left.why)
            else:
                self._log_once.warn("a skill is left out", left.where, left.why)
        return skill_set

    def _open(self, entry: SkillEntry, reader: Reader) -> SkillContents:
        try:
            with file_access.open_folder(entry.place) as place:
                if place is None:
                    raise InvalidSkill("its folder no longer exists.")
                with file_access.open_skill_folder(entry.place, place, entry.name) as folder:
                    if (
                        folder is None
                        or (found := file_access.load(file_access.mount_of(folder), FILE, FILE_BYTES + 1)) is None
                    ):
                        raise InvalidSkill("it no longer exists.")
                    if not reader.admits(found.path, found.digest):
                        raise InvalidSkill(UNTRUSTED)
                    skill = self._discovery.parse(found.data)
                    if skill.name != entry.name:
                        raise InvalidSkill(misnamed(skill, entry.name))
                    files, more = _files(folder)
                    seen = _seen(self._config, entry, Path(file_access.mount_of(folder).inner))
        except OSError as error:
            raise InvalidSkill(f"it cannot be read ({error.strerror}).") from None
        return SkillContents(skill, body(decoded(found.data)), files, more, seen)

    def _file(self, entry: SkillEntry, path: str, reader: Reader) -> SkillFile | None:
        try:
            with file_access.open_folder(entry.place) as place:
                if place is None:
                    return None
                with file_access.open_skill_folder(entry.place, place, entry.name) as folder:
                    # A link's target must be a skill, too, since the link could have been created in the meantime.
                    if folder is None or file_access.find_file(file_access.mount_of(folder), FILE) is None:
                        return None
                    found = file_access.load(file_access.mount_of(folder), path, READ_BYTES)
                    seen = _seen(self._config, entry, Path(file_access.mount_of(folder).inner))
        except OSError as error:
            raise InvalidSkill(f"it cannot be read ({error.strerror}).") from None
        if found is None:
            return None
        if not reader.admits(found.path, found.digest):
            raise InvalidSkill(UNTRUSTED)
        return SkillFile(_text(found), found.mark.size, found.complete, f"{seen}/{path}" if seen else "")


def _weigh(skill_set: SkillSet) -> int:
    """Estimates the size of a skill set in bytes. The skills themselves are accounted for by another cache."""
    return 2 * len(skill_set.listing) + 200 * (len(skill_set.entries) + len(skill_set.left_out))


def _files(folder: int) -> tuple[tuple[str, ...], bool]:
    """Returns the paths of a skill's other files, in order, and True if there are more."""
    found: list[str] = []
    walk = FolderWalk(FileFilter(), recursive=True)
    with closing(walk.steps(folder)) as steps:
        for step in steps:
            if step.kind not in ("file", "link") or step.path == FILE:
                continue
            if len(found) == FILES_LISTED:
                return tuple(found), True
            found.append(step.path)
    return tuple(found), bool(walk.stopped)


def _seen(config: Config, entry: SkillEntry, real: Path) -> str:
    """Returns the path under which the agent's commands see a skill's folder, or an empty string if they do not see
    it."""
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


def _text(found: file_access.FileContent) -> str | None:
    if b"\0" in found.data[:BINARY_WITHIN]:
        return None
    try:
        return found.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The last character may have been split.
        if found.complete or error.start < len(found.data) - 3:
            return None
        return found.data[: error.start].decode("utf-8-sig")
