"""The file at start: damaged, truncated, newer or foreign."""

import shutil
import struct
from pathlib import Path

import anyio
import apsw
import pytest

from tests.store.rows import aside, bulk, get_meta, new_session, new_turn, put_meta
from tidegate.errors import StoreDamaged, StoreFailed, StoreNewer
from tidegate.store import Db, Store, sessions
from tidegate.store.migrations import CURRENT
from tidegate.store.sqlite.files import database_library, refuse_unsafe_library

pytestmark = pytest.mark.anyio


async def fill(path: Path) -> None:
    async with Store.open(path) as store:
        await store.write(new_session, "s_1")
        await store.write(new_turn, "s_1", "t_1")
        for number in range(20):
            await store.write(bulk, "s_1", "t_1", number, 8000)


async def killed(path: Path, target: Path) -> None:
    """The files after `kill -9`: a copy of those of an open store, with everything still in its log."""
    async with Store.open(path) as store:
        for number in range(30):
            await store.write(put_meta, f"k{number}", number)
        for suffix in ("", "-wal"):
            shutil.copy(path.with_name(path.name + suffix), target.with_name(target.name + suffix))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def refused(path: Path) -> StoreDamaged:
    with anyio.fail_after(10), pytest.raises(StoreDamaged) as caught:
        async with Store.open(path):
            pytest.fail("it was opened")
    return caught.value


async def test_a_damaged_header_puts_the_file_aside_by_name_and_the_next_start_works(path: Path) -> None:
    """L18: a damaged file is kept and never overwritten."""
    await fill(path)
    damaged = b"\x16\x03\x03" + path.read_bytes()[3:]
    path.write_bytes(damaged)
    error = await refused(path)
    (kept,) = aside(path.parent)
    assert str(kept) in error.message
    assert kept.read_bytes() == damaged
    assert not path.exists()
    async with Store.open(path) as store:
        assert await store.read(sessions.get, "s_1") is None
    assert kept.read_bytes() == damaged


async def test_two_damaged_files_in_one_second_keep_two_names(path: Path) -> None:
    """L18: a second quarantine does not overwrite the first."""
    for text in (b"first" * 100, b"second" * 100):
        path.write_bytes(text)
        await refused(path)
    assert {file.read_bytes() for file in aside(path.parent)} == {b"first" * 100, b"second" * 100}


