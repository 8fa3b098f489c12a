"""Recorded output: bounded in memory, complete on disk, and independent of the sizes of its pieces."""

import asyncio
import stat
import time
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.logs import capture_logs
from tests.spool.spools import BYTES, ID, LINES, QUOTA, SESSION, WAIT, can_mount, files, in_child, recorded, spool_of
from tidegate.errors import Conflict, StoreFull
from tidegate.spool import SessionSpool, Spool
from tidegate.spool.output_recorder import BUFFER_BYTES
from tidegate.spool.spool import RESERVE, RESERVED_LINES
from tidegate.store import Db, Store, sessions, spooled

pytestmark = pytest.mark.anyio
ROOM = BYTES - RESERVE
"""What a recorder shows: the rest is for who shows it."""

MEGABYTES = 256
"""Sixteen times the bound that they are measured against; a gigabyte takes seconds more and moves no more."""


# -- the threshold -----------------------------------------------------------------------------------------------------


async def test_a_text_at_the_threshold_is_inline_and_one_byte_more_is_spooled(mine: SessionSpool, spool: Spool) -> None:
    """D1, D2: at the limit, nothing is written to disk; one byte above it, everything is, and the excerpt is
    bounded."""
    text = "x" * BYTES
    assert await mine.text("tool", text) == text
    assert not spool.root.exists()
    shown = await mine.text("tool", text + "y")
    assert len(shown.encode()) <= BYTES
    (id,) = ID.findall(shown)
    assert files(spool) == {id: (text + "y").encode()}
    assert f"of {BYTES + 1} bytes left out" in shown and "output tool" in shown


async def test_lines_at_the_threshold_are_inline_and_one_more_is_spooled(mine: SessionSpool, spool: Spool) -> None:
    """D1, D2: the limit in lines is as exact as the limit in bytes."""
    text = "line\n" * LINES
    assert await mine.text("tool", text) == text
    assert not spool.root.exists()
    shown = await mine.text("tool", text + "z")
    assert len(shown.splitlines()) <= LINES
    assert files(spool) == {ID.findall(shown)[0]: (text + "z").encode()}


async def test_streamed_output_has_the_same_limit_minus_a_reserve(mine: SessionSpool, spool: Spool) -> None:
    """D2: a tool can add a line (an exit code, a note), and the result still fits."""
    assert await recorded(mine.record("terminal"), [b"x" * ROOM]) == "x" * ROOM
    assert await recorded(mine.record("terminal", reserve=0), [b"x" * BYTES]) == "x" * BYTES
    assert await recorded(mine.record("terminal"), [b"\n"] * (LINES - RESERVED_LINES)) == "\n" * (
        LINES - RESERVED_LINES
    )
    assert not spool.root.exists()
    shown = await recorded(mine.record("terminal"), [b"x" * ROOM, b"y"])
    assert len(shown.encode()) <= ROOM
    assert len(files(spool)) == 1
    shown = await recorded(mine.record("terminal", max_bytes=1500), [b"x" * 1000])
    assert len(shown.encode()) <= 1500 - RESERVE
    assert len(files(spool)) == 2


async def test_a_stored_result_has_a_row_and_a_private_file(mine: SessionSpool, spool: Spool, store: Store) -> None:
    """D1, D4: the row contains size, lines, turn and name; nobody else can read the file."""
    recorder = mine.record("terminal")
    shown = await recorded(recorder, [b"line\n" * 1000, b"end"])
    row = await store.read(spooled.get, recorder.spooled, SESSION)
    assert row is not None
    assert (row.bytes, row.lines, row.turn, row.name, row.kind) == (5003, 1001, "t_1", "terminal", "text")
    assert row.id in shown
    path = spool.file(SESSION, row.id)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, path.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]
    assert (recorder.bytes, recorder.lines) == (5003, 1001)
    stats = spool.stats()
    assert (stats.kept, stats.kept_bytes, stats.writing, stats.refused) == (1, 5003, 0, 0)


async def test_invalid_bytes_are_kept_and_shown_as_question_marks(mine: SessionSpool, spool: Spool) -> None:
    """D1: the excerpt can be sent to any model, and the file contains the exact output."""
    data = bytes(range(256)) * 40
    shown = await recorded(mine.record("terminal"), [data])
    shown.encode()
    assert "?" in shown
    assert list(files(spool).values()) == [data]
    assert await recorded(mine.record("terminal"), [b"caf\xe9\n", b"\xe2\x82", b"\xac"]) == "caf?\n€"


pieces = st.lists(st.one_of(st.binary(max_size=700), st.text("aé🌊\n漢", max_size=300).map(str.encode)), max_size=12)


