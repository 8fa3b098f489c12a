"""A sandbox's network: a namespace closed to non-public addresses, connected through `pasta`.

A sandbox can reach the same addresses as `web_fetch`, which uses the same table, and the machine's resolver. It cannot
reach ports on the machine's loopback or abstract sockets, and nothing outside can connect to it. The kernel enforces
this with nftables before the first command enters (prohibiting routes would not stop a socket bound to an interface),
and commands lack the capabilities to undo it. If this cannot be enforced, there is no sandbox.

A `SandboxNetwork` is one sandbox's `pasta` process. It is a child of the gateway and is stopped with the sandbox. When
the gateway dies, the kernel kills it, even while it is starting.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.security.addresses import GLOBAL, ISATAP, NAT64, V4, V6, Address, Network
from tidegate.workspaces.processes.children import (
    ChildProcess,
    Spawner,
    find_program,
    kill_and_close,
    kill_when_closed,
    killed_on_error,
)

_Network = TypeVar("_Network", IPv4Network, IPv6Network)

PACKAGES: Mapping[str, str] = MappingProxyType({"pasta": "passt", "nft": "nftables"})
"""The required programs and the packages that provide them."""

START_SECONDS = 10.0
"""Time limit for setting up a network, which normally takes about ten milliseconds."""

OUTPUT_CHARACTERS = 300
"""Number of characters reported of a failed program's output."""

_RESOLVERS = ("192.0.2.3", "2001:db8::3")
"""The addresses that commands use as their resolvers. `pasta` listens there and forwards queries to the machine's own
resolver."""

RESOLV_CONF = "".join(f"nameserver {address}\n" for address in _RESOLVERS)

_OPTIONS = (
    "--foreground", "--quiet", "--log-file", "/dev/null", "--config-net", "--ns-ifname", "uplink",
    # Documentation addresses, so that commands learn none of the machine's own.
    "--mac-addr", "9a:55:9a:55:9a:55",
    "--address", "192.0.2.2", "--netmask", "31", "--gateway", _RESOLVERS[0],
    "--address", "2001:db8::2", "--gateway", _RESOLVERS[1],
    "--dns-forward", _RESOLVERS[0], "--dns-forward", _RESOLVERS[1],
    # Neither side can reach the other's loopback.
    "--no-map-gw", "--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none",
    # The file to which it writes its pid when it is ready.
    "--pid", "/proc/self/fd/1",
)  # fmt: skip

_OFFLINE = ("--interface", "lo")
"""Options for a machine that is currently offline. Without an interface, older versions do not start."""

_ROUTES = (Path("/proc/net/route"), Path("/proc/net/ipv6_route"))

SOCKETS = 4096
"""Maximum number of sockets that one sandbox's commands may have open on the machine, since no limit covers their
buffers' memory."""

_WAIT = f'read -r _ && {{ ulimit -n {SOCKETS} 2>/dev/null; exec "$@" <&4 4<&-; }}'
"""Waits for a line that says that the process has an owner, and exits if none arrives. Then the lifeline becomes its
input, since `pasta` closes all other descriptors. If a lower limit on open files is already set, it stays in force."""


class Programs(NamedTuple):
    nsenter: str
    pasta: str
    nft: str


class Namespaces(NamedTuple):
    """A sandbox's namespaces: its first process, a descriptor for the user namespace that owns the others, and the
    command prefix that runs as the user who created them."""

    first: int
    owner: int
    as_user: Sequence[str] = ()


def missing() -> str:
    """Returns the reason why sandboxes have no network on this machine, and what to install, or an empty string if they
    have one."""
    absent = [program for program in PACKAGES if find_program(program) is None]
    if not absent:
        return ""
    packages = " and ".join(PACKAGES[program] for program in absent)
    are = "is" if len(absent) == 1 else "are"
    return f"{' and '.join(absent)} {are} not installed here: install {packages}, or set workspaces.network to false."


def programs(nsenter: str) -> Programs:
    """Finds the required programs. Raises ToolFailed if one is missing."""
    if why := missing():
        raise ToolFailed(f"Commands cannot be given network access: {why}")
    return Programs(nsenter, *(str(find_program(program)) for program in PACKAGES))


class SandboxNetwork:
    """One sandbox's network. When `lifeline` is closed, the kernel kills the child."""

    def __init__(self, child: ChildProcess, lifeline: socket.socket) -> None:
        self._child = child
        self._lifeline = lifeline

    @property
    def running(self) -> bool:
        return self._child.running

    async def close(self) -> None:
        self._lifeline.close()
        await kill_and_close(self._child)


