"""LocalFiles: reachable paths, which never leave the mounts."""

import os
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from tests.workspaces.file_tree import INNER, SECRET, FileTree
from tidegate.errors import ToolFailed
from tidegate.workspaces import Mount
from tidegate.workspaces.files import FileFilter, filesystem, mounts
from tidegate.workspaces.files import walk as walking
from tidegate.workspaces.files.filesystem import Filesystem
from tidegate.workspaces.files.local_files import LocalFiles
from tidegate.workspaces.processes.children import Spawner

pytestmark = pytest.mark.anyio


@pytest.fixture
def file_tree(tmp_path: Path) -> FileTree:
    file_tree = FileTree(tmp_path)
    file_tree.put({"sub/deep/note.txt": "inside\n"})
    return file_tree


async def read(files: LocalFiles, path: str, *, offset: int = 0, lines: int = 100, max_bytes: int = 12_000) -> str:
    with anyio.fail_after(30):
        return (await files.lines(path, offset=offset, lines=lines, max_bytes=max_bytes)).data.decode()


async def refusal(files: LocalFiles, path: str, **arguments: Any) -> str:
    with pytest.raises(ToolFailed) as caught:
        await read(files, path, **arguments)
    assert SECRET not in caught.value.message
    assert "\n" not in caught.value.message and len(caught.value.message) < 500
    return caught.value.message


# -- paths --


async def test_files_are_reached_by_every_path_that_commands_use(file_tree: FileTree) -> None:
    """Relative, with dots and doubled slashes, absolute as commands see it, and through parent folders."""
    files = file_tree.files()
    for path in (
        "sub/deep/note.txt",
        "./sub//deep/./note.txt",
        f"{INNER}/sub/deep/note.txt",
        "sub/../sub/deep/note.txt",
        "sub/deep/../deep/note.txt",
        f"{INNER}/sub/deep/../../sub/deep/note.txt",
    ):
        assert await read(files, path) == "inside\n"
    (file_tree.shared / "given").write_text("shared\n")
    assert await read(files, "/shared/given") == "shared\n"


async def test_the_longest_matching_mount_is_used(file_tree: FileTree) -> None:
    inside = file_tree.shared / "inside"
    inside.mkdir()
    (inside / "x").write_text("of the inner mount")
    given = (Mount(inner=INNER, folder=file_tree.work), Mount(inner=f"{INNER}/given", folder=inside))
    files = LocalFiles(given, Spawner(frozenset({0})))
    assert await read(files, f"{INNER}/given/x") == "of the inner mount"


@pytest.mark.parametrize(
    "path",
    ["../outside/secret", "sub/../../outside/secret", "sub/deep/../../../outside/secret", "..", "../work/sub"],
)
async def test_parent_references_do_not_lead_out(file_tree: FileTree, path: str) -> None:
    """X07: nor in an absolute path."""
    for given in (path, f"{INNER}/{path}", f"{INNER}/sub/../{path}"):
        assert "leads out of the workspace" in await refusal(file_tree.files(), given)


async def test_an_absolute_path_elsewhere_is_refused(file_tree: FileTree) -> None:
    """X07: including a path that only shares a prefix with a mount, and the workspace's real path on the machine."""
    for path in ("/etc/passwd", "//etc/passwd", f"{INNER}-other/x", str(file_tree.work / "sub/deep/note.txt"), "/"):
        message = await refusal(file_tree.files(), path)
        assert "outside the workspace" in message and INNER in message


async def test_links_that_stay_inside_are_followed(file_tree: FileTree) -> None:
    """To a file, to a folder, absolute as commands see it, through another link, and from one mount into another."""
    links = {
        "file": "sub/deep/note.txt",
        "folder": "sub/deep",
        "absolute": f"{INNER}/sub/deep/note.txt",
        "chain": "file",
        "sub/up": "../sub/deep",
        "other": "/shared/given",
    }
    for name, target in links.items():
        (file_tree.work / name).symlink_to(target)
    (file_tree.shared / "given").write_text("shared\n")
    files = file_tree.files()
    for path in ("file", "folder/note.txt", "absolute", "chain", "sub/up/note.txt", "folder/../deep/note.txt"):
        assert await read(files, path) == "inside\n"
    assert await read(files, "other") == "shared\n"


