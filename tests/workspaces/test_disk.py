"""The disk quota of commands and file tools."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tests.tools.sites import Agent, agent, site
from tests.workspaces.file_tree import FileTree
from tests.workspaces.harness import WAIT, open_workspaces, until
from tidegate.errors import ToolFailed
from tidegate.tools.builtin.files.edit import edit
from tidegate.tools.builtin.files.write import write
from tidegate.workspaces.bounds import WorkspaceBounds
from tidegate.workspaces.files.filesystem import Filesystem
from tidegate.workspaces.session_folders import DiskUsage, disk_usage

pytestmark = pytest.mark.anyio

MIB = 1 << 20
FULL = r'"big2" was not written: the files of this conversation may take 2 MiB together \(workspaces\.disk_bytes\)'


async def test_written_files_stay_within_the_disk_quota(home: Path) -> None:
    """L19: new files and edits; the message names the limit; a write that makes a file smaller succeeds."""
    async with open_workspaces(home, disk_bytes=2 * MIB, bounds=PROMPT) as harness:
        session = await harness.new_session()
        mine = harness.of(session)
        await write(await mine.files(), "big1", "x" * (MIB + MIB // 2))
        with pytest.raises(ToolFailed, match=FULL):
            await write(await mine.files(), "big2", "x" * MIB)
        await write(await mine.files(), "small", "x" * 1000)
        with pytest.raises(ToolFailed, match=r'"small" was not written: .*workspaces\.disk_bytes'):
            await edit(await mine.files(), "small", "x" * 1000, "y" * MIB)
        assert not (home / "workspaces" / session / "big2").exists()
        await write(await mine.files(), "big1", "x" * (MIB + MIB // 4))
        # The next turn has its own handle and sees the same files.
        with pytest.raises(ToolFailed, match=FULL):
            await write(await harness.of(session).files(), "big2", "x" * MIB)


async def test_files_written_and_removed_by_commands_count(home: Path) -> None:
    async with open_workspaces(home, disk_bytes=2 * MIB, bounds=PROMPT) as harness:
        session = await harness.new_session()
        mine = harness.of(session)

        async def run(command: str) -> None:
            async def sink(_: bytes) -> None: ...

            assert (await mine.run(command, timeout=30, sink=sink)).code == 0

        await write(await mine.files(), "small", "x")
        await run("head -c 1500000 /dev/zero > /tmp/beside")
        with pytest.raises(ToolFailed, match=FULL):
            await write(await mine.files(), "big2", "x" * MIB)
        await run("rm /tmp/beside")
        await write(await mine.files(), "big2", "x" * MIB)


PROMPT = WorkspaceBounds(quick_seconds=WAIT)
"""The disk is measured whenever it is needed, even on a busy machine."""
WRITE = "head -c 1000000 /dev/zero > f{}"


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_successive_commands_cannot_exceed_the_disk_quota(
    home: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """L19: each command counts the writes of the ones before; then files can be removed but not made larger."""
    async with open_workspaces(home, backend=backend, disk_bytes=3 * MIB, bounds=PROMPT) as harness:
        session = await harness.new_session()
        notes = [(await harness.run(session, WRITE.format(number)))[0].note for number in range(12)]
        written = sum(file.stat().st_size for file in (home / "workspaces" / session).iterdir())
        assert 3 * MIB < written <= 4 * MIB
        assert notes[:3] == ["", "", ""] and all("workspaces.disk_bytes" in note for note in notes[3:])
        with pytest.raises(ToolFailed, match=r"was not started: .*workspaces\.disk_bytes"):
            await harness.of(session).start("server", "sleep 1000")
        with pytest.raises(ToolFailed, match=r"workspaces\.disk_bytes"):
            await write(await harness.of(session).files(), "more", "x")
        done, _ = await harness.run(session, "rm f*; echo fine")
        assert (done.code, done.note) == (0, "")
        assert await harness.output_of(session, f"{WRITE.format(1)}; stat -c %s f1") == "1000000"


async def test_an_exceeded_quota_is_known_after_the_sandbox_was_closed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L19: closing the sandbox or restarting does not avoid it."""
    session = ""
    for _ in range(2):
        async with open_workspaces(home, disk_bytes=MIB, bounds=PROMPT) as harness:
            session = session or await harness.new_session()
            for number in range(3):
                done, _ = await harness.run(session, f"head -c 1500000 /dev/zero >> f; touch g{number}")
                assert "workspaces.disk_bytes" in done.note
                if (live_sandbox := harness.live_sandbox(session)) is not None:
                    await harness.workspaces.close_sandbox(live_sandbox)
            assert (home / "workspaces" / session / "f").stat().st_size == 1_500_000
            assert (home / "workspaces" / session / "g2").exists()
            assert harness.presence.get(session) is None


