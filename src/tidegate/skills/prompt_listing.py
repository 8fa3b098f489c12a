"""What an agent's prompt says of its skills.

Guarantee: the same skills give the same text, of at most `LISTED_BYTES`, in the order of their names; each is one line
that nothing in its description can leave. What does not fit is told, with how to find it.
"""

from collections.abc import Sequence

from tidegate.skills.skill import SkillEntry

LISTED_BYTES = 16 * 1024
"""About 4,000 tokens, which every request of a conversation begins with: some sixty skills as most are described."""

HEADING = (
    "# Skills\n\n"
    "A skill is a folder with instructions, and often further files, for one kind of task. When a task fits a "
    "description below, read the skill with the tool `skill` before you begin, and go by what it says within what you "
    "were asked and may do. Each line is a skill's name and what its author says of it:\n\n"
)
_REST = "\n{count} more are not listed here: `skill` without a name lists all."


def line(entry: SkillEntry) -> str:
    return f"- {entry.name}: {entry.skill.description}"


def listing(entries: Sequence[SkillEntry]) -> str:
    """Empty when there are none."""
    if not entries:
        return ""
    room = LISTED_BYTES - len(HEADING.encode()) - len(_REST.encode()) - 10
    listed: list[str] = []
    for entry in entries:
        text = line(entry)
        room -= len(text.encode()) + 1
        if room < 0:
            break
        listed.append(text)
    left = len(entries) - len(listed)
    return HEADING + "\n".join(listed) + (_REST.format(count=left) if left else "")
