"""Web sites on loopback addresses, a scripted resolver, and the context of a call that uses both."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.spool.spools import SESSION, spool_of
from tests.store.rows import new_session
from tidegate.config import WebSettings
from tidegate.security import Secret
from tidegate.store import Store
from tidegate.tools import Result, ToolContext, ToolServices, builtin_toolsets
from tidegate.tools.builtin.web.http_access import WebAccess
from tidegate.workspaces import Files, Mount, Workspace
from tidegate.workspaces.files.local_files import LocalFiles
from tidegate.workspaces.processes.children import Spawner

ALLOWED, FORBIDDEN = "127.0.0.2", "127.0.0.1"
"""Where sites of these tests are that may be fetched, by `web.private`, and that may not."""

WAIT = 60
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """A server that answers by its handler and counts who connected."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.connections = 0
        self.requests: list[web.Request] = []

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@asynccontextmanager
async def site(handler: Handler, host: str = ALLOWED, port: int = 0) -> AsyncIterator[Site]:
    listening = socket.create_server((host, port))
    found = Site(host, listening.getsockname()[1])

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        found.requests.append(request)  # type: ignore[arg-type]
        return await handler(request)  # type: ignore[arg-type]

    server = web.Server(handle, handler_cancellation=True, access_log=None)

    def connected() -> asyncio.Protocol:
        found.connections += 1
        return server()

    serving = await asyncio.get_running_loop().create_server(connected, sock=listening)
    try:
        yield found
    finally:
        serving.close()
        await server.shutdown(1)
        await serving.wait_closed()


async def refuse(request: web.Request) -> web.StreamResponse:
    return web.Response(text="the secret of the machine")


class ScriptedResolver(AbstractResolver):
    """A resolver whose answers are a list, one for each time that it is asked; the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[ResolveResult]:
        self.asked.append(host)
        addresses = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if not addresses:
            raise OSError(None, "not known")
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""


class SystemResolver(ScriptedResolver):
    """The system's reading of unusually written addresses, without any network request."""

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[ResolveResult]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self._answers = [[str(address[0]) for *_, address in found]]
        return await super().resolve(host, port, family)


class Folder(Workspace):
    """A workspace that is only files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def files(self) -> Files:
        return LocalFiles((Mount(inner="/workspace", folder=self._folder),), Spawner(frozenset({0})))


class Agent:
    """Calls the tools of the toolset `web`."""

    def __init__(self, context: ToolContext, folder: Path) -> None:
        self.context = context
        self.folder = folder

    async def use(self, name: str, **arguments: Any) -> Result:
        tool = builtin_toolsets()["web"].get(name)
        assert tool is not None
        async with asyncio.timeout(WAIT):
            result = await tool.run(self.context, msgspec.json.encode(arguments).decode())
        return result if isinstance(result, Result) else Result(text=result)

    async def fetch(self, url: str, **arguments: Any) -> Result:
        return await self.use("web_fetch", url=url, **arguments)


@asynccontextmanager
async def agent(
    tmp_path: Path,
    *,
    private: tuple[str, ...] = (ALLOWED,),
    resolver: AbstractResolver | None = None,
    key: Secret | None = None,
    **settings: Any,
) -> AsyncIterator[Agent]:
    home = Path(tempfile.mkdtemp(dir=tmp_path))
    folder = home / "work"
    folder.mkdir()
    async with Store.open(home / "tidegate.db") as store:
        await store.write(new_session, SESSION)
        spool = spool_of(home / "spool", store)
        access = WebAccess(
            WebSettings(private=private, **settings),
            workers=spool.workers,
            key=key,
            resolver=resolver or ScriptedResolver(()),
        )
        async with access:
            context = ToolContext(
                session=SESSION,
                principal="p",
                channel="http",
                agent="main",
                turn="t_1",
                workspace=Folder(folder),
                spool=spool.of(SESSION, "t_1"),
                services=ToolServices({WebAccess: access}),
            )
            yield Agent(context, folder)
