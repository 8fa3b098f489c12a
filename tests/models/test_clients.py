"""The connection pool: bounded, intact after mass cancellation, and never full of half-closed sockets."""

from pathlib import Path

import anyio
import apsw
import psutil
import pytest

from tests.models.support import PREFIX, Listener, ScriptedModel, ask, configured
from tidegate.http_client import HttpClient, Target, Timeouts
from tidegate.values import Call, Message

pytestmark = pytest.mark.anyio

STORM = 240
AT_ONCE = 60
FEW = 4


def sockets(server: ScriptedModel) -> dict[str, int]:
    """Our connections to the server, by state."""
    port = int(server.root.rpartition(":")[2])
    states: dict[str, int] = {}
    for connection in psutil.Process().net_connections(kind="tcp"):
        if connection.raddr and connection.raddr.port == port:
            states[connection.status] = states.get(connection.status, 0) + 1
    return states


async def until_idle(server: ScriptedModel) -> None:
    with anyio.fail_after(20):
        while server.stats()["busy"]:
            await anyio.lowlevel.checkpoint()


async def test_many_cancelled_streams_leave_pool_and_files_intact(server: ScriptedModel, tmp_path: Path) -> None:
    """L10, L11: while a database is written in the same process. Afterwards it is intact, no socket is left over, and
    the pool still works."""
    database = apsw.Connection(str(tmp_path / "t.db"))
    database.execute("create table t(x)")

    async def one(number: int) -> None:
        with anyio.CancelScope() as scope:
            listener = Listener()

            def seen(text: str) -> None:
                listener.pieces.append(text)
                scope.cancel()

            history = [model.wire.encode(ask_words(number))]
            prefix = model.wire.encode_prefix(PREFIX)
            await model.ask(prefix, history, Call(), on_text=seen, on_reset=listener.reset)
        assert scope.cancelled_caught
        database.execute("insert into t values(randomblob(200))")

    async with HttpClient() as clients, configured(server.base_url, clients=clients) as model:
        for first in range(0, STORM, AT_ONCE):
            with anyio.fail_after(30):
                async with anyio.create_task_group() as group:
                    for number in range(first, first + AT_ONCE):
                        group.start_soon(one, number)
        assert clients.stats().busy == 0
        await until_idle(server)
        assert server.stats()["disconnects"] == STORM
        states = sockets(server)
        assert states.get("ESTABLISHED", 0) <= FEW
        assert states.get("CLOSE_WAIT", 0) <= FEW
        assert (await ask(model, "still there?")).text.startswith("The tide")
    assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert database.execute("select count(*) from t").fetchall() == [(STORM,)]
    database.close()


def ask_words(number: int) -> Message:
    # Some hang after their first words, some go on for long.
    return Message(role="user", text=f"{number} " + ("[hang after=2]" if number % 2 else "[words 2000] [slow ms=5]"))


async def test_cancelling_before_the_first_byte_closes_the_connection(server: ScriptedModel) -> None:
    """L11: also while waiting for the headers."""
    async with HttpClient() as clients, configured(server.base_url, clients=clients) as model:
        async with anyio.create_task_group() as group:
            group.start_soon(ask, model, "[hold it]")
            with anyio.fail_after(10):
                await server.held("it")
            assert clients.stats().busy == 1
            group.cancel_scope.cancel()
        assert clients.stats().open == 0
        await until_idle(server)
        assert server.stats()["disconnects"] == 1


async def test_half_closed_connections_do_not_accumulate(server: ScriptedModel) -> None:
    """L11: an impatient proxy closes idle connections again and again. None stays in CLOSE_WAIT, and the next request
    succeeds without a visible failure."""
    async with HttpClient() as clients, configured(server.base_url, clients=clients) as model:
        for round in range(5):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(ask, model, f"{round} {number}")
            assert clients.stats().idle > 0
            server.close_idle()
            with anyio.fail_after(10):
                while server.connections:
                    await anyio.lowlevel.checkpoint()
            assert sockets(server).get("CLOSE_WAIT", 0) <= FEW
        assert sockets(server).get("ESTABLISHED", 0) <= FEW


async def test_idle_connections_are_closed_when_their_keep_alive_expires(server: ScriptedModel) -> None:
    """L11: without another request."""
    async with HttpClient(keepalive=0.05) as clients, configured(server.base_url, clients=clients) as model:
        await ask(model, "hello")
        assert clients.stats().idle == 1
        with anyio.fail_after(10):
            while server.connections:
                await anyio.lowlevel.checkpoint()
        assert clients.stats().open == 0


async def test_the_pool_is_bounded_and_connections_are_reused(server: ScriptedModel) -> None:
    """L11, A1: many requests, few connections."""
    async with HttpClient(connections=8, per_host=4) as clients, configured(server.base_url, clients=clients) as model:
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(ask, model, f"hello {number}")
        assert server.stats()["accepted_connections"] <= 4
        assert clients.stats().open <= 4
        assert clients.stats().limit == 8


async def test_leases_are_counted_by_endpoint_and_released_once(server: ScriptedModel) -> None:
    """B1, B7: a second release changes nothing."""
    async with HttpClient() as clients, configured(server.base_url, clients=clients) as model:
        one, two = model.lease(), model.lease()
        assert clients.stats().leases == {server.base_url: 2}
        one.release()
        one.release()
        assert clients.stats().leases == {server.base_url: 1}
        two.release()
        assert clients.stats().leases == {}


async def test_clients_that_are_not_open_raise_an_error() -> None:
    clients = HttpClient()
    with pytest.raises(RuntimeError, match="async with"):
        await clients.request(Target("POST", "http://127.0.0.1:9/", {}), [b""], Timeouts(1.0, 1.0, 1.0))
    assert clients.stats().open == 0
