"""Which addresses an agent may fetch from."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.security.addresses import networks, refusal

PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1"]
PUBLIC_V6 = ["2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450:4001::1", "64:ff9b::8.8.8.8"]
PRIVATE = {
    "0.0.0.0": "unspecified",
    "0.1.2.3": "unspecified",
    "10.0.0.1": "private",
    "100.64.0.1": "shared",
    "100.100.100.200": "shared",
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "168.63.129.16": "metadata",
    "169.254.169.254": "metadata",
    "169.254.170.2": "metadata",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.0.0.192": "reserved",
    "192.0.2.1": "documentation",
    "192.168.1.1": "private",
    "198.18.0.1": "benchmarks",
    "224.0.0.1": "multicast",
    "239.255.255.250": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
}
PRIVATE_V6 = {
    "::": "unspecified",
    "::1": "loopback",
    "::127.0.0.1": "disguise",
    "::8.8.8.8": "disguise",
    "64:ff9b:1::808:808": "translated",
    "100::1": "reserved",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": "Teredo",
    "2001:10::1": "reserved",
    "2001:db8::1": "documentation",
    "2002:7f00:1::1": "6to4",
    "2002:808:808::1": "6to4",
    "2600::5efe:7f00:1": "ISATAP",
    "2600::200:5efe:a00:1": "ISATAP",
    "3fff::1": "documentation",
    "5f00::1": "reserved",
    "fc00::1": "private",
    "fd00:ec2::254": "private",
    "fe80::1": "link-local",
    "fec0::1": "private",
    "ff02::1": "multicast",
    "4000::1": "reserved",
}

every_v4 = st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address)
every_v6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)


@pytest.mark.parametrize("address", PUBLIC + PUBLIC_V6)
def test_a_public_address_may_be_reached(address: str) -> None:
    assert refusal(address) == ""


@pytest.mark.parametrize(("address", "kind"), (PRIVATE | PRIVATE_V6).items())
def test_an_address_that_is_not_public_is_refused_by_its_kind(address: str, kind: str) -> None:
    """X09: private, link-local and metadata addresses, in every range that has them."""
    assert kind in refusal(address)


@pytest.mark.parametrize("text", ["", "localhost", "0177.0.0.1", "0x7f.1", "2130706433", "127.1", "8.8.8.8 ", "1.2.3"])
def test_what_is_no_address_in_its_usual_form_is_refused(text: str) -> None:
    """X09: text that another resolver would read as an address."""
    assert refusal(text) == "no address"


def test_an_address_that_is_bound_to_a_link_is_refused() -> None:
    """X09: it would be resolved once more."""
    assert refusal("fe80::1%eth0")
    assert refusal("2606:4700:4700::1111%lo")


@given(every_v4)
def test_an_ipv4_address_in_an_ipv6_one_is_judged_as_what_is_reached(address: ipaddress.IPv4Address) -> None:
    """X09: mapped and translated forms are no way around."""
    plain = refusal(str(address))
    assert refusal(f"::ffff:{address}") == plain
    assert refusal(ipaddress.IPv6Address(0xFFFF << 32 | int(address)).exploded) == plain
    assert refusal(f"64:ff9b::{address}") == plain
    assert refusal(f"::{address}")
    assert refusal(str(ipaddress.IPv6Address(0x2002 << 112 | int(address) << 80 | 1)))
    assert refusal(str(ipaddress.IPv6Address(0x2001_0000 << 96 | ~int(address) & 0xFFFF_FFFF)))


@given(every_v4)
def test_nothing_is_public_that_the_library_knows_not_to_be_for_ipv4(address: ipaddress.IPv4Address) -> None:
    if not address.is_global or address.is_multicast:
        assert refusal(str(address))


@given(every_v6)
def test_nothing_is_public_that_the_library_knows_not_to_be_for_ipv6(address: ipaddress.IPv6Address) -> None:
    if (not address.is_global or address.is_multicast) and address.ipv4_mapped is None:
        assert refusal(str(address))


@given(every_v6)
def test_how_an_address_is_written_makes_no_difference(address: ipaddress.IPv6Address) -> None:
    assert refusal(address.exploded) == refusal(address.compressed) == refusal(address.exploded.upper())


def test_what_the_operator_allows_may_be_reached_and_nothing_beside_it() -> None:
    allowed = networks(["10.1.0.0/16", "127.0.0.1", "fd00:1::/32"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "127.0.0.1", "fd00:1::5", "8.8.8.8"):
        assert refusal(address, allowed) == ""
    for address in ("10.2.0.1", "127.0.0.2", "fd00:2::5", "64:ff9b::10.1.2.3", "169.254.169.254"):
        assert refusal(address, allowed)


def test_a_network_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError):
        networks(["10.0.0.1/8"])
