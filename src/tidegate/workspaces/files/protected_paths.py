"""The names of project files that other programs execute: git configuration and hooks, settings of editors and shells.

File tools never write these files, whatever path or link leads to them: `is_protected` checks the folder that was
opened, not the requested path. In a sandbox, existing ones are read-only (`workspaces.protected_mounts`). The check
blocks: it runs in worker threads and also, after the code has been sent there, on other machines.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

REPOSITORY = ".git"

HEAD = "HEAD"
"""A file that makes git treat any folder as a repository with its own configuration."""

NAMES_ANYWHERE = (
    ".envrc", ".vscode", ".idea", ".zed", ".helix", ".devcontainer", ".devcontainer.json", ".cursor/mcp.json",
    ".exrc", ".vimrc", ".gvimrc", ".nvimrc", ".nvim.lua", ".dir-locals.el", ".dir-locals-2.el",
    ".mcp.json", ".claude/settings.json", ".claude/settings.local.json",
)  # fmt: skip
"""Names protected in every folder of a project. Programs read these files when they are started in that folder or open
a file there."""

NAMES = (
    *NAMES_ANYWHERE,
    ".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases",
    ".zshenv", ".zshrc", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".config/fish",
    ".gitconfig",
)  # fmt: skip
"""Names protected directly in the project folder. The names that are not in `NAMES_ANYWHERE` are read only from a home
folder."""

CONFIG_BYTES = 256 * 1024
"""Maximum number of bytes of git's configuration read from one file."""

CONFIGURATIONS = 16
"""Maximum number of configuration files per repository, including those that they include."""

_NAMED = re.compile(
    rb'^[ \t]*(?:\[[^\]\r\n]*\][ \t]*)?(hookspath|path)[ \t]*=[ \t]*"?([^"#;\r\n]+)', re.IGNORECASE | re.MULTILINE
)


def named_by_git(project: str, git_dir: str, read: Callable[[str], bytes]) -> list[str]:
    """Returns the paths in the project that a repository's configuration names as hooks (`core.hooksPath`) or as
    further configuration (`include.path`), which may name more. `read` returns a file's content, or an empty one if
    there is no such file."""
    found: dict[str, None] = {}
    waiting = [f"{git_dir}/config", f"{git_dir}/config.worktree"]
    for file in waiting:  # the list grows
        for key, value in _NAMED.findall(read(file)):
            included = key.lower() == b"path"
            start = Path(file if included else git_dir).parent
            path = os.path.normpath(start / os.fsdecode(value.strip()))
            if not path.startswith(f"{project}/") or path.removeprefix(f"{project}/") in found:
                continue
            found[path.removeprefix(f"{project}/")] = None
            if included and len(waiting) < CONFIGURATIONS:
                waiting.append(path)
    return list(found)


def is_protected(project: str, folder: int, name: str) -> bool:
    """True if `name` in the open `folder` is protected. A folder that has been moved out of the project counts as
    protected."""
    root, parent = os.path.realpath(project), str(Path(f"/proc/self/fd/{folder}").readlink())
    if parent != root and not parent.startswith(f"{root}/"):
        return True
    parts = [*parent[len(root) :].split("/")[1:], name]
    if name == HEAD or REPOSITORY in (part.lower() for part in parts):
        return True
    path = "/".join(parts).lower()
    if _is_below(path, (*NAMES, *(named.lower() for named in named_by_git(root, f"{root}/{REPOSITORY}", _read)))):
        return True
    return any(_is_below("/".join(parts[start:]).lower(), NAMES_ANYWHERE) for start in range(1, len(parts)))


def _is_below(path: str, names: Iterable[str]) -> bool:
    return any(path == name or path.startswith(f"{name}/") for name in names)


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(fd, CONFIG_BYTES)
    except OSError:  # it is a folder
        return b""
    finally:
        os.close(fd)
