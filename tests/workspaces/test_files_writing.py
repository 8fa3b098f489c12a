"""LocalFiles.write: complete or not at all, inside the mounts or not at all."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import from_thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.workspaces.file_tree import INNER, FileTree, meanwhile
from tidegate.errors import ToolFailed
from tidegate.lifetimes import gather
from tidegate.workspaces.files import FileFilter, atomic_write

pytestmark = pytest.mark.anyio


@pytest.fixture
def file_tree(tmp_path: Path) -> Iterator[FileTree]:
    file_tree = FileTree(tmp_path)
    yield file_tree
    assert not list(tmp_path.rglob(".tidegate-*")), "a temporary file was left"


async def test_writing_a_file_creates_missing_folders(file_tree: FileTree) -> None:
    files = file_tree.files()
    assert (await files.write("a/b/c.txt", b"one")).replaced is None
    assert (await files.write(f"{INNER}/a/b/c.txt", b"another")).replaced == 3
    assert (file_tree.work / "a/b/c.txt").read_bytes() == b"another"


LENGTHS = st.sampled_from([0, *(count * atomic_write.CHUNK + more for count in (1, 2) for more in (-1, 0, 1))])


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(st.tuples(st.binary(max_size=2000), LENGTHS), min_size=1, max_size=4))
async def test_written_bytes_are_read_back_unchanged(file_tree: FileTree, contents: list[tuple[bytes, int]]) -> None:
    """Any bytes of any length, replacing any others, shorter and longer than the pieces that are written."""
    files = file_tree.files()
    for beginning, length in contents:
        content = beginning.ljust(length, b"-")
        await files.write("file", content)
        loaded = await files.load("file", limit=1 << 20)
        assert (loaded.data, loaded.version) == (content, atomic_write.version(content))
    assert [path.name for path in file_tree.work.iterdir()] == ["file"]


async def test_a_replaced_file_keeps_permissions_but_not_special_bits(file_tree: FileTree) -> None:
    """An edited script can still be run; setuid bits are dropped."""
    file_tree.put({"script": "old", "special": "old"})
    (file_tree.work / "script").chmod(0o750)
    (file_tree.work / "special").chmod(0o4755)
    for name, mode in (("script", 0o750), ("special", 0o755)):
        await file_tree.files().write(name, b"new")
        assert stat.S_IMODE((file_tree.work / name).stat().st_mode) == mode
    await file_tree.files().write("new", b"new")
    before = os.umask(0)
    os.umask(before)
    assert stat.S_IMODE((file_tree.work / "new").stat().st_mode) == 0o666 & ~before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_a_replaced_file_keeps_its_owner(file_tree: FileTree) -> None:
    file_tree.put({"theirs": "old"})
    os.chown(file_tree.work / "theirs", 4321, 4322)
    await file_tree.files().write("theirs", b"new")
    status = (file_tree.work / "theirs").stat()
    assert (status.st_uid, status.st_gid) == (4321, 4322)


async def test_writing_follows_links_that_stay_inside(file_tree: FileTree) -> None:
    """Including a link to a file that does not exist yet; a link that leads out is refused."""
    file_tree.put({"real": "old"})
    for name, target in (("link", "real"), ("dangling", "sub/new"), ("out", "../outside/secret")):
        (file_tree.work / name).symlink_to(target)
    files = file_tree.files()
    await files.write("link", b"new")
    await files.write("dangling", b"made")
    assert (file_tree.work / "link").is_symlink() and (file_tree.work / "real").read_bytes() == b"new"
    assert (file_tree.work / "sub/new").read_bytes() == b"made"
    with pytest.raises(ToolFailed, match="leads out of the workspace"):
        await files.write("out", b"x")
    assert (file_tree.outside / "secret").read_bytes() != b"x"


async def test_read_only_mounts_are_not_written(file_tree: FileTree) -> None:
    (file_tree.shared / "given").write_text("theirs")
    (file_tree.work / "link").symlink_to("/shared/given")
    for path in ("/shared/given", "/shared/new", "/shared/new/folder/file", "link"):
        with pytest.raises(ToolFailed, match="is read-only; write elsewhere"):
            await file_tree.files().write(path, b"x")
    assert [path.name for path in file_tree.shared.rglob("*")] == ["given"]
    assert (file_tree.shared / "given").read_text() == "theirs"


async def test_a_path_that_cannot_be_a_file_is_refused(file_tree: FileTree) -> None:
    file_tree.put({"folder/file": ""})
    for path, said in (
        ("folder", "is a folder"),
        (".", "is a folder"),
        ("new/", "is a folder"),
        ("folder/file/x", "not a folder"),
        ("x" * 300, "File name too long"),
        ("../x", "leads out"),
    ):
        with pytest.raises(ToolFailed, match=said):
            await file_tree.files().write(path, b"x")


@pytest.mark.parametrize("call", ["write", "rename", "fchmod"])
async def test_a_failed_write_leaves_only_the_old_file(
    file_tree: FileTree, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5: a full disk, wherever it is noticed."""
    file_tree.put({"file": "old"})

    def full(*_arguments: object, **_options: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic_write.os, call, full)
    with pytest.raises(ToolFailed, match="could not be written \\(No space left on device\\); nothing was changed"):
        await file_tree.files().write("file", b"new")
    monkeypatch.undo()
    assert (file_tree.work / "file").read_text() == "old"


