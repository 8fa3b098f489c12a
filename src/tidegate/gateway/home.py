"""The home folder: made, checked, and given its owner's first key.

The folder and what lies in it are the running user's alone. `api-key` is created once, readable by its owner only, and
never overwritten; what it holds is a key of the owner that the store knows, unless it was revoked. It appears after the
owner's row is committed, so that an `api-key` beside a database without an owner means that the database was lost.
"""

import contextlib
import os
import stat
import time
from pathlib import Path

from anyio import to_thread

from tidegate.errors import Misconfigured, StoreDamaged
from tidegate.gateway.lock import was_used
from tidegate.security import CODE_SECONDS, digest, make_code, make_key
from tidegate.store import Store, principals

KEY_NAME = "api-key"
DATABASE_NAME = "tidegate.db"
OWNER = "owner"
_FOLDER_MODE = 0o700
_KEY_MODE = 0o600


def prepare(home: Path) -> None:
    """Make the folder if it is not there, and take away the rights of others if it is."""
    try:
        home.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        found = home.stat()
    except OSError as error:
        raise Misconfigured(
            f"The home folder {home} cannot be used ({error.strerror}): choose another with --home or TIDEGATE_HOME."
        ) from None
    if found.st_uid != os.getuid():
        raise Misconfigured(
            f"The home folder {home} belongs to another user (uid {found.st_uid}): run the gateway as that user, or "
            "choose another folder with --home."
        )
    if stat.S_IMODE(found.st_mode) != _FOLDER_MODE:
        with contextlib.suppress(OSError):  # the next line says so
            home.chmod(_FOLDER_MODE)
    for path in (home, home / DATABASE_NAME):
        if path.exists() and not os.access(path, os.W_OK):
            raise Misconfigured(
                f"{path} cannot be written to: see whether its file system is read-only, or it was made immutable."
            )


def lost_database(home: Path) -> str | None:
    """What to do when the database of a folder that has an owner's key is missing or empty; None when it is not."""
    path, key = home / DATABASE_NAME, home / KEY_NAME
    if not key.exists():
        return None
    try:
        if path.stat().st_size:
            return None
        what = "is empty"
    except FileNotFoundError:
        if not was_used(home):
            return None  # a first start with a key of the user's own choice
        what = "is missing"
    return _begin_anew(f"The database {path} {what}, although a gateway has worked in this folder", path, key)


def _begin_anew(what: str, path: Path, key: Path) -> str:
    rescued, damaged = (sorted(path.parent.glob(f"{path.name}.{how}-*")) for how in ("rescued", "damaged"))
    if rescued:
        source = f"give {rescued[-1]} its name, which holds what was acknowledged"
    else:
        source = "put a backup in its place" + (f" ({damaged[-1]} is what was damaged)" if damaged else "")
    return f"{what}: {source}, or remove {key} to begin anew with nothing."


async def ensure_key(store: Store, home: Path, *, fresh: bool) -> str | None:
    """See to it that the owner exists and that `api-key` holds a key; what a person should know about it. `fresh` says
    that the database was made just now; any other without an owner is refused beside an existing key.

    A new key is first written under another name, then its row, then it is renamed: after a crash between any two of
    these the next start goes on with the same key, so that there is never a key in the file that will not work.
    """
    path = home / KEY_NAME
    key, is_new = await to_thread.run_sync(_read_or_prepare, path)
    known = await store.write(_adopt, digest(key), time.time(), fresh or is_new)
    if known is None:
        what = f"The database {store.path} has no owner, although there is {path}"
        raise StoreDamaged(_begin_anew(what, store.path, path))
    if is_new:
        await to_thread.run_sync(_pending(path).rename, path)
        return None if fresh else f"{path} was missing and has a new key; earlier keys hold until they are revoked."
    return None if known else f"The key in {path} is revoked: remove the file and start again to get a new one."


async def key_digest(home: Path) -> bytes:
    """Of the key that the command line uses."""
    key = await to_thread.run_sync(_read, home / KEY_NAME)
    return digest(key or "")


def _read_or_prepare(path: Path) -> tuple[str, bool]:
    """The key, and whether it still has to get its name."""
    key = _read(path)
    if key is not None:
        return key, False
    pending = _pending(path)
    key = _read(pending) if pending.exists() and pending.stat().st_size else None
    if key is None:
        pending.unlink(missing_ok=True)
        key = make_key()
        _create(pending, key)
    return key, True


def _pending(path: Path) -> Path:
    return path.with_name(path.name + ".new")


async def one_time_code(store: Store) -> tuple[str, float]:
    """A code that signs the owner in to the chat page, once and soon, and when it expires."""
    code = make_code()
    now = time.time()
    await store.write(_add_code, digest(code), now, now + CODE_SECONDS)
    return code, now + CODE_SECONDS


def _add_code(db: principals.Db, hashed: bytes, now: float, expires: float) -> None:
    owner = principals.by_name(db, OWNER)
    assert owner is not None, "the owner is made before the first code"
    principals.add_key(db, owner.id, "code", hashed, "one-time link", now, expires)


def _adopt(db: principals.Db, hashed: bytes, now: float, may_begin: bool) -> bool | None:
    """Add the key to the owner unless it is there; False if it was revoked, None if there is no owner and `may_begin`
    does not allow to make one."""
    owner = principals.by_name(db, OWNER)
    if owner is None and not may_begin:
        return None
    if owner is None:
        owner = principals.add(db, name=OWNER, role="owner", agents=None, now=now)
    if principals.authenticate(db, hashed, "key", now) is not None:
        return True
    if principals.key_exists(db, hashed):
        return False
    principals.add_key(db, owner.id, "key", hashed, "made at first start", now, None)
    return True


def _read(path: Path) -> str | None:
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"The key file {path} cannot be read ({error}): correct it or remove it.") from None
    if not text:
        raise Misconfigured(f"The key file {path} is empty: remove it, and the next start makes a new one.")
    return text


def _create(path: Path, key: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _KEY_MODE)
    try:
        os.write(descriptor, key.encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
