"""The backend `bubblewrap`: one sandbox per session, made by the kernel's namespaces.

Guarantee: a command sees a read-only system, its session's folder under /workspace, a home and a /tmp of the session's
own and the processes of its session, and nothing else of the machine; it has no capability and can get none, reaches
no more of the kernel than `seccomp` leaves it and no more of the network than `network` does. What came
of one command ends with that command: it is known by its control group, or, where there is none, by a mark in its
environment.

A sandbox ends with the gateway, however and whenever that dies, also while the sandbox starts. They are tied by a
socket, the *lifeline*: its other end is held by the gateway alone and cannot be opened by anybody. When the gateway is
gone, the kernel closes that end; the sandbox's first process reads the end of its lifeline and exits, and the kernel
ends a namespace with its first process. Once the sandbox is up, the kernel also kills `bwrap` at that moment, and the
first process with it, so that even a stopped one ends. During set-up nothing of ours may kill `bwrap`: its two
processes wait for each other, and a process whose partner has died waits for ever (docs/decisions/0026).

A sandbox is one `bwrap` and a shell in it, its first process, that does nothing but hold the namespaces and reap what
is orphaned there; each command enters them. So a session's commands
share /tmp and see each other, a background process outlives the command that started it, and a command has its own
streams and exit code like any child. All that is on disk, so that a sandbox may be closed and made again when nothing
runs in it.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from anyio import CancelScope, to_thread

from tidegate.errors import ToolFailed
from tidegate.log import Log
from tidegate.values import new_id
from tidegate.workspaces.backends import guardian, sandbox_network, shell_script
from tidegate.workspaces.backends.interface import (
    MARK,
    OWNER,
    Enforcement,
    LimitEvents,
    OpenSandbox,
    SandboxSpec,
    SandboxUsage,
    enforced,
    uncounted,
)
from tidegate.workspaces.files import Files, Mount
from tidegate.workspaces.files.protected_paths import REPOSITORY
from tidegate.workspaces.kernel import seccomp
from tidegate.workspaces.kernel.cgroups import JOIN, UNGROUPED, Cgroup, Cgroups, CommandGroup, leaf_for
from tidegate.workspaces.kernel.process_table import ProcessTable, segment_bytes
from tidegate.workspaces.kernel.users import becoming, becoming_in
from tidegate.workspaces.processes.children import ChildProcess, Spawner, find, gone, kill_with, or_gone
from tidegate.workspaces.project_protection import (
    LOST,
    MADE,
    ProtectedMount,
    appeared,
    disarm,
    intact,
    protected,
    refuse,
)

log = Log(__name__)

INNER = "/workspace"
HOME = "/home/agent"
OPEN_SECONDS = 10.0
"""A sandbox is there within milliseconds; a machine that needs longer than this has another problem."""

SHARED_MEMORY_BYTES = 64 * 1024 * 1024
"""Of /dev/shm and /run each, at most: they lie in memory and are no process's own. Together they have no more than the
session's memory, of which they are a part."""

LIST_SECONDS = 1.0
"""Between two looks at shared memory of System V, each of which takes a process: only where no control group counts."""

SEGMENTS = "/proc/sysvipc/shm"

CROWDED = (
    "All that ran in the workspace was ended, because a command made more processes than could be ended one by one."
)

NEW = "a file that other programs execute is new in a project: read it before you open the folder with them"

_LOOK_SECONDS = 0.02  # between two looks at whether a killed process is gone
_REAP_SECONDS = 1.0  # in which what waits for a killed process has reaped it, and ends by itself
_LOOKS = 25  # until a sandbox in which something cannot be ended is ended itself
_NOTHING = 0  # the signal that only asks whether there is somebody
_NS_GET_USERNS = 0xB701  # the user namespace that owns a namespace (ioctl_ns(2))
_INFO, _LIFELINE, _FILES = 5, 6, 7  # what `bwrap` is given, by its numbers there; from the last on, files
_INFO_BYTES = 4096  # more than it tells of itself
_HOLD = f"echo up; exec >/dev/null; while read -r -u {_LIFELINE} _; do :; done"
"""What a sandbox's first process does: its line says that all is mounted; at the end of the lifeline it ends. A shell
reaps whatever is orphaned below it. From inside it cannot be killed, as no first process can."""

