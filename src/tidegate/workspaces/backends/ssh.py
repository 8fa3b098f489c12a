"""The backend `ssh`: commands on another machine, run through the system's own `ssh`.

A session has one connection for all its commands and authenticates only once. Each command is the child of a guardian
on the other machine, from which none of the command's processes can escape. Everything is stopped when the connection
is closed or lost, on either side: a keeper on the other machine watches the connection, and the guardians watch the
keeper. No agent, display or port is forwarded, there are no prompts, and nothing from the gateway's environment reaches
`ssh` or the other machine. A command can reach whatever its account on that machine can: the account is the boundary.

Nothing is installed there; the programs are sent each time. The session's folders are in `.tidegate/remote` in the
account's home folder, with a trash next to them.
"""

import asyncio
import contextlib
import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path

from anyio import to_thread

from tidegate.errors import ToolFailed
from tidegate.workspaces.backends import guardian, remote_keeper
from tidegate.workspaces.backends.interface import (
    BUFFERS,
    OWNER,
    UNMAPPED,
    Enforcement,
    OpenSandbox,
    SandboxSpec,
    enforced,
)
from tidegate.workspaces.backends.remote_program import BOOTSTRAP, program
from tidegate.workspaces.backends.ssh_connection import (
    OPEN_SECONDS,
    OUTPUT_BYTES,
    ControlSocket,
    RemoteSession,
    SshConnection,
)
from tidegate.workspaces.files import Files
from tidegate.workspaces.files.remote_files import RemoteFiles
from tidegate.workspaces.processes.children import ChildProcess, Spawner, find_program, kill_and_close, killed_on_error

_FIXED = (
    "BatchMode=yes", "ClearAllForwardings=yes", "ControlPersist=no", "EscapeChar=none", "ForkAfterAuthentication=no",
    "ForwardAgent=no", "ForwardX11=no", "LogLevel=ERROR", "PermitLocalCommand=no", "RemoteCommand=none",
    "RequestTTY=no", "SessionType=default", "StdinNull=no", "Tunnel=no",
)  # fmt: skip
"""These options come before all others. In ssh, the first value counts, so no configuration can override them."""

_USUAL = ("ConnectTimeout=10", "ServerAliveInterval=15", "ServerAliveCountMax=3")


class SshBackend:
    """`host` is a name that `ssh` resolves with its own configuration; `options` are ssh options."""

    name = "ssh"
    sandboxed = False

    def __init__(self, spawner: Spawner, host: str, options: Sequence[str]) -> None:
        self._spawner = spawner
        self.host = host
        self._options = tuple(options)

    @property
    def enforced(self) -> Mapping[str, Enforcement]:
        return enforced((), {"disk_bytes": "none", "files": "none"})

    @property
    def uncounted(self) -> tuple[str, ...]:
        return BUFFERS, UNMAPPED

    def inner(self, folder: Path) -> str:
        """Returns an empty path: commands see no fixed path, but start in the folder, wherever it is."""
        return "."

    def files(self, spec: SandboxSpec, open_sandbox: OpenSandbox) -> Files:
        return RemoteFiles(open_sandbox, spec.read_only, spec.temporary)

    async def check(self) -> str | None:
        """Checks only whether the backend can work in principle. If the machine is temporarily unreachable, this is
        reported when it is used."""
        if not self.host or self.host.startswith("-"):
            return "set workspaces.ssh_host to the machine that should run commands."
        if find_program("ssh") is None:
            return "ssh is not installed here: install openssh-client, or choose another workspaces.backend."
        return None

    async def open(self, spec: SandboxSpec) -> SshConnection:
        control_socket = ControlSocket(spec.private)
        child: ChildProcess | None = None
        try:
            keeping, guarding = await to_thread.run_sync(_programs, control_socket)
            project = str(spec.folder) if spec.project else ""
            message = keeping + guardian.pack_fields([spec.session, project])
            child = await self._call(("ControlMaster=yes", f"ControlPath={control_socket.path}"), message)
            remote = RemoteSession(*(await self._answer(child)).decode("utf-8", "surrogateescape").split("\0"))
        except BaseException:
            if child is not None:
                await kill_and_close(child)
            control_socket.close()
            raise
        # Further calls never open a connection themselves, since that would have to be authenticated again.
        options = _options(("ControlMaster=no", f"ControlPath={control_socket.path}", "ProxyCommand=false", *_FIXED))
        over = [_ssh(), "-F", "none", *options, "--", "workspace", BOOTSTRAP]
        connection = SshConnection(self._spawner, spec, child, remote, over, guarding, control_socket)
        connection.beat()
        return connection

    async def discard_folders(self, session: str, *, keep: bool, age: float) -> None:
        """Removes an ended session's folders: with `keep`, moves them to the trash on the other machine; otherwise,
        deletes them. Then deletes everything that has been in that trash for `age` seconds."""
        away = await to_thread.run_sync(program, (guardian.__name__, remote_keeper.__name__), "discard_folders")
        message = guardian.pack_fields([session, "kept" if keep else "", str(age)])
        child = await self._call(("ControlMaster=no", "ControlPath=none"), away + message)
        try:
            await self._answer(child)
        finally:
            await kill_and_close(child)

    async def _call(self, options: Sequence[str], message: bytes) -> ChildProcess:
        """Opens a connection to the machine and sends the first message."""
        options = _options((*options, *_FIXED, *self._options, *_USUAL))
        home = pwd.getpwuid(os.geteuid()).pw_dir
        try:
            child = await self._spawner.spawn(
                [_ssh(), *options, "--", self.host, BOOTSTRAP],
                {"HOME": home, "PATH": "/usr/local/bin:/usr/bin:/bin", OWNER: self._spawner.owner},
            )
        except OSError as error:
            raise ToolFailed(f"ssh cannot be started ({error.strerror}).") from None
        async with killed_on_error(child):
            with contextlib.suppress(ToolFailed):  # if this fails, the output says why
                await child.write(message)
        return child

    async def _answer(self, child: ChildProcess) -> bytes:
        """Reads the first line of the other machine's reply. Raises ToolFailed with the reason if there is none."""
        output = b""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                while b"\n" not in output and len(output) < OUTPUT_BYTES and (data := await child.read()):
                    output += data
                if output.startswith(guardian.UP):
                    return output.partition(b"\n")[0].removeprefix(guardian.UP)
                if not output.startswith(remote_keeper.REFUSED):
                    output = await child.read_state()
        except TimeoutError:
            raise ToolFailed(f"{self.host} did not answer within {OPEN_SECONDS:g} s; try again later.") from None
        reason = " ".join(output.removeprefix(remote_keeper.REFUSED).decode(errors="replace").split())
        raise ToolFailed(
            f"The workspace on {self.host} cannot be used: {reason[:OUTPUT_BYTES] or 'no reason was given'}."
        )


def _programs(control_socket: ControlSocket) -> tuple[bytes, bytes]:
    """Opens the control socket and loads the programs for the keeper and the guardian. Blocks, so call it in a
    thread."""
    control_socket.open()
    keeping = program((guardian.__name__, remote_keeper.__name__), "keep")
    return keeping, program((guardian.__name__,), "guard_remote")


def _ssh() -> str:
    return find_program("ssh") or "/usr/bin/ssh"


def _options(options: Sequence[str]) -> list[str]:
    return [word for option in options for word in ("-o", option)]
