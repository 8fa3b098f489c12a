"""What a command in a sandbox sees of the machine, and what it does not."""

import os
from pathlib import Path

import pytest

from tests.workspaces.harness import WorkspaceHarness, alive, open_workspaces, token, until
from tidegate.errors import ToolFailed
from tidegate.tools.builtin.files.edit import edit
from tidegate.tools.builtin.files.write import write

pytestmark = pytest.mark.anyio


async def test_a_command_has_nothing_of_the_gateways_environment(home: Path) -> None:
    """X15, L26: the environment is built from an allow-list, not from the gateway's own."""
    own = {"LANG": "C.UTF-8", "TZ": "UTC", "OPENAI_API_KEY": "sk-secret", "PATH": "/evil", "LD_PRELOAD": "/evil.so"}
    async with open_workspaces(home, environment=own) as harness:
        session = await harness.new_session()
        names = await harness.output_of(session, "env | cut -d= -f1 | sort | tr '\\n' ' '")
        assert set(names.split()) == {
            "HOME", "LANG", "OLDPWD", "PAGER", "PATH", "PWD", "SHELL", "SHLVL", "TERM", "TIDEGATE_MARK", "TZ", "USER",
            "_",
        }  # fmt: skip
        assert "evil" not in await harness.output_of(session, "env")


async def test_a_command_can_read_the_system_and_nothing_else(harness: WorkspaceHarness, session: str) -> None:
    """X12, X18: the kernel enforces it: a read-only system, nobody's home, no secrets of the machine."""
    seen = await harness.output_of(session, "ls -A / | tr '\\n' ' '")
    assert set(seen.split()) <= {
        "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "tmp", "usr", "var",
        "workspace",
    }  # fmt: skip
    assert await harness.output_of(session, "ls -A /home /run /var") == "/home:\nagent\n\n/run:\n\n/var:\ntmp"
    for secret in ("/etc/shadow", "/etc/ssl/private", "/etc/environment", "/root", str(harness.home)):
        done, _ = await harness.run(session, f"test -e {secret}")
        assert done.code == 1, secret
    for place in ("/x", "/usr/x", "/etc/x", "/dev/x", "/bin/x", "/var/x", "/home/x"):
        done, _ = await harness.run(session, f"touch {place}")
        assert done.code != 0, place
    assert await harness.output_of(session, "touch /tmp/x /var/tmp/y ~/z /workspace/w /dev/shm/s; ls /tmp") == "x\ny"


async def test_a_command_has_no_capabilities_and_can_get_none(harness: WorkspaceHarness, session: str) -> None:
    """X12: not even in a namespace of its own."""
    status = await harness.output_of(session, "grep -E 'CapEff|CapPrm|NoNewPrivs' /proc/self/status; id -un")
    assert status.split() == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1", "agent"]
    done, printed = await harness.run(session, "unshare -Ur id -u")
    assert done.code != 0, printed


async def test_a_command_cannot_change_settings_of_the_machine(harness: WorkspaceHarness, session: str) -> None:
    """X12: also if root runs the gateway: the kernel checks the owner of these files, not a capability."""
    writable = "find /proc -path '/proc/[0-9]*' -prune -o -type f -writable -print 2>/dev/null | head -3"
    assert await harness.output_of(session, writable) == ""
    done, _ = await harness.run(session, "exec 5>/proc/sys/kernel/core_pattern")
    assert done.code != 0


