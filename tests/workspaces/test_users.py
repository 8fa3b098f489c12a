"""The unprivileged user that everything runs as if root started the gateway."""

import os
import stat
from pathlib import Path

import pytest

from tests.workspaces.harness import WAIT, alive, open_workspaces, token, until
from tidegate.errors import ToolFailed
from tidegate.gateway.preflight.preflight import examine
from tidegate.workspaces.files import FileFilter, SearchQuery
from tidegate.workspaces.kernel.users import RESERVED_UIDS, user_of

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no other to become")
SHELL = "cp /bin/sh shell; chmod 4755 shell || true"
"""The attack: a shell with the rights of its creator, for everybody who starts it."""

SOMEBODY = 12345


def project(home: Path, owner: int = 0) -> Path:
    folder = home / "project"
    folder.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, owner, owner)
    return folder


def everything(folder: Path) -> list[Path]:
    return [folder, *folder.rglob("*")]


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
@pytest.mark.parametrize("agent", ["main", "project"])
async def test_a_setuid_shell_left_by_an_agent_is_not_roots(home: Path, backend: str, agent: str) -> None:
    """X12: in the session's own folder and in a project, with and without a sandbox."""
    async with open_workspaces(home, backend=backend) as harness:
        session = await harness.new_session()
        folder = project(home, SOMEBODY) if agent == "project" else home / "workspaces" / session
        await harness.output_of(session, SHELL, agent=agent)
        left = (folder / "shell").stat()
        assert bool(left.st_mode & stat.S_ISUID) == (backend == "local")
        assert left.st_uid != 0 and left.st_gid != 0
        if os.geteuid() == 0:
            assert (left.st_uid == SOMEBODY) == (agent == "project")


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_a_command_opens_its_own_streams_by_name(home: Path, backend: str) -> None:
    """D1: scripts write to /dev/stderr, whoever they run as."""
    async with open_workspaces(home, backend=backend) as harness:
        said = await harness.output_of(await harness.new_session(), "echo one > /dev/stdout; echo two > /dev/stderr")
        assert "one" in said and "two" in said and "denied" not in said


@pytest.mark.parametrize("backend", ["bubblewrap", "local", "none"])
async def test_file_tools_and_commands_write_as_the_same_user(home: Path, backend: str) -> None:
    """X12: including a replaced file and folders on the way."""
    async with open_workspaces(home, backend=backend) as harness:
        session = await harness.new_session()
        files = await harness.of(session).files()
        await files.write("a/b/new", b"text")
        if backend != "none":
            await harness.output_of(session, "echo old > old; chmod 755 old")
            await files.write("old", b"other")
        folder = home / "workspaces" / session
        owners = {path.lstat().st_uid for path in everything(folder)}
        assert len(owners) == 1 and owners != {0}


@as_root
async def test_file_tools_read_only_what_the_user_may_read(home: Path) -> None:
    """X12: root's files in a project folder, neither by name nor by a search, although the gateway could."""
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        secret = project(home, SOMEBODY) / "secret"
        secret.write_text("needle")
        secret.chmod(0o600)
        (home / "project" / "open").write_text("needle")
        files = await harness.of(session, "project").files()
        with pytest.raises(ToolFailed, match="Permission denied"):
            await files.load("secret", limit=100)
        with pytest.raises(ToolFailed, match="Permission denied"):
            async with files.opened("secret"):
                pass
        query = SearchQuery(pattern="needle", choice=FileFilter(), context=0, limit=10)
        assert [hit.path for hit in (await files.search(".", query)).hits] == ["open"]
        (home / "project").chmod(0o555)
        os.chown(home / "project", 0, 0)
        with pytest.raises(ToolFailed, match="Permission denied"):
            await (await harness.of(session, "project").files()).write("new", b"")


@as_root
@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_the_user_reaches_only_its_own_folders_of_the_gateways_home(home: Path, backend: str) -> None:
    """X01: although these are inside it."""
    async with open_workspaces(home, backend=backend) as harness:
        session = await harness.new_session()
        (home / "api-key").write_text("secret")
        (home / "api-key").chmod(0o644)
        await harness.output_of(session, "echo x > ~/kept; echo y > ${TMPDIR:-/tmp}/kept")
        done, _ = await harness.run(session, f"cat {home}/api-key || ls {home}")
        assert done.code != 0
        assert (home / "workspaces" / f"{session}.private" / "home" / "kept").read_text() == "x\n"
        assert stat.S_IMODE(home.stat().st_mode) == 0o700


async def test_stored_output_cannot_be_executed(home: Path) -> None:
    """X12: it is in the gateway's home, which nobody else can enter, and cannot be executed there."""
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.of(session).start("loud", "umask 0; cat /bin/sh")
        await harness.of(session).wait("loud", pattern=None, timeout=WAIT)
        kept = [path for path in (home / "spool").rglob("*") if path.is_file()]
        assert kept and all(stat.S_IMODE(path.stat().st_mode) & 0o7177 == 0 for path in kept)


