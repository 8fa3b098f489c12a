"""The user that a worker thread reads and writes files as.

Guarantee: within `acting_as`, this thread alone has the rights of that user over files, and none of root's; what it
makes belongs to that user. Linux keeps that user per thread (setfsuid(2)). It is sent to other machines
too, where it changes nothing.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from anyio import to_thread

T = TypeVar("T")

_LIBRARY = ctypes.CDLL(None)
_NOBODY = -1  # is never set: by it, the kernel is asked who it is now


class User(NamedTuple):
    uid: int
    gid: int


def gateway_user() -> User:
    return User(os.geteuid(), os.getegid())


@contextmanager
def acting_as(user: User | None) -> Iterator[None]:
    """None changes nothing. Raises PermissionError where this process cannot become that user."""
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
    """What the function returns, called in a worker thread as that user."""
    return await to_thread.run_sync(_called, user, function, arguments)


def _called(user: User | None, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    with acting_as(user):
        return function(*arguments)


def _become(user: User) -> None:
    _LIBRARY.setfsgid(user.gid)
    _LIBRARY.setfsuid(user.uid)
    if User(_LIBRARY.setfsuid(_NOBODY), _LIBRARY.setfsgid(_NOBODY)) != user:
        raise PermissionError(1, f"files cannot be touched as the user {user.uid}")