async def connect(
    spawner: Spawner,
    programs: Programs,
    sandbox: Namespaces,
    environment: Mapping[str, str],
    allowed: Sequence[Network],
) -> SandboxNetwork:
    """Connects a sandbox in which nothing is running yet. Raises ToolFailed with the reason on failure."""
    enter = [*sandbox.as_user, programs.nsenter, "--user=/proc/self/fd/3", "--preserve-credentials"]
    network = f"/proc/{sandbox.first}/ns/net"
    close = [*enter, f"--net={network}", "--", programs.nft, "-f", "-"]
    child = await spawner.spawn(close, environment, passing={sandbox.owner: 3})
    try:
        async with _explain_failure(child, "nft"):
            await child.write(rules(allowed).encode())
            child.close_input()
            if await child.wait() != 0:
                raise EOFError
    finally:
        await kill_and_close(child)
    join = [*enter, "--", programs.pasta, "--netns-only", "--netns", network, *_OPTIONS]
    join += () if await to_thread.run_sync(_online) else _OFFLINE
    lifeline, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as failed, theirs:
        failed.callback(lifeline.close)
        passing = {sandbox.owner: 3, theirs.fileno(): 4}
        child = await spawner.spawn(["/bin/sh", "-c", _WAIT, "sh", *join], environment, passing=passing)
        async with killed_on_error(child), _explain_failure(child, "pasta"):
            kill_when_closed(theirs, child)
            await child.write(b"\n")
            child.close_input()
            if not await child.read():
                raise EOFError
        child.close_output()
        failed.pop_all()
    return SandboxNetwork(child, lifeline)


def _online() -> bool:
    """True if there is a default route. This machine may lack IPv6."""
    v4, v6 = (path.read_text().splitlines() if path.exists() else [] for path in _ROUTES)
    return any(line.split()[1] == "00000000" for line in v4) or any(
        line.startswith(f"{'0' * 32} 00 ") and not line.endswith(" lo") for line in v6
    )


@contextlib.asynccontextmanager
async def _explain_failure(child: ChildProcess, name: str) -> AsyncIterator[None]:
    """Turns a failure of the child process (EOFError) into a ToolFailed with its output."""
    try:
        async with asyncio.timeout(START_SECONDS):
            try:
                yield
            except (EOFError, ToolFailed):
                output = (await child.read_state()).decode(errors="replace").split("\n")
                reason = "; ".join(line.strip() for line in output if line.strip())[:OUTPUT_CHARACTERS]
                raise ToolFailed(
                    f"Commands cannot be given network access: {name} failed ({reason or 'no output'})."
                ) from None
    except TimeoutError:
        raise ToolFailed(
            f"Commands cannot be given network access: {name} took longer than {START_SECONDS:g} s."
        ) from None


def rules(allowed: Sequence[Network] = ()) -> str:
    """Returns the nftables rules for commands' destinations. The rules match `security.addresses.refusal`."""
    translated = (
        IPv6Network((int(NAT64.network_address) | int(network.network_address), 96 + network.prefixlen))
        for network in V4
    )
    tunnels = ", ".join(f"::{upper >> 16:x}:{upper & 0xFFFF:x}:0:0" for upper in sorted(ISATAP))
    lines = [
        'oifname "lo" accept',
        # This is the kernel's own neighbour discovery; commands cannot send such packets.
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } accept",
        *(f"{_to(ip_address(one))} meta l4proto {{ tcp, udp }} th dport 53 accept" for one in _RESOLVERS),
        *(f"{_to(network)} accept" for network in allowed),
        f"ip daddr {_set(V4)} jump closed",
        f"ip6 daddr {_set(translated)} jump closed",
        f"ip6 daddr {NAT64} accept",
        f"ip6 daddr != {GLOBAL} jump closed",
        f"ip6 daddr {_set(network for network in V6 if network.subnet_of(GLOBAL))} jump closed",
        f"ip6 daddr & ::ffff:ffff:0:0 {{ {tunnels} }} jump closed",
    ]
    output = "\n".join(("type filter hook output priority 0; policy accept;", *lines))
    closed = "reject with icmpx admin-prohibited"
    return f"table inet tidegate {{\nchain closed {{\n{closed}\n}}\nchain output {{\n{output}\n}}\n}}\n"


def _to(target: Address | Network) -> str:
    return f"{'ip' if target.version == 4 else 'ip6'} daddr {target}"


def _set(networks: Iterable[_Network]) -> str:
    """Returns an nftables set with these networks, without those contained in others, since the kernel does not accept
    overlaps."""
    return f"{{ {', '.join(map(str, collapse_addresses(networks)))} }}"
