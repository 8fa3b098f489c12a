"""Digests of the files below a folder that may become part of a prompt.

These are all the files from that folder that `ProjectFiles` and `SkillLibrary` would use for any agent, up to `FILES`.
The functions block, so call them only in worker threads.
"""

import contextlib
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tidegate.config import Config
from tidegate.skills import file_access
from tidegate.skills.discovery import local_project, skill_folders
from tidegate.skills.frontmatter import InvalidSkill
from tidegate.skills.skill import SkillFolder
from tidegate.workspaces.files import FileFilter
from tidegate.workspaces.files.walk import FolderWalk

FILES = 5000
"""Maximum number of files. Further files are not trusted, which is reported when one of them would be used."""


def prompt_file_digests(config: Config, folder: Path) -> dict[str, bytes]:
    """Returns the digests of the files below a folder, by real path."""
    below, found = f"{os.path.realpath(folder)}/", dict[str, bytes]()
    for opened in _files(config):
        if opened.path.startswith(below):
            found[opened.path] = opened.digest
        if len(found) == FILES:
            break
    return found


def _files(config: Config) -> Iterator[file_access.FileContent]:
    for name, agent in config.agents.items():
        project = local_project(config, name)
        if project is not None and project.is_dir():
            for path in agent.project_files:
                with contextlib.suppress(InvalidSkill, OSError):
                    if (opened := file_access.load(file_access.mount(project), path, 0)) is not None:
                        yield opened
    for place in dict.fromkeys(place for name in config.agents for place in skill_folders(config, name)):
        with contextlib.suppress(InvalidSkill, OSError):
            yield from _skills(place)


def _skills(place: SkillFolder) -> Iterator[file_access.FileContent]:
    with file_access.open_folder(place) as folder:
        for name in [] if folder is None else file_access.folder_names(folder):
            with (
                contextlib.suppress(InvalidSkill, OSError),
                file_access.open_skill_folder(place, folder or 0, name) as skill,
            ):
                if skill is not None:
                    yield from _of_skill(skill)


def _of_skill(folder: int) -> Iterator[file_access.FileContent]:
    with closing(FolderWalk(FileFilter(), recursive=True).steps(folder)) as steps:
        for step in steps:
            if step.kind not in ("file", "link"):
                continue
            with contextlib.suppress(InvalidSkill, OSError):
                if (opened := file_access.load(file_access.mount_of(folder), step.path, 0)) is not None:
                    yield opened
