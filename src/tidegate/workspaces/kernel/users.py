"""The unprivileged user that commands and file tools run as, where root started the gateway.

Guarantee: it is never root. `workspaces.user` names it. Otherwise it is the owner of the project folder; where there is
none, or where that is root's, it is a user that nobody else has: a number derived from the gateway's home. A gateway of
an ordinary user has no choice: everything runs as that user, and `user_of` returns None.
"""

import os
import pwd
import sys
from pathlib import Path

from tidegate.errors import ToolFailed
from tidegate.workspaces.files import User
from tidegate.workspaces.kernel import drop_privileges

NUMBERS = range(60_706, 61_184)
"""Of users that no distribution, systemd or useradd gives to anybody, and that exist also in containers with 65536
users. Which one it is follows from the gateway's home, so that the gateways of one machine rarely share it."""

_ROOT = 0

_MAP = Path("/proc/self/uid_map").read_text().split()
_ALONE = len(_MAP) == 3 and int(_MAP[1]) != _ROOT and int(_MAP[2]) == 1
"""In a user namespace that holds nobody else, root is another name of an ordinary user, and can become nobody."""


def user_of(setting: str, project: Path | None, owner: str) -> User | None:
    """`setting` is `workspaces.user`, `owner` what the gateway is called in processes. It looks at the folder: for a
    thread. Raises ToolFailed when the setting names nobody."""
    if not is_root():
        return None
    if setting:
        return named(setting)
    if project is not None:
        try:
            found = project.stat()
        except OSError:  # whoever wants to work in it is told
            pass
        else:
            if found.st_uid != _ROOT:
                return User(found.st_uid, _group_of(found.st_uid, found.st_gid))
    number = NUMBERS[int(owner or "0", 16) % len(NUMBERS)]
    return User(number, number)


def is_root() -> bool:
    return os.geteuid() == _ROOT and not _ALONE


def named(setting: str) -> User:
    """The user of that name or number. Raises ToolFailed."""
    try:
        found = pwd.getpwuid(int(setting)) if setting.isdecimal() else pwd.getpwnam(setting)
        user = User(found.pw_uid, found.pw_gid)
    except KeyError:
        if not setting.isdecimal():
            raise ToolFailed(f"workspaces.user names {setting!r}, and there is no such user here.") from None
        user = User(int(setting), int(setting))
    if _ROOT in user:
        raise ToolFailed("workspaces.user is root: choose an unprivileged user.")
    return user


def _group_of(uid: int, folders: int) -> int:
    """Their own group, else that of their folder; never root's."""
    try:
        group = pwd.getpwuid(uid).pw_gid
    except KeyError:
        group = folders
    return group if group != _ROOT else uid


def as_user(user: User | None, setpriv: str) -> list[str]:
    """What is put before a command, so that it runs as that user."""
    if user is None:
        return []
    return [setpriv, f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--"]


def as_user_reaching(user: User | None, *folders: Path) -> list[str]:
    """The same for a command that is to reach these folders, wherever they lie."""
    if user is None:
        return []
    program = [sys.executable, "-I", "-S", "-B", drop_privileges.__file__]
    return [*program, str(user.uid), str(user.gid), *map(str, folders), "--"]
