"""The unprivileged user who runs commands and file tools if root started the gateway.

It is never root. It is the user named in `workspaces.user` or, by default, the owner of the project folder; if there is
no project, or if root owns it, it is an otherwise unused user id derived from the gateway's home. If an ordinary user
started the gateway, everything runs as that user and `user_of` returns None.
"""

import os
import pwd
import sys
from pathlib import Path

from tidegate.errors import ToolFailed
from tidegate.workspaces.files import User
from tidegate.workspaces.kernel import drop_privileges

RESERVED_UIDS = range(60_706, 61_184)
"""User ids that are not assigned by any distribution, systemd or useradd, and that also exist in containers with 65536
users. The id is derived from the gateway's home, so gateways on the same machine rarely share one."""

_ROOT = 0

_MAP = Path("/proc/self/uid_map").read_text().split()
_ALONE = len(_MAP) == 3 and int(_MAP[1]) != _ROOT and int(_MAP[2]) == 1
"""In a user namespace with a single user, root is another name for an ordinary user and cannot become anybody else."""


def user_of(setting: str, project: Path | None, owner: str) -> User | None:
    """Returns the user for a workspace. `setting` is `workspaces.user`; `owner` is the identifier carried by the
    gateway's processes. This function reads the project folder, so it belongs in a thread. Raises ToolFailed if the
    setting is an unknown name or root."""
    if not is_root():
        return None
    if setting:
        return user_named(setting)
    if project is not None:
        try:
            found = project.stat()
        except OSError:  # reported when the folder is used
            pass
        else:
            if found.st_uid != _ROOT:
                return User(found.st_uid, _group_of(found.st_uid, found.st_gid))
    number = RESERVED_UIDS[int(owner or "0", 16) % len(RESERVED_UIDS)]
    return User(number, number)


def is_root() -> bool:
    return os.geteuid() == _ROOT and not _ALONE


def user_named(setting: str) -> User:
    """Returns the user with that name or number. Raises ToolFailed for an unknown name and for root."""
    try:
        found = pwd.getpwuid(int(setting)) if setting.isdecimal() else pwd.getpwnam(setting)
        user = User(found.pw_uid, found.pw_gid)
    except KeyError:
        if not setting.isdecimal():
            raise ToolFailed(f"workspaces.user is {setting!r}, but this machine has no user with that name.") from None
        user = User(int(setting), int(setting))
    if _ROOT in user:
        raise ToolFailed("workspaces.user is root: choose an unprivileged user.")
    return user


def _group_of(uid: int, folders: int) -> int:
    """Returns the user's own group or, if the system does not know the user, the folder's group, but never root's
    group."""
    try:
        group = pwd.getpwuid(uid).pw_gid
    except KeyError:
        group = folders
    return group if group != _ROOT else uid


def as_user(user: User | None, setpriv: str) -> list[str]:
    """Returns the command prefix that runs a command as that user."""
    if user is None:
        return []
    return [setpriv, f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--"]


def as_user_reaching(user: User | None, *folders: Path) -> list[str]:
    """Returns the command prefix for a command that must reach these folders, wherever they are."""
    if user is None:
        return []
    program = [sys.executable, "-I", "-S", "-B", drop_privileges.__file__]
    return [*program, str(user.uid), str(user.gid), *map(str, folders), "--"]