async def test_a_command_sees_only_the_processes_of_its_session(harness: WorkspaceHarness, session: str) -> None:
    """X13: it cannot signal what it cannot see, least of all the gateway."""
    mark = token()
    await harness.of(session).start("mine", f"sleep {mark}")
    await until(lambda: alive(f"sleep\0{mark}"))
    other = await harness.new_session()
    assert f"sleep {mark}" in await harness.output_of(session, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert mark not in await harness.output_of(other, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    done, _ = await harness.run(other, f"kill -0 {os.getpid()}")
    assert done.code != 0


async def test_no_command_line_reveals_the_gateways_home(harness: WorkspaceHarness, session: str) -> None:
    """X18: nor does any environment."""
    seen = await harness.output_of(
        session, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' ' '; true"
    )
    assert "bash" in seen and str(harness.home) not in seen and "bwrap" not in seen


async def test_a_command_cannot_end_its_own_sandbox(harness: WorkspaceHarness, session: str) -> None:
    """X12: nor leave zombies there."""
    pids = "readlink /proc/self/ns/pid"
    before = await harness.output_of(session, pids)
    await harness.output_of(session, "for i in $(seq 31); do kill -$i 1; done 2>/dev/null; true")
    await harness.run(session, "kill -9 -1")
    assert await harness.output_of(session, pids) == before
    orphans = "for i in 1 2 3 4 5; do (sleep 0.01 & exec true) & done; wait; sleep 0.3"
    assert await harness.output_of(session, f"{orphans}; cat /proc/[0-9]*/stat | grep -c ') Z '; true") == "0"


async def test_a_command_inherits_no_descriptors(harness: WorkspaceHarness, session: str) -> None:
    assert (
        await harness.output_of(session, "ls -l /proc/self/fd | grep -cE 'ns:|user:|socket|/proc/[0-9]+/ns'; true")
        == "0"
    )


async def test_there_is_no_network_unless_it_is_allowed(home: Path) -> None:
    """X12: and then it has its own."""
    interfaces = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '"
    async with open_workspaces(home) as harness:
        assert await harness.output_of(await harness.new_session(), interfaces) == "lo"
    async with open_workspaces(home, network=True) as harness:
        assert await harness.output_of(await harness.new_session(), interfaces) == "lo uplink"


async def test_sessions_do_not_see_each_others_files(harness: WorkspaceHarness, session: str) -> None:
    other = await harness.new_session()
    await harness.output_of(session, "echo mine > /workspace/f; echo mine > /tmp/f; echo mine > ~/f")
    done, _ = await harness.run(other, "cat /workspace/f /tmp/f ~/f")
    assert done.code == 1


async def test_file_tools_see_what_commands_see(harness: WorkspaceHarness, session: str) -> None:
    """One session, one set of paths: /workspace, home and /tmp mean the same to both."""
    await harness.output_of(session, "echo one > a; echo two > /tmp/b; echo three > ~/c")
    files = await harness.of(session).files()
    for path, text in (("a", "one"), ("/workspace/a", "one"), ("/tmp/b", "two"), ("/home/agent/c", "three")):
        found = await files.lines(path, offset=0, lines=10, max_bytes=1000)
        assert found.data.decode().strip() == text


async def test_a_read_only_folder_can_be_read(home: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "manual").write_text("read me")
    async with open_workspaces(home, read_only=(str(shared),)) as harness:
        session = await harness.new_session()
        assert await harness.output_of(session, f"cat {shared}/manual") == "read me"
        done, _ = await harness.run(session, f"touch {shared}/x")
        assert done.code != 0


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_a_read_only_folder_cannot_be_written_by_tools(home: Path, tmp_path: Path, backend: str) -> None:
    """X07: although the gateway could."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "manual").write_text("read me")
    async with open_workspaces(home, backend=backend, read_only=(str(shared),)) as harness:
        files = await harness.of(await harness.new_session()).files()
        found = await files.lines(f"{shared}/manual", offset=0, lines=10, max_bytes=1000)
        assert found.data == b"read me"
        for name in ("manual", "new"):
            with pytest.raises(ToolFailed):
                await write(files, f"{shared}/{name}", "changed")
        with pytest.raises(ToolFailed):
            await edit(files, f"{shared}/manual", "read", "write")
    assert [(path.name, path.read_text()) for path in shared.iterdir()] == [("manual", "read me")]


async def test_files_and_processes_have_their_limits(home: Path) -> None:
    """L24: limits that the kernel can enforce are enforced."""
    async with open_workspaces(home, file_bytes=1 << 20, memory_bytes=64 << 20) as harness:
        session = await harness.new_session()
        done, _ = await harness.run(session, "head -c 2000000 /dev/zero > big; exec_code=$?; exit $exec_code")
        assert done.code != 0 and (harness.home / "workspaces" / session / "big").stat().st_size == 1 << 20
        done, printed = await harness.run(session, "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}")
        assert done.code != 0 or printed.strip() != "200000000"


async def test_commands_may_use_every_core_that_the_gateway_was_given(harness: WorkspaceHarness, session: str) -> None:
    given = os.sched_getaffinity(0)
    if len(given) < 2:
        pytest.skip("there is one core here, which is all of them")
    try:
        os.sched_setaffinity(0, {min(given)})
        assert await harness.output_of(session, "nproc") == str(len(given))
        assert os.sched_getaffinity(0) == {min(given)}
    finally:
        os.sched_setaffinity(0, given)


async def test_without_a_backend_commands_are_refused_in_one_sentence_and_files_work(home: Path) -> None:
    """The terminal is off until the user chooses, and the message says so."""
    async with open_workspaces(home, backend="none") as harness:
        session = await harness.new_session()
        with pytest.raises(ToolFailed, match=r"workspaces\.backend is none"):
            await harness.run(session, "true")
        with pytest.raises(ToolFailed, match=r"workspaces\.backend is none"):
            await harness.of(session).start("x", "true")
        assert await harness.of(session).sandboxed() is False
        files = await harness.of(session).files()
        await files.write("a", b"text")
        assert (home / "workspaces" / session / "a").read_text() == "text"
        assert harness.workspaces.status().problem


async def test_where_bubblewrap_is_missing_the_message_says_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"bash": "/bin/bash", "nsenter": "/usr/bin/nsenter", "setpriv": "/x", "prlimit": "/x"}
    monkeypatch.setattr("tidegate.workspaces.backends.bubblewrap.find_program", found.get)
    async with open_workspaces(home, backend="auto") as harness:
        session = await harness.new_session()
        with pytest.raises(ToolFailed, match=r"install bubblewrap, .*workspaces\.backend = local"):
            await harness.run(session, "true")
        monkeypatch.undo()
        await harness.workspaces.tidy()
        assert await harness.output_of(session, "echo installed meanwhile") == "installed meanwhile"
