"""The sweep removes orphans, and nothing else."""

import os
import time
from pathlib import Path

import pytest

from tests.spool.spools import SESSION, files, recorded, spool_of
from tests.store.rows import new_session
from tidegate.spool import Spool
from tidegate.spool.spool import BATCH, YOUNG_SECONDS
from tidegate.store import Store, processes, sessions, spooled
from tidegate.values import new_id

pytestmark = pytest.mark.anyio
OLD = 2 * YOUNG_SECONDS


def age(*paths: Path, seconds: float = OLD) -> None:
    for path in paths:
        os.utime(path, (time.time() - seconds,) * 2)


async def new_spooled_file(spool: Spool, session: str = SESSION) -> Path:
    recorder = spool.of(session, None).record("tool")
    await recorded(recorder, [b"x" * 5000])
    return spool.file(session, recorder.spooled)


def stray(spool: Spool, session: str, name: str) -> Path:
    path = spool.file(session, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left")
    return path


async def test_orphans_are_swept_and_the_rest_stays(spool: Spool, store: Store) -> None:
    """D4, L16, L19: folders of deleted sessions and files without a row, according to the store."""
    await store.write(new_session, "s_2")
    mine, other = await new_spooled_file(spool), await new_spooled_file(spool, "s_2")
    orphan = stray(spool, SESSION, new_id("sp"))
    gone = stray(spool, new_id("s"), new_id("sp"))
    age(mine, other, orphan, gone, gone.parent)
    assert await spool.sweep() == 2
    assert [path.exists() for path in (mine, other, orphan, gone, gone.parent)] == [True, True, False, False, False]
    assert await spool.sweep() == 0
    stats = spool.stats()
    assert stats.swept == 2 and stats.swept_at > 0


async def test_a_spool_is_deleted_with_the_transcript_and_not_before(spool: Spool, store: Store) -> None:
    """D4, B3: ending a session keeps it; deleting the session removes its rows and, at the next sweep, its files."""
    path = await new_spooled_file(spool)
    await store.write(lambda db: sessions.end(db, SESSION, reason="test", hooks=(), now=2.0))
    age(path, path.parent)
    assert await spool.sweep() == 0
    assert await spool.of(SESSION, None).page(path.name, lines=1)
    await store.write(sessions.delete, SESSION)
    assert await store.read(spooled.existing, [path.name]) == set()
    assert await spool.sweep() == 1
    assert not path.parent.exists()


async def test_a_deleted_sessions_spool_can_be_removed_at_once(spool: Spool) -> None:
    """D4, L19: also a second time, and for a session that never had one."""
    path = await new_spooled_file(spool)
    for session in (SESSION, SESSION, "s_never"):
        await spool.remove(session)
    assert not path.parent.exists()


async def test_only_generated_ids_are_accepted_as_names(spool: Spool, tmp_path: Path) -> None:
    """X07, X08: paths are refused, wherever they lead."""
    path = await new_spooled_file(spool)
    outside = tmp_path / "secret"
    outside.write_text("not for you")
    for id in ("../../secret", f"{path.name}/../../../secret", str(outside), "", ".", f"{path.name}\n"):
        with pytest.raises(FileNotFoundError):
            await spool.load(SESSION, id)
    assert await spool.load(SESSION, path.name) == b"x" * 5000


async def test_young_files_and_files_being_written_are_not_swept(spool: Spool, store: Store) -> None:
    """D4, L09: their row may be about to be written; a long recording has none for hours."""
    young = stray(spool, SESSION, new_id("sp"))
    fresh = stray(spool, new_id("s"), new_id("sp"))
    async with spool.of(SESSION, None).record("tool") as recorder:
        await recorder.write(b"x" * 300_000)
        (writing,) = (path for path in spool.root.rglob("*") if path.stat().st_size == 300_000)
        age(writing)
        assert await spool.sweep() == 0
        assert young.exists() and fresh.exists()
        await recorder.finish()
    assert writing.exists()
    age(young, fresh, fresh.parent, writing)
    assert await spool.sweep() == 2
    assert writing.exists()


async def test_the_output_of_a_process_stays_while_the_process_is_known(spool: Spool, store: Store) -> None:
    """D4, L16: it is in the same folder, under the id of the process."""
    known, unknown = new_id("pr"), new_id("pr")
    await store.write(
        lambda db: processes.begin(
            db,
            id=known,
            session=SESSION,
            name="server",
            command="serve",
            backend="local",
            log=f"{known}.log",
            restart=False,
            notify=False,
            now=1.0,
        )
    )
    paths = [stray(spool, SESSION, f"{id}{suffix}") for id in (known, unknown) for suffix in (".log", ".log.1", "")]
    age(*paths)
    assert await spool.sweep() == 3
    assert [path.exists() for path in paths] == [True] * 3 + [False] * 3


async def test_foreign_files_are_not_touched(spool: Spool, tmp_path: Path) -> None:
    """D4: files of an operator or a file system are kept, and links are not followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "sp_1").write_text("precious")
    foreign = [stray(spool, "lost+found", "sp_1"), stray(spool, SESSION, "notes.txt")]
    link = spool.root / new_id("s")
    link.symlink_to(outside)
    age(*foreign, foreign[0].parent)
    assert await spool.sweep() == 0
    assert all(path.exists() for path in foreign)
    assert (outside / "sp_1").read_text() == "precious"


async def test_later_sweeps_read_only_folders_that_changed(spool: Spool, store: Store) -> None:
    """L16, L20: a sweep costs as much as has changed, and finds files that were too young the last time."""
    young = stray(spool, SESSION, new_id("sp"))
    assert await spool.sweep() == 0
    age(young)
    assert await spool.sweep() == 1
    quiet = stray(spool, SESSION, new_id("sp"))
    age(quiet, quiet.parent, seconds=10 * YOUNG_SECONDS)
    assert await spool.sweep() == 0
    assert await spool_of(spool.root, store).sweep() == 1


async def test_names_are_looked_up_in_batches_and_an_empty_spool_is_no_error(spool: Spool, store: Store) -> None:
    """L24: the store is never asked for all names at once."""
    assert await spool.sweep() == 0
    paths = [stray(spool, SESSION, new_id("sp")) for _ in range(BATCH + 5)]
    folders = [stray(spool, f"s_gone{number}", "sp_1") for number in range(BATCH + 5)]
    age(*paths, *folders, *(path.parent for path in folders))
    assert await spool.sweep() == 2 * (BATCH + 5)
    assert files(spool) == {}