@as_root
async def test_a_command_without_a_sandbox_cannot_end_its_guardian(home: Path) -> None:
    async with open_workspaces(home, backend="local") as harness:
        _, printed = await harness.run(await harness.new_session(), "kill -9 $PPID || echo still there")
        assert printed.endswith("still there\n")


@as_root
async def test_commands_have_no_groups_or_capabilities_of_root(home: Path) -> None:
    async with open_workspaces(home, backend="local") as harness:
        said = await harness.output_of(
            await harness.new_session(), "id -u; id -G; grep -E 'Cap(Eff|Prm)' /proc/self/status"
        )
        uid, groups, *capabilities = said.splitlines()
        assert int(uid) in RESERVED_UIDS and groups == uid
        assert all(line.split()[1] == "0" * 16 for line in capabilities)


@as_root
async def test_a_workspace_owned_by_root_changes_its_owner_once_without_following_links(home: Path) -> None:
    """X12, S12: leftovers of an earlier gateway. A project is left as it is."""
    outside = home.parent / "outside"
    outside.write_text("root's")
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "mkdir -p a/b; echo x > a/b/c")
        folder = home / "workspaces" / session
        for path in everything(folder):
            os.chown(path, 0, 0)
        (folder / "a" / "b" / "c").chmod(0o4755)
        (folder / "link").symlink_to(outside)
    (project(home) / "old").write_text("root's")
    async with open_workspaces(home) as harness:
        await harness.output_of(session, "echo more >> a/b/c")
        assert {path.lstat().st_uid for path in everything(folder)} == {folder.stat().st_uid} != {0}
        assert stat.S_IMODE((folder / "a" / "b" / "c").stat().st_mode) & 0o4000 == 0
        assert outside.stat().st_uid == 0
        os.chown(folder / "a" / "b" / "c", 0, 0)  # finished work is not repeated
        await harness.end(await harness.new_session())
        await (await harness.of(session).files()).write("new", b"")
        assert (folder / "a" / "b" / "c").stat().st_uid == 0
        await harness.run(await harness.new_session(), "true", agent="project")
        assert {path.stat().st_uid for path in everything(home / "project")} == {0}


@as_root
async def test_an_interrupted_change_of_owner_is_finished_on_the_next_use(home: Path) -> None:
    """S12: a folder changes its owner after its contents, so its owner shows whether it is done."""
    async with open_workspaces(home) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "mkdir a; echo x > a/b; echo y > z")
        folder = home / "workspaces" / session
        os.chown(folder, 0, 0)
        os.chown(folder / "z", 0, 0)
        await harness.of(session).files()
        assert {path.stat().st_uid for path in everything(folder)} == {folder.stat().st_uid} != {0}


@as_root
async def test_the_setting_names_the_user(home: Path) -> None:
    async with open_workspaces(home, user=str(SOMEBODY)) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "echo x > file")
        assert (home / "workspaces" / session / "file").stat().st_uid == SOMEBODY


@as_root
async def test_processes_of_another_user_end_with_their_session(home: Path) -> None:
    """L28: including processes that leave their group, in a sandbox and without one."""
    for backend in ("bubblewrap", "local"):
        mark = token()
        async with open_workspaces(home, backend=backend) as harness:
            session = await harness.new_session()
            await harness.of(session).start("server", f"(setsid env -i sleep {mark} &); sleep {mark}; :")
            await until(lambda mark=mark: len(alive(f"sleep\0{mark}")) == 2)  # type: ignore[misc]
            await harness.end(session)
            assert alive(mark) == []


def test_the_user_is_the_projects_owner_or_a_reserved_one_and_never_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    own = user_of("", None, "ab")
    assert own is not None and own.uid in RESERVED_UIDS and own.gid == own.uid
    assert user_of("", None, "ac") != own
    assert user_of("", tmp_path / "missing", "ab") == own
    owner = tmp_path.stat().st_uid
    found = user_of("", tmp_path, "ab")
    assert found is not None and found.uid == (owner or own.uid)
    assert user_of("4321", tmp_path, "ab") == (4321, 4321)
    for wrong in ("root", "0", "no such user"):
        with pytest.raises(ToolFailed, match=r"workspaces\.user"):
            user_of(wrong, tmp_path, "ab")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert user_of("4321", tmp_path, "ab") is None


@as_root
def test_a_project_that_agents_cannot_write_is_named(tmp_path: Path) -> None:
    """X12: at the start, by `config check` and by `doctor`."""
    (tmp_path / "tidegate.toml").write_text('[agents.main]\nworkspace = "papers"\n')
    (tmp_path / "papers").mkdir()
    [warning] = examine(tmp_path, {}).warnings
    assert "papers belongs to root" in warning and "chown" in warning
    os.chown(tmp_path / "papers", SOMEBODY, SOMEBODY)
    assert examine(tmp_path, {}).warnings == ()
