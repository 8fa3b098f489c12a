"""Workspaces over a real store, with real sandboxes. Opened again over the same home, they are those of the gateway
after a restart."""

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio

from tests.store.rows import new_session
from tidegate.config import AgentSettings, Config, ModelSettings, WebSettings, WorkspaceSettings
from tidegate.lifetimes import Ledger, Presence, Scope
from tidegate.spool import Spool
from tidegate.store import ProcessRow, Store, messages, sessions
from tidegate.values import new_id
from tidegate.workspaces import CommandEnd, Workspace, Workspaces
from tidegate.workspaces.backends.bubblewrap import BubblewrapBackend
from tidegate.workspaces.backends.interface import Backend
from tidegate.workspaces.backends.local import LocalBackend
from tidegate.workspaces.bounds import DEFAULT_BOUNDS, WorkspaceBounds
from tidegate.workspaces.processes.children import Spawner
from tidegate.workspaces.processes.live_sandbox import LiveSandbox

WAIT = 30
"""Seconds before a waiting test gives up; no test asserts how long it took."""

FORKS = """
import os, time
made = refused = 0
for _ in range(300):
    try:
        child = os.fork()
    except BlockingIOError:
        refused += 1
        continue
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    made += 1
print(made, refused)
"""
"""Tries to start exactly three hundred children that keep running."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class WorkspaceHarness:
    """`finished` collects the reports on processes with `notify`."""

    def __init__(self, home: Path, store: Store, presence: Presence, spool: Spool, clock: Clock) -> None:
        self.home = home
        self.store = store
        self.presence = presence
        self.spool = spool
        self.clock = clock
        self.finished: list[tuple[str, str]] = []
        self.ledger = presence.ledger
        self.workspaces: Workspaces

    async def new_session(self) -> str:
        session = new_id("s")
        await self.store.write(new_session, session)
        return session

    def of(self, session: str, agent: str = "main") -> Workspace:
        return self.workspaces.of(session, agent, "t_1")

    def live_sandbox(self, session: str) -> LiveSandbox | None:
        return self.workspaces.present(session)

    async def run(self, session: str, command: str, **options: Any) -> tuple[CommandEnd, str]:
        """Run a command; returns how it ended and its output."""
        printed = bytearray()

        async def sink(data: bytes) -> None:
            printed.extend(data)

        with anyio.fail_after(WAIT):
            done = await self.of(session, options.pop("agent", "main")).run(
                command, **{"timeout": WAIT, "sink": sink, **options}
            )
        return done, printed.decode()

    async def output_of(self, session: str, command: str, **options: Any) -> str:
        """The output of a command that succeeds."""
        done, printed = await self.run(session, command, **options)
        assert done.code == 0, (done, printed)
        return printed.strip()

    async def take_notices(self, session: str) -> str:
        """The notices that the agent gets with its next message."""
        return await self.store.write(messages.take_notices, session)

    async def end(self, session: str) -> None:
        """End a session as the session service does: in the store first, then its workspace."""
        await self.store.write(_end, session)
        self.presence.drop(session)
        await self.workspaces.end(session)

    async def keep(self, row: ProcessRow, text: str) -> None:
        self.finished.append((row.name, text))


def _end(db: Any, session: str) -> None:
    sessions.end(db, session, reason="test", hooks=(), now=5.0)


def config_of(home: Path, web: WebSettings | None = None, **settings: Any) -> Config:
    return Config(
        home=home,
        web=web or WebSettings(),
        models={
            "main": ModelSettings(api="openai-chat", base_url="http://127.0.0.1:1/v1", model="m"),
            "demo": ModelSettings(api="demo"),
        },
        agents={
            "main": AgentSettings(),
            "demo": AgentSettings(model="demo"),
            "project": AgentSettings(workspace=str(home / "project")),
        },
        workspaces=WorkspaceSettings(**settings),
    )


@contextlib.asynccontextmanager
async def open_workspaces(
    home: Path,
    *,
    backends: Callable[[str], Backend] | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    polled: bool = False,
    bounds: WorkspaceBounds = DEFAULT_BOUNDS,
    **settings: Any,
) -> AsyncIterator[WorkspaceHarness]:
    """`environment` is the gateway's own; with `polled`, no limits are enforced by control groups."""
    if polled:
        backends = _without_groups
    home.mkdir(mode=0o700, exist_ok=True)
    clock = clock or Clock()
    async with (
        Store.open(home / "tidegate.db") as store,
        Scope("process", account=Ledger().account("process"), on_error=_fail) as scope,
    ):
        presence = Presence(scope, resident_bytes=1 << 20)
        spool = Spool(home / "spool", store, excerpt_bytes=4096, excerpt_lines=100, quota=1 << 30, clock=clock)
        opened = WorkspaceHarness(home, store, presence, spool, clock)
        opened.workspaces = Workspaces(
            scope.child("workspaces", on_error=_fail),
            store,
            presence,
            spool,
            config_of(home, **{"backend": "bubblewrap", **settings}),
            clock=clock,
            finished=opened.keep,
            environment={"LANG": "C.UTF-8"} if environment is None else environment,
            backends=backends,
            bounds=bounds,
        )
        await opened.workspaces.start()
        yield opened


def _without_groups(name: str) -> Backend:
    spawner = Spawner(frozenset(os.sched_getaffinity(0)))
    return LocalBackend(spawner) if name == "local" else BubblewrapBackend(spawner)


def _fail(name: str, error: BaseException) -> None:
    raise AssertionError(f"{name} failed") from error


def token() -> str:
    """A duration that no other process sleeps, by which a process can be found."""
    return str(int.from_bytes(os.urandom(5), "big") + 10**12)


def alive(token: str) -> list[int]:
    """Processes on this machine, in any sandbox, whose command line contains this text."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if token.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


async def until(there: Callable[[], Any]) -> Any:
    """Wait for a condition."""
    with anyio.fail_after(WAIT):
        while not (value := there()):
            await anyio.sleep(0.01)
        return value
