"""The address that the gateway listens on, and a check that it is not exposed by mistake.

The socket is bound before the gateway reports that it is ready. The check uses the address that was actually bound, not
the setting. An address beyond loopback is refused unless TLS or the setting `insecure` is enabled. In either case, a
warning is printed.
"""

import errno
import ipaddress
import socket

from tidegate.config import ServerSettings
from tidegate.errors import Misconfigured

_BACKLOG = 1024  # connections that can wait while the event loop is busy: enough for a burst of clients


def bind(server: ServerSettings, port: int | None) -> socket.socket:
    """Returns a listening socket for these settings. The caller owns it."""
    wanted = server.port if port is None else port
    try:
        found = socket.getaddrinfo(server.host, wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise Misconfigured(
            f"tidegate.toml: [server] host {server.host!r} cannot be resolved ({error.strerror}): correct it."
        ) from None
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        _refuse_exposed(server, bound)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise _unbound(server.host, wanted, error) from None
    except BaseException:
        bound.close()
        raise
    return bound


def _unbound(host: str, port: int, error: OSError) -> Misconfigured:
    if error.errno == errno.EADDRINUSE:
        return Misconfigured(
            f"Port {port} on {host} is in use by another program: choose another with --port or [server] port, "
            "or stop that program."
        )
    return Misconfigured(f"The gateway cannot listen on {host} port {port} ({error.strerror}): change [server].")


def _is_loopback(bound: socket.socket) -> bool:
    return ipaddress.ip_address(str(bound.getsockname()[0]).partition("%")[0]).is_loopback


def _refuse_exposed(server: ServerSettings, bound: socket.socket) -> None:
    if not _is_loopback(bound) and server.tls_cert is None and not server.insecure:
        raise Misconfigured(
            f"tidegate.toml: [server] host {server.host!r} is reachable from other machines: set tls_cert and tls_key, "
            "or insecure = true behind a proxy that provides TLS, or use 127.0.0.1."
        )


def warning(server: ServerSettings, bound: socket.socket) -> str | None:
    """Returns a warning for the operator if other machines can reach this address, else None."""
    if _is_loopback(bound):
        return None
    if server.tls_cert is None:
        return (
            f"EXPOSED: other machines can reach {address_of(server, bound)} and the traffic, including keys, is not "
            "encrypted; put a proxy with TLS in front of it."
        )
    return f"Other machines can reach {address_of(server, bound)}, but only with TLS and a valid key."


def address_of(server: ServerSettings, bound: socket.socket) -> str:
    """Returns the address as a URL."""
    host, port = bound.getsockname()[:2]
    scheme = "http" if server.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