@given(pieces, st.lists(st.integers(0, 5000), max_size=6))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_excerpt_and_file_do_not_depend_on_the_pieces_of_the_output(
    mine: SessionSpool, spool: Spool, cut: list[bytes], places: list[int]
) -> None:
    """D1, D7: for one write or any number of pieces, within the limits and with correct counts."""
    whole = b"".join(cut)
    places = sorted(min(place, len(whole)) for place in places)
    other = [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]
    found: list[tuple[str, list[bytes]]] = []
    for way in ([whole], cut, other):
        shown = await recorded(mine.record("tool"), way)
        found.append((ID.sub("ID", shown), list(files(spool).values())))
        assert len(shown.encode()) <= ROOM
        assert shown.count("\n") + (not shown.endswith("\n") and bool(shown)) <= LINES - RESERVED_LINES
        await spool.remove(SESSION)
    assert found[0] == found[1] == found[2]
    lines = whole.count(b"\n") + (not whole.endswith(b"\n") and bool(whole))
    inline = len(whole) <= ROOM and lines <= LINES - RESERVED_LINES
    assert found[0][1] == ([] if inline else [whole])


@given(st.lists(st.integers(0, 3 * BUFFER_BYTES), max_size=6))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_memory_is_bounded_whatever_is_written(mine: SessionSpool, sizes: list[int]) -> None:
    """D7, L24: to the beginning, the end and one buffer."""
    async with mine.record("tool") as recorder:
        for size in sizes:
            await recorder.write(b"x" * size)
            assert recorder.held <= 2 * BYTES + BUFFER_BYTES


# -- what goes wrong ---------------------------------------------------------------------------------------------------


async def test_over_the_quota_the_excerpt_is_kept_and_says_so(mine: SessionSpool, spool: Spool) -> None:
    """D4: earlier results are kept, and results that fit are still accepted."""
    first = await recorded(mine.record("tool"), [b"a" * (QUOTA - 5000)])
    second = await recorded(mine.record("tool"), [b"b" * 4000] * 2)
    assert "limits.spool_bytes" in second and not ID.search(second)
    assert second.startswith("b") and second.endswith("b") and len(second.encode()) <= ROOM
    third = await recorded(mine.record("tool"), [b"c" * 4000])
    assert sorted(files(spool)) == sorted(ID.findall(first + third))
    assert spool.stats().refused == 1
    assert "aaaa" in await mine.page(ID.findall(first)[0])


