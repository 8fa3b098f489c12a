"""What the tools for files may write."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workspaces.filing import Yard
from tests.workspaces.making import room
from tidegate.errors import ToolFailed
from tidegate.tools.files.editing import edit
from tidegate.tools.files.writing import write
from tidegate.workspaces.files.shelf import Shelf

pytestmark = pytest.mark.anyio

MIB = 1 << 20
FULL = r'"big2" was not written: the files of this conversation may take 2 MiB together \(workspaces\.disk_bytes\)'


async def test_files_that_are_written_stay_below_the_limit_of_the_disk(home: Path) -> None:
    """L19: whole files and edits, and what is told names the limit; what makes a file smaller is let through."""
    async with room(home, disk_bytes=2 * MIB) as rooms:
        session = await rooms.new_session()
        mine = rooms.of(session)
        await write(await mine.files(), "big1", "x" * (MIB + MIB // 2))
        with pytest.raises(ToolFailed, match=FULL):
            await write(await mine.files(), "big2", "x" * MIB)
        await write(await mine.files(), "small", "x" * 1000)
        with pytest.raises(ToolFailed, match=r'"small" was not written: .*workspaces\.disk_bytes'):
            await edit(await mine.files(), "small", "x" * 1000, "y" * MIB)
        assert not (home / "workspaces" / session / "big2").exists()
        await write(await mine.files(), "big1", "x" * (MIB + MIB // 4))
        # The next turn has a handle of its own, and finds what is there.
        with pytest.raises(ToolFailed, match=FULL):
            await write(await rooms.of(session).files(), "big2", "x" * MIB)


async def test_what_commands_write_and_remove_counts(home: Path) -> None:
    async with room(home, disk_bytes=2 * MIB) as rooms:
        session = await rooms.new_session()
        mine = rooms.of(session)

        async def run(command: str) -> None:
            async def sink(_: bytes) -> None: ...

            assert (await mine.run(command, timeout=30, sink=sink)).code == 0

        await write(await mine.files(), "small", "x")
        await run("head -c 1500000 /dev/zero > /tmp/beside")
        with pytest.raises(ToolFailed, match=FULL):
            await write(await mine.files(), "big2", "x" * MIB)
        await run("rm /tmp/beside")
        await write(await mine.files(), "big2", "x" * MIB)


async def test_several_that_write_at_once_do_not_get_above_it_together(home: Path) -> None:
    """L25: what one is to write counts before it is written."""
    async with room(home, disk_bytes=2 * MIB) as rooms:
        session = await rooms.new_session()
        files = await rooms.of(session).files()
        jobs = [write(files, f"f{number}", "x" * (MIB // 2)) for number in range(8)]
        done = await asyncio.gather(*jobs, return_exceptions=True)
        assert sum(isinstance(result, str) for result in done) == 3
        assert all(isinstance(result, (str, ToolFailed)) for result in done)


async def test_a_project_may_be_written_however_large_it_is(home: Path) -> None:
    async with room(home, disk_bytes=MIB) as rooms:
        (home / "project").mkdir()
        (home / "project" / "large").write_bytes(b"x" * 3 * MIB)
        session = await rooms.new_session()
        await write(await rooms.of(session, "project").files(), "more", "x" * MIB)


async def test_who_is_cancelled_while_a_file_is_opened_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L06: whether it is opened before or after that."""
    yard = Yard(tmp_path)
    yard.put({"file": "text"})
    files = yard.files()
    begun, go, over = asyncio.Event(), threading.Event(), asyncio.Event()
    loop, real = asyncio.get_running_loop(), Shelf.open

    def slow(shelf: Shelf, path: str) -> int:
        fd = real(shelf, path)
        loop.call_soon_threadsafe(begun.set)
        go.wait(30)
        loop.call_soon_threadsafe(loop.call_later, 0.01, over.set)
        return fd

    monkeypatch.setattr(Shelf, "open", slow)

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