async def test_links_that_lead_out_are_refused_anywhere_in_a_path(file_tree: FileTree) -> None:
    """X07: to a file, to a folder, in the middle, absolute, relative, through a link that stays inside, or in a
    circle."""
    links = {
        "file": str(file_tree.outside / "secret"),
        "relative": "../outside/secret",
        "folder": str(file_tree.outside),
        "sub/up": "../..",
        "chain": "relative",
        "root": "/",
    }
    for name, target in links.items():
        (file_tree.work / name).symlink_to(target)
    paths = ("file", "relative", "folder/secret", "sub/up/outside/secret", "chain", "root/etc/passwd")
    for path in (*paths, f"{INNER}/file"):
        assert "outside the workspace" in (said := await refusal(file_tree.files(), path)) or "leads out" in said
    (file_tree.work / "loop").symlink_to("loop")
    assert "in circles" in await refusal(file_tree.files(), "loop")


async def test_the_folder_of_a_mount_may_itself_be_a_link(file_tree: FileTree) -> None:
    """The operator named it."""
    alias = file_tree.work.parent / "alias"
    alias.symlink_to(file_tree.work)
    files = LocalFiles((Mount(inner=INNER, folder=alias),), Spawner(frozenset({0})))
    assert await read(files, "sub/deep/note.txt") == "inside\n"


async def test_unreachable_paths_are_explained_in_one_sentence(file_tree: FileTree) -> None:
    files = file_tree.files()
    assert await refusal(files, "none") == 'There is no file "none"; list_files shows what is there.'
    assert await refusal(files, "none/x") == 'There is no "none/x"; list_files shows what is there.'
    assert "not a folder" in await refusal(files, "sub/deep/note.txt/more")
    assert "is a folder" in await refusal(files, "sub")
    assert "is a folder" in await refusal(files, ".")
    assert "File name too long" in await refusal(files, "n" * 300)
    for path in ("", "a\0b", "x/" * 4000):
        assert "must name a file or folder" in await refusal(files, path)
    assert '"a\\nb\\x1b[2J"' in await refusal(files, "a\nb\x1b[2J")
    kill_and_close = LocalFiles((Mount(inner=INNER, folder=file_tree.work / "gone"),), Spawner(frozenset({0})))
    assert "cannot be opened (No such file or directory); the operator must create it" in await refusal(
        kill_and_close, "x"
    )


async def test_the_depth_of_a_path_is_bounded(file_tree: FileTree) -> None:
    """Each level needs a descriptor during the walk."""
    deepest = "a/" * (mounts.DEEPEST - 1)
    file_tree.put({f"{deepest}x": "at the limit", f"{deepest}a/x": "below it"})
    assert await read(file_tree.files(), f"{deepest}x") == "at the limit"
    assert f"more than {mounts.DEEPEST} levels" in await refusal(file_tree.files(), f"{deepest}a/x")