async def test_no_more_than_the_quota_is_ever_on_disk(mine: SessionSpool, spool: Spool) -> None:
    """D4, D7: not even while output streams that will not be stored."""
    async with mine.record("tool") as recorder:
        for _ in range(2 * QUOTA // BUFFER_BYTES + 1):
            await recorder.write(b"x" * BUFFER_BYTES)
            assert sum(map(len, files(spool).values())) <= QUOTA
        assert "limits.spool_bytes" in await recorder.finish()
    assert files(spool) == {}


async def test_concurrent_results_stay_within_the_quota_together(
    mine: SessionSpool, spool: Spool, store: Store
) -> None:
    """D4: each sees enough space when it begins; the first to write its row wins."""
    shown: list[str] = []

    async def one() -> None:
        shown.append(await recorded(mine.record("tool"), [b"x" * (QUOTA // 3 + 1)] * 1))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(one)
    assert sorted(len(ID.findall(text)) for text in shown) == [0, 0, 0, 1, 1]
    assert sum(map(len, files(spool).values())) == await store.read(spooled.total, SESSION) <= QUOTA


async def test_an_abandoned_recorder_leaves_nothing(mine: SessionSpool, spool: Spool, store: Store) -> None:
    """L06, L09: an error or a cancellation removes the file and closes the descriptor."""
    with pytest.raises(RuntimeError, match="broke"):
        async with mine.record("tool") as recorder:
            await recorder.write(b"x" * BUFFER_BYTES)
            assert len(files(spool)) == 1 and spool.stats().writing == 1
            raise RuntimeError("broke")
    assert files(spool) == {} and spool.stats().writing == 0
    with anyio.move_on_after(WAIT) as scope:
        async with mine.record("tool") as recorder:
            await recorder.write(b"x" * 5000)
            scope.cancel()
            await recorder.write(b"x" * BUFFER_BYTES)
    assert files(spool) == {} and spool.stats().writing == 0
    assert await store.read(spooled.total, SESSION) == 0


async def test_a_task_cancelled_at_any_point_leaves_no_descriptor_and_only_files_that_the_sweep_finds(
    tmp_path: Path, store: Store
) -> None:
    """L06, L09, L10: a thread left behind closes what it opens, also if the quota is used up in the meantime."""
    spool = spool_of(tmp_path / "spool", store, clock=lambda: time.time() + 3600)
    mine = spool.of(SESSION, None)

    async def record() -> None:
        await recorded(mine.record("tool"), [b"x" * 1000] * 400)

    for rounds in range(60):
        task = asyncio.get_running_loop().create_task(record())
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        with anyio.fail_after(WAIT):
            await asyncio.wait({task})
    assert spool.stats().writing == 0
    await spool.sweep()
    for name in files(spool):
        assert await store.read(spooled.get, name, SESSION) is not None


async def test_an_ended_session_accepts_no_results(mine: SessionSpool, spool: Spool, store: Store) -> None:
    """B3, D4: the file is removed when its row is refused."""
    async with mine.record("tool") as recorder:
        await recorder.write(b"x" * 5000)
        await store.write(lambda db: sessions.end(db, SESSION, reason="test", hooks=(), now=2.0))
        with pytest.raises(Conflict):
            await recorder.finish()
    assert files(spool) == {} and spool.stats().writing == 0


async def test_if_the_folder_cannot_be_made_the_excerpt_is_kept(store: Store, tmp_path: Path) -> None:
    """D5: the excerpt is shown with the reason, and nothing fails."""
    (tmp_path / "spool").write_text("in the way")
    spool = spool_of(tmp_path / "spool", store)
    shown = await recorded(spool.of(SESSION, None).record("tool"), [b"start\n", b"x" * 5000, b"\nend"])
    assert shown.startswith("start\n") and shown.endswith("end") and "could not be written" in shown
    assert len(shown.encode()) <= ROOM and not ID.search(shown)
    assert (spool.stats().refused, spool.stats().writing) == (1, 0)


async def test_a_disk_error_is_an_open_problem_until_a_file_can_be_stored(store: Store, tmp_path: Path) -> None:
    """D5, L21: it is named and logged once, and resolved by the next stored result or else by the sweep."""
    root = tmp_path / "spool"
    root.write_text("in the way")
    spool = spool_of(root, store)
    mine = spool.of(SESSION, None)
    with capture_logs() as lines:
        for _ in range(5):
            await recorded(mine.record("tool"), [b"x" * 5000])
        (problem,) = store.stats().problems
        assert (problem.kind, problem.count) == ("spool", 5)
        assert "File exists" in problem.text and "room" not in problem.text
        assert [line["event"] for line in lines] == ["a spool file cannot be written to the disk"]
    root.unlink()
    await spool.sweep()
    assert not store.stats().problems
    assert ID.search(await recorded(mine.record("tool"), [b"x" * 5000]))


async def test_if_the_store_is_full_the_excerpt_is_kept(mine: SessionSpool, spool: Spool, store: Store) -> None:
    """D5: the row could not be written, so the file is removed."""

    def full(db: Db) -> None:
        db.execute(f"PRAGMA max_page_count = {int(db.execute('PRAGMA page_count').get)}")

    await store.write(full)
    shown = ""
    for _ in range(200):  # until what is free in the file is used up
        shown = await recorded(mine.record("tool" * 500), [b"x" * 5000])
        if not ID.search(shown):
            break
    assert "not stored" in shown and not ID.search(shown)
    assert len(files(spool)) == spool.stats().kept
    with pytest.raises(StoreFull):
        await store.write(lambda db: db.execute("CREATE TABLE filler AS SELECT randomblob(100000)").fetchall())


async def test_if_the_disk_is_full_the_excerpt_is_kept(tmp_path: Path) -> None:
    """D5, L19: on a real full file system, the partial file is removed and no descriptor is left."""
    if not await to_thread.run_sync(can_mount):
        pytest.skip("this machine allows no mounts of one's own")
    found = await to_thread.run_sync(lambda: in_child("full", str(tmp_path), namespace=True))
    assert (
        "it could not be written (No space left on device)" in found["text"]
        and "could not be written" in found["streamed"]
    )
    assert found["files"] == "0" and found["descriptors"] == "0"
    assert found["after"] == "kept"


async def test_if_the_disk_is_read_only_the_excerpt_is_kept(tmp_path: Path) -> None:
    """D5: on a real read-only file system."""
    if not await to_thread.run_sync(can_mount):
        pytest.skip("this machine allows no mounts of one's own")
    found = await to_thread.run_sync(lambda: in_child("read-only", str(tmp_path), namespace=True))
    assert (
        "it could not be written (Read-only file system)" in found["text"]
        and "could not be written" in found["streamed"]
    )
    assert found["descriptors"] == "0"


async def test_if_the_file_may_not_grow_the_excerpt_is_kept(tmp_path: Path) -> None:
    """D5: because of the process's limit on file sizes, which works on every machine."""
    found = await to_thread.run_sync(lambda: in_child("limited", str(tmp_path)))
    assert "it could not be written (File too large)" in found["text"] and "could not be written" in found["streamed"]
    assert found["files"] == "0" and found["descriptors"] == "0"


async def test_huge_output_uses_little_memory(tmp_path: Path) -> None:
    """D7, L24: the peak of a process that records it, compared with one that does not."""
    found = await to_thread.run_sync(lambda: in_child("much", str(tmp_path), str(MEGABYTES)))
    assert found["bytes"] == str(MEGABYTES * 1024 * 1024)
    assert int(found["grown"]) <= 16 * 1024 * 1024