async def test_concurrent_readers_see_the_old_or_the_new_content(file_tree: FileTree) -> None:
    """Never a part, and never nothing."""
    contents = (b"a" * 300_000, b"b" * 500_000)
    (file_tree.work / "file").write_bytes(contents[0])
    seen: set[bytes] = set()
    with meanwhile(lambda: seen.add((file_tree.work / "file").read_bytes())):
        for number in range(40):
            await file_tree.files().write("file", contents[number % 2])
    assert seen <= set(contents)


KILLED = """
import anyio, os, sys
from pathlib import Path
from tidegate.workspaces import Mount
from tidegate.workspaces.files.local_files import LocalFiles
from tidegate.workspaces.processes.children import Spawner

async def main():
    files = LocalFiles((Mount(inner="/workspace", folder=Path(sys.argv[1])),), Spawner(frozenset({0})))
    while True:
        for letter in (b"a", b"b"):
            await files.write("file", letter * 3_000_000)
            os.write(1, letter)

anyio.run(main)
"""


def test_a_kill_during_a_write_leaves_a_complete_file(file_tree: FileTree) -> None:
    """F4: the old content or the new one; a leftover has a recognisable name."""
    for written in (1, 4, 10):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(file_tree.work)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and len(child.stdout.read(written)) == written
            child.kill()
        content = (file_tree.work / "file").read_bytes()
        assert len(content) == 3_000_000 and len(set(content)) == 1
        for left in file_tree.work.glob(".tidegate-*.tmp"):
            left.unlink()
    assert [path.name for path in file_tree.work.iterdir()] == ["file"]


