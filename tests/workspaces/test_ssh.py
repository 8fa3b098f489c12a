"""Commands on another machine, which here is this one behind a real sshd."""

import contextlib
import hashlib
import os
import random
import select
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from bench import orphans
from tests.workspaces.conformance import Conformance, Place, opened, spawner, spec_of, token
from tests.workspaces.harness import WAIT, Clock, alive, open_workspaces, until
from tests.workspaces.sshd import SSHD, Sshd, sshd
from tidegate.errors import ToolFailed
from tidegate.store import outbox, sessions, workspaces
from tidegate.workspaces.backends import remote_keeper
from tidegate.workspaces.backends.interface import Sandbox
from tidegate.workspaces.backends.remote_cleanup import FIRST_SECONDS, GIVE_UP_SECONDS, LONGEST_SECONDS
from tidegate.workspaces.backends.ssh import SshBackend
from tidegate.workspaces.files import FileFilter, SearchQuery

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if SSHD is None:
        pytest.fail("These tests need an sshd: apt install openssh-server")
    with sshd(tmp_path_factory.mktemp("sshd") / "s", "MaxSessions 6") as running:
        yield running


@pytest.fixture
def backend(server: Sshd) -> SshBackend:
    return SshBackend(spawner(), HOST, server.options)


@pytest.fixture
async def place(backend: SshBackend, tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(backend, spec_of(tmp_path)) as made:
        yield made


class TestSsh(Conformance):
    pass


# -- the connection ----------------------------------------------------------------------------------------------------


async def test_all_commands_of_a_session_share_one_connection(server: Sshd, place: Place) -> None:
    before = server.connections()
    for _ in range(3):
        await place.output_of("true")
    assert server.connections() == before


async def test_ssh_gets_nothing_of_the_gateways_environment(
    backend: SshBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X18: neither secrets, nor an agent, nor a display."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere/agent")
    monkeypatch.setenv("DISPLAY", ":7")
    monkeypatch.setenv("TIDEGATE_SECRET", "hidden")
    async with opened(backend, spec_of(tmp_path)) as place:
        assert place.sandbox.pid is not None
        names = [
            field.partition(b"=")[0] for field in Path(f"/proc/{place.sandbox.pid}/environ").read_bytes().split(b"\0")
        ]
        assert set(names) == {b"HOME", b"PATH", b"TIDEGATE_OWNER", b""}
        assert await place.output_of("echo ${SSH_AUTH_SOCK:-none} ${DISPLAY:-none}") == "none none"


async def test_the_control_socket_is_in_a_private_folder_with_any_path_length(
    backend: SshBackend, tmp_path: Path
) -> None:
    deep = tmp_path / ("long" * 40)
    deep.mkdir()
    async with opened(backend, spec_of(deep)) as place:
        assert await place.output_of("echo here") == "here"
        found = place.spec.private / "ssh"
        assert stat.S_ISSOCK(found.stat().st_mode) and found.parent.stat().st_mode & 0o077 == 0
    assert not found.exists()


async def test_a_control_socket_left_by_a_killed_gateway_does_no_harm(backend: SshBackend, tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    (spec.private / "ssh").touch()
    async with opened(backend, spec) as place:
        assert await place.output_of("echo here") == "here"


async def test_an_unreachable_host_is_reported_in_one_sentence(server: Sshd, tmp_path: Path) -> None:
    backend = SshBackend(spawner(), HOST, ("Port=1", *server.options))
    assert await backend.check() is None
    with pytest.raises(ToolFailed, match=r"The workspace on 127\.0\.0\.1 cannot be used: .*Connection refused"):
        await backend.open(spec_of(tmp_path))


async def test_a_host_with_a_changed_key_is_refused(server: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    backend = SshBackend(spawner(), HOST, (f"UserKnownHostsFile={known}", *server.options))
    with pytest.raises(ToolFailed, match="Host key verification failed"):
        await backend.open(spec_of(tmp_path))


async def test_a_wrong_key_is_reported_without_a_password_prompt(server: Sshd, tmp_path: Path) -> None:
    backend = SshBackend(
        spawner(), HOST, ("IdentityFile=/dev/null", *(option for option in server.options if "Identity" not in option))
    )
    with pytest.raises(ToolFailed, match="Permission denied"):
        await backend.open(spec_of(tmp_path))


@pytest.mark.parametrize("host", ["", "-oProxyCommand=touch /tmp/x"])
async def test_an_invalid_host_is_refused_before_anything_starts(host: str) -> None:
    why = await SshBackend(spawner(), host, ()).check()
    assert why is not None and "workspaces.ssh_host" in why


async def test_no_ssh_configuration_can_enable_forwarding(server: Sshd, tmp_path: Path) -> None:
    wanted = (
        "ForwardAgent=yes",
        "BatchMode=no",
        f"RemoteForward={tmp_path / 'back'} {tmp_path / 'forth'}",
        "RequestTTY=force",
    )
    backend = SshBackend(spawner(), HOST, (*wanted, *server.options))
    async with opened(backend, spec_of(tmp_path)) as place:
        assert await place.output_of("echo ${SSH_AUTH_SOCK:-none} ${SSH_TTY:-none}") == "none none"
        assert not (tmp_path / "back").exists()


async def test_commands_beyond_the_servers_session_limit_are_refused_in_one_sentence(place: Place) -> None:
    children = [await place.start("read -r line") for _ in range(5)]
    with pytest.raises(ToolFailed, match="MaxSessions"):
        await place.start("true")
    with anyio.fail_after(WAIT):
        await children[0].end(0)
    assert await place.output_of("echo again") == "again"
    for child in children:
        with anyio.fail_after(WAIT):
            await child.end(0)
        child.close()


# -- the folders -------------------------------------------------------------------------------------------------------


async def test_a_remote_session_has_private_folders_in_the_accounts_home(server: Sshd, place: Place) -> None:
    root = server.sessions / place.spec.session
    assert await place.output_of("pwd; echo $HOME; echo $TMPDIR") == f"{root}/work\n{root}/home\n{root}/tmp"
    assert root.stat().st_mode & 0o777 == 0o700


async def test_a_remote_project_is_used_and_a_missing_one_is_reported(backend: SshBackend, tmp_path: Path) -> None:
    """V10: its path is the other machine's."""
    project = tmp_path / "project"
    spec = spec_of(tmp_path)
    with pytest.raises(ToolFailed, match=r"set to .*/project, which does not exist"):
        await backend.open(type(spec)(**{**_fields(spec), "folder": project, "project": True}))
    project.mkdir()
    async with opened(backend, type(spec)(**{**_fields(spec), "folder": project, "project": True})) as place:
        assert await place.output_of("pwd") == str(project)


def _fields(spec: object) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}  # type: ignore[attr-defined]


async def test_remote_folders_of_an_ended_session_go_to_the_trash_and_expire(
    server: Sshd, backend: SshBackend, tmp_path: Path
) -> None:
    """V09: on the other machine too."""
    specs = [spec_of(tmp_path) for _ in range(3)]
    for spec in specs:
        async with opened(backend, spec) as place:
            await place.output_of("mkdir -p deep; echo 1 > deep/file; chmod 500 deep")
    old, kept, removed = (spec.session for spec in specs)
    await backend.discard_folders(old, keep=True, age=100)
    assert (server.trash / old / "work" / "deep" / "file").read_text() == "1\n"
    os.utime(server.trash / old, (1, 1))
    await backend.discard_folders(kept, keep=True, age=100)
    await backend.discard_folders(removed, keep=False, age=100)
    assert not (server.trash / old).exists() and not (server.trash / removed).exists()
    assert (server.trash / kept).is_dir()
    assert not any((server.sessions / spec.session).exists() for spec in specs)
    await backend.discard_folders(kept, keep=True, age=100)
    assert (server.trash / kept).is_dir()


async def test_remote_files_are_read_written_and_found_like_local_ones(place: Place) -> None:
    """X07: nothing outside the session's folders, not even through a link."""
    files = place.backend.files(place.spec, _opening(place))
    data = os.urandom(200_000)
    await place.output_of("ln -s /etc out; mkdir deep; echo needle > deep/file")
    assert (await files.write("new/data", data)).replaced is None
    assert (await files.load("new/data", limit=len(data))).data == data
    assert await place.output_of("sha256sum < new/data") == f"{hashlib.sha256(data).hexdigest()}  -"
    found = await files.search(".", SearchQuery(pattern="needle"))
    assert [hit.path for hit in found.hits] == ["deep/file"]
    listed = await files.list(".", FileFilter(), recursive=False, limit=10)
    assert [entry.path for entry in listed.entries] == ["deep", "new", "out"]
    with pytest.raises(ToolFailed, match="outside the workspace"):
        await files.load("out/passwd", limit=10_000)
    async with files.opened("new/data") as fd:
        assert os.pread(fd, len(data), 0) == data


def _opening(place: Place) -> Callable[[], Awaitable[Sandbox]]:
    async def sandbox() -> Sandbox:
        return place.sandbox

    return sandbox


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_a_lost_connection_is_noticed_and_ends_everything_remote(server: Sshd, place: Place) -> None:
    """L14, S10: and running commands count as killed."""
    mark = token()
    before = set(server.connections())
    child = await place.start(f"trap '' TERM; (setsid env -i sleep {mark} &); sleep {mark}")
    await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
    for pid in before:
        with contextlib.suppress(
            ProcessLookupError
        ):  # a connection of a plain user's is two, and one ends with the other
            os.kill(pid, signal.SIGKILL)
    with anyio.fail_after(WAIT):
        await place.sandbox.wait()
        assert await child.wait() == -9
        await child.end(0)
    child.close()
    assert not place.sandbox.alive
    await until(lambda: not alive(mark))
    with pytest.raises(ToolFailed, match=r"connection to the machine .* was lost"):
        await place.run("true")


async def test_killing_the_keeper_ends_everything(place: Place) -> None:
    mark = token()
    child = await place.start(f"(setsid env -i sleep {mark} &); sleep {mark}")
    await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
    os.kill(int(place.sandbox.remote.keeper.partition(":")[0]), signal.SIGKILL)  # type: ignore[attr-defined]
    await until(lambda: not alive(mark))
    with anyio.fail_after(WAIT):
        await child.wait()
        await child.end(0)
        await place.sandbox.wait()
    child.close()
    assert not place.sandbox.alive


async def test_processes_of_a_killed_guardian_are_ended_by_their_mark(place: Place) -> None:
    mark = token()
    child = await place.start(f"(setsid sleep {mark} &); sleep {mark}")
    await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
    os.kill(int(child.guardian.partition(":")[0]), signal.SIGKILL)  # type: ignore[attr-defined]
    with anyio.fail_after(WAIT):
        assert await child.end(0) == 0
        assert await child.wait() == -9
    assert not alive(mark) and place.sandbox.alive
    child.close()


async def test_a_keeper_that_hears_nothing_exits() -> None:
    """L16: a machine that is cut off does not keep running commands."""
    heard, say = os.pipe()
    waiting = os.dup(0)
    try:
        os.dup2(heard, 0)
        with anyio.fail_after(WAIT):
            await anyio.to_thread.run_sync(remote_keeper.attend, 0.05, abandon_on_cancel=True)
        assert os.write(say, b"too late") and select.select([heard], [], [], 0)[0] == [heard]
    finally:
        os.dup2(waiting, 0)
        for fd in (heard, say, waiting):
            os.close(fd)


def test_nothing_outlives_a_gateway_that_is_killed_while_it_connects(server: Sshd) -> None:
    """L14, P12: at random moments of a connection and of its first command, on either side."""
    seed = int(os.environ.get("TIDEGATE_SEED") or random.SystemRandom().randrange(1_000_000))
    result = orphans.run("ssh", 10, seed, options=server.options)
    assert result.left == 0, result
    until_gone = time.monotonic() + WAIT
    while (server.connections() or alive(str(orphans.SECONDS + seed))) and time.monotonic() < until_gone:
        time.sleep(0.01)
    assert server.connections() == alive(str(orphans.SECONDS + seed)) == []


GATEWAY = """
import anyio, sys
from pathlib import Path
from tests.workspaces.conformance import opened, spawner, spec_of
from tidegate.workspaces.backends.remote_cleanup import FIRST_SECONDS, GIVE_UP_SECONDS, LONGEST_SECONDS
from tidegate.workspaces.backends.ssh import SshBackend

async def main():
    async with opened(SshBackend(spawner(), sys.argv[1], sys.argv[4:]), spec_of(Path(sys.argv[2]))) as place:
        for _ in range(2):
            await place.start(sys.argv[3])
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
async def test_nothing_outlives_a_gateway_that_is_killed(server: Sshd, tmp_path: Path, trap: str) -> None:
    """L14, P12: after kill -9 of the gateway, on both machines."""
    mark = token()
    command = f"{trap}(setsid env -i sleep {mark} &); (setsid sh -c 'sleep {mark} & sleep {mark}' &); sleep {mark}"
    child = await spawner().spawn(
        [sys.executable, "-c", GATEWAY, HOST, str(tmp_path), command, *server.options],
        {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        await until(lambda: len(alive(f"sleep\0{mark}")) == 8)
    finally:
        await child.end(0)
        child.close()
    await until(lambda: not alive(mark))
    await until(lambda: not alive(f"IdentityFile={server.folder}"))
    assert not alive(mark)
    await until(lambda: not server.connections())


# -- in workspaces -----------------------------------------------------------------------------------------------------


async def test_a_session_runs_on_another_machine_until_its_end(server: Sshd, home: Path) -> None:
    """B2, B3, V09, V11: shell, files and processes are on the other machine and go to the trash there."""
    settings = {"backend": "ssh", "ssh_host": HOST, "ssh_options": server.options}
    async with open_workspaces(home, **settings) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "mkdir deep; cd deep; export X=kept; echo 1 > file")
        files = await harness.of(session).files()
        assert (await files.load("deep/file", limit=10)).data == b"1\n"
    mark = token()
    async with open_workspaces(home, **settings) as harness:
        assert await harness.output_of(session, "cat file; echo $X") == "1\nkept"
        await harness.of(session).start("server", f"(setsid env -i sleep {mark} &); sleep {mark}")
        await until(lambda: len(alive(f"sleep\0{mark}")) == 2)
        await harness.end(session)
        assert not alive(mark)
        assert (server.trash / session / "work" / "deep" / "file").exists()
        await harness.workspaces.discard(session)
        assert not (server.trash / session).exists() and not (server.sessions / session).exists()


async def test_a_lost_connection_is_reported_and_restart_processes_come_back(server: Sshd, home: Path) -> None:
    """S10, V12: the next command reconnects."""
    async with open_workspaces(home, backend="ssh", ssh_host=HOST, ssh_options=server.options) as harness:
        session = await harness.new_session()
        mark = token()
        await harness.of(session).start("server", f"sleep {mark}", restart=True)
        before = await until(lambda: alive(f"sleep\0{mark}"))
        for pid in server.connections():
            os.kill(pid, signal.SIGKILL)
        await until(lambda: (after := alive(f"sleep\0{mark}")) and after != before)
        assert await harness.output_of(session, "echo here") == "here"
        assert "has been started again" in await harness.take_notices(session)


async def test_an_unreachable_machine_is_reported_and_sessions_can_still_end(server: Sshd, home: Path) -> None:
    async with open_workspaces(home, backend="ssh", ssh_host=HOST, ssh_options=server.options) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "echo 1 > file")
    async with open_workspaces(home, backend="ssh", ssh_host=HOST, ssh_options=("Port=1", *server.options)) as harness:
        with pytest.raises(ToolFailed, match="Connection refused"):
            await harness.output_of(session, "cat file")
        await harness.end(session)
    assert (server.sessions / session / "work" / "file").exists()


async def test_folders_on_an_unreachable_machine_are_discarded_when_it_is_back(server: Sshd, home: Path) -> None:
    """B3, L19, V09: a row remembers it, across a restart and after the session's own rows are gone."""
    settings = {"backend": "ssh", "ssh_host": HOST}
    away, back = ("Port=1", *server.options), server.options
    clock = Clock()
    async with open_workspaces(home, clock=clock, ssh_options=back, **settings) as harness:
        kept, deleted, ephemeral = [await harness.new_session() for _ in range(3)]
        for session in (kept, deleted, ephemeral):
            await harness.output_of(session, "echo 1 > file")
        assert not (home / "workspaces" / kept).exists()  # it is not here
        assert (await harness.store.read(workspaces.get, kept)).folder == ""
    async with open_workspaces(home, clock=clock, ssh_options=away, **settings) as harness:
        await harness.end(kept)
        await harness.end(deleted)
        await harness.store.write(sessions.delete, deleted)
        await harness.workspaces.discard(deleted)
        await harness.workspaces.discard(ephemeral)
        clock.now += FIRST_SECONDS
        await harness.workspaces.tidy()
        assert await harness.store.read(outbox.counts) == {"prepared": 3}
    assert all((server.sessions / session).exists() for session in (kept, deleted, ephemeral))
    async with open_workspaces(home, clock=clock, ssh_options=back, **settings) as harness:
        await harness.workspaces.tidy()
        assert await harness.store.read(outbox.counts) == {"prepared": 3}  # they are not due yet
        clock.now += LONGEST_SECONDS
        await harness.workspaces.tidy()
        assert await harness.store.read(outbox.counts) == {"sent": 3}
    assert not any((server.sessions / session).exists() for session in (kept, deleted, ephemeral))
    assert (server.trash / kept / "work" / "file").exists() and (server.trash / deleted).exists()
    assert not (server.trash / ephemeral).exists()


async def test_a_machine_that_stays_unreachable_is_given_up(server: Sshd, home: Path) -> None:
    """L19: the number of attempts is bounded."""
    settings = {"backend": "ssh", "ssh_host": HOST}
    clock = Clock()
    async with open_workspaces(home, clock=clock, ssh_options=server.options, **settings) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "true")
    async with open_workspaces(home, clock=clock, ssh_options=("Port=1", *server.options), **settings) as harness:
        await harness.end(session)
        # by a process that is then killed
        await harness.store.write(outbox.claim_due, clock.now + FIRST_SECONDS, 1, None)
    async with open_workspaces(home, clock=clock, ssh_options=("Port=1", *server.options), **settings) as harness:
        tried = 0
        while await harness.store.read(outbox.counts) != {"dead": 1}:
            clock.now += LONGEST_SECONDS
            await harness.workspaces.tidy()
            tried += 1
        assert 20 <= tried <= 40
        clock.now += 2 * GIVE_UP_SECONDS
        await harness.workspaces.tidy()
        assert await harness.store.read(outbox.counts) == {}
