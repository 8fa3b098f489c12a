"""Problems of the store: the mapping of SQLite's errors, and files that are lost, truncated or written by others."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import apsw
import pytest
from anyio import to_thread

from tests.logs import capture_logs
from tests.store.rows import bulk, get_meta, new_session, new_turn, put_meta
from tidegate.error_mapping import failure_of
from tidegate.errors import Conflict, DiskFailed, StoreBusy, StoreDamaged, StoreFailed, StoreFull, StoreLost
from tidegate.store import Problems, Store, maintenance
from tidegate.store.sqlite import writer
from tidegate.store.sqlite.errors import disk_failure, translate

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (apsw.SQLITE_FULL, StoreFull),
        (apsw.SQLITE_IOERR_WRITE, DiskFailed),
        (apsw.SQLITE_IOERR_READ, DiskFailed),
        (apsw.SQLITE_IOERR_FSYNC, DiskFailed),
        (apsw.SQLITE_IOERR_SHMSIZE, DiskFailed),
        (apsw.SQLITE_IOERR_CORRUPTFS, DiskFailed),
        (apsw.SQLITE_READONLY, DiskFailed),
        (apsw.SQLITE_READONLY_DBMOVED, DiskFailed),
        (apsw.SQLITE_CANTOPEN, DiskFailed),
        (apsw.SQLITE_PERM, DiskFailed),
        (apsw.SQLITE_CORRUPT, StoreDamaged),
        (apsw.SQLITE_CORRUPT_INDEX, StoreDamaged),
        (apsw.SQLITE_NOTADB, StoreDamaged),
        (apsw.SQLITE_NOMEM, StoreFailed),
        (apsw.SQLITE_IOERR_NOMEM, StoreFailed),
        (apsw.SQLITE_BUSY, StoreFailed),
        (apsw.SQLITE_CONSTRAINT_UNIQUE, Conflict),
    ],
)
async def test_every_error_of_sqlite_is_mapped_to_its_meaning(code: int, kind: type[Exception]) -> None:
    """L18, L21: only a full disk is reported as one."""
    found = translate(apsw.exception_for(code))
    assert type(found) is kind
    assert ("no space for" in str(found)) == (kind is StoreFull)


_NO_SPACE = """
import subprocess, sys
from pathlib import Path
import anyio
from tests.store.rows import bulk, new_session, new_turn
from tidegate.errors import StoreFull
from tidegate.store import Store

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], check=True)

async def main():
    async with Store.open(folder / "tidegate.db") as store:
        await store.write(new_session, "s_1")
        await store.write(new_turn, "s_1", "t_1")
        try:
            for number in range(100):
                await store.write(bulk, "s_1", "t_1", number, 50_000)
            raise SystemExit("a write went through without room")
        except StoreFull as error:
            assert "No space left on device" in error.message, error
        assert store.stats().full
        (problem,) = store.stats().problems
        assert problem.kind == "full"

anyio.run(main)
"""


async def test_a_file_system_without_space_is_full(tmp_path: Path) -> None:
    """L18, L21: a real refusal by the kernel, where private mounts are allowed."""
    wrapped = ["unshare", "--user", "--map-root-user", "--mount"]
    tried = [*wrapped, "mount", "-t", "tmpfs", "none", "/mnt"]
    if (await anyio.run_process(tried, check=False)).returncode:
        pytest.skip("this machine allows no mounts of one's own")
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [*wrapped, sys.executable, "-c", _NO_SPACE, str(tmp_path)],
            check=False,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert done.returncode == 0, done.stderr.decode()


async def test_a_problem_is_logged_once_and_again_when_it_is_resolved() -> None:
    """L21: a thousand refused writes are one log line, with a count at the end; so are a thousand short
    interruptions."""
    problems = Problems()
    with capture_logs() as lines:
        for _ in range(1000):
            problems.record("full", "no room")
        assert problems.current()[0].count == 1000
        problems.resolve("full")
        for _ in range(1000):
            problems.record("full", "no room")
            problems.resolve("full")
    assert [(line["level"], line["times"]) for line in lines] == [("error", 1), ("warning", 1000)]
    assert problems.counts["full"] == 2000 and not problems.current()


async def test_a_folder_that_is_gone_is_named_and_a_copy_is_made_once_it_is_there_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L18, F4: while the process lives, nothing that was acknowledged is lost."""
    monkeypatch.setattr(writer, "RESCUE_SECONDS", 0.0)
    home = tmp_path / "home"
    home.mkdir()
    async with Store.open(home / "tidegate.db") as store:
        await store.write(put_meta, "kept", 1)
        await to_thread.run_sync(shutil.rmtree, home)
        with pytest.raises(StoreLost, match=f"could not be saved .* files can be created in {home}"):
            await store.write(put_meta, "refused", 1)
        assert await store.read(get_meta, "kept") == 1
        home.mkdir()
        with pytest.raises(StoreLost, match="is saved in"):
            await store.write(maintenance.check_path)
    (saved,) = home.iterdir()
    async with Store.open(saved) as store:
        assert await store.read(get_meta, "kept") == 1
        assert await store.read(get_meta, "refused") is None


