"""Skills as immutable values, and the list of skills in prompts.

A `Skill` is a file's content, wherever the file is. A `SkillFolder` is a folder that is searched for skills; it defines
how far links may lead. A `SkillSet` is the result of one discovery for one agent.

The same skills always produce the same list, ordered by name and at most `LISTED_BYTES` long. Each skill is on one
line, from which its description cannot break out. The list says how many skills did not fit and how to find them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tidegate.values import Frozen
from tidegate.workspaces.files import printable

FILE = "SKILL.md"

LISTED_BYTES = 16 * 1024
"""Maximum size of the list of skills. This corresponds to about 4,000 tokens, which are part of every request in a
conversation, and is enough for about sixty skills of typical length."""

HEADING = (
    "# Skills\n\n"
    "A skill is a folder with instructions, and often further files, for one kind of task. When a task fits a "
    "description below, read the skill with the tool `skill` before you begin, and follow it, within your task and "
    "your permissions. Each line contains a skill's name and its author's description:\n\n"
)
_REST = "\n{count} more are not listed here: `skill` without a name lists all."


class Skill(Frozen, frozen=True):
    """The frontmatter of a SKILL.md. `tools` are the tools that its author expects; they grant no permissions."""

    name: str
    description: str
    license: str = ""
    compatibility: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    tools: tuple[str, ...] = ()


class SkillFolder(Frozen, frozen=True):
    """A folder that may contain skills, each in a subfolder with the skill's name. A project's skill folder is at path
    `within` in the folder `project`, and links must not lead out of the project. The user's own skill folders may
    contain links to anywhere."""

    folder: Path
    project: Path | None = None
    within: str = ""

    @property
    def origin(self) -> Literal["project", "user"]:
        return "user" if self.project is None else "project"


class SkillEntry(Frozen, frozen=True):
    """A skill available to an agent."""

    skill: Skill
    place: SkillFolder

    @property
    def name(self) -> str:
        return self.skill.name

    @property
    def folder(self) -> Path:
        return self.place.folder / self.skill.name


class RejectedSkill(Frozen, frozen=True):
    """A skill that was found but is not used. The reason is phrased as the rest of a sentence. If `covered` is True,
    the skill is valid, but another skill with the same name takes precedence."""

    path: Path
    why: str
    covered: bool = False

    @property
    def where(self) -> str:
        """The path as displayed."""
        return printable(str(self.path))

    def __str__(self) -> str:
        return f"{self.where} is left out: {self.why}"


class SkillSet(Frozen, frozen=True):
    """One agent's skills, ordered by name, and the skills that were left out. `listing` is the text for its prompts."""

    entries: tuple[SkillEntry, ...] = ()
    left_out: tuple[RejectedSkill, ...] = ()
    listing: str = ""

    def get(self, name: str) -> SkillEntry | None:
        return next((entry for entry in self.entries if entry.name == name), None)


def listing_line(entry: SkillEntry) -> str:
    return f"- {entry.name}: {entry.skill.description}"


def listing(entries: Sequence[SkillEntry]) -> str:
    """Returns the list of skills for a prompt, or an empty string if there are none."""
    if not entries:
        return ""
    space = LISTED_BYTES - len(HEADING.encode()) - len(_REST.encode()) - 10
    listed: list[str] = []
    for entry in entries:
        text = listing_line(entry)
        space -= len(text.encode()) + 1
        if space < 0:
            break
        listed.append(text)
    left = len(entries) - len(listed)
    return HEADING + "\n".join(listed) + (_REST.format(count=left) if left else "")
