"""LocalFiles.search: the same lines with and without ripgrep, only from inside the mounts, and within a time limit."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.workspaces.file_tree import INNER, SECRET, FileTree
from tidegate.errors import ToolFailed
from tidegate.lifetimes import gather
from tidegate.workspaces.files import (
    FileFilter,
    HitLine,
    SearchQuery,
    SearchResult,
    read_pattern,
    search_input,
    walk,
)
from tidegate.workspaces.files import (
    file_search as searching,
)
from tidegate.workspaces.files.search_input import DEFAULT_BOUNDS, SearchBounds
from tidegate.workspaces.processes.children import HELPERS, ChildProcess, Spawner, find_program

pytestmark = pytest.mark.anyio

ENGINES = [
    pytest.param(True, marks=pytest.mark.skipif(find_program("rg") is None, reason="there is no ripgrep here")),
    False,
]


@pytest.fixture(params=ENGINES, ids=["ripgrep", "python"])
def ripgrep(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def file_tree(tmp_path: Path) -> FileTree:
    return FileTree(tmp_path)


async def search(
    file_tree: FileTree,
    pattern: str,
    path: str = ".",
    *,
    ripgrep: bool = True,
    bounds: SearchBounds = DEFAULT_BOUNDS,
    **options: Any,
) -> SearchResult:
    choice = FileFilter(glob=options.pop("glob", ""), hidden=options.pop("hidden", False))
    words = {name: options.pop(name) for name in ("literal", "ignore_case") if name in options}
    query = SearchQuery(pattern=read_pattern(pattern, **words), choice=choice, **options)
    with anyio.fail_after(60):
        return await file_tree.files(ripgrep=ripgrep, bounds=bounds).search(path, query)


def places(found: SearchResult) -> list[tuple[str, int]]:
    return [(hit.path, line.number) for hit in found.hits for line in hit.lines if line.found]


async def test_lines_are_found_in_the_order_of_a_listing(file_tree: FileTree, ripgrep: bool) -> None:
    file_tree.put({"b.txt": "tide\nno\nTide\n", "a/z": "tide", "a/b/c": "x\ntide\n", "c": "nothing\n", "empty": ""})
    found = await search(file_tree, "tide", ripgrep=ripgrep)
    assert places(found) == [("a/b/c", 2), ("a/z", 1), ("b.txt", 1)]
    assert (found.files, found.more, found.stopped) == (4, False, "")
    assert places(await search(file_tree, "tide", ignore_case=True, glob="*.txt", ripgrep=ripgrep)) == [
        ("b.txt", 1),
        ("b.txt", 3),
    ]
    assert places(await search(file_tree, "tide", "a", ripgrep=ripgrep)) == [("a/b/c", 2), ("a/z", 1)]
    assert places(await search(file_tree, "tide", f"{INNER}/b.txt", ripgrep=ripgrep)) == [(f"{INNER}/b.txt", 1)]
    assert places(await search(file_tree, "ebb", ripgrep=ripgrep)) == []


async def test_files_without_a_final_line_break_are_kept_apart(file_tree: FileTree, ripgrep: bool) -> None:
    file_tree.put({"1": "ab", "2": "c", "3": "\n", "4": "ab"})
    assert places(await search(file_tree, "abc|ca", ripgrep=ripgrep)) == []
    assert places(await search(file_tree, "^ab$", ripgrep=ripgrep)) == [("1", 1), ("4", 1)]
    assert places(await search(file_tree, "^$", ripgrep=ripgrep)) == [("3", 1)]


async def test_context_lines_never_come_from_another_file(file_tree: FileTree, ripgrep: bool) -> None:
    file_tree.put({"a": "1\n2\nhit\n4\n5\n6\nhit\n", "b": "hit\n2\n", "c": "hit"})
    found = await search(file_tree, "hit", context=1, ripgrep=ripgrep)
    assert [[(line.number, line.text, line.found) for line in hit.lines] for hit in found.hits] == [
        [(2, "2", False), (3, "hit", True), (4, "4", False), (6, "6", False), (7, "hit", True)],
        [(1, "hit", True), (2, "2", False)],
        [(1, "hit", True)],
    ]


async def test_a_search_limit_is_applied_and_reported(file_tree: FileTree, ripgrep: bool) -> None:
    file_tree.put({"a": "hit\nhit\n", "b": "hit\n", "c": "hit\n"})
    assert not (await search(file_tree, "hit", limit=4, ripgrep=ripgrep)).more
    for limit, files in ((1, 1), (2, 2), (3, 3)):
        found = await search(file_tree, "hit", limit=limit, ripgrep=ripgrep)
        assert (len(places(found)), found.more, found.files) == (limit, True, files)


async def test_a_long_line_is_shown_around_the_match(file_tree: FileTree, ripgrep: bool) -> None:
    """Longer than a read, with multi-byte characters where it is cut."""
    length = search_input.LINE_CHUNK
    file_tree.put(
        {
            "far": "🌊" * length + "hit" + "é" * length + "\nnext\n",
            "near": "hit" + "é" * 500,
            "whole": "x" * 397 + "hit",
        }
    )
    far, near, whole = (hit.lines[0] for hit in (await search(file_tree, "hit", ripgrep=ripgrep)).hits)
    assert far.before and far.after and "🌊hité" in far.text and set(far.text) == set("🌊hité")
    assert search_input.SHOWN_BYTES - 8 <= len(far.text.encode()) <= search_input.SHOWN_BYTES
    assert near == HitLine(1, "hit" + "é" * 198, found=True, before=False, after=True)
    assert whole.text.endswith("hit") and whole.before and not whole.after


async def test_binary_large_and_hidden_files_are_left_out_and_counted(file_tree: FileTree, ripgrep: bool) -> None:
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
    os.truncate(file_tree.work / "large", search_input.FILE_BYTES + 1)
    found = await search(file_tree, "hit", ripgrep=ripgrep)
    assert places(found) == [("almost", 4097), ("latin", 1)]
    assert (found.binary, found.large, found.left_out) == (1, 1, (".env", "node_modules"))
    assert places(await search(file_tree, "hit", hidden=True, ripgrep=ripgrep))[0] == (".env", 1)
    assert places(await search(file_tree, "hit", "node_modules", ripgrep=ripgrep)) == [("node_modules/m", 1)]


async def test_a_search_follows_no_links_and_waits_for_no_pipes(file_tree: FileTree, ripgrep: bool) -> None:
    """X07: the target of a link is found at its own place, if that is inside."""
    file_tree.put({"real": f"{SECRET}\n"})
    (file_tree.work / "inside").symlink_to("real")
    (file_tree.work / "file").symlink_to(file_tree.outside / "secret")
    (file_tree.work / "folder").symlink_to(file_tree.outside)
    os.mkfifo(file_tree.work / "pipe")
    assert places(await search(file_tree, SECRET, ripgrep=ripgrep)) == [("real", 1)]
    for path in ("file", "folder", "folder/secret"):
        with pytest.raises(ToolFailed, match="outside the workspace"):
            await search(file_tree, SECRET, path, ripgrep=ripgrep)
    with pytest.raises(ToolFailed, match="There is no file"):
        await search(file_tree, SECRET, "none", ripgrep=ripgrep)


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
        before(search_input, "open_reference", lambda: exchange("a/secret", "secret"), after=True)
    else:
        before(search_input, "hits", lambda: exchange("a", ""))
    found = await search(file_tree, SECRET)
    assert {line.text for hit in found.hits for line in hit.lines} <= {f"harmless {SECRET}"}
    assert [hit.changed for hit in found.hits] == {"entered": [], "opened": [True], "shown": [True]}[moment]


async def test_constantly_exchanging_a_folder_never_reveals_outside_files(file_tree: FileTree, ripgrep: bool) -> None:
    """X07: neither a line of it nor its number."""
    file_tree.put({"flip/secret": "harmless\n"})

    with file_tree.flipping():
        for _ in range(25):
            found = await search(file_tree, ".", ripgrep=ripgrep)
            assert {line.text for hit in found.hits for line in hit.lines} <= {"harmless"}


async def test_a_catastrophic_pattern_is_stopped(file_tree: FileTree) -> None:
    """The search process is really killed, and the event loop keeps running. ripgrep has no such pattern."""
    file_tree.put({"a": "aaaab\n", "b": "a" * 5000 + "\n"})
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
        found = await search(file_tree, "(a+)+b", ripgrep=False, bounds=SearchBounds(seconds=1.0))
        scope.cancel()
    assert "stopped after 1 s" in found.stopped
    assert turns > 3
    if find_program("rg") is not None:
        found = await search(file_tree, "(a+)+b", bounds=SearchBounds(seconds=60.0))
        assert places(found) == [("a", 1)] and not found.stopped


async def test_matches_found_before_a_timeout_are_returned(
    file_tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout comes at the moment the first line is reported."""
    file_tree.put({"a": "aaaab\n", "b": "a" * 5000 + "\n"})

    async def until_found(child: ChildProcess, told: list[tuple[int, int]]) -> None:
        data = await child.read()
        told.append((int(data.split(b":")[0]), 1))
        raise TimeoutError

    monkeypatch.setattr(searching, "_collect", until_found)
    found = await search(file_tree, "(a+)+b", ripgrep=False)
    assert places(found) == [("a", 1)] and "stopped after" in found.stopped