_OWN = frozenset(("1",))  # what belongs to the sandbox itself, as it is numbered in there
_IN_MEMORY = ("../dev/shm", "../run")  # from its /proc
_USER = 1000  # whoever the gateway is, the sandbox's user is nobody in particular
_PASSWD = f"agent:x:{_USER}:{_USER}:agent:{HOME}:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
_GROUP = f"agent:x:{_USER}:\nnogroup:x:65534:\n"

_NO_NESTING = ("--unshare-user", "--disable-userns")  # inside, nobody can make namespaces and rule in them

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_MACHINE = (
    "sys",
    "sysrq-trigger",
    "irq",
    "bus",
    "acpi",
    "driver",
    "fs",
    "mtrr",
    "pressure",
    "scsi",
    "slabinfo",
    "timer_stats",
)
"""What of /proc is the whole machine's and can be written. The kernel asks there for the owner alone and for no
capability: this closes it to whoever that is."""

_KEYS = "/proc/keys"  # of all keys of the user, whichever of their programs or sandboxes has them

_ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts", "gai.conf",
    "host.conf", "hosts", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf",
    "localtime", "magic", "mime.types", "nsswitch.conf", "os-release", "pki/ca-trust", "pki/tls/certs",
    "pki/tls/openssl.cnf", "protocols", "python3", "services", "shells", "ssl/certs", "ssl/openssl.cnf",
    "terminfo", "timezone",
)  # fmt: skip
"""Of /etc: what programs need to run. None of it holds a secret, which cannot be said of what a machine adds."""


class _Programs(NamedTuple):
    bwrap: str
    nsenter: str
    setpriv: str
    prlimit: str
    bash: str


