"""Skills (folders with instructions for one kind of task, in the open format) and project instructions.

Both are data written by other people. Their size is limited, and they are read only from the configured folders. A
problem with a skill or file is logged in one sentence and never makes a session fail. A gateway whose agents use
neither skills nor project instructions does not import this package. `SkillLibrary` and `ProjectFiles` contribute parts
of a session's prompt.
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
