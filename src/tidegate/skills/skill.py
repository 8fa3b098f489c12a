"""What is known of skills.

Guarantee: everything here is immutable. A `Skill` is what a file says, wherever that lies; a `SkillFolder` is where files are
looked for, and says how far links may lead; a `SkillSet` is what one look found for one agent.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tidegate.values import Frozen
from tidegate.workspaces.files import printable

FILE = "SKILL.md"

LISTED_BYTES = 16 * 1024
"""About 4,000 tokens, which every request of a conversation begins with: some sixty skills as most are described."""

HEADING = (
    "# Skills\n\n"
    "A skill is a folder with instructions, and often further files, for one kind of task. When a task fits a "
    "description below, read the skill with the tool `skill` before you begin, and go by what it says within what you "
    "were asked and may do. Each line is a skill's name and what its author says of it:\n\n"
)
_REST = "\n{count} more are not listed here: `skill` without a name lists all."


class Skill(Frozen, frozen=True):
    """What the frontmatter of a SKILL.md says. `tools` grant nothing: they are what its author had in mind."""

    name: str
    description: str
    license: str = ""
    compatibility: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    tools: tuple[str, ...] = ()


class SkillFolder(Frozen, frozen=True):
    """A folder that may hold skills, each in a folder of its name. One of a `project` is `within` it, and no link leads
    out of the project; one of the user's own may hold links to wherever he keeps his skills."""

    folder: Path
    project: Path | None = None
    within: str = ""

    @property
    def origin(self) -> Literal["project", "user"]:
        return "user" if self.project is None else "project"


class SkillEntry(Frozen, frozen=True):
    """A skill that an agent has."""

    skill: Skill
    place: SkillFolder

    @property
    def name(self) -> str:
        return self.skill.name

    @property
    def folder(self) -> Path:
        return self.place.folder / self.skill.name


class RejectedSkill(Frozen, frozen=True):
    """What was found and is not used, and why, as the rest of a sentence. `covered` says that nothing is wrong with it:
    another one of its name comes first."""

    path: Path
    why: str
    covered: bool = False

    @property
    def where(self) -> str:
        """The path as people are shown it."""
        return printable(str(self.path))

    def __str__(self) -> str:
        return f"{self.where} is left out: {self.why}"


class SkillSet(Frozen, frozen=True):
    """What one agent has, in the order of names, and what it has not. `listing` is what its prompts say of it."""

    entries: tuple[SkillEntry, ...] = ()
    left_out: tuple[RejectedSkill, ...] = ()
    listing: str = ""

    def get(self, name: str) -> SkillEntry | None:
        return next((entry for entry in self.entries if entry.name == name), None)


def listing_line(entry: SkillEntry) -> str:
    return f"- {entry.name}: {entry.skill.description}"


def listing(entries: Sequence[SkillEntry]) -> str:
    """Empty when there are none."""
    if not entries:
        return ""
    room = LISTED_BYTES - len(HEADING.encode()) - len(_REST.encode()) - 10
    listed: list[str] = []
    for entry in entries:
        text = listing_line(entry)
        room -= len(text.encode()) + 1
        if room < 0:
            break
        listed.append(text)
    left = len(entries) - len(listed)
    return HEADING + "\n".join(listed) + (_REST.format(count=left) if left else "")
