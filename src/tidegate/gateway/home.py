"""The home folder: made, checked, and given its owner's first key.

Guarantee: the folder and what lies in it are the running user's alone; `api-key` is created once, readable by its owner
only, and never overwritten; what it holds is a key of the owner that the store knows, unless it was revoked.
"""

import os
import stat
import time
from pathlib import Path

from anyio import to_thread

from tidegate.errors import Misconfigured
from tidegate.security import digest, make_code, make_key
from tidegate.store import Store, principals

KEY_NAME = "api-key"
OWNER = "owner"
CODE_SECONDS = 900.0  # to open the link that was printed; another is one command away
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
        home.chmod(_FOLDER_MODE)


async def ensure_key(store: Store, home: Path) -> str | None:
    """See to it that the owner exists and that `api-key` holds a key; a warning if it holds a revoked one.

    The file comes first and its row second: after a crash between the two the next start finds the file and adds the
    row, so that there is never a key in the file that will not work.
    """
    path = home / KEY_NAME
    key = await to_thread.run_sync(_read_or_create, path)
    known = await store.write(_adopt, digest(key), time.time())
    if known:
        return None
    return f"The key in {path} is revoked: remove the file and start again to get a new one."


def _read_or_create(path: Path) -> str:
    key = _read(path)
    if key is None:
        key = make_key()
        _create(path, key)
    return key


async def one_time_code(store: Store) -> str:
    """A code that signs the owner in to the chat page, once and soon."""
    code = make_code()
    now = time.time()
    await store.write(_add_code, digest(code), now, now + CODE_SECONDS)
    return code


def _add_code(db: principals.Db, hashed: bytes, now: float, expires: float) -> None:
    owner = principals.by_name(db, OWNER)
    assert owner is not None, "the owner is made before the first code"
    principals.add_key(db, owner.id, "code", hashed, "one-time link", now, expires)


def _adopt(db: principals.Db, hashed: bytes, now: float) -> bool:
    """Add the key to the owner unless it is there; False if it was revoked."""
    owner = principals.by_name(db, OWNER)
    if owner is None:
        owner = principals.add(db, name=OWNER, role="owner", agents=None, now=now)
    if principals.authenticate(db, hashed, "key", now) is not None:
        return True
    if principals.knows(db, hashed):
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