class BubblewrapBackend:
    name = "bubblewrap"
    sandboxed = True

    def __init__(self, spawner: Spawner, groups: Cgroups | None = None) -> None:
        """Without `groups`, what they would hold is looked at."""
        self._spawner = spawner
        self._groups = groups
        self._nesting: tuple[str, ...] = _NO_NESTING

    @property
    def enforced(self) -> Mapping[str, Enforcement]:
        return enforced(self._groups.held if self._groups else (), {"processes": "rlimit"})

    @property
    def uncounted(self) -> tuple[str, ...]:
        return uncounted(self.enforced)

    def inner(self, folder: Path) -> str:
        return INNER

    def files(self, spec: SandboxSpec, box: OpenSandbox) -> Files:
        """They lie on this machine: nothing has to be entered to read them."""
        seen = [Mount(inner=str(folder), folder=folder, writable=False) for folder in spec.read_only]
        from tidegate.workspaces.files.local import LocalFiles  # with the first file that is asked for

        return LocalFiles(
            (
                Mount(inner=INNER, folder=spec.folder, project=spec.project),
                Mount(inner=HOME, folder=spec.home),
                Mount(inner="/tmp", folder=spec.temporary),
                *seen,
            ),
            self._spawner,
            user=spec.user,
        )

    async def check(self) -> str | None:
        why = await self._try(_NO_NESTING)
        if why is not None:
            # What is older than this option is still a wall, though with more of the kernel to be reached through it.
            why = await self._try(())
            self._nesting = ()
        if why is None and self._groups is not None:
            await to_thread.run_sync(self._groups.find)
        return why

    async def _try(self, nesting: tuple[str, ...]) -> str | None:
        try:
            programs = _programs()
            arguments = becoming(self._spawner.user, programs.setpriv)
            arguments += [programs.bwrap, *self._isolation(), *nesting]
            arguments += await to_thread.run_sync(_system)
            arguments += ["--", programs.bash, "-c", ":"]
            child = await self._spawner.spawn(arguments, self._environment(), within=seccomp.confined)
        except ToolFailed as error:
            return error.message
        except OSError as error:
            return f"bwrap cannot be started here ({error.strerror})."
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                code = await child.wait()
                said = (await child.read_state()).decode(errors="replace").strip()
        except TimeoutError:
            return "bwrap does not come to an end here."
        finally:
            await gone(child)
        return None if code == 0 else f"bwrap does not work here: {said or f'exit code {code}'}."

    async def open(self, spec: SandboxSpec) -> "BubblewrapSandbox":
        programs = _programs()
        joining = sandbox_network.programs(programs.nsenter) if spec.network else None
        reached = (spec.folder, spec.home, spec.temporary, *spec.read_only)
        arguments = [*becoming_in(spec.user, *reached), programs.bwrap, *self._isolation(), *self._nesting]
        arguments += await to_thread.run_sync(_system, spec.limits.memory_bytes // 2)
        arguments += ["--bind", str(spec.temporary), "/tmp", "--bind", str(spec.temporary), "/var/tmp"]
        arguments += ["--bind", str(spec.home), HOME, "--bind", str(spec.folder), INNER, "--chdir", INNER]
        guarded = await to_thread.run_sync(protected, spec.folder) if spec.project else ()
        for mount in guarded:
            way = "--bind" if mount.writable else "--ro-bind"
            arguments += [way, str(spec.folder / mount.path), f"{INNER}/{mount.path}"]
        for folder in spec.read_only:
            arguments += ["--ro-bind-try", str(folder), str(folder)]
        files = _files(spec)
        for number, path in enumerate(files, _FILES):
            arguments += ["--ro-bind-data", str(number), path]
        # Last, since it closes what all of this is mounted in: that lies in memory, which nobody counts.
        arguments += ["--remount-ro", "/", "--info-fd", str(_INFO), "--"]
        # From here on it ends with `bwrap`. The option for that, --die-with-parent, would also be for `bwrap` itself,
        # from the middle of the set-up on.
        arguments += [programs.setpriv, "--pdeathsig", "KILL", programs.bash, "-c", _HOLD]
        group = None if self._groups is None else await self._groups.make(spec.limits)
        try:
            sandbox = await self._started(programs, joining, spec, arguments, files, group, guarded)
        except BaseException as error:
            if group is not None:
                with CancelScope(shield=True):
                    await to_thread.run_sync(group.end)
            if isinstance(error, OSError):
                raise ToolFailed(f"The sandbox cannot be started ({error.strerror}).") from None
            raise
        if not await sandbox.is_intact():
            raise ToolFailed("A protected file of the project changed while the sandbox was made; try again.")
        return sandbox

    async def _started(
        self,
        programs: "_Programs",
        joining: sandbox_network.Programs | None,
        spec: SandboxSpec,
        arguments: list[str],
        files: Mapping[str, str],
        group: Cgroup | None,
        guarded: tuple[ProtectedMount, ...],
    ) -> "BubblewrapSandbox":
        mark = new_id("b")
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as given:
            # Of packets: at the end of a stream the kernel sends no signal while somebody is about to read from it.
            lifeline, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            failed.callback(lifeline.close)
            given.callback(theirs.close)
            # No pipe: a gateway that is gone cannot read it, and `bwrap` would die of writing to it.
            info = os.memfd_create("info")
            given.callback(os.close, info)
            passing = {theirs.fileno(): _LIFELINE, info: _INFO}
            for number, text in enumerate(files.values(), _FILES):
                fd = _holding(text)
                passing[fd] = number
                given.callback(os.close, fd)
            environment = self._environment(mark)
            child = await self._spawner.spawn(arguments, environment, passing=passing, within=seccomp.confined)
            async with _or_swept(child, mark):
                child.close_input()
                await _standing(child)
                first = int(msgspec.json.decode(os.pread(info, _INFO_BYTES, 0))["child-pid"])
                kill_with(theirs, child)
                sandbox = BubblewrapSandbox(self._spawner, programs, spec, child, first, lifeline, group, guarded)
                failed.pop_all()
                if joining is not None:
                    async with _or_closed(sandbox):
                        await sandbox.connect(joining, environment)
            return sandbox

    def _environment(self, mark: str = "") -> dict[str, str]:
        """Of `bwrap` itself, in whose environment its processes are found as long as they set up the sandbox."""
        return {"PATH": "/usr/bin:/bin", OWNER: self._spawner.owner, MARK: mark}

    def _isolation(self) -> list[str]:
        # What is started is itself the first process: so `bwrap` ends after it has reaped it, and not before.
        options = ["--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL"]
        options += ["--clearenv", "--setenv", OWNER, self._spawner.owner]
        return [*options, "--uid", str(_USER), "--gid", str(_USER), "--hostname", "workspace"]


class BubblewrapSandbox:
    """One session's. It owns the `bwrap` that holds the namespaces, the lifeline, the descriptors by which they are
    entered, the uplink, if it has a network, and the control group, if there is one. That is for commands: what holds
    the sandbox is not in it, and is never killed for what they use."""

    def __init__(
        self,
        spawner: Spawner,
        programs: _Programs,
        spec: SandboxSpec,
        child: ChildProcess,
        first: int,
        lifeline: socket.socket,
        group: Cgroup | None,
        guarded: tuple[ProtectedMount, ...] = (),
    ) -> None:
        """`first` is its first process, as we see it. When `lifeline` is closed, the sandbox ends. `guarded` are the
        mounts without which no command may run in it."""
        self._spawner = spawner
        self._programs = programs
        self._spec = spec
        self._holder = child
        self._first = first
        self._lifeline = lifeline
        self._group = group
        self._guarded = guarded
        self._appeared: tuple[str, ...] = ()
        self._ran = False  # whether a command has run since the project was looked at
        self.held: frozenset[str] = group.held if group else frozenset()
        self._uplink: sandbox_network.SandboxNetwork | None = None
        self._commands: set[SandboxCommand] = set()
        self._service = asyncio.Lock()
        self._closed = False
        self._segments = 0
        self._list_again = 0.0
        self.why = ""
        with contextlib.ExitStack() as opened:
            self._user = _namespace(first, "user")
            opened.callback(os.close, self._user)
            self._owner = _owner(first)
            opened.callback(os.close, self._owner)
            self._table = ProcessTable(f"/proc/{first}/root/proc")
            opened.callback(self._table.close)
            opened.callback(lifeline.close)
            self._release = opened.pop_all()

    @property
    def alive(self) -> bool:
        """One whose network is gone is made again, as one that is gone itself."""
        connected = self._uplink is None or self._uplink.running
        return self._holder.running and connected and not self._closed

    @property
    def pid(self) -> int | None:
        return self._holder.pid

    @property
    def strain(self) -> LimitEvents:
        return self._group.strain if self._group else LimitEvents()

    async def connect(self, programs: sandbox_network.Programs, environment: Mapping[str, str]) -> None:
        """To the network, before the first command enters. Raises ToolFailed when that cannot be done."""
        user = becoming(self._spec.user, self._programs.setpriv)
        place = sandbox_network.Namespaces(self._first, self._owner, user)
        self._uplink = await sandbox_network.connect(self._spawner, programs, place, environment, self._spec.reachable)

    async def spawn(self, text: bytes, mark: str, *, full: bool = False) -> "SandboxCommand":
        if self._group and self.alive and not self._group.there:
            self.why = UNGROUPED
            await self.close()
        await self.is_intact()
        if not self.alive:
            raise ToolFailed("The sandbox is gone.")
        async with leaf_for(self._group) as leaf:
            command = await self._enter(mark, leaf, full)
        async with or_gone(command):
            with contextlib.suppress(ToolFailed):  # one that has ended already says by its code and its words why
                await command.write(text)
        return command

    async def is_intact(self) -> bool:
        """Whether the project's protected files are mounted as they were; a sandbox in which they are not is ended.
        So is one in which a command may have made one that was not there; what appears while none runs is somebody
        else's, and only logged."""
        if not self._spec.project or not self.alive:
            return True
        root = Path(f"/proc/{self._first}/root{INNER}")
        made = await to_thread.run_sync(self._made, root)
        whole = await to_thread.run_sync(intact, root, self._guarded)
        if whole and not made:
            self._ran = bool(self._commands)
            return True
        if self.alive:
            self.why = MADE.format(names=", ".join(made)) if whole else LOST
            await self.close()
        return False

    def _made(self, root: Path) -> tuple[str, ...]:
        """The names of protected files that a command may have made since the last look."""
        found = appeared(root, self._guarded)
        new = tuple(name for name in found if name not in self._appeared)
        if self._ran and (made := tuple(name for name in new if name != REPOSITORY)):
            return made
        for name in new:
            log.warning(NEW, session=self._spec.session, path=str(self._spec.folder / name))
        self._appeared = found
        return ()

    async def _enter(self, mark: str, leaf: CommandGroup | None, full: bool) -> "SandboxCommand":
        programs, limits = self._programs, self._spec.limits
        enter = ["/bin/sh", "-c", JOIN, "sh", *leaf.joins, "--"] if leaf else []
        enter += becoming(self._spec.user, programs.setpriv)
        enter += [programs.nsenter, "--user=/proc/self/fd/3", "--preserve-credentials", "-t", str(self._first)]
        enter += ["-m", "-p", "-n", "-i", "-u", f"-W{INNER}", "--"]
        if os.fstat(self._owner).st_ino != os.fstat(self._user).st_ino:
            # Where bwrap needs two user namespaces, one within the other, both are entered, in order.
            enter += [programs.nsenter, "--user=/proc/self/fd/4", "--preserve-credentials", "--"]
        # What is reserved and not used does not count as data: programs reserve more than any machine has.
        confine = [programs.prlimit, f"--data={limits.memory_bytes}"]
        if "processes" not in self.held:  # else the kernel refuses in two ways, of which it counts one
            confine.append(f"--nproc={limits.processes}")
        confine += [f"--fsize={0 if full else limits.file_bytes}", f"--cpu={int(limits.cpu_seconds)}", "--core=0", "--"]
        # The descriptors of the namespaces are for entering only: what runs inside does not get them.
        confine += ["bash", "-c", 'exec 3<&- 4<&-; exec "$@"', "bash"]
        environment = {
            "HOME": HOME,
            "PATH": f"{HOME}/.local/bin:/usr/local/bin:/usr/bin:/bin",
            "SHELL": "/bin/bash",
            "USER": "agent",
            **self._spec.environment,
            MARK: mark,
        }
        async with self._service:
            if not self.alive:
                raise ToolFailed("The sandbox is gone.")
            self._ran = True
            try:
                child = await self._spawner.spawn(
                    [*enter, *confine, *shell_script.ENTRY],
                    environment,
                    passing={self._owner: 3, self._user: 4},
                    within=seccomp.confined,
                )
            except OSError as error:
                raise ToolFailed(f"The command cannot be started ({error.strerror}).") from None
            command = SandboxCommand(self, child, mark, leaf)
            self._commands.add(command)
        return command

    async def load(self) -> SandboxUsage:
        if "memory_bytes" not in self.held and time.monotonic() >= self._list_again:
            self._segments = await self._listed()
            self._list_again = time.monotonic() + LIST_SECONDS
        look = partial(self._table.load, places=_IN_MEMORY, beside=self._segments)
        return await to_thread.run_sync(look, self._spec.limits)

    async def _listed(self) -> int:
        """What shared memory of System V takes here. The kernel shows that only to who is in there."""
        enter = [self._programs.nsenter, "--user=/proc/self/fd/3", "--preserve-credentials", "-t", str(self._first)]
        listing = [*becoming(self._spec.user, self._programs.setpriv), *enter, "-i", "--", "/bin/cat", SEGMENTS]
        try:
            child = await self._spawner.spawn(listing, {}, passing={self._owner: 3})
        except OSError:  # the next look tries again
            return self._segments
        data = b""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                while piece := await child.read():
                    data += piece
        except TimeoutError:
            log.warning("the shared memory of a sandbox cannot be listed", session=self._spec.session)
        finally:
            await gone(child)
        return segment_bytes(data)

    async def wait(self) -> None:
        await self._holder.wait()

    async def close(self) -> None:
        """The kernel kills all that is in the namespace when its first process is killed. What waits for that, and for
        commands, is let end by itself: else nobody would reap them but the first process of the machine, and that may
        be the gateway."""
        if self._closed:
            await self._holder.wait()
            return
        self._closed = True
        try:
            if self._holder.running:
                # Its parent has not been reaped, and it is reaped by that one alone: the number is still its own.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._first, signal.SIGKILL)
            await _over(self._holder)
            for command in tuple(self._commands):
                await command.reaped()
        finally:
            if self._uplink is not None:
                await self._uplink.close()
            self._holder.close()
            await to_thread.run_sync(self._let_go)

    def _let_go(self) -> None:
        if self._spec.project:
            disarm(self._spec.folder, self._guarded)
            refuse(self._spec.folder, self._made(self._spec.folder))
        if self._group is not None:
            self._group.end()
        self._release.close()

    async def signal(self, command: "SandboxCommand", number: int) -> int:
        """To all that came of a command; to how many. Without control groups, what carries its mark no more can be told
        from what others have started only while there are no others, and while none comes."""
        if command.leaf is not None:
            reach = command.leaf.kill if number == signal.SIGKILL else partial(command.leaf.send, number)
            # But not to what waits for it outside of the sandbox, and has to reap it.
            return await to_thread.run_sync(reach, command.waiting) if self.alive else 0
        async with self._service:
            if not self.alive:
                return 0
            mark = None if self._commands <= {command} else command.mark
            reached = await to_thread.run_sync(self._signal, number, mark)
        if reached is None:  # where the kernel does not count processes, only the end of all ends a crowd of them
            await self.give_up()
        return reached or 0

    def _signal(self, number: int, mark: str | None) -> int | None:
        if self._table.is_crowded(self._spec.limits.processes + len(_OWN)):
            return None
        return self._table.signal(number, besides=_OWN, mark=mark)

    async def give_up(self) -> None:
        """What cannot be ended otherwise ends with the sandbox."""
        self.why = CROWDED
        await self.close()

    def forget(self, command: "SandboxCommand") -> None:
        self._commands.discard(command)


class SandboxCommand:
    """A command inside a sandbox. It ends with everything that came of it."""

    def __init__(self, sandbox: BubblewrapSandbox, child: ChildProcess, mark: str, leaf: CommandGroup | None) -> None:
        """`leaf` is its own control group, which goes with it."""
        self._sandbox = sandbox
        self._child = child
        self.mark = mark
        self.leaf = leaf
        self.pid: int | None = child.pid
        self.write = child.write
        self.close_input = child.close_input
        self.read = child.read
        self.read_state = child.read_state
        self.wait = child.wait
        self.close = child.close

    @property
    def waiting(self) -> int | None:
        """What waits for it outside; once that is reaped, its number may be another's."""
        return self.pid if self._child.running else None

    async def reaped(self) -> None:
        """The sandbox is gone, and it was in it."""
        await _over(self._child)

    async def end(self, grace: float) -> int:
        by_itself = not self._child.running
        left = 0
        try:
            if grace > 0:
                left = await self._send(signal.SIGTERM)
                await self._send(signal.SIGCONT)  # one that was stopped could not hear it
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        await self._child.wait()
                        await self._vanished()
            killed = await self._kill()
            if self.leaf is not None:
                await to_thread.run_sync(self.leaf.remove)
            return max(left, killed) if by_itself else 0
        finally:
            self._sandbox.forget(self)

    async def _vanished(self) -> None:
        """Until nothing of it is left; the kernel tells nobody of what is not his child."""
        left = 1
        while left:
            await asyncio.sleep(_LOOK_SECONDS)
            left = await self._send(_NOTHING)

    async def _kill(self) -> int:
        """All that is left of it; how many at the first look."""
        first = found = await self._send(signal.SIGKILL)
        if found:
            await _over(self._child)
        else:  # it has not even entered
            await self._child.end(0)
            found = await self._send(signal.SIGKILL)
        for _ in range(_LOOKS):
            if not found:
                return first
            await asyncio.sleep(_LOOK_SECONDS)
            found = await self._send(signal.SIGKILL)
        await self._sandbox.give_up()
        return first

    async def _send(self, number: int) -> int:
        return await self._sandbox.signal(self, number)


async def _over(child: ChildProcess) -> None:
    """What it waits for was killed: it reaps that and ends, or is killed too."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP_SECONDS):
            await child.wait()
    await child.end(0)


@contextlib.asynccontextmanager
async def _or_closed(sandbox: BubblewrapSandbox) -> AsyncIterator[None]:
    """What fails in the block closes the sandbox."""
    try:
        yield
    except BaseException:
        with CancelScope(shield=True):
            await sandbox.close()
        raise


def _owner(first: int) -> int:
    """The user namespace in which the sandbox was made."""
    mount = _namespace(first, "mnt")
    try:
        return fcntl.ioctl(mount, _NS_GET_USERNS)
    finally:
        os.close(mount)


def _namespace(pid: int, kind: str) -> int:
    return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)  # lint: allow it is in the kernel's memory


def _holding(text: str) -> int:
    """A pipe from which this text, which is shorter than a pipe is long, can be read."""
    out, into = os.pipe()
    try:
        os.write(into, text.encode())
    finally:
        os.close(into)
    return out


@contextlib.asynccontextmanager
async def _or_swept(child: ChildProcess, mark: str) -> AsyncIterator[None]:
    """What fails in the block ends the child, and also a process of its set-up that somebody has orphaned."""
    try:
        async with or_gone(child):
            yield
    except BaseException:
        with CancelScope(shield=True):
            await to_thread.run_sync(guardian.sweep, f"{MARK}={mark}")
        raise


async def _standing(child: ChildProcess) -> None:
    """Waits until the sandbox stands."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            if not await child.read():
                said = (await child.read_state()).decode(errors="replace").strip()
                raise ToolFailed(f"The sandbox cannot be started: {said or 'bwrap gave no reason'}.")
    except TimeoutError:
        raise ToolFailed(f"The sandbox was not there within {OPEN_SECONDS:g} s.") from None
    child.close_output()  # it says no more, and a descriptor for each session is a descriptor


def _programs() -> _Programs:
    found = {name: find(name) for name in _Programs._fields}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        package = "bubblewrap" if missing == ["bwrap"] else "bubblewrap and util-linux"
        raise ToolFailed(
            f"{missing[0]} is not installed here: install {package}, or choose another workspaces.backend."
        )
    return _Programs(**{name: str(path) for name, path in found.items()})


def _files(spec: SandboxSpec) -> dict[str, str]:
    """What is in the files that a sandbox has of its own."""
    files = {"/etc/passwd": _PASSWD, "/etc/group": _GROUP, _KEYS: ""}
    if spec.network:
        files["/etc/resolv.conf"] = sandbox_network.RESOLV_CONF
    return {path: text for path, text in files.items() if path != _KEYS or Path(path).exists()}


def _system(memory: int = SHARED_MEMORY_BYTES) -> list[str]:
    """The read-only system. Links of the root (merged /usr) stay links. What lies in memory gets no more than `memory`
    each."""
    options: list[str] = []
    for name in _SYSTEM:
        place = Path("/", name)
        if place.is_symlink():
            options += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            options += ["--ro-bind", str(place), str(place)]
    for name in _ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    size = ["--size", str(min(SHARED_MEMORY_BYTES, memory))]
    machine = [option for name in _MACHINE for option in ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")]
    options += ["--proc", "/proc", *machine, "--dev", "/dev"]
    options += [*size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    return [*options, *size, "--tmpfs", "/run"]