async def test_a_cancelled_write_leaves_the_old_file(file_tree: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """L10: it ends in the middle of a long content."""
    file_tree.put({"file": "old"})
    write = os.write
    monkeypatch.setattr(atomic_write.os, "write", lambda fd, data: write(fd, data[:1]))
    with anyio.fail_after(30):
        with anyio.move_on_after(0.05) as scope:
            await file_tree.files().write("file", b"x" * 5_000_000)
    assert scope.cancelled_caught
    assert (file_tree.work / "file").read_text() == "old"


# -- expected versions --


async def test_an_expected_version_is_replaced_and_another_is_not(file_tree: FileTree) -> None:
    file_tree.put({"file": "one"})
    (file_tree.work / "file").chmod(0o640)
    files = file_tree.files()
    loaded = await files.load("file", limit=10)
    await files.write("file", b"two", expected=loaded.version)
    assert (file_tree.work / "file").read_text() == "two"
    assert stat.S_IMODE((file_tree.work / "file").stat().st_mode) == 0o640
    with pytest.raises(ToolFailed, match="changed by someone else in the meantime; nothing was written: read it again"):
        await files.write("file", b"three", expected=loaded.version)
    assert (file_tree.work / "file").read_text() == "two"
    (file_tree.work / "file").unlink()
    with pytest.raises(ToolFailed, match="changed by someone else"):
        await files.write("file", b"three", expected=loaded.version)
    assert not list(file_tree.work.iterdir())


@pytest.mark.parametrize("change", ["replace", "rewrite", "remove"])
async def test_a_last_moment_change_is_not_overwritten(
    file_tree: FileTree, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the version check and before the file is put in place."""
    file_tree.put({"file": "one"})
    expected = (await file_tree.files().load("file", limit=10)).version
    real = os.fchmod

    def interfering(*arguments: Any) -> None:  # the temporary file is complete
        real(*arguments)
        if change == "rewrite":
            (file_tree.work / "file").write_text("six")
        else:
            (file_tree.work / "file").unlink()
            if change == "replace":
                (file_tree.work / "file").write_text("six")

    monkeypatch.setattr(atomic_write.os, "fchmod", interfering)
    with pytest.raises(ToolFailed, match="changed by someone else"):
        await file_tree.files().write("file", b"two", expected=expected)
    assert (
        (not (file_tree.work / "file").exists())
        if change == "remove"
        else (file_tree.work / "file").read_text() == "six"
    )


async def test_writing_works_without_atomic_exchange(file_tree: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    file_tree.put({"file": "one"})
    expected = (await file_tree.files().load("file", limit=10)).version

    def unable(*_arguments: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(atomic_write, "exchange", unable)
    await file_tree.files().write("file", b"two", expected=expected)
    assert (file_tree.work / "file").read_text() == "two"


async def test_of_writers_expecting_the_same_version_one_succeeds(file_tree: FileTree) -> None:
    """Each adds one to the number it has read: the sum counts the successful writes."""
    file_tree.put({"number": "0"})
    added = 0

    async def add() -> None:
        nonlocal added
        files = file_tree.files()
        for _ in range(25):
            loaded = await files.load("number", limit=10)
            try:
                await files.write("number", b"%d" % (int(loaded.data) + 1), expected=loaded.version)
            except ToolFailed:
                continue
            added += 1

    with anyio.fail_after(60):
        await gather([add(), add()])
    assert int((file_tree.work / "number").read_text()) == added
    assert added >= 25
    assert not (await file_tree.files().list(".", FileFilter(), recursive=True, limit=10)).left_out


async def test_a_folder_that_stays_locked_is_still_written(file_tree: FileTree) -> None:
    """A command of the session could hold the lock for ever; it blocks nobody."""
    fd = os.open(file_tree.work, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with anyio.fail_after(30):
            await file_tree.files().write("file", b"new")
    finally:
        os.close(fd)
    assert (file_tree.work / "file").read_bytes() == b"new"


async def test_undoing_an_exchange_does_not_remove_another_writers_file(
    file_tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a wrong exchange and its undoing, no other writer of ours works in the folder."""
    file_tree.put({"file": "one"})
    files = file_tree.files()
    expected = (await files.load("file", limit=10)).version
    swapped, written = anyio.Event(), threading.Event()
    complete, open_again = os.fchmod, atomic_write.open_for_reading
    looks = 0

    def interfering(*arguments: Any) -> None:
        complete(*arguments)
        if not looks:
            (file_tree.work / "file").unlink()
            (file_tree.work / "file").write_text("six")

    def waiting(reference: int) -> int:
        nonlocal looks
        looks += 1
        if looks == 2:  # the exchange is done, and its result is being checked
            from_thread.run_sync(swapped.set)
            written.wait(0.3)  # only a writer that does not wait for us is done by then
        return open_again(reference)

    async def take_back() -> None:
        with pytest.raises(ToolFailed, match="changed by someone else"):
            await files.write("file", b"two", expected=expected)

    async def write() -> None:
        await swapped.wait()
        await files.write("file", b"ten")
        written.set()

    monkeypatch.setattr(atomic_write.os, "fchmod", interfering)
    monkeypatch.setattr(atomic_write, "open_for_reading", waiting)
    with anyio.fail_after(30):
        await gather([take_back(), write()])
    assert (file_tree.work / "file").read_text() == "ten"
