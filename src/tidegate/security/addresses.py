"""Public and private IP addresses, and which of them agents may reach.

Anybody can reach a public address, so it gives no access to services on this machine or in its network. The functions
are pure and depend only on the numeric address, however it is written. An address that is not known to be public counts
as private; an IPv6 address that contains an IPv4 address is judged by the address that would be reached. The tables are
our own, so that results do not depend on the Python version. The sandboxes' network is filtered with the same tables
(`workspaces/backends/sandbox_network.py`).
"""

import ipaddress
from collections.abc import Iterable, Sequence
from types import MappingProxyType

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

V4 = MappingProxyType(
    {
        ipaddress.IPv4Network(network): kind
        for network, kind in {
            "0.0.0.0/8": "unspecified",
            "10.0.0.0/8": "private",
            "100.64.0.0/10": "shared by a carrier's customers",  # one cloud's metadata is here
            "127.0.0.0/8": "loopback",
            "168.63.129.16/32": "metadata",  # public by number, but internal on every machine in one cloud
            "169.254.0.0/16": "link-local or metadata",
            "172.16.0.0/12": "private",
            "192.0.0.0/24": "reserved",  # one cloud's metadata is here
            "192.0.2.0/24": "for documentation",
            "192.88.99.0/24": "reserved",
            "192.168.0.0/16": "private",
            "198.18.0.0/15": "for benchmarks",
            "198.51.100.0/24": "for documentation",
            "203.0.113.0/24": "for documentation",
            "224.0.0.0/4": "multicast",
            "240.0.0.0/4": "reserved",
        }.items()
    }
)

GLOBAL = ipaddress.IPv6Network("2000::/3")
"""The range from which public IPv6 addresses are assigned. All others are for hosts, links, sites and groups."""

V6 = MappingProxyType(
    {
        ipaddress.IPv6Network(network): kind
        for network, kind in {
            "::/128": "unspecified",
            "::1/128": "loopback",
            "::/96": "an IPv4 address in disguise",
            "64:ff9b:1::/48": "translated by this network",
            "fc00::/7": "private",
            "fe80::/10": "link-local",
            "fec0::/10": "private",
            "ff00::/8": "multicast",
            "2001::/32": "a tunnel (Teredo)",
            "2001::/23": "reserved",
            "2001:db8::/32": "for documentation",
            "2002::/16": "a tunnel (6to4)",
            "3fff::/20": "for documentation",
        }.items()
    }
)
"""The kinds of non-public IPv6 networks. The order matters: the first match determines the kind."""

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""The range through which networks without IPv4 reach IPv4 addresses, with the IPv4 address in the last 32 bits."""

ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""The upper halves of interface identifiers that denote a tunnel to the IPv4 address in the lower half."""


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parses addresses and networks from the configuration. Raises ValueError for anything else."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def refusal(text: str, allowed: Sequence[Network] = ()) -> str:
    """Returns the kind of an address that is neither public nor in `allowed`, or an empty string if it may be reached.
    Text that is not an address in canonical form is refused, because another resolver might interpret it as a different
    address."""
    if "%" in text:
        return "bound to a link"
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "no address"
    reached = _unmapped(address)
    if any(reached.version == network.version and reached in network for network in allowed):
        return ""
    return _kind(reached)


def _unmapped(address: Address) -> Address:
    """Returns the IPv4 address contained in a mapped IPv6 address, since the kernel treats it as IPv4."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _kind(address: Address) -> str:
    if isinstance(address, ipaddress.IPv4Address):
        return next((kind for network, kind in V4.items() if address in network), "")
    if address in NAT64:
        return _kind(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    for network, kind in V6.items():
        if address in network:
            return kind
    if address not in GLOBAL:
        return "reserved"
    return "a tunnel (ISATAP)" if int(address) >> 32 & 0xFFFF_FFFF in ISATAP else ""
