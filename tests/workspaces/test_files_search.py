"""LocalFiles.search: matching lines, only from inside the mounts, and within a time limit."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.workspaces.file_tree import INNER, SECRET, FileTree
from tidegate import line_search
from tidegate.errors import ToolFailed
from tidegate.lifetimes import gather
from tidegate.workspaces.files import FileFilter, HitLine, SearchQuery, SearchResult, file_search, local_files, walk
from tidegate.workspaces.files.file_search import DEFAULT_BOUNDS, SearchBounds
from tidegate.workspaces.processes.children import HELPERS

pytestmark = pytest.mark.anyio


@pytest.fixture
def file_tree(tmp_path: Path) -> FileTree:
    return FileTree(tmp_path)


async def search(
    file_tree: FileTree,
    pattern: str,
    path: str = ".",
    *,
    bounds: SearchBounds = DEFAULT_BOUNDS,
    **options: Any,
) -> SearchResult:
    choice = FileFilter(glob=options.pop("glob", ""), hidden=options.pop("hidden", False))
    query = SearchQuery(pattern=pattern, choice=choice, **options)
    with anyio.fail_after(60):
        return await file_tree.files(bounds=bounds).search(path, query)


def places(found: SearchResult) -> list[tuple[str, int]]:
    return [(hit.path, line.number) for hit in found.hits for line in hit.lines if line.found]


async def test_lines_are_found_in_the_order_of_a_listing(file_tree: FileTree) -> None:
    file_tree.put({"b.txt": "tide\nno\nTide\n", "a/z": "tide", "a/b/c": "x\ntide\n", "c": "nothing\n", "empty": ""})
    found = await search(file_tree, "tide")
    assert places(found) == [("a/b/c", 2), ("a/z", 1), ("b.txt", 1)]
    assert (found.files, found.more, found.stopped) == (4, False, "")
    assert places(await search(file_tree, "tide", ignore_case=True, glob="*.txt")) == [
        ("b.txt", 1),
        ("b.txt", 3),
    ]
    assert places(await search(file_tree, "tide", "a")) == [("a/b/c", 2), ("a/z", 1)]
    assert places(await search(file_tree, "tide", f"{INNER}/b.txt")) == [(f"{INNER}/b.txt", 1)]
    assert places(await search(file_tree, "ebb")) == []


async def test_files_without_a_final_line_break_are_kept_apart(file_tree: FileTree) -> None:
    file_tree.put({"1": "ab", "2": "c", "3": "\n", "4": "ab"})
    assert places(await search(file_tree, "abc|ca")) == []
    assert places(await search(file_tree, "^ab$")) == [("1", 1), ("4", 1)]
    assert places(await search(file_tree, "^$")) == [("3", 1)]


async def test_context_lines_never_come_from_another_file(file_tree: FileTree) -> None:
    file_tree.put({"a": "1\n2\nhit\n4\n5\n6\nhit\n", "b": "hit\n2\n", "c": "hit"})
    found = await search(file_tree, "hit", context=1)
    assert [[(line.number, line.text, line.found) for line in hit.lines] for hit in found.hits] == [
        [(2, "2", False), (3, "hit", True), (4, "4", False), (6, "6", False), (7, "hit", True)],
        [(1, "hit", True), (2, "2", False)],
        [(1, "hit", True)],
    ]


async def test_a_search_limit_is_applied_and_reported(file_tree: FileTree) -> None:
    file_tree.put({"a": "hit\nhit\n", "b": "hit\n", "c": "hit\n"})
    assert not (await search(file_tree, "hit", limit=4)).more
    for limit, files in ((1, 1), (2, 2), (3, 3)):
        found = await search(file_tree, "hit", limit=limit)
        assert (len(places(found)), found.more, found.files) == (limit, True, files)


async def test_a_long_line_is_shown_around_the_match(file_tree: FileTree) -> None:
    """Longer than a read, with multi-byte characters where it is cut."""
    length = file_search.LINE_CHUNK
    file_tree.put(
        {
            "far": "🌊" * length + "hit" + "é" * length + "\nnext\n",
            "near": "hit" + "é" * 500,
            "whole": "x" * 397 + "hit",
        }
    )
    far, near, whole = (hit.lines[0] for hit in (await search(file_tree, "hit")).hits)
    assert far.before and far.after and "🌊hité" in far.text and set(far.text) == set("🌊hité")
    assert file_search.SHOWN_BYTES - 8 <= len(far.text.encode()) <= file_search.SHOWN_BYTES
    assert near == HitLine(1, "hit" + "é" * 198, found=True, before=False, after=True)
    assert whole.text.endswith("hit") and whole.before and not whole.after


async def test_binary_large_and_hidden_files_are_left_out_and_counted(file_tree: FileTree) -> None:
    """A zero byte near the beginning makes a file binary; one far behind does not."""
    file_tree.put(
        {
            "binary": b"hit\0\n",
            "almost": b"x\n" * 4096 + b"\0 hit\n",
            "latin": b"caf\xe9 hit\n",
            "large": "hit\n",
            ".env": "hit\n",
            "node_modules/m": "hit\n",
        }
    )
    os.truncate(file_tree.work / "large", file_search.FILE_BYTES + 1)
    found = await search(file_tree, "hit")
    assert places(found) == [("almost", 4097), ("latin", 1)]
    assert (found.binary, found.large, found.left_out) == (1, 1, (".env", "node_modules"))
    assert places(await search(file_tree, "hit", hidden=True))[0] == (".env", 1)
    assert places(await search(file_tree, "hit", "node_modules")) == [("node_modules/m", 1)]


async def test_a_search_follows_no_links_and_waits_for_no_pipes(file_tree: FileTree) -> None:
    """X07: the target of a link is found at its own place, if that is inside."""
    file_tree.put({"real": f"{SECRET}\n"})
    (file_tree.work / "inside").symlink_to("real")
    (file_tree.work / "file").symlink_to(file_tree.outside / "secret")
    (file_tree.work / "folder").symlink_to(file_tree.outside)
    os.mkfifo(file_tree.work / "pipe")
    assert places(await search(file_tree, SECRET)) == [("real", 1)]
    for path in ("file", "folder", "folder/secret"):
        with pytest.raises(ToolFailed, match="outside the workspace"):
            await search(file_tree, SECRET, path)
    with pytest.raises(ToolFailed, match="There is no file"):
        await search(file_tree, SECRET, "none")


@pytest.mark.parametrize("moment", ["entered", "opened", "shown"])
async def test_exchanging_a_folder_for_a_link_does_not_lead_out(
    file_tree: FileTree, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X07: a folder before it is entered, a file before it is read, and before its lines are shown."""
    file_tree.put({"a/secret": f"harmless {SECRET}\n"})

    def exchange(path: str, target: str) -> None:
        if not (file_tree.work / path).is_symlink():
            (file_tree.work / path).rename(file_tree.work / "moved")
            (file_tree.work / path).symlink_to(file_tree.outside / target)

    def before(owner: Any, name: str, act: Callable[[], None], *, after: bool = False) -> None:
        real = getattr(owner, name)

        def changed(*arguments: Any) -> Any:
            if not after:
                act()
            result = real(*arguments)
            if after:
                act()
            return result

        monkeypatch.setattr(owner, name, changed)

    if moment == "entered":
        before(walk.FolderWalk, "_entered", lambda: exchange("a", ""))
    elif moment == "opened":
        before(file_search, "open_reference", lambda: exchange("a/secret", "secret"), after=True)
    else:
        before(file_search, "lines_around", lambda: exchange("a", ""))
    found = await search(file_tree, SECRET)
    assert {line.text for hit in found.hits for line in hit.lines} <= {f"harmless {SECRET}"}
    assert [hit.changed for hit in found.hits] == {"entered": [], "opened": [False], "shown": [False]}[moment]


