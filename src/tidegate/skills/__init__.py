"""Skills: folders with instructions for one kind of task each, in the open format; and the files by which a project
tells how to work on it.

Guarantee: both are data that somebody else wrote, bounded, read from where the settings say and from nowhere else; what
is wrong with one of them is a sentence in the log and never a session that fails. A gateway whose agents use neither
loads nothing of this room; `SkillLibrary` and `ProjectFiles` are sources of what a session's prompt begins with.
"""

from tidegate.skills.discovery import SkillDiscovery, unknown_skills
from tidegate.skills.file_digests import prompt_file_digests
from tidegate.skills.frontmatter import InvalidSkill
from tidegate.skills.library import SkillFile, SkillLibrary
from tidegate.skills.project_files import ProjectFiles
from tidegate.skills.skill import RejectedSkill, Skill, SkillEntry, SkillSet, listing_line

__all__ = [
    "InvalidSkill",
    "ProjectFiles",
    "RejectedSkill",
    "Skill",
    "SkillDiscovery",
    "SkillEntry",
    "SkillFile",
    "SkillLibrary",
    "SkillSet",
    "listing_line",
    "prompt_file_digests",
    "unknown_skills",
]
