"""The home folder: creating it, checking it, and storing the owner's first key.

The folder and its contents are private to the user who runs the gateway. `api-key` is created once, is readable only by
its owner, and is never overwritten. It contains a key that the store knows as the owner's, unless that key has been
revoked. The file appears only after the owner's row is committed, so an `api-key` next to a database without an owner
means that the database was lost.
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
from tidegate.store import Db, Store, principals

KEY_NAME = "api-key"
DATABASE_NAME = "tidegate.db"
OWNER = "owner"
_FOLDER_MODE = 0o700
_KEY_MODE = 0o600


def prepare(home: Path) -> None:
    """Creates the folder, or removes other users' permissions from an existing one."""
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
        with contextlib.suppress(OSError):  # the check below reports it
            home.chmod(_FOLDER_MODE)
    for path in (home, home / DATABASE_NAME):
        if path.exists() and not os.access(path, os.W_OK):
            raise Misconfigured(f"{path} is not writable: check whether it is immutable or on a read-only file system.")


def lost_database(home: Path) -> str | None:
    """Returns instructions for the user if the folder contains an owner's key but its database is missing or empty;
    otherwise None."""
    path, key = home / DATABASE_NAME, home / KEY_NAME
    if not key.exists():
        return None
    try:
        if path.stat().st_size:
            return None
        what = "is empty"
    except FileNotFoundError:
        if not was_used(home):
            return None  # a first start with a key that the user chose
        what = "is missing"
    return _recovery_options(f"The database {path} {what}, although a gateway has used this folder", path, key)


def _recovery_options(what: str, path: Path, key: Path) -> str:
    rescued, damaged = (sorted(path.parent.glob(f"{path.name}.{how}-*")) for how in ("rescued", "damaged"))
    if rescued:
        source = f"rename {rescued[-1]}, which contains everything acknowledged, to {path.name}"
    else:
        source = "restore a backup" + (f" ({damaged[-1]} is the damaged file)" if damaged else "")
    return f"{what}: {source}, or remove {key} to start over with an empty database."


async def ensure_key(store: Store, home: Path, *, fresh: bool) -> str | None:
    """Ensures that the owner exists and that `api-key` contains a key. Returns a warning for the user, if there is one.
    `fresh` is true if the database has just been created. If an older database has no owner although a key file exists,
    `StoreDamaged` is raised.

    A new key is first written to a file with another name, then its row is committed, then the file is renamed. After a
    crash in between, the next start continues with the same key, so `api-key` never contains a key that does not work.
    """
    path = home / KEY_NAME
    key, is_new = await to_thread.run_sync(_read_or_prepare, path)
    known = await store.write(_adopt, digest(key), time.time(), fresh or is_new)
    if known is None:
        what = f"The database {store.path} has no owner, although {path} exists"
        raise StoreDamaged(_recovery_options(what, store.path, path))
    if is_new:
        await to_thread.run_sync(_pending(path).rename, path)
        return (
            None
            if fresh
            else f"{path} was missing and now contains a new key; earlier keys stay valid until they are revoked."
        )
    return None if known else f"The key in {path} has been revoked: remove the file and start again to get a new one."


async def key_digest(home: Path) -> bytes:
    """Returns the digest of the CLI's key."""
    key = await to_thread.run_sync(_read, home / KEY_NAME)
    return digest(key or "")


def _read_or_prepare(path: Path) -> tuple[str, bool]:
    """Returns the key, and True if its file must still be renamed."""
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
    """Creates a short-lived one-time code that signs the owner in to the chat page. Returns the code and its expiry
    time."""
    code = make_code()
    now = time.time()
    await store.write(_add_code, digest(code), now, now + CODE_SECONDS)
    return code, now + CODE_SECONDS


def _add_code(db: Db, hashed: bytes, now: float, expires: float) -> None:
    owner = principals.by_name(db, OWNER)
    assert owner is not None, "the owner is created before the first code"
    principals.add_key(db, owner.id, "code", hashed, "one-time link", now, expires)


def _adopt(db: Db, hashed: bytes, now: float, may_create: bool) -> bool | None:
    """Adds the key to the owner's keys if it is unknown. Returns False if the key has been revoked, and None if there
    is no owner and `may_create` is false."""
    owner = principals.by_name(db, OWNER)
    if owner is None and not may_create:
        return None
    if owner is None:
        owner = principals.add(db, name=OWNER, role="owner", agents=None, now=now)
    if principals.authenticate(db, hashed, "key", now) is not None:
        return True
    if principals.key_exists(db, hashed):
        return False
    principals.add_key(db, owner.id, "key", hashed, "created at the first start", now, None)
    return True


def _read(path: Path) -> str | None:
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"The key file {path} cannot be read ({error}): correct it or remove it.") from None
    if not text:
        raise Misconfigured(f"The key file {path} is empty: remove it; the gateway creates a new one when it starts.")
    return text


def _create(path: Path, key: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _KEY_MODE)
    try:
        os.write(descriptor, key.encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
