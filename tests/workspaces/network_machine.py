"""An isolated machine for network tests: a network namespace with addresses of all kinds on `lo`, servers on all of
them, and workspaces with a network. Nothing sent there leaves it.

    python -m tests.workspaces.network_machine ROLE COMMAND [PRIVATE …]

It prints the output of the command, run in a sandbox there. ROLE is root, or user for a user without capabilities. The
machine's resolver is on its loopback and returns one address for every name.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.workspaces.harness import open_workspaces
from tidegate.config import WebSettings

ROOT = Path(__file__).resolve().parents[2]
WITHIN = 120
PUBLIC = ("1.2.3.4", "2a01::4")
FORBIDDEN = (
    "127.0.0.1", "10.1.2.3", "100.64.0.1", "168.63.129.16", "169.254.169.254", "172.16.0.1", "192.168.1.1",
    "192.168.7.1", "fd00::1", "fd07::1", "2001:db8::9", "64:ff9b::a01:203",
)  # fmt: skip
RESOLVER = "127.0.0.53"
PORT = 8000
ABSTRACT = "\0tidegate-test"


def printed(role: str, command: str, *private: str) -> str:
    """The output of a command in a sandbox of a gateway there."""
    return run_isolated([sys.executable, "-m", "tests.workspaces.network_machine", role, command, *private])


def run_isolated(command: list[str], text: str = "") -> str:
    """The output of a command with its own network and mount namespaces, in which it has all capabilities."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", "--net", "--mount", *root, "--", *command]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=WITHIN, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prepare() -> None:
    """The set-up that needs capabilities."""
    lines = ["link set lo up", "link add up0 type veth peer name up1", "link set up1 up", "link set up0 up"]
    lines += [f"addr add {address} dev lo{' nodad' * (':' in address)}" for address in (*PUBLIC, *FORBIDDEN[1:])]
    lines += ["addr add 192.168.7.2/24 dev up0", "addr add fd07::2/64 dev up0 nodad"]
    lines += ["route add default via 192.168.7.9 dev up0", "route add default via fd07::9 dev up0"]
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True)
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("53")
    with tempfile.NamedTemporaryFile("w") as names:
        names.write(f"nameserver {RESOLVER}\n")
        names.flush()
        Path(names.name).chmod(0o644)
        subprocess.run(["mount", "--bind", names.name, str(Path("/etc/resolv.conf").resolve())], check=True)


async def serve(stack: contextlib.AsyncExitStack) -> None:
    """Greet every connection and answer every datagram."""
    loop = asyncio.get_running_loop()
    answering = [(_Echo, host, PORT) for host in (*PUBLIC, *FORBIDDEN)]
    for protocol, host, port in (*answering, (_Names, RESOLVER, 53)):
        transport, _ = await loop.create_datagram_endpoint(protocol, (host, port))
        stack.callback(transport.close)

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"reached\n")
        writer.close()

    for server in (
        await asyncio.start_server(greet, "", PORT),
        await asyncio.start_unix_server(greet, sock=_abstract()),
    ):
        await stack.enter_async_context(server)


class _Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        self._transport.sendto(self.answer(data), sender)

    def answer(self, data: bytes) -> bytes:
        return b"reached"


class _Names(_Echo):
    def answer(self, data: bytes) -> bytes:
        """Resolve every name to the first public address."""
        question = data[12 : data.index(b"\0", 12) + 5]
        record = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(PUBLIC[0])
        found = question.endswith(b"\0\1\0\1")
        return data[:2] + b"\x81\x80\0\1\0" + bytes([found]) + b"\0\0\0\0" + question + record * found


def _abstract() -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(ABSTRACT)
    return made


async def run(command: str, private: tuple[str, ...]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await serve(stack)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "home"
        harness = await stack.enter_async_context(open_workspaces(home, web=WebSettings(private=private), network=True))
        done, printed = await harness.run(await harness.new_session(), command)
        print(printed, end="")
        assert done.code == 0, done


if __name__ == "__main__":
    role, command, *private = sys.argv[1:]
    if role != "as it is":
        prepare()
        again = [sys.executable, "-m", "tests.workspaces.network_machine", "as it is", command, *private]
        drop = ["unshare", "--map-user=1500", "--map-group=1500"] if role == "user" else ["env"]
        os.execvp(drop[0], [*drop, *again])
    asyncio.run(run(command, tuple(private)))
