"""A program that becomes an unprivileged user and then runs a command, for a gateway started by root.

    python -I -S drop_privileges.py UID GID [FOLDER...] -- COMMAND...

The command runs as that user, without other groups or capabilities, and reaches the folders by their own paths, even
below a folder that the user may not enter, such as the gateway's home. For this purpose, it gets its own mount
namespace, in which the first closed parent folder is covered by an empty one that contains only these folders, so
everything else in it stays closed. Other processes are not affected. The program imports nothing from Tidegate.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 4096, 16384, 1 << 19
_COVER = b"mode=0711,size=64k"  # for the empty folder, which contains only names
_FAILED = 125  # the conventional exit code of a launcher that cannot start its program

_library = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_library, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    _call("mount", os.fsencode(source), os.fsencode(target), kind, ctypes.c_ulong(flags), data)


@contextmanager
def _effectively(uid: int, gid: int) -> Iterator[None]:
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def _closed(path: str, uid: int, gid: int) -> str:
    """Returns the first folder on a path that the user may not enter, or an empty string if there is none."""
    above = "/"
    with _effectively(uid, gid):
        for part in path.split("/")[1:-1]:
            above = os.path.join(above, part)
            try:
                os.stat(f"{above}/.")
            except PermissionError:
                return above
            except FileNotFoundError:  # below a folder that is already covered
                break
    return ""


def open_up(folders: list[str], uid: int, gid: int) -> None:
    """Makes those folders that exist accessible to the user. Only this process and its children are affected."""
    paths = [os.path.realpath(folder) for folder in folders if os.path.exists(folder)]
    if not any(_closed(path, uid, gid) for path in paths):
        return
    _call("unshare", _CLONE_NEWNS)
    _mount("none", "/", None, _MS_REC | _MS_SLAVE)
    held = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths}  # before they are covered
    here = os.getcwd()
    before = os.umask(0o066)  # folders that can be traversed but not listed
    covered: list[str] = []
    for path, fd in held.items():
        if closed := _closed(path, uid, gid):
            _mount("none", closed, b"tmpfs", _MS_NOSUID | _MS_NODEV, _COVER)
            covered.append(f"{closed}/")
        if any(path.startswith(folder) for folder in covered):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.isdir(f"/proc/self/fd/{fd}"):
                os.makedirs(path, exist_ok=True)
            else:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
            _mount(f"/proc/self/fd/{fd}", path, None, _MS_BIND | _MS_REC)
    os.umask(before)
    if os.path.isdir(here):
        os.chdir(here)


def main(uid: int, gid: int, folders: list[str], command: list[str]) -> None:
    try:
        os.setgroups([])
        open_up(folders, uid, gid)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started as the user {uid} ({error.strerror}).\n".encode())
        sys.exit(_FAILED)


if __name__ == "__main__":
    split = sys.argv.index("--")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:split], sys.argv[split + 1 :])
