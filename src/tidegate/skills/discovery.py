"""Discovery of the skills in an agent's folders.

Unchanged files are not opened: a file is read again only if its size, times or inode have changed. Each text is parsed
only once, however many agents, folders and sessions use it. An unusable skill is left out with a reason and does not
affect other skills. The same folders always produce the same result. The functions block, so call them only in worker
threads and on the command line. The caches are thread-safe.
"""

import hashlib
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tidegate.config import Config
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.skills import file_access
from tidegate.skills.frontmatter import FILE_BYTES, TOO_LONG, InvalidSkill, decoded, read
from tidegate.skills.skill import FILE, RejectedSkill, Skill, SkillEntry, SkillFolder, SkillSet, listing
from tidegate.workspaces.files import FileStamp, Mount, printable
from tidegate.workspaces.provenance import UNTRUSTED, Reader

IN_PROJECT = (".agents/skills", ".claude/skills")
"""Folders in which several vendors' programs look for a project's skills. A folder named just `skills` is not included,
since many projects use this name for something else."""

MOST = 500
"""Maximum number of skills per agent: nobody reads a longer list."""

KNOWN_FILES, KNOWN_SKILLS = 4096, 2048
KNOWN_BYTES = 4 * 1024 * 1024
"""Size limit of the caches, which contain names, descriptions and the like, but no instructions."""

SETTLED = 2.0
"""Number of seconds since its last change after which a file is identified by its times. Before that, another change
within the clock's resolution would go unnoticed."""


def skill_folders(config: Config, agent: str) -> tuple[SkillFolder, ...]:
    """Returns the folders with an agent's skills, in order of preference. A skill that a session can write never
    replaces one of the user's own skills."""
    found = [
        SkillFolder(folder=config.home / "skills"),
        *(SkillFolder(folder=config.path(text)) for text in config.skills.folders),
    ]
    if (project := local_project(config, agent)) is not None:
        found += (SkillFolder(folder=project / within, project=project, within=within) for within in IN_PROJECT)
    return tuple(found)


def local_project(config: Config, agent: str) -> Path | None:
    """Returns an agent's project folder, or None if there is none on this machine."""
    return None if config.workspaces.backend == "ssh" else config.project(agent)


class _Candidate(NamedTuple):
    """A SKILL.md file, with its skill or the reason why it cannot be used."""

    name: str
    place: SkillFolder
    mark: FileStamp | None
    skill: Skill | None
    why: str = ""

    @property
    def path(self) -> Path:
        return self.place.folder / self.name / FILE


class SkillDiscovery:
    def __init__(self, config: Config, *, settled: float = SETTLED) -> None:
        self._config = config
        self._settled = settled
        self._lock = threading.Lock()
        self._files: BoundedCache[str, tuple[FileStamp, bytes]] = BoundedCache("skill files", cap=KNOWN_FILES)
        self._skills: BoundedCache[bytes, Skill | str] = BoundedCache(
            "skills", cap=KNOWN_SKILLS, max_bytes=KNOWN_BYTES, weigh=_weigh
        )

    def discover(self, agent: str, reader: Reader | None = None, *, narrowed: bool = True) -> SkillSet:
        """Returns the agent's current skills. Skills that the reader should not trust are among those left out. Unless
        `narrowed` is set, restrictions in the agent's settings are ignored."""
        candidates: list[_Candidate] = []
        left_out: list[RejectedSkill] = []
        for place in skill_folders(self._config, agent):
            try:
                candidates += self._in(place, reader or Reader())
            except (InvalidSkill, OSError) as error:
                left_out.append(RejectedSkill(path=place.folder, why=_why(error)))
        wanted = self._config.agents[agent].skills
        if wanted and narrowed:
            candidates = [candidate for candidate in candidates if candidate.name in wanted]
        entries, more = _chosen(candidates)
        return SkillSet(entries=entries, left_out=(*left_out, *more), listing=listing(entries))

    def parse(self, data: bytes) -> Skill:
        """Parses a SKILL.md. Raises `InvalidSkill`."""
        digest = hashlib.sha256(data).digest()
        with self._lock:
            known = self._skills.get(digest)
            if known is None:
                known = _parsed(data)
                self._skills.put(digest, known)
        if isinstance(known, str):
            raise InvalidSkill(known)
        return known

    def stats(self) -> tuple[CacheStats, ...]:
        return self._files.stats(), self._skills.stats()

    def _in(self, place: SkillFolder, reader: Reader) -> list[_Candidate]:
        with file_access.open_folder(place) as folder:
            if folder is None:
                return []
            if _holds(file_access.mount_of(folder), FILE):
                raise InvalidSkill(f"it is itself a skill; name the folder that contains it ({place.folder.parent}).")
            found = [self._at(place, folder, name, reader) for name in file_access.folder_names(folder)]
        return [candidate for candidate in found if candidate is not None]

    def _at(self, place: SkillFolder, folder: int, name: str, reader: Reader) -> _Candidate | None:
        """Returns the candidate with this name, or None."""
        mark: FileStamp | None = None
        try:
            with file_access.open_skill_folder(place, folder, name) as opened:
                if opened is None or (seen := file_access.find_file(file_access.mount_of(opened), FILE)) is None:
                    return None
                mark = seen.mark
                skill = self._known(place.folder / name, opened, seen, reader)
            if skill.name != name:
                raise InvalidSkill(misnamed(skill, name))
        except (InvalidSkill, OSError) as error:
            return _Candidate(name, place, mark, None, _why(error))
        return _Candidate(name, place, mark, skill)

    def _known(self, path: Path, folder: int, seen: file_access.FoundFile, reader: Reader) -> Skill:
        with self._lock:
            before = self._files.get(str(path))
            known = self._skills.get(before[1]) if before is not None and before[0] == seen.mark else None
        if before is not None and known is not None:
            if not reader.admits(seen.path, before[1]):
                raise InvalidSkill(UNTRUSTED)
            if isinstance(known, str):
                raise InvalidSkill(known)
            return known
        if seen.mark.size > FILE_BYTES:
            raise InvalidSkill(TOO_LONG)
        opened = file_access.load(file_access.mount_of(folder), FILE, FILE_BYTES + 1)
        if opened is None:
            raise InvalidSkill("it has just been removed.")
        if time.time() - max(opened.mark.modified, opened.mark.changed) / 1e9 > self._settled:
            with self._lock:
                self._files.put(str(path), (opened.mark, opened.digest))
        if not reader.admits(opened.path, opened.digest):
            raise InvalidSkill(UNTRUSTED)
        return self.parse(opened.data)


