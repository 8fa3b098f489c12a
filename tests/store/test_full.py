"""A full disk: a clear refusal, working reads, and writes that work again when there is space."""

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.store.rows import bulk, get_meta, new_session, new_turn, put_meta
from tidegate.errors import StoreFull
from tidegate.store import Db, Store, messages, sessions

pytestmark = pytest.mark.anyio


def set_free_space(db: Db, more: int | None) -> None:
    """Allows the file that many more pages; None lifts the limit."""
    pages = int(db.execute("PRAGMA page_count").get)
    db.execute(f"PRAGMA max_page_count = {4_000_000_000 if more is None else pages + more}")


async def test_on_a_full_disk_writes_are_refused_reads_work_and_free_space_restores_writes(store: Store) -> None:
    """L18, L21: StoreFull is temporary."""
    with anyio.fail_after(30):
        await store.write(new_session, "s_1")
        await store.write(new_turn, "s_1", "t_1", "before")
        await store.write(set_free_space, 2)
        with pytest.raises(StoreFull, match="no space"):
            await store.write(bulk, "s_1", "t_1", 1, 200_000)
        assert store.stats().full and store.alive
        assert await store.read(messages.count_waiting, "t_1") == 1
        assert (await store.read(sessions.get, "s_1")) is not None
        await store.write(put_meta, "small", 1)
        assert not store.stats().full
        await store.write(set_free_space, None)
        await store.write(bulk, "s_1", "t_1", 1, 200_000)
        assert len(await store.read(messages.journal, "t_1")) == 1
        assert await store.integrity() == []


async def test_a_write_that_does_not_fit_does_not_roll_back_the_others_of_its_group(store: Store) -> None:
    """L18: the other writes of the group are committed."""
    with anyio.fail_after(30):
        await store.write(new_session, "s_1")
        await store.write(new_turn, "s_1", "t_1")
        await store.write(set_free_space, 2)
        results: list[str] = []

        async def attempt(name: str, large: bool) -> None:
            try:
                if large:
                    await store.write(bulk, "s_1", "t_1", 1, 200_000)
                else:
                    await store.write(put_meta, name, 1)
                results.append(name)
            except StoreFull:
                results.append("full")

        async with anyio.create_task_group() as group:
            for name in ("a", "b", "large", "c", "d"):
                group.start_soon(attempt, name, name == "large")
        assert sorted(results) == ["a", "b", "c", "d", "full"]
        assert [await store.read(get_meta, name) for name in "abcd"] == [1, 1, 1, 1]


_CHILD = """
import resource, signal, sys
from pathlib import Path
import anyio
from tests.store.rows import bulk, get_meta, new_session, new_turn, put_meta
from tidegate.errors import StoreFull
from tidegate.store import Store, sessions

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main():
    async with Store.open(Path(sys.argv[1])) as store:
        await store.write(new_session, "s_1")
        await store.write(new_turn, "s_1", "t_1")
        limit(400_000)
        written = 0
        try:
            for number in range(100):
                await store.write(bulk, "s_1", "t_1", number, 20_000)
                written += 1
        except StoreFull:
            pass
        assert 0 < written < 100, written
        assert await store.read(sessions.get, "s_1") is not None
        assert store.alive
        for _ in range(3):
            try:
                await store.write(bulk, "s_1", "t_1", 1000, 400_000)
                raise SystemExit("a write went through without room")
            except StoreFull:
                pass
        limit(resource.RLIM_INFINITY)
        for number in range(200, 220):
            await store.write(bulk, "s_1", "t_1", number, 20_000)
        assert await store.integrity() == []
        print(written + 20)

with_signal = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
anyio.run(main)
"""


async def test_a_file_that_the_system_does_not_let_grow_is_a_full_disk_and_recovers(path: Path) -> None:
    """L18, L21: a real refusal by the kernel in the middle of the log loses nothing that was acknowledged."""
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [sys.executable, "-c", _CHILD, str(path)],
            check=False,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == 0, done.stderr.decode()
        async with Store.open(path) as store:
            rows = await store.read(messages.page, "s_1", limit=1000)
            assert len(rows) == int(done.stdout)
            assert await store.integrity() == []