async def test_a_command_that_cannot_write_is_told_the_reason(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_workspaces(home, disk_bytes=MIB, bounds=PROMPT) as harness:
        session = await harness.new_session()
        await harness.run(session, "; ".join(WRITE.format(number) for number in range(3)))
        done, _ = await harness.run(session, f"rm f*; {WRITE.format(1)}")
        assert done.code != 0 and "workspaces.disk_bytes" in done.note


async def test_files_of_a_stopped_command_count(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L19: for the next command."""
    async with open_workspaces(home, disk_bytes=MIB, bounds=PROMPT) as harness:
        session = await harness.new_session()
        await harness.output_of(session, "true")
        running = asyncio.ensure_future(
            harness.run(session, f"{WRITE.format(1)}; {WRITE.format(2)}; touch done; sleep 1000")
        )
        await until((home / "workspaces" / session / "done").exists)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        done, _ = await harness.run(session, WRITE.format(3))
        assert done.code != 0 and "workspaces.disk_bytes" in done.note


async def test_a_background_process_is_ended_when_the_disk_is_full(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L19: processes that may have filled the disk are ended on the timer and after a command."""
    async with open_workspaces(home, disk_bytes=2 * MIB, bounds=PROMPT) as harness:
        session = await harness.new_session()
        await harness.of(session).start(
            "writer", f"{WRITE.format(1)}; {WRITE.format(2)}; {WRITE.format(3)}; sleep 1000"
        )
        last = home / "workspaces" / session / "f3"
        await until(lambda: last.exists() and last.stat().st_size == 1_000_000)
        await harness.workspaces.reconcile()
        assert "workspaces.disk_bytes" in await harness.take_notices(session)
        await until(lambda: not harness.live_sandbox(session) or not harness.live_sandbox(session).running)  # type: ignore[union-attr]
        assert [view.state for view in await harness.of(session).list()] == ["ended"]
        await harness.output_of(session, "rm f*")
        await harness.of(session).start("server", "sleep 1000")
        done, _ = await harness.run(session, "; ".join(WRITE.format(number) for number in range(3)))
        assert "workspaces.disk_bytes" in done.note and "server" in await harness.take_notices(session)


async def test_commands_that_remove_files_continue_over_the_quota(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_workspaces(home, disk_bytes=MIB, bounds=PROMPT) as harness:
        session = await harness.new_session()
        await harness.run(session, "; ".join(WRITE.format(number) for number in range(3)))
        live_sandbox = harness.live_sandbox(session)
        assert live_sandbox is not None and live_sandbox.disk is not None and live_sandbox.disk.full
        removing = asyncio.ensure_future(
            harness.run(session, "rm f0; touch one; until [ -e go ]; do sleep 0.01; done; rm f*")
        )
        await until((home / "workspaces" / session / "one").exists)
        await harness.workspaces.reconcile()
        (home / "workspaces" / session / "go").touch()
        done, _ = await removing
        assert (done.code, done.note) == (0, "")


async def test_removed_files_count_at_once_however_long_measuring_takes(home: Path) -> None:
    """L19: a session over its quota can write again with the first command after the one that removed files."""
    slow = WorkspaceBounds(quick_seconds=0, measure_again=1e9)
    async with open_workspaces(home, disk_bytes=MIB, bounds=slow) as harness:
        session = await harness.new_session()
        (home / "workspaces" / session).mkdir(parents=True, exist_ok=True)
        (home / "workspaces" / session / "big").write_bytes(b"x" * 2 * MIB)
        done, _ = await harness.run(session, "rm big")
        assert done.code == 0 and not done.note, done
        assert await harness.output_of(session, "echo x > new; cat new") == "x"


async def test_a_large_workspace_is_measured_rarely(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L20: measuring takes a small share of the time, however often it is requested."""
    bounds = WorkspaceBounds(quick_seconds=0, measure_again=1e9)
    measured: list[DiskUsage] = []

    def counted(folders: Any, enough: DiskUsage) -> DiskUsage:
        measured.append(enough)
        return disk_usage(folders, enough)

    monkeypatch.setattr("tidegate.workspaces.disk.disk_usage", counted)
    async with open_workspaces(home, bounds=bounds) as harness:
        session = await harness.new_session()
        for _ in range(3):
            await harness.output_of(session, "echo x > f")
            await harness.workspaces.reconcile()
        assert len(measured) == 1


async def test_a_file_saved_by_web_fetch_counts(home: Path, tmp_path: Path) -> None:
    """L19: web_fetch with `save` is a tool that writes."""
    async with open_workspaces(home, disk_bytes=2 * MIB) as harness, site(_large) as found, agent(tmp_path) as mine:
        session = await harness.new_session()
        mine = Agent(msgspec.structs.replace(mine.context, workspace=harness.of(session)), home)
        assert "Saved" in (await mine.fetch(found.url, save="one")).text
        with pytest.raises(ToolFailed, match=r'"two" was not written: .*workspaces\.disk_bytes'):
            await mine.fetch(found.url, save="two")
        assert [path.name for path in (home / "workspaces" / session).iterdir()] == ["one"]


async def _large(request: web.Request) -> web.StreamResponse:
    return web.Response(body=bytes(MIB + MIB // 4), content_type="application/zip")


async def test_concurrent_writes_stay_within_the_quota_together(home: Path) -> None:
    """L25: pending writes count before they are written."""
    async with open_workspaces(home, disk_bytes=2 * MIB, bounds=PROMPT) as harness:
        session = await harness.new_session()
        files = await harness.of(session).files()
        jobs = [write(files, f"f{number}", "x" * (MIB // 2)) for number in range(8)]
        done = await asyncio.gather(*jobs, return_exceptions=True)
        assert sum(isinstance(result, str) for result in done) == 3
        assert all(isinstance(result, (str, ToolFailed)) for result in done)


async def test_concurrent_writes_with_separate_handles_stay_within_the_quota(home: Path) -> None:
    """L25: the quota belongs to the session while it is present."""
    async with open_workspaces(home, disk_bytes=2 * MIB, bounds=PROMPT) as harness:
        session = await harness.new_session()
        with harness.presence.keep_present(session):
            files = [await harness.of(session).files() for _ in range(8)]
            jobs = [write(mine, f"f{number}", "x" * (MIB // 2)) for number, mine in enumerate(files)]
            done = await asyncio.gather(*jobs, return_exceptions=True)
        assert sum(isinstance(result, str) for result in done) == 3
        assert harness.presence.get(session) is None


async def test_a_project_has_no_disk_quota_for_writes(home: Path) -> None:
    async with open_workspaces(home, disk_bytes=MIB, bounds=PROMPT) as harness:
        (home / "project").mkdir()
        (home / "project").chmod(0o777)  # if root has created it, its user is another
        (home / "project" / "large").write_bytes(b"x" * 3 * MIB)
        session = await harness.new_session()
        await write(await harness.of(session, "project").files(), "more", "x" * MIB)
        assert (home / "project" / "more").stat().st_size == MIB


async def test_cancelling_while_a_file_is_opened_leaks_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L06: whether the file is opened before or after the cancellation."""
    file_tree = FileTree(tmp_path)
    file_tree.put({"file": "text"})
    files = file_tree.files()
    begun, go, over = asyncio.Event(), threading.Event(), asyncio.Event()
    loop, real = asyncio.get_running_loop(), Filesystem.open

    def slow(filesystem: Filesystem, path: str) -> int:
        fd = real(filesystem, path)
        loop.call_soon_threadsafe(begun.set)
        go.wait(30)
        loop.call_soon_threadsafe(loop.call_later, 0.01, over.set)
        return fd

    monkeypatch.setattr(Filesystem, "open", slow)

    async def use() -> None:
        async with files.opened("file"):
            raise AssertionError

    task = asyncio.ensure_future(use())
    await asyncio.wait_for(begun.wait(), 30)
    task.cancel()
    release: Callable[[], None] = go.set
    loop.call_later(0.01, release)
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(over.wait(), 30)
