"""The backend `ssh`: commands on another machine, over the system's own `ssh`.

Guarantee: a session has one connection, authenticated once, over which all of its commands go; each command is the
child of a guardian over there, from which nothing that comes of it can get away. All of it ends with the connection,
whoever closes or loses that: a keeper on the other side watches it, and the guardians watch the keeper. No agent,
screen or port is forwarded, nothing is asked for, and of the gateway's environment nothing gets to `ssh` or beyond it.
A command can reach whatever its account on that machine can: the account is the wall.

Nothing is installed there; what is needed is sent each time. The session's folders are in `.tidegate/remote` of the
account's home, and go to a trash beside them.
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
    SAID_BYTES,
    ControlSocket,
    RemoteSession,
    SshConnection,
)
from tidegate.workspaces.files import Files
from tidegate.workspaces.files.remote import RemoteFiles
from tidegate.workspaces.processes.children import ChildProcess, Spawner, find_program, kill_and_close, killed_on_error

_FIXED = (
    "BatchMode=yes", "ClearAllForwardings=yes", "ControlPersist=no", "EscapeChar=none", "ForkAfterAuthentication=no",
    "ForwardAgent=no", "ForwardX11=no", "LogLevel=ERROR", "PermitLocalCommand=no", "RemoteCommand=none",
    "RequestTTY=no", "SessionType=default", "StdinNull=no", "Tunnel=no",
)  # fmt: skip
"""Before all others, since the first value counts: what no configuration changes."""

_USUAL = ("ConnectTimeout=10", "ServerAliveInterval=15", "ServerAliveCountMax=3")


class SshBackend:
    """`host` is what `ssh` calls it, by whatever its own configuration says; `options` are its options."""

    name = "ssh"
    sandboxed = False

    def __init__(self, spawner: Spawner, host: str, options: Sequence[str]) -> None:
        self._spawner = spawner
        self._host = self.where = host
        self._options = tuple(options)

    @property
    def enforced(self) -> Mapping[str, Enforcement]:
        return enforced((), {"disk_bytes": "none", "files": "none"})

    @property
    def uncounted(self) -> tuple[str, ...]:
        return BUFFERS, UNMAPPED

    def inner(self, folder: Path) -> str:
        """Commands start there, wherever that is."""
        return "."

    def files(self, spec: SandboxSpec, open_sandbox: OpenSandbox) -> Files:
        return RemoteFiles(open_sandbox, spec.read_only, spec.temporary, project=spec.project)

    async def check(self) -> str | None:
        """Whether it could work: the machine itself may be away for a while, and tells so when it is needed."""
        if not self._host or self._host.startswith("-"):
            return "set workspaces.ssh_host to the machine that commands are to run on."
        if find_program("ssh") is None:
            return "ssh is not installed here: install openssh-client, or choose another workspaces.backend."
        return None

    async def open(self, spec: SandboxSpec) -> SshConnection:
        control_socket = ControlSocket(spec.private)
        child: ChildProcess | None = None
        try:
            keeping, guarding = await to_thread.run_sync(_programs, control_socket)
            project = str(spec.folder) if spec.project else ""
            told = keeping + guardian.pack_fields([spec.session, project])
            child = await self._call(("ControlMaster=yes", f"ControlPath={control_socket.path}"), told)
            remote = RemoteSession(*(await self._answer(child)).decode("utf-8", "surrogateescape").split("\0"))
        except BaseException:
            if child is not None:
                await kill_and_close(child)
            control_socket.close()
            raise
        # A further call never makes a way of its own: that would be authenticated anew.
        options = _options(("ControlMaster=no", f"ControlPath={control_socket.path}", "ProxyCommand=false", *_FIXED))
        over = [_ssh(), "-F", "none", *options, "--", "workspace", BOOTSTRAP]
        connection = SshConnection(self._spawner, spec, child, remote, over, guarding, control_socket)
        connection.beat()
        return connection

    async def discard_folders(self, session: str, *, keep: bool, age: float) -> None:
        """The folders of an ended session go to the trash over there, or are removed if they are not to be kept; what
        has been in that trash for `age` seconds is removed."""
        away = await to_thread.run_sync(program, (guardian.__name__, remote_keeper.__name__), "discard_folders")
        told = guardian.pack_fields([session, "kept" if keep else "", str(age)])
        child = await self._call(("ControlMaster=no", "ControlPath=none"), away + told)
        try:
            await self._answer(child)
        finally:
            await kill_and_close(child)

    async def _call(self, options: Sequence[str], told: bytes) -> ChildProcess:
        """A connection to the machine, on which the first thing is told."""
        options = _options((*options, *_FIXED, *self._options, *_USUAL))
        home = pwd.getpwuid(os.geteuid()).pw_dir
        try:
            child = await self._spawner.spawn(
                [_ssh(), *options, "--", self._host, BOOTSTRAP],
                {"HOME": home, "PATH": "/usr/local/bin:/usr/bin:/bin", OWNER: self._spawner.owner},
            )
        except OSError as error:
            raise ToolFailed(f"ssh cannot be started ({error.strerror}).") from None
        async with killed_on_error(child):
            with contextlib.suppress(ToolFailed):  # then it says why
                await child.write(told)
        return child

    async def _answer(self, child: ChildProcess) -> bytes:
        """The first line of what is at the other end. Raises ToolFailed with the reason when there is nothing."""
        said = b""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                while b"\n" not in said and len(said) < SAID_BYTES and (data := await child.read()):
                    said += data
                if said.startswith(guardian.UP):
                    return said.partition(b"\n")[0].removeprefix(guardian.UP)
                if not said.startswith(remote_keeper.REFUSED):
                    said = await child.read_state()
        except TimeoutError:
            raise ToolFailed(f"{self._host} did not answer within {OPEN_SECONDS:g} s; try again later.") from None
        reason = " ".join(said.removeprefix(remote_keeper.REFUSED).decode(errors="replace").split())
        raise ToolFailed(
            f"The workspace on {self._host} cannot be used: {reason[:SAID_BYTES] or 'no reason was given'}."
        )


def _programs(control_socket: ControlSocket) -> tuple[bytes, bytes]:
    """The keeper's and the guardian's; and the meeting place is there. For a thread."""
    control_socket.open()
    keeping = program((guardian.__name__, remote_keeper.__name__), "keep")
    return keeping, program((guardian.__name__,), "guard_remote")


def _ssh() -> str:
    return find_program("ssh") or "/usr/bin/ssh"


def _options(options: Sequence[str]) -> list[str]:
    return [word for option in options for word in ("-o", option)]