@pytest.mark.parametrize("left", [4096 * 3, 4096 * 3 + 100, 50])
async def test_a_file_that_was_cut_off_is_put_aside(path: Path, left: int) -> None:
    """L18: truncation is detected at start, not at the first read of a missing page."""
    await fill(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    await refused(path)
    (kept,) = aside(path.parent)
    assert kept.read_bytes() == whole[:left]


async def test_an_emptied_file_beside_a_full_log_is_put_aside_with_its_log(path: Path, tmp_path: Path) -> None:
    """L18: SQLite would silently delete such a log."""
    left = tmp_path / "left.db"
    await killed(path, left)
    log = left.with_name("left.db-wal").read_bytes()
    left.write_bytes(b"")
    await refused(left)
    assert log in [file.read_bytes() for file in aside(tmp_path)]


@pytest.mark.parametrize("where", [0, 8, 20])
async def test_a_log_that_begins_with_garbage_is_put_aside_with_its_file(
    path: Path, tmp_path: Path, where: int
) -> None:
    """L10, L18: bytes of another file in the log are detected, and not treated as an empty log."""
    left = tmp_path / "left.db"
    await killed(path, left)
    wal = left.with_name("left.db-wal")
    garbage = bytearray(wal.read_bytes())
    garbage[where : where + 5] = b"\x16\x03\x03\x40\x11"
    wal.write_bytes(garbage)
    error = await refused(left)
    assert "log" in error.message
    assert bytes(garbage) in [file.read_bytes() for file in aside(tmp_path)]
    async with Store.open(left) as store:
        assert await store.read(get_meta, "k0") is None


async def test_a_damaged_log_is_copied_and_the_store_continues_from_the_last_valid_commit(
    path: Path, tmp_path: Path
) -> None:
    """L10, L18: a copy of the unreadable part is kept, and the readable part is served."""
    left = tmp_path / "left.db"
    await killed(path, left)
    wal = left.with_name("left.db-wal")
    garbage = bytearray(wal.read_bytes())
    middle = 32 + (len(garbage) - 32) // (24 + 4096) // 2 * (24 + 4096)
    garbage[middle + 24 : middle + 24 + 64] = b"\xff" * 64
    wal.write_bytes(garbage)
    async with Store.open(left) as store:
        (kept,) = aside(tmp_path, "damaged-log")
        assert store.note is not None and str(kept) in store.note
        assert kept.read_bytes() == bytes(garbage)
        assert await store.read(get_meta, "k0") == 0
        assert await store.read(get_meta, "k29") is None
        assert await store.integrity() == []


async def test_a_log_that_a_kill_left_is_read_without_a_note(path: Path, tmp_path: Path) -> None:
    """F4: a killed process leaves no damage."""
    left = tmp_path / "left.db"
    await killed(path, left)
    wal = left.with_name("left.db-wal")
    wal.write_bytes(wal.read_bytes() + b"\x00" * 100)
    async with Store.open(left) as store:
        assert store.note is None
        assert await store.read(get_meta, "k29") == 29
    assert aside(tmp_path) == []


async def test_a_newer_file_is_refused_clearly_and_left_byte_for_byte(path: Path, tmp_path: Path) -> None:
    """L18: an older program changes neither a newer file nor its log."""
    left = tmp_path / "home" / "tidegate.db"
    left.parent.mkdir()

    def rise(db: Db) -> None:
        db.execute(f"PRAGMA user_version = {CURRENT + 1}")

    async with Store.open(path) as store:
        await store.write(rise)
        for suffix in ("", "-wal"):
            shutil.copy(path.with_name(path.name + suffix), left.with_name(left.name + suffix))
    before = contents(left.parent)
    with pytest.raises(StoreNewer, match=rf"newer Tidegate \(format {CURRENT + 1}, this one knows {CURRENT}\)"):
        async with Store.open(left):
            pytest.fail("it was opened")
    after = contents(left.parent)
    after.pop("tidegate.db-shm", None)
    assert after == before


async def test_an_sqlite_file_of_another_program_is_left_alone(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs(a)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreFailed, match="another program"):
        async with Store.open(path):
            pytest.fail("it was opened")
    assert path.read_bytes() == before


async def test_a_damaged_page_is_found_by_the_full_check(path: Path) -> None:
    """L18: unlike the quick check at start, the full check in the background reads every page."""
    await fill(path)
    raw = bytearray(path.read_bytes())
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    page = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'messages_seq'").get
    db.close()
    raw[(page - 1) * 4096 + 100 : page * 4096] = b"\x5a" * (4096 - 100)
    path.write_bytes(raw)
    with anyio.fail_after(20):
        async with Store.open(path) as store:
            problems = await store.integrity()
    assert problems and any("messages" in problem for problem in problems)


async def test_a_healthy_file_passes_the_full_check(path: Path) -> None:
    await fill(path)
    async with Store.open(path) as store:
        assert await store.integrity() == []


async def test_a_file_that_cannot_be_opened_is_one_clear_error(tmp_path: Path) -> None:
    with anyio.fail_after(10), pytest.raises(StoreFailed, match="home folder"):
        async with Store.open(tmp_path / "missing" / "tidegate.db"):
            pytest.fail("it was opened")


@pytest.mark.parametrize("version", ["3.51.2", "3.45.1", "3.7.0"])
def test_a_library_with_the_log_reset_bug_is_refused(version: str) -> None:
    """L18: WAL mode is not used with an SQLite that can corrupt it."""
    with pytest.raises(StoreFailed, match=version):
        refuse_unsafe_library(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.54.1", "4.0.0"])
def test_a_library_without_that_bug_is_accepted(version: str) -> None:
    assert database_library(version).problem is None
    refuse_unsafe_library(version)


async def test_an_interrupted_checkpoint_is_not_damage(path: Path, tmp_path: Path) -> None:
    """F4, L18: after a kill during a checkpoint, the file is shorter than its header says and the log has the rest."""
    left = tmp_path / "left.db"
    await fill(path)
    async with Store.open(path) as store:
        await store.write(new_turn, "s_1", "t_2")
        for number in range(100, 130):
            await store.write(bulk, "s_1", "t_2", number, 8000)
        for suffix in ("", "-wal"):
            shutil.copy(path.with_name(path.name + suffix), left.with_name(left.name + suffix))
        pages = await store.read(lambda db: int(db.execute("PRAGMA page_count").get))
    raw = bytearray(left.read_bytes())
    raw[28:32] = struct.pack(">I", pages)
    left.write_bytes(raw)
    assert len(raw) < pages * 4096
    async with Store.open(left) as store:
        assert await store.integrity() == []
        assert await store.read(lambda db: int(db.execute("SELECT count(*) FROM messages").get)) == 50


async def test_a_file_that_was_cut_off_behind_its_log_is_put_aside(path: Path, tmp_path: Path) -> None:
    """L18: SQLite takes the size from the log and would read the missing pages as empty."""
    left = tmp_path / "left.db"
    await fill(path)
    await killed(path, left)
    whole = left.read_bytes()
    left.write_bytes(whole[: -2 * 4096])
    error = await refused(left)
    assert "truncated" in error.message
    assert len(aside(tmp_path)) >= 2
