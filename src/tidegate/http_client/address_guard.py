"""The rule for addresses that agents may reach: public addresses, and those that the operator lists.

A guard makes the sockets of a client. The address of a socket is checked right before the connection, so the check
cannot be bypassed by the spelling of a host, a changing DNS answer or a redirect. If a proxy makes the connection, only
the proxy knows the address in the end. `check` then refuses what is known here: forbidden literal addresses, unusually
written ones, and names that this machine resolves to a forbidden address.
"""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from tidegate.security.addresses import Network as AddressRange
from tidegate.security.addresses import refusal

NOT_PUBLIC = "its address is not public"
Resolve = Callable[[str, int], Awaitable[Iterable[str]]]


class ForbiddenAddress(OSError):
    """The address must not be reached."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, NOT_PUBLIC)


class AddressGuard:
    """`allowed` are networks that may be reached although they are not public."""

    def __init__(self, allowed: Sequence[AddressRange] = ()) -> None:
        self._allowed = tuple(allowed)

    def __call__(self, info: tuple[Any, ...]) -> socket.socket:
        """Returns a socket for an address, as aiohttp's `socket_factory`. Raises ForbiddenAddress."""
        family, kind, protocol, _name, address = info
        self.refuse(str(address[0]))
        return socket.socket(family, kind, protocol)

    async def check(self, host: str, port: int, resolve: Resolve | None = None) -> None:
        """Raises ForbiddenAddress for a host that must not be reached through a proxy. A name that cannot be resolved
        here is left to the proxy."""
        host = host.rstrip(".")
        if ":" in host or _is_number(host):
            self.refuse(host)
            return
        try:
            found = tuple(await (resolve or resolved)(host, port))
        except OSError:
            return
        for address in found:
            self.refuse(address)

    def refuse(self, address: str) -> None:
        """Raises ForbiddenAddress for an IP address that must not be reached."""
        if refusal(address, self._allowed):
            raise ForbiddenAddress


def _is_number(host: str) -> bool:
    """True if this is an IPv4 address in any notation that a system's resolver accepts, such as `127.1` or
    `0x7f000001`."""
    try:
        socket.inet_aton(host)
    except OSError:
        return False
    return True


async def resolved(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