async def test_constantly_exchanging_a_folder_never_reveals_outside_files(file_tree: FileTree) -> None:
    """X07: neither a line of it nor its number."""
    file_tree.put({"flip/secret": "harmless\n"})

    with file_tree.flipping():
        for _ in range(25):
            found = await search(file_tree, ".")
            assert {line.text for hit in found.hits for line in hit.lines} <= {"harmless"}


SLOW = "|".join(f"a.{{{count}}}b" for count in range(1, 35))
"""One of the slowest patterns for its size: the engine has to follow all of its parts at once."""


def slow_text(size: int) -> bytes:
    """A text that makes `SLOW` slow: without a match, and never the same."""
    return bytes(b"ac"[byte & 1] for byte in os.urandom(size))


async def test_a_pattern_that_would_backtrack_is_as_fast_as_any(file_tree: FileTree) -> None:
    """D7: no pattern needs more than time in proportion to the text."""
    file_tree.put({"a": "aaaab\n", "b": "a" * 100_000 + "\n"})
    found = await search(file_tree, "(a+)+b", bounds=SearchBounds(seconds=60.0))
    assert places(found) == [("a", 1)] and not found.stopped


async def test_a_search_that_takes_too_long_returns_what_it_found(file_tree: FileTree) -> None:
    """D7: and the event loop runs on meanwhile."""
    file_tree.put({"a": "axb\n", **{f"b{number:02}": slow_text(line_search.BLOCK) for number in range(20)}})
    turns = 0

    async def breathe(scope: anyio.CancelScope) -> None:
        nonlocal turns
        with scope:
            while True:
                await anyio.sleep(0.01)
                turns += 1

    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(breathe, scope)
        found = await search(file_tree, SLOW, bounds=SearchBounds(seconds=0.2))
        scope.cancel()
    assert places(found) == [("a", 1)] and found.stopped.startswith("the search was stopped after 0.2 s")
    assert turns > 3