def unknown_skills(skill_set: SkillSet, wanted: Iterable[str]) -> list[str]:
    """Returns the names of configured skills that were not found, not even as unusable ones."""
    found = {entry.name for entry in skill_set.entries} | {left.path.parent.name for left in skill_set.left_out}
    return [name for name in wanted if name not in found]


def _chosen(candidates: Sequence[_Candidate]) -> tuple[tuple[SkillEntry, ...], list[RejectedSkill]]:
    """Chooses one candidate for each name, preferably the first usable one. A user's own skill takes precedence over a
    project's skill with the same name, even if it cannot be used."""
    chosen: dict[str, _Candidate] = {}
    left_out: list[RejectedSkill] = []
    own = {each.name: each for each in reversed(candidates) if each.place.origin == "user"}
    for candidate in candidates:
        if candidate.skill is None:
            left_out.append(RejectedSkill(path=candidate.path, why=candidate.why))
        elif (
            other := chosen.get(candidate.name) or (own.get(candidate.name) if candidate.place.project else None)
        ) is None:
            chosen[candidate.name] = candidate
        elif not _same(candidate, other):
            why = f"{other.path} has the same name and takes precedence."
            left_out.append(RejectedSkill(path=candidate.path, why=why, covered=True))
    names = sorted(chosen)
    for name in names[MOST:]:
        left_out.append(RejectedSkill(path=chosen[name].path, why=f"the agent already has {MOST} skills; remove some."))
    entries = (SkillEntry(skill=its.skill, place=its.place) for name in names[:MOST] if (its := chosen[name]).skill)
    return tuple(entries), left_out


def _same(one: _Candidate, other: _Candidate) -> bool:
    """True if both are the same file, which is common because one folder is often a link to the other."""
    return one.mark is not None and other.mark is not None and one.mark[:2] == other.mark[:2]


def misnamed(skill: Skill, folder: str) -> str:
    return f'its name is "{skill.name}", but its folder is named "{printable(folder)}"; make them equal.'


def _why(error: InvalidSkill | OSError) -> str:
    return error.message if isinstance(error, InvalidSkill) else f"it cannot be read ({error.strerror}); fix that."


def _holds(folder: Mount, name: str) -> bool:
    try:
        return file_access.find_file(folder, name) is not None
    except InvalidSkill:
        return False


def _parsed(data: bytes) -> Skill | str:
    try:
        return read(decoded(data))
    except InvalidSkill as error:
        return error.message


def _weigh(known: Skill | str) -> int:
    if isinstance(known, str):
        return len(known)
    return 4 * (len(known.name) + len(known.description) + len(known.license) + len(known.compatibility)) + sum(
        4 * len(text) for pair in (*known.metadata, known.tools) for text in pair
    )