async def test_a_cancelled_search_ends_its_child_and_its_thread(file_tree: FileTree) -> None:
    """L14: even while the pipe to it is full; the leak fixture looks for leftovers."""
    file_tree.put({"a": "a" * 30 + "\n", "b": ("x" * 100 + "\n") * 50_000})
    with anyio.fail_after(30):
        with anyio.move_on_after(0.3) as scope:
            await search(file_tree, "(a+)+b", ripgrep=False)
    assert scope.cancelled_caught


async def test_searched_files_and_bytes_are_bounded_and_reported(file_tree: FileTree, ripgrep: bool) -> None:
    file_tree.put({f"{number:02}": "hit\n" for number in range(10)})
    for bounds in (SearchBounds(files=3), SearchBounds(total_bytes=10)):
        found = await search(file_tree, "hit", ripgrep=ripgrep, bounds=bounds)
        assert len(places(found)) == 3 and found.stopped == "only 3 files were searched; use a path or a glob"


async def test_a_file_changed_during_the_search_is_reported(
    file_tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines would not be those that were found."""
    file_tree.put({"a": "hit\n", "b": "hit\n", "c": "hit\n"})
    real = search_input.hits

    def changing(*arguments: Any) -> Any:
        (file_tree.work / "a").write_text("x\n" * 10)
        (file_tree.work / "b").unlink()
        return real(*arguments)

    monkeypatch.setattr(search_input, "hits", changing)
    assert [(hit.path, hit.changed, len(hit.lines)) for hit in (await search(file_tree, "hit")).hits] == [
        ("a", True, 0),
        ("b", True, 0),
        ("c", False, 1),
    ]


async def test_the_search_process_has_an_empty_environment(
    file_tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X18: and ripgrep reads nobody's configuration."""
    (file_tree.work / "seen").mkdir()
    spy = file_tree.work / "seen/rg"
    spy.write_text(f"#!/bin/sh\nenv > {file_tree.work}/seen/env\nexit 1\n")
    spy.chmod(0o755)
    monkeypatch.setenv("TIDEGATE_SECRET", SECRET)
    monkeypatch.setattr(searching, "find_program", lambda _program: str(spy))
    file_tree.put({"a": "hit\n"})
    await search(file_tree, "hit")
    names = {line.partition("=")[0] for line in (file_tree.work / "seen/env").read_text().splitlines()}
    assert names <= {"PWD", "OLDPWD", "SHLVL", "_"}  # set by this test's own shell


async def test_a_broken_ripgrep_is_replaced_by_our_own_program(
    file_tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, too old for an option."""
    broken = file_tree.outside / "rg"
    broken.write_text("#!/bin/sh\nexit 2\n")
    broken.chmod(0o755)
    monkeypatch.setattr(searching, "find_program", lambda _program: str(broken))
    file_tree.put({"a": "hit\n", "b": "x\n" * 100_000})
    assert places(await search(file_tree, "hit")) == [("a", 1)]


async def test_a_search_that_fails_is_reported(file_tree: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching.sys, "executable", "/bin/false")
    file_tree.put({"a": "hit\n"})
    with pytest.raises(ToolFailed, match="did not finish"):
        await search(file_tree, "hit", ripgrep=False)
    monkeypatch.setattr(searching.sys, "executable", "/no/such/program")
    with pytest.raises(ToolFailed, match="cannot be started"):
        await search(file_tree, "hit", ripgrep=False)


async def test_the_search_process_has_a_memory_limit(file_tree: FileTree) -> None:
    """D7: a line as long as a file does not fit into a small limit, and is an error, not a hang."""
    bounds = SearchBounds(child_memory=64 * 1024 * 1024)
    with (file_tree.work / "a").open("wb") as file:
        for _ in range(30):
            file.write(b"a" * 1024 * 1024)
    with pytest.raises(ToolFailed, match="did not finish"):
        await search(file_tree, "b", ripgrep=False, bounds=bounds)


PIECES = st.sampled_from(["hit", "Hit", "x", "é", "🌊", "\n", "\n", "\r\n", " ", "hi", "t"])
CONTENTS = st.lists(PIECES, max_size=12).map("".join).map(str.encode) | st.just(b"hit\0") | st.just(b"\xff hit\n")
NAMES = st.sampled_from(["a", "b.py", "c/a", "c/d/x.py", ".h", "c/.i/j", "node_modules/k", "z"])
TREES = st.dictionaries(NAMES, CONTENTS, max_size=6)
PATTERNS = st.sampled_from(["hit", "h.t", "^hit", "t$", "^$", "[^h ]", "\\bhit\\b", "(é|🌊)+", "x?", "hit\\s*$"])


OPTIONS = st.fixed_dictionaries(
    {
        "ignore_case": st.booleans(),
        "hidden": st.booleans(),
        "context": st.integers(0, 2),
        "limit": st.sampled_from([1, 2, 5, 100]),
        "glob": st.sampled_from(["", "*.py"]),
    }
)


@pytest.mark.skipif(find_program("rg") is None, reason="there is no ripgrep here to be compared with")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES, pattern=PATTERNS, options=OPTIONS)
async def test_both_engines_return_the_same_complete_answer(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, bytes], pattern: str, options: dict[str, Any]
) -> None:
    """Order, lines, columns, left-out files and their messages, under any limit."""
    file_tree = FileTree(tmp_path_factory.mktemp("tree"))
    file_tree.put(dict(tree))
    assert await search(file_tree, pattern, ripgrep=True, **options) == await search(
        file_tree, pattern, ripgrep=False, **options
    )


async def test_concurrent_searches_are_limited_and_others_wait(
    file_tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L14: however many are requested."""
    file_tree.put({"a": "hit\n"})
    files = file_tree.files(ripgrep=False)
    running = most = 0
    spawn, close = Spawner.spawn, searching.kill_and_close

    async def counted(*arguments: Any, **options: Any) -> ChildProcess:
        nonlocal running, most
        running += 1
        most = max(most, running)
        return await spawn(*arguments, **options)

    async def uncounted(child: ChildProcess) -> None:
        nonlocal running
        await close(child)
        running -= 1

    monkeypatch.setattr(Spawner, "spawn", counted)
    monkeypatch.setattr(searching, "kill_and_close", uncounted)
    query = SearchQuery(pattern=read_pattern("hit"))
    with anyio.fail_after(60):
        found = await gather([files.search(".", query) for _ in range(3 * HELPERS)])
    assert most == HELPERS and len(set(found)) == 1