async def test_a_cancelled_search_ends_within_a_block(file_tree: FileTree) -> None:
    """L14: its thread has stopped reading when the caller continues."""
    file_tree.put({f"{number:03}": slow_text(line_search.BLOCK) for number in range(40)})
    began = time.thread_time_ns()
    with anyio.move_on_after(0.3) as scope:
        await search(file_tree, SLOW, bounds=SearchBounds(seconds=600.0))
    assert scope.cancelled_caught
    assert time.thread_time_ns() - began < 10**9  # the event loop did not work for it


async def test_concurrent_searches_are_limited_and_others_wait(
    file_tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L14: however many are requested."""
    file_tree.put({"a": "hit\n"})
    files = file_tree.files()
    running: list[int] = []
    most = 0
    lock = threading.Lock()
    together = threading.Barrier(HELPERS)
    real = local_files.search

    def counted(*arguments: Any) -> SearchResult:
        nonlocal most
        with lock:
            running.append(1)
            most = max(most, len(running))
        together.wait(30)
        with lock:
            running.pop()
        return real(*arguments)

    monkeypatch.setattr(local_files, "search", counted)
    with anyio.fail_after(60):
        found = await gather([files.search(".", SearchQuery(pattern="hit")) for _ in range(3 * HELPERS)])
    assert most == HELPERS and len(set(found)) == 1


async def test_a_line_longer_than_a_block_counts_once(file_tree: FileTree) -> None:
    """Its column is that of its first match, wherever that is."""
    text = b"x" * (2 * line_search.BLOCK) + b"hit" + b"x" * line_search.BLOCK + b"hit\nhit\n"
    file_tree.put({"a": text})
    found = await search(file_tree, "hit")
    assert places(found) == [("a", 1), ("a", 2)]
    assert "hit" in found.hits[0].lines[0].text


async def test_searched_files_and_bytes_are_bounded_and_reported(file_tree: FileTree) -> None:
    file_tree.put({f"{number:02}": "hit\n" for number in range(10)})
    for bounds in (SearchBounds(files=3), SearchBounds(total_bytes=10)):
        found = await search(file_tree, "hit", bounds=bounds)
        assert len(places(found)) == 3 and found.stopped == "only 3 files were searched; use a path or a glob"


async def test_a_file_changed_during_the_search_is_reported(
    file_tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines would not be those that were found. A file that is gone before its turn is not."""
    file_tree.put({"a": "hit\n", "b": "hit\n", "c": "hit\n"})
    real = file_search.lines_around

    def changing(*arguments: Any) -> Any:
        (file_tree.work / "a").write_text("x\n" * 10)
        (file_tree.work / "b").unlink(missing_ok=True)
        return real(*arguments)

    monkeypatch.setattr(file_search, "lines_around", changing)
    assert [(hit.path, hit.changed, len(hit.lines)) for hit in (await search(file_tree, "hit")).hits] == [
        ("a", True, 0),
        ("c", False, 1),
    ]
