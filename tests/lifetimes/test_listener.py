"""A listening socket, with connections enough and without."""

import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest

from tests.logs import capture_logs
from tidegate.lifetimes import Descriptors, Listener, Room

pytestmark = pytest.mark.anyio

WAIT = 20
CLIENTS = 5


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Within this block nothing can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def listening(stack: contextlib.ExitStack, room: list[Room]) -> Iterator[tuple[Listener, list[bool], int]]:
    """A listener, what it has accepted, and its port."""
    sock = stack.enter_context(socket.socket())
    sock.bind(("127.0.0.1", 0))
    accepted: list[bool] = []

    def accept(connection: socket.socket, reserve: bool) -> None:
        stack.enter_context(connection)
        accepted.append(reserve)

    listener = Listener(
        sock, room=lambda short: "none" if short else room[0], accepted=accept, descriptors=Descriptors()
    )
    listener.start(64)
    try:
        yield listener, accepted, sock.getsockname()[1]
    finally:
        listener.close()
        listener.close()


async def until(number: int, accepted: list[bool]) -> None:
    with anyio.fail_after(WAIT):
        while len(accepted) < number:
            await anyio.sleep(0.005)


async def test_a_listener_without_descriptors_tries_seldom_and_says_it_once() -> None:
    """L08, L21: connections wait in the kernel's queue, and are accepted when there are descriptors again."""
    with (
        contextlib.ExitStack() as stack,
        capture_logs() as lines,
        listening(stack, ["free"]) as (listener, accepted, port),
    ):
        for _ in range(CLIENTS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        with no_descriptors(), anyio.fail_after(WAIT):
            while listener.failures < 4:
                await anyio.sleep(0.005)
            assert listener.failures < 50
        assert [line["event"] for line in lines] == [
            "connections cannot be accepted and are waiting: Too many open files"
        ]
        await until(CLIENTS, accepted)
        again = f"connections are accepted again after {listener.failures} failures"
        assert [line["event"] for line in lines[1:]] == [again]


async def test_a_listener_whose_owner_has_no_room_leaves_connections_in_the_queue() -> None:
    """L11, L21: until `resume` is called."""
    room: list[Room] = ["none"]
    with contextlib.ExitStack() as stack, listening(stack, room) as (listener, accepted, port):
        for _ in range(CLIENTS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        await anyio.lowlevel.checkpoint()
        room[0] = "reserve"
        assert accepted == []
        listener.resume()
        await until(CLIENTS, accepted)
        assert accepted == [True] * CLIENTS