async def test_a_log_that_is_cut_off_stops_all_writes(path: Path) -> None:
    """L18: content of the log that was not yet in the file cannot be read any more."""
    async with Store.open(path) as store:
        await store.write(put_meta, "kept", 1)
        os.truncate(path.with_name(path.name + "-wal"), 0)
        for _ in range(2):
            with pytest.raises(StoreLost, match="truncated"):
                await store.write(put_meta, "refused", 1)


@pytest.mark.parametrize("rows", [1, 60])
async def test_a_file_that_is_cut_off_before_a_checkpoint_stops_all_writes(path: Path, rows: int) -> None:
    """L18, F4: the checkpoint does not write to the truncated file, and its new size is not accepted as the correct
    one."""
    armed = False

    def cut(point: str, _: tuple[str, ...]) -> None:
        if armed and point == "after-commit":
            os.truncate(path, 0)

    async with Store.open(path, wal_bytes=1 << 20, fault=cut) as store:
        await store.write(new_session, "s_1")
        await store.write(new_turn, "s_1", "t_1")
        for number in range(rows):
            await store.write(bulk, "s_1", "t_1", number, 50_000)
        await store.write(maintenance.checkpoint)
        armed = True
        await store.write(bulk, "s_1", "t_1", rows, 600_000)
        armed = False
        for _ in range(2):
            with pytest.raises(StoreLost, match="truncated"):
                await store.write(put_meta, "refused", 1)


async def test_a_file_that_is_cut_off_during_a_checkpoint_stops_all_writes(path: Path) -> None:
    """L18, F4: the expected length after a checkpoint is that of the database, not that of the file."""

    @writer.outside
    def cut(db: apsw.Connection) -> None:
        os.truncate(path, 4096)

    async with Store.open(path) as store:
        await store.write(put_meta, "kept", 1)
        await store.write(cut)
        for _ in range(2):
            with pytest.raises(StoreLost, match="truncated"):
                await store.write(put_meta, "refused", 1)


async def test_no_write_of_ours_is_taken_for_that_of_another_program(path: Path) -> None:
    """L18: checkpoints that write to, shrink or extend the file are recognised as the store's own."""
    async with Store.open(path, wal_bytes=1 << 20) as store:
        await store.write(new_session, "s_1")
        await store.write(new_turn, "s_1", "t_1")
        for number in range(60):
            await store.write(bulk, "s_1", "t_1", number, 50_000)
        assert store.stats().checkpoints > 1
        await store.write(maintenance.checkpoint)
        await store.write(lambda db: db.execute("DELETE FROM messages"))
        while await store.write(maintenance.vacuum, 100):
            pass
        before = path.stat().st_size
        await store.write(maintenance.checkpoint)
        await store.write(put_meta, "still", 1)
        assert path.stat().st_size < before
        assert not store.touched and store.lost is None


async def test_a_write_of_another_program_is_noticed_and_checked(path: Path) -> None:
    """L18: damage is found when it happens, not when the data is read."""
    async with Store.open(path) as store:
        await store.write(put_meta, "kept", 1)
        assert not store.touched
        with path.open("r+b") as file:
            file.seek(60)
            file.write(b"\0")
        await store.write(maintenance.check_path)
        assert store.touched
        assert await store.integrity() == []
        assert not store.touched


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_running_out_of_descriptors_is_not_a_disk_failure(number: int) -> None:
    """L11, L18: it is temporary, and no reason to check the disk."""
    failure = disk_failure(number, os.strerror(number))
    assert isinstance(failure, StoreBusy)
    assert failure_of(failure).status == 503 and failure_of(failure).retry
