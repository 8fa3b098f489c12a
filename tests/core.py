"""The gateway without its HTTP server, for tests: a real store, the scripted model on a real socket, and `Sessions`.

Messages of a test go through `Sessions.accept`, as all messages do.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from bench.scripted_model import ScriptedModel
from tidegate.config import Config, load
from tidegate.engine.live_turn import LiveTurn
from tidegate.gateway.plugins import open_plugins
from tidegate.gateway.preflight.plugins import find_plugins
from tidegate.http_client import HttpClient
from tidegate.lifetimes import Ledger, Scope
from tidegate.models import Models, RetryPolicy
from tidegate.plugins.host import Plugins
from tidegate.security import Principal, resolve
from tidegate.sessions import Components, EndHook, Sessions, build_components
from tidegate.store import Db, Store, open_turns, principals
from tidegate.tools import Toolset, Toolsets, builtin_toolsets
from tidegate.turns import Channels
from tidegate.values import Acceptance, Call, Inbound, Message, Outcome

if TYPE_CHECKING:
    from tests.in_process import InProcessGateway

OWNER = Principal(id="p_owner", name="owner", role="owner")
ANNA = Principal(id="p_anna", name="anna", role="member")
BERT = Principal(id="p_bert", name="bert", role="member")

WAIT = 20
"""Seconds before a waiting test gives up; no test asserts how long anything took."""


def settings(model: ScriptedModel, extra: str = "", *, tools: str = '"clock", "files"') -> str:
    return f"""
[models.main]
api = "openai-chat"
base_url = "{model.base_url}"
model = "scripted"
context_window = 10_000_000
vision = true
audio = true
retries = 0
[models.other]
api = "openai-chat"
base_url = "{model.base_url}"
model = "scripted-too"
context_window = 10_000_000
retries = 0
[agents.main]
approvals = "autonomous"
model = "main"
prompt = "You are a test."
tools = [{tools}]
{extra}
"""


class Core:
    """A running core. `say` sends a message and waits for its outcome, as a caller does."""

    def __init__(
        self,
        service: Sessions,
        components: Components,
        scope: Scope,
        model: ScriptedModel,
        clients: HttpClient,
        plugins: Plugins | None = None,
    ) -> None:
        self.service = service
        self.plugins = plugins
        self.components = components
        self.store: Store = components.store
        self.scope = scope
        self.model = model
        self.clients = clients
        self.config: Config = components.config

    async def accept(self, text: str, name: str | None = "talk", **fields: Any) -> Acceptance:
        inbound = Inbound(
            **{
                "principal": ANNA.id,
                "channel": "http",
                "agent": "main",
                "messages": (Message(role="user", text=text),),
                "name": name,
                "call": Call(),
                **fields,
            }
        )
        return await self.service.accept(inbound)

    async def say(self, text: str, name: str | None = "talk", **fields: Any) -> Outcome:
        with anyio.fail_after(WAIT):
            accepted = await self.accept(text, name, **fields)
            return await self.service.wait(accepted.turn)

    async def answered(self, turn: str) -> Outcome:
        with anyio.fail_after(WAIT):
            return await self.service.wait(turn)

    async def know(self, *people: Principal) -> None:
        """Adds these people to the store, which has everybody who has a key."""

        def add(db: Db) -> None:
            for each in people:
                if principals.get(db, each.id) is None:
                    principals.add(db, id=each.id, name=each.name, role=each.role, agents=None, now=1.0)

        await self.store.write(add)

    def requests(self) -> list[dict[str, Any]]:
        """The requests to the model server, oldest first."""
        return [request.decoded() for request in self.model.recorded]


async def idle(gateway: "Core | InProcessGateway", session: str) -> None:
    """Waits until no turn of the session is open, and none is left in memory."""
    while True:
        record = gateway.components.presence.get(session)
        is_idle = record is None or not (record.turn or record.waiting)
        if is_idle and await gateway.store.read(open_turns.is_idle, session):
            return
        await anyio.sleep(0.001)


async def open_ids(gateway: "Core | InProcessGateway") -> list[str]:
    """The ids of all open turns."""
    return [turn.id for turn in await gateway.store.read(open_turns.listing)]


def live_turn(gateway: "Core | InProcessGateway", session: str) -> LiveTurn:
    """The running turn of this session, as the embedded engine holds it."""
    record = gateway.components.presence.get(session)
    assert record is not None and record.turn is not None, "no turn runs in this session"
    found: LiveTurn = record.turn
    return found


async def fill_slots(gateway: Core, count: int) -> None:
    """Runs as many turns at once as there are slots: none was lost, and there are no more."""
    turns = [await gateway.accept(f"[hold slot{number}]", f"slot {number}") for number in range(count + 1)]
    with anyio.fail_after(WAIT):
        for number in range(count):
            await gateway.model.held(f"slot{number}")
    stats = gateway.components.engine.stats()
    assert (stats.running, stats.waiting) == (count, 1)
    for number in range(count + 1):
        gateway.model.release(f"slot{number}")
    for turn in turns:
        await gateway.answered(turn.turn)


async def open_test_plugins(
    config: Config, scope: Scope, own: frozenset[str] = frozenset()
) -> tuple[Plugins, dict[str, Toolset]]:
    """The plug-ins that the configuration uses, open, except toolsets with one of the names `own`."""
    found = await anyio.to_thread.run_sync(find_plugins, config)
    uses = tuple(use for use in found.uses if use.name not in own)
    return await open_plugins(config, found._replace(uses=uses), scope, {})


@contextlib.asynccontextmanager
async def core(
    home: Path,
    extra: str = "",
    *,
    model: ScriptedModel,
    toolsets: Mapping[str, Toolset] | None = None,
    tools: str = '"clock", "files"',
    hooks: Mapping[str, EndHook] | None = None,
    drain: float | None = 5,
    toml: str | None = None,
    clock: Callable[[], float] = time.time,
    channels: Channels | None = None,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> AsyncIterator[Core]:
    """A core over `home`; entering it a second time is a restart.

    `drain` is the budget of its stop. With None it ends like a crash: nothing is finished, the store is only closed.
    """
    home.mkdir(exist_ok=True, parents=True)
    (home / "tidegate.toml").write_text(toml if toml is not None else settings(model, extra, tools=tools))
    config = await anyio.to_thread.run_sync(load, home)
    registry = Toolsets({**builtin_toolsets(), **(toolsets or {})})
    own = frozenset(toolsets or {})
    async with (
        Scope("process", account=Ledger().account("process")) as scope,
        Store.open(home / "tidegate.db", **options) as store,
        HttpClient(keepalive=config.limits.connection_idle) as clients,
        Models(
            config.models,
            clients,
            lambda reference: resolve(reference, environment or {}, home),
            config.limits.answer_bytes,
            retry_policy=RetryPolicy(clock=clock),
        ) as models,
    ):
        plugins, plugin_toolsets = await open_test_plugins(config, scope, own)
        turns = scope.child("turns")
        components = build_components(
            turns,
            store,
            config,
            models,
            registry.adding(plugin_toolsets),
            hooks=hooks,
            clock=clock,
            channels=channels,
            plugins=plugins,
        )
        service = Sessions(components)
        await service.recover()
        try:
            yield Core(service, components, scope, model, clients, plugins)
        finally:
            if drain is not None:
                await service.drain(drain)
            await turns.close()
