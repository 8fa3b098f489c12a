"""The control socket."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from tidegate.errors import NotFound, TidegateError
from tidegate.gateway import ControlUnanswered, ask
from tidegate.gateway.control import Control
from tidegate.gateway.control_client import FolderPath
from tidegate.lifetimes import Scope

pytestmark = pytest.mark.anyio


async def _echo(request: dict[str, Any]) -> dict[str, Any]:
    return {"got": request}


async def _refuse(_request: dict[str, Any]) -> dict[str, Any]:
    raise NotFound("There is none; make one.")


VERBS = {"echo": _echo, "refuse": _refuse}


async def _ask(home: Path, request: dict[str, Any]) -> dict[str, Any]:
    with anyio.fail_after(20):
        return await to_thread.run_sync(ask, home, request)


def _raw(home: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as line, FolderPath(home) as folder:
        line.settimeout(20)
        line.connect(f"{folder}/control.sock")
        line.sendall(data)
        with line.makefile("rb") as stream:
            return stream.readline()


async def test_a_request_is_answered_and_the_socket_is_removed_with_its_scope(tmp_path: Path) -> None:
    """F2: the command line reaches the gateway over a socket in the home folder, and it leaves no file behind."""
    async with Scope("test") as scope:
        await Control(tmp_path, VERBS).open(scope)
        assert (tmp_path / "control.sock").stat().st_mode & 0o777 == 0o600
        assert await _ask(tmp_path, {"do": "echo", "n": 1}) == {"got": {"do": "echo", "n": 1}}
    assert not (tmp_path / "control.sock").exists()
    with pytest.raises(ControlUnanswered, match="start one with"):
        await _ask(tmp_path, {"do": "echo"})


async def test_a_home_folder_of_any_length_has_a_control_socket(tmp_path: Path) -> None:
    """F2: the limit of socket addresses is not a limit of folders."""
    home = tmp_path / ("x" * 200) / ("y" * 200)
    home.mkdir(parents=True)
    async with Scope("test") as scope:
        await Control(home, VERBS).open(scope)
        assert await _ask(home, {"do": "echo"}) == {"got": {"do": "echo"}}


async def test_the_socket_of_a_dead_gateway_is_replaced(tmp_path: Path) -> None:
    """F4: files left by kill -9 do not keep the next gateway from starting."""
    with socket.socket(socket.AF_UNIX) as dead, FolderPath(tmp_path) as folder:
        dead.bind(f"{folder}/control.sock")
    with pytest.raises(ControlUnanswered):
        await _ask(tmp_path, {"do": "echo"})
    async with Scope("test") as scope:
        await Control(tmp_path, VERBS).open(scope)
        assert await _ask(tmp_path, {"do": "echo"}) == {"got": {"do": "echo"}}


async def test_invalid_requests_get_one_sentence_and_the_socket_keeps_working(tmp_path: Path) -> None:
    """X05: for any input the control socket answers or closes the connection, and keeps working."""
    async with Scope("test") as scope:
        await Control(tmp_path, VERBS).open(scope)
        for data in (
            b"nonsense\n",
            b"[]\n",
            b"\xff\xfe\n",
            b'"do"\n',
            b"{" + b" " * 10_000 + b"\n",
            b'{"do":"fly"}\n',
            b"[" * 4000 + b"\n",
            b'{"do": "\xff"}\n',
        ):
            assert b'{"error":"' in await to_thread.run_sync(_raw, tmp_path, data)
        with pytest.raises(TidegateError, match="make one"):
            await _ask(tmp_path, {"do": "refuse"})
        assert await _ask(tmp_path, {"do": "echo"}) == {"got": {"do": "echo"}}


async def test_clients_that_hang_are_bounded_and_delay_nobody(tmp_path: Path) -> None:
    """L21: silent connections are few, and the scope closes in spite of them."""
    silent = [socket.socket(socket.AF_UNIX) for _ in range(12)]
    try:
        async with Scope("test") as scope:
            await Control(tmp_path, VERBS).open(scope)
            with FolderPath(tmp_path) as folder:
                for line in silent[:4]:
                    line.connect(f"{folder}/control.sock")
            assert await _ask(tmp_path, {"do": "echo"}) == {"got": {"do": "echo"}}
            with FolderPath(tmp_path) as folder:
                for line in silent[4:]:
                    line.connect(f"{folder}/control.sock")
            refused = 0
            for line in silent:
                line.settimeout(0.2)
                refused += await to_thread.run_sync(_is_refused, line)
            assert refused == 4
    finally:
        for line in silent:
            line.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own may not be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_gets_no_answer_even_if_the_folder_is_open_to_them(open_folder: Path) -> None:
    """X05: the control socket checks who connects."""
    async with Scope("test") as scope:
        await Control(open_folder, VERBS).open(scope)
        await to_thread.run_sync((open_folder / "control.sock").chmod, 0o777)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(20)
            os.seteuid(65534)
            try:
                stranger.connect(str(open_folder / "control.sock"))
            finally:
                os.seteuid(0)
            stranger.sendall(b'{"do":"echo"}\n')
            with pytest.raises(ConnectionError):
                await to_thread.run_sync(_whole, stranger)


def _whole(line: socket.socket) -> bytes:
    data = line.recv(100)
    if not data:
        raise ConnectionResetError
    return data


def _is_refused(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
