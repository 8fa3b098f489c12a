"""What commands reach with `workspaces.network`, tested where nothing leaves the machine."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspaces import network_machine
from tests.workspaces.harness import WorkspaceHarness, open_workspaces, until
from tidegate.errors import ToolFailed
from tidegate.security import addresses
from tidegate.workspaces.backends import sandbox_network

pytestmark = pytest.mark.anyio

MAPPED = ("127.0.0.1", "10.1.2.3", "169.254.169.254")
"""Forbidden addresses that are also tried as IPv6 addresses."""

ROLES = pytest.mark.parametrize("role", ["root", "user"])

PROBE = f"""
import json, socket, sys
def tried(family, kind, target, device):
    with socket.socket(family, kind) as made:
        made.settimeout(1)
        try:
            if device:  # so that no route is asked for
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            made.connect(target)
            if kind == socket.SOCK_DGRAM:
                made.send(b"hello")
            return made.recv(7).decode()
        except OSError as error:
            return str(error)
found = {{}}
for host in sys.argv[1:]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found[host] = [
        tried(family, kind, (host, {network_machine.PORT}), device)
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) for device in (b"", b"uplink")
    ]
found["abstract"] = [tried(socket.AF_UNIX, socket.SOCK_STREAM, {network_machine.ABSTRACT!r}, b"")]
print(json.dumps(found))
"""


def reached(role: str, hosts: tuple[str, ...], *private: str) -> dict[str, set[bool]]:
    """For each host, whether it answers, over every protocol."""
    command = f"python3 - {' '.join(hosts)} <<'END'\n{PROBE}\nEND"
    found = json.loads(network_machine.printed(role, command, *private))
    return {host: {answer == "reached" for answer in answers} for host, answers in found.items()}


@ROLES
def test_commands_reach_public_addresses_and_nothing_else(role: str) -> None:
    """X09, X12: not the machine's loopback, no private network, no cloud metadata, no neighbour, no abstract socket;
    not even through a socket bound to the interface or an IPv4 address in an IPv6 one, whatever the routes are."""
    names = ("some.example", "255.255.255.255", "224.0.0.251", *(f"::ffff:{one}" for one in MAPPED))
    found = reached(role, (*network_machine.PUBLIC, *network_machine.FORBIDDEN, *names))
    assert {host for host, ways in found.items() if ways == {True}} == {*network_machine.PUBLIC, "some.example"}
    assert {host for host, ways in found.items() if ways == {False}} == {
        *network_machine.FORBIDDEN,
        *names[1:],
        "abstract",
    }


@ROLES
def test_addresses_allowed_for_web_fetch_are_reached(role: str) -> None:
    """X09: by the same setting."""
    found = reached(role, ("10.1.2.3", "192.168.1.1", "fd00::1", "fd07::1"), "10.1.0.0/16", "fd00::1")
    assert [host for host, ways in found.items() if True in ways] == ["10.1.2.3", "fd00::1"]


@ROLES
def test_no_command_can_change_the_network_rules(role: str) -> None:
    """X12: that takes a capability that nothing in the sandbox has or can get."""
    attempts = ("nft flush ruleset", "nft delete table inet tidegate", "ip route add 10.0.0.0/8 dev uplink",
                "ip addr add 10.1.2.4/8 dev uplink", "unshare -Urn true", "unshare -n true")  # fmt: skip
    command = "export PATH=$PATH:/usr/sbin:/sbin\n" + "\n".join(f"{one} 2>/dev/null && echo {one}" for one in attempts)
    assert network_machine.printed(role, f"{command}; true") == ""


RULED = """
import json, os, socket, subprocess, sys
allowed, hosts, rules = json.load(sys.stdin)
for line in ("link set lo up", "link add up0 type veth peer name up1", "link set up1 up", "link set up0 up",
             "addr add 192.0.2.2/31 dev up0", "addr add 2001:db8::2/64 dev up0 nodad",
             "route add default dev up0", "route add ::/0 dev up0"):
    subprocess.run(["ip", *line.split()], check=True)
subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
def is_open(host):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"up0")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            made.sendto(b"x", (host, 9))
        except OSError:
            return False
        return True
