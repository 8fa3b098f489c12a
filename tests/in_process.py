"""A complete gateway in the test's process: store, models, sessions, commands and the web on a real loopback socket.

    async with in_process_gateway(tmp_path, model=scripted) as gateway:
        async with gateway.client.post("/v1/chat/completions", json=…) as response: …

Without a model server, the built-in demo model answers. Everything is closed in order on exit, so a leak comes from the
test or from the product, never from this helper.
"""

import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from bench.scripted_model import ScriptedModel
from tests import core
from tidegate.config import Config, load
from tidegate.http_client import HttpClient
from tidegate.lifetimes import Ledger, Scope
from tidegate.models import Models
from tidegate.security import Redactor, digest, make_code, make_key, resolve
from tidegate.sessions import Components, Sessions, build_components
from tidegate.slash_commands import build
from tidegate.status_report import SessionsStatus
from tidegate.store import Store, principals
from tidegate.tools import Toolset, Toolsets, builtin_toolsets
from tidegate.web import App, Health, Server, create_app

WAIT = 20
"""Seconds before a waiting test gives up; no test asserts how long anything took."""

DEMO = """
[models.main]
api = "demo"
[agents.main]
approvals = "autonomous"
model = "main"
prompt = "You are a test."
tools = ["clock", "files"]
"""


class InProcessGateway:
    """A running gateway. `key` is the owner's; `client` sends it with every request."""

    def __init__(self, **parts: Any) -> None:
        self.url: str = parts["url"]
        self.key: str = parts["key"]
        self.client: aiohttp.ClientSession = parts["client"]
        self.service: Sessions = parts["service"]
        self.components: Components = parts["components"]
        self.store: Store = parts["store"]
        self.config: Config = parts["config"]
        self.scope: Scope = parts["scope"]
        self.app: App = parts["app"]
        self.server: Server = parts["server"]
        self.clients: HttpClient = parts["clients"]
        self.socket: socket.socket = parts["socket"]
        self.health: Health = parts["health"]

    async def add_key(self, name: str, agents: tuple[str, ...] | None = None, role: str | None = None) -> str:
        """A new key of the user `name`, who is created if necessary."""
        sent = {"name": name, "agents": list(agents) if agents is not None else None, "role": role}
        async with self.client.post("/api/keys", json=sent) as response:
            assert response.status == 201, await response.text()
            return str((await response.json())["key"])

    async def code(self, seconds: float = 60.0) -> str:
        """A one-time code of the owner."""
        code = make_code()
        now = time.time()

        def add(db: Any) -> None:
            owner = principals.by_name(db, "owner")
            assert owner is not None
            principals.add_key(db, owner.id, "code", digest(code), "", now, now + seconds)

        await self.store.write(add)
        return code

    async def chat(self, text: str, name: str | None = None, **options: Any) -> Mapping[str, Any]:
        """Sends a message over /v1 and returns the complete answer."""
        headers = {**({"X-Session-Id": name} if name is not None else {}), **options.pop("headers", {})}
        body = {"model": "main", "messages": [{"role": "user", "content": text}], **options}
        async with self.client.post("/v1/chat/completions", json=body, headers=headers) as response:
            answer: Mapping[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer


@contextlib.asynccontextmanager
async def in_process_gateway(
    home: Path,
    extra: str = "",
    *,
    model: ScriptedModel | None = None,
    toml: str | None = None,
    toolsets: Mapping[str, Toolset] | None = None,
    keep_alive: float = 15.0,
    drain: float = 5.0,
    **store_options: Any,
) -> AsyncIterator[InProcessGateway]:
    """A gateway over `home`; entering it a second time is a restart. `extra` is added to the settings."""
    text = toml if toml is not None else DEMO + extra if model is None else core.settings(model, extra)
    config = await anyio.to_thread.run_sync(_settings, home, text)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    redactor = Redactor()
    async with (
        Scope("process", account=Ledger().account("process")) as scope,
        Store.open(home / "tidegate.db", **store_options) as store,
        HttpClient(keepalive=config.limits.connection_idle) as clients,
        Models(
            config.models, clients, lambda reference: resolve(reference, os.environ, home), config.limits.answer_bytes
        ) as models,
    ):
        key = await store.write(_owner, time.time())
        turns = scope.child("turns")
        registry = Toolsets({**builtin_toolsets(), **(toolsets or {})})
        plugins, plugin_toolsets = await core.open_test_plugins(config, scope, frozenset(toolsets or {}))
        components = build_components(turns, store, config, models, registry.adding(plugin_toolsets), plugins=plugins)
        service = Sessions(components)
        await service.recover()
        health = Health(store)

        async def status() -> SessionsStatus:
            return service.status()

        app = create_app(
            service=service,
            commands=build(service),
            store=store,
            config=config,
            redactor=redactor,
            health=health,
            status=status,
            keep_alive=keep_alive,
        )
        web = scope.child("web")
        server = Server(app, config, sock)
        await server.start(web)
        headers = {"Authorization": f"Bearer {key}"}
        timeout = aiohttp.ClientTimeout(total=WAIT)
        async with aiohttp.ClientSession(url, headers=headers, timeout=timeout) as client:
            try:
                yield InProcessGateway(
                    url=url,
                    key=key,
                    client=client,
                    service=service,
                    components=components,
                    store=store,
                    config=config,
                    scope=scope,
                    app=app,
                    server=server,
                    socket=sock,
                    clients=clients,
                    health=health,
                )
            finally:
                await service.drain(drain)
                await web.close()
                await turns.close()


def _settings(home: Path, text: str) -> Config:
    home.mkdir(exist_ok=True, parents=True)
    (home / "tidegate.toml").write_text(text)
    return load(home)


def _owner(db: Any, now: float) -> str:
    """Creates the owner if necessary; returns a new key of the owner."""
    owner = principals.by_name(db, "owner")
    if owner is None:
        owner = principals.add(db, name="owner", role="owner", agents=None, now=now)
    key = make_key()
    principals.add_key(db, owner.id, "key", digest(key), "test", now, None)
    return key