async def test_pipes_sockets_and_devices_are_named_and_never_opened(file_tree: FileTree) -> None:
    """A pipe without a writer, a socket, a device: none of them is opened."""
    os.mkfifo(file_tree.work / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    try:
        os.chdir(file_tree.work)  # the path of a socket is limited to about a hundred characters
        listener.bind("socket")
    finally:
        os.chdir(here)
        listener.close()
    for path in ("pipe", "socket"):
        assert "device, pipe or socket" in await refusal(file_tree.files(), path)
        with pytest.raises(ToolFailed, match="device, pipe or socket"):
            await file_tree.files().load(path, limit=10)
        with pytest.raises(ToolFailed, match="device, pipe or socket"):
            await file_tree.files().write(path, b"x")
    devices = LocalFiles((Mount(inner="/dev", folder=Path("/dev")),), Spawner(frozenset({0})))
    assert "device, pipe or socket" in await refusal(devices, "/dev/null")


# -- exchanges --


@pytest.mark.parametrize("place", ["sub", "sub/deep", "sub/deep/secret"])
async def test_exchanging_a_folder_for_a_link_does_not_lead_out(
    file_tree: FileTree, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X07: the opened entry is exchanged for a link out before the next step, and before it is read."""
    (file_tree.outside / "deep").mkdir()
    (file_tree.outside / "deep/secret").write_text(SECRET)
    file_tree.put({"sub/deep/secret": "harmless"})
    target = {
        "sub": file_tree.outside,
        "sub/deep": file_tree.outside / "deep",
        "sub/deep/secret": file_tree.outside / "secret",
    }[place]
    real = os.fstat
    exchanged: list[int] = []

    def exchanging(fd: int) -> os.stat_result:
        found = real(fd)
        if Path(f"/proc/self/fd/{fd}").readlink() == file_tree.work / place and not exchanged:
            exchanged.append(fd)
            (file_tree.work / place).rename(file_tree.work / "moved")
            (file_tree.work / place).symlink_to(target)
        return found

    monkeypatch.setattr(mounts.os, "fstat", exchanging)
    assert await read(file_tree.files(), "sub/deep/secret") == "harmless"
    assert exchanged


async def test_a_folder_exchanged_for_a_link_is_not_listed(
    file_tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X07: it is a folder when its name is read and a link out when it is opened."""
    real = os.open

    def exchanging(name: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if name == "sub" and not (file_tree.work / "moved").exists():
            (file_tree.work / "sub").rename(file_tree.work / "moved")
            (file_tree.work / "sub").symlink_to(file_tree.outside)
        return real(name, flags, *arguments, **options)

    monkeypatch.setattr(walking.os, "open", exchanging)
    listing = await file_tree.files().list(".", FileFilter(), recursive=True, limit=100)
    assert [entry.path for entry in listing.entries] == ["sub"]


async def test_constantly_exchanging_a_folder_never_reveals_outside_files(file_tree: FileTree) -> None:
    """X07: reading, loading and listing, at random moments."""
    file_tree.put({"flip/secret": "harmless"})
    files = file_tree.files()
    seen: set[str] = set()
    with file_tree.flipping():
        for _ in range(150):
            with suppress(ToolFailed):
                seen.add(await read(files, "flip/secret"))
            with suppress(ToolFailed):
                seen.add((await files.load("flip/secret", limit=100)).data.decode())
            listing = await files.list(".", FileFilter(), recursive=True, limit=100)
            assert {entry.size for entry in listing.entries if entry.path.endswith("/secret")} <= {len("harmless")}
    assert seen == {"harmless"}


async def test_constantly_exchanging_a_folder_never_allows_writes_outside(file_tree: FileTree) -> None:
    """X07: neither a file nor a folder."""
    (file_tree.work / "flip").mkdir()
    files = file_tree.files()
    with file_tree.flipping():
        for number in range(150):
            with suppress(ToolFailed):
                await files.write(f"flip/made{number % 5}/file", b"x")
    assert sorted(path.name for path in file_tree.outside.rglob("*")) == ["secret"]


# -- pages --


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
async def test_every_line_is_in_exactly_one_page(file_tree: FileTree, chunk: int) -> None:
    """Whatever falls on the boundary of two reads: a line break, an empty line, a character of four bytes."""
    text = "\n\na\n🌊🌊\n" + "é" * 20 + "\n\n\nend"
    file_tree.put({"text": text})
    files = Filesystem([Mount(inner=INNER, folder=file_tree.work)], chunk=chunk)
    for count in (1, 2, 3, 50):
        pages, offset = "", 0
        while True:
            page = await to_thread.run_sync(files.lines, "text", offset, count, 1000)
            assert page.first == offset and page.size == len(text.encode()) and text.encode().startswith(page.head)
            pages += page.data.decode()
            offset = page.after
            if not page.more:
                break
        assert pages == text


async def test_a_huge_file_is_paged_without_reading_all_of_it(file_tree: FileTree) -> None:
    """A sparse file of a terabyte: its first page is returned, and the search for a far line ends."""
    with (file_tree.work / "huge").open("wb") as file:
        file.write(b"first\n" * 3000)
        file.truncate(10**12)
    assert await read(file_tree.files(), "huge", lines=2) == "first\nfirst\n"
    assert "too far to reach" in await refusal(file_tree.files(), "huge", offset=10**9)
    with pytest.raises(ToolFailed, match="more than the limit of 1000"):
        await file_tree.files().load("huge", limit=1000)


async def test_a_long_read_ends_when_it_is_cancelled(file_tree: FileTree) -> None:
    """L10: a cancelled read stops."""
    with (file_tree.work / "huge").open("wb") as file:
        file.truncate(10**12)
    with anyio.fail_after(30):
        with anyio.move_on_after(0.01) as scope:
            await read(file_tree.files(), "huge", offset=1)
        assert scope.cancelled_caught


@pytest.mark.parametrize("chunk", [3, 10, filesystem.CHUNK])
async def test_a_file_is_loaded_up_to_exactly_the_limit(file_tree: FileTree, chunk: int) -> None:
    file_tree.put({"ten": b"0123456789", "same": b"0123456789", "empty": b""})
    files = Filesystem([Mount(inner=INNER, folder=file_tree.work)], chunk=chunk)
    load = partial(to_thread.run_sync, files.load)
    loaded = await load("ten", 10)
    assert loaded.data == b"0123456789" and loaded.version == (await load("same", 10)).version
    assert (await load("empty", 0)).data == b""
    with pytest.raises(ToolFailed, match='"ten" has 10 bytes, more than the limit of 9'):
        await load("ten", 9)


async def test_an_opened_file_is_closed_at_the_end_of_its_block(file_tree: FileTree) -> None:
    async with file_tree.files().opened("sub/deep/note.txt") as fd:
        assert os.read(fd, 100) == b"inside\n"
    with pytest.raises(OSError):
        os.fstat(fd)


# -- listings --


async def listed(
    file_tree: FileTree, path: str = ".", *, glob: str = "", hidden: bool = False, deep: bool = False
) -> list[str]:
    listing = await file_tree.files().list(path, FileFilter(glob=glob, hidden=hidden), recursive=deep, limit=100)
    return [entry.path for entry in listing.entries]


async def test_a_listing_is_sorted_by_name_with_kinds(file_tree: FileTree) -> None:
    """Links are listed with their target and not followed."""
    file_tree.put({"b.txt": "12345", "a b": "", "sub/z": "", "ü": ""})
    os.mkfifo(file_tree.work / "pipe")
    (file_tree.work / "link").symlink_to("../outside")
    listing = await file_tree.files().list(".", FileFilter(), recursive=True, limit=100)
    assert [tuple(entry) for entry in listing.entries] == [
        ("a b", "file", 0, ""),
        ("b.txt", "file", 5, ""),
        ("link", "link", 0, "../outside"),
        ("pipe", "other", 0, ""),
        ("sub", "folder", 0, ""),
        ("sub/deep", "folder", 0, ""),
        ("sub/deep/note.txt", "file", 7, ""),
        ("sub/z", "file", 0, ""),
        ("ü", "file", 0, ""),
    ]
    assert await listed(file_tree, "sub") == ["sub/deep", "sub/z"]
    assert await listed(file_tree, f"{INNER}/sub/", deep=True) == [
        f"{INNER}/sub/deep",
        f"{INNER}/sub/deep/note.txt",
        f"{INNER}/sub/z",
    ]


async def test_hidden_names_and_heavy_folders_are_left_out_and_reported(file_tree: FileTree) -> None:
    file_tree.put(
        {".git/config": "", "node_modules/x/y": "", "sub/.env": "", "sub/__pycache__/c": "", "a/node_modules": ""}
    )
    listing = await file_tree.files().list(".", FileFilter(), recursive=True, limit=100)
    assert [entry.path for entry in listing.entries] == ["a", "a/node_modules", "sub", "sub/deep", "sub/deep/note.txt"]
    assert listing.left_out == (".git", "node_modules", "sub/.env", "sub/__pycache__")
    assert await listed(file_tree, ".git") == [".git/config"]
    assert "node_modules/x/y" in await listed(file_tree, deep=True, hidden=True)


async def test_an_incomplete_listing_says_why(file_tree: FileTree) -> None:
    file_tree.put({f"many/{number:02}": "" for number in range(20)})
    files = file_tree.files()
    assert not (await files.list("many", FileFilter(), recursive=True, limit=20)).stopped
    listing = await files.list("many", FileFilter(), recursive=True, limit=19)
    assert len(listing.entries) == 19 and listing.stopped == "there are more than 19"


@pytest.mark.parametrize(
    ("bounds", "entries", "stopped"),
    [
        ({"folder_entries": 5}, 5, "of folders with more than 5 names, only that many were read"),
        ({"most_entries": 3}, 3, "only the first 3 names were read"),
    ],
)
async def test_an_incomplete_walk_says_why(
    file_tree: FileTree, bounds: dict[str, int], entries: int, stopped: str
) -> None:
    file_tree.put({f"many/{number:02}": "" for number in range(20)})
    walk = walking.FolderWalk(FileFilter(), recursive=True, **bounds)
    folder = os.open(file_tree.work / "many", os.O_PATH)
    try:
        assert len(await to_thread.run_sync(list, walk.steps(folder))) == entries
    finally:
        os.close(folder)
    assert walk.stopped == stopped


async def test_listing_something_other_than_a_folder_is_refused(file_tree: FileTree) -> None:
    for path, said in (("none", "There is no folder"), ("sub/deep/note.txt", "is not a folder")):
        with pytest.raises(ToolFailed, match=said):
            await listed(file_tree, path)


async def test_a_tree_that_is_too_deep_is_cut_and_reported(file_tree: FileTree) -> None:
    file_tree.put({"a/" * (mounts.DEEPEST + 3) + "x": ""})
    listing = await file_tree.files().list("a", FileFilter(), recursive=True, limit=1000)
    assert len(listing.entries) == mounts.DEEPEST
    assert all(entry.kind == "folder" for entry in listing.entries)
    assert f"more than {mounts.DEEPEST} levels deep" in listing.stopped


async def test_names_that_are_not_utf8_are_listed_safely(file_tree: FileTree) -> None:
    Path(os.fsdecode(os.fsencode(file_tree.work) + b"/\xff\n")).write_bytes(b"x")
    (path, *_rest) = reversed(await listed(file_tree))
    assert mounts.printable(path) == "\\xff\\n"
    assert await read(file_tree.files(), path) == "x"