print(json.dumps([is_open(host) for host in hosts]))
"""


def test_the_kernel_blocks_every_address_that_web_fetch_refuses() -> None:
    """X09: at the borders of every network, on both sides, and for addresses that embed another one."""
    allowed = ("10.20.0.0/16", "fd20::/16")
    hosts = [
        str(border + step)
        for net in (*addresses.V4, *addresses.V6, addresses.GLOBAL, addresses.NAT64, *addresses.networks(allowed))
        for border, steps in ((net.network_address, (-1, 0)), (net.broadcast_address, (0, 1)))
        for step in steps
        if 0 < int(border) + step < 2**net.max_prefixlen  # zero means the sandbox itself
    ]
    hosts += ["64:ff9b::808:808", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2a00::5efe:808:808", "2a00::200:5efe:1:1"]
    hosts += ["1.1.1.1", "2606:4700::1111", "2a00::201:5efe:1:1"]
    order = [allowed, hosts, sandbox_network.rules(addresses.networks(allowed))]
    opened = json.loads(network_machine.run_isolated([sys.executable, "-c", RULED], json.dumps(order)))
    judged = [not addresses.refusal(host, addresses.networks(allowed)) for host in hosts]
    assert [host for host, one, other in zip(hosts, opened, judged, strict=True) if one != other] == []


async def test_nobody_reaches_into_a_sandbox(home: Path) -> None:
    """X12: a command's listening sockets are its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with open_workspaces(home, network=True) as harness:
        session = await harness.new_session()
        await harness.of(session).start("server", f"python3 -m http.server {port}")
        await harness.output_of(session, f"until : </dev/tcp/127.0.0.1/{port}; do sleep 0.01; done 2>/dev/null")
        for host in ("127.0.0.1", "::1"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, port)).close()


def uplinks(harness: WorkspaceHarness, session: str) -> list[int]:
    """The pids of the network helper of a session's sandbox."""
    live_sandbox = harness.live_sandbox(session)
    running = harness.workspaces.spawner.running
    return [
        pid
        for pid in running
        if live_sandbox is not None and live_sandbox.sandbox is not None and "passt" in _name(pid)
    ]


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().replace("pasta", "passt")
    return ""


async def test_the_network_helper_ends_with_its_sandbox_and_is_accounted(home: Path) -> None:
    """L09, L14"""
    async with open_workspaces(home, network=True) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "true")
        [pid] = uplinks(harness, session)
        assert harness.ledger.totals()["workspace"].children == 2
        await harness.end(session)
        assert _name(pid) == "" and not harness.workspaces.spawner.running


GATEWAY = """
import asyncio, sys
from pathlib import Path
from tests.workspaces.harness import open_workspaces
async def live():
    async with open_workspaces(Path(sys.argv[1]), network=True) as harness:
        await harness.output_of(await harness.new_session(), "true")
        print(*harness.workspaces.spawner.running, flush=True)
        await asyncio.Event().wait()
asyncio.run(live())
"""


def killed(home: Path) -> list[int]:
    """The children of a gateway with a sandbox at the moment it was killed."""
    command = [sys.executable, "-c", GATEWAY, str(home)]
    with subprocess.Popen(command, cwd=network_machine.ROOT, stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        children = [int(pid) for pid in gateway.stdout.readline().split()]
        assert len(list(filter(None, map(_name, children)))) == 2
        gateway.kill()
    return children


async def test_the_network_helper_ends_with_a_killed_gateway(home: Path) -> None:
    """L14: although the network helper itself holds the namespace open."""
    children = killed(home)
    await until(lambda: not any(map(_name, children)))
    assert not list(filter(None, map(_name, children)))


async def test_a_sandbox_whose_network_helper_was_killed_is_opened_again(home: Path) -> None:
    async with open_workspaces(home, network=True) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "true")
        [pid] = uplinks(harness, session)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: pid not in harness.workspaces.spawner.running)
        assert "uplink" in await harness.output_of(session, "cat /proc/net/dev")
        assert uplinks(harness, session) != [pid]


async def test_without_the_programs_for_it_a_network_is_refused_with_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_network, "find_program", lambda _: None)
    async with open_workspaces(home, network=True) as harness:
        with pytest.raises(ToolFailed, match="pasta and nft are not installed here: install passt and nftables"):
            await harness.run(await harness.new_session(), "true")
        assert not harness.workspaces.spawner.running


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rules", lambda _: "nonsense", r"nft failed \(.*nonsense"),
        ("_OPTIONS", ("--nonsense",), r"pasta failed \(.*nonsense"),
    ],
)
async def test_without_network_rules_or_helper_there_is_no_sandbox(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, said: str
) -> None:
    monkeypatch.setattr(sandbox_network, name, value)
    async with open_workspaces(home, network=True) as harness:
        with pytest.raises(ToolFailed, match=f"Commands cannot be given network access: {said}"):
            await harness.run(await harness.new_session(), "true")
        assert not harness.workspaces.spawner.running
