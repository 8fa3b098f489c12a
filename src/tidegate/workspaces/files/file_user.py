"""Reading and writing files as another user, in a worker thread.

Within `acting_as`, this thread, and no other, has that user's access rights to files instead of root's; new files
belong to that user. Linux keeps this identity per thread (setfsuid(2)). This module is also sent to other machines,
where it has no effect.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from anyio import to_thread

T = TypeVar("T")

_LIBRARY = ctypes.CDLL(None)
_NOBODY = -1  # never a valid id; makes the kernel return the current one


class User(NamedTuple):
    uid: int
    gid: int


def gateway_user() -> User:
    return User(os.geteuid(), os.getegid())


@contextmanager
def acting_as(user: User | None) -> Iterator[None]:
    """Acts as this user within the `with` block, or as the current user if it is None. Raises PermissionError if this
    process may not act as that user."""
    if user is None:
        yield
        return
    before = User(_LIBRARY.setfsuid(_NOBODY), _LIBRARY.setfsgid(_NOBODY))
    try:
        _become(user)
        yield
    finally:
        _become(before)


async def in_thread(user: User | None, function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function in a worker thread as that user."""
    return await to_thread.run_sync(_called, user, function, arguments)


def _called(user: User | None, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    with acting_as(user):
        return function(*arguments)


def _become(user: User) -> None:
    _LIBRARY.setfsgid(user.gid)
    _LIBRARY.setfsuid(user.uid)
    if User(_LIBRARY.setfsuid(_NOBODY), _LIBRARY.setfsgid(_NOBODY)) != user:
        raise PermissionError(1, f"files cannot be accessed as the user {user.uid}")
