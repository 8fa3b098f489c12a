"""read_file: pages of text files, and nothing from outside the workspace."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from tidegate.errors import ToolFailed
from tidegate.tools import ToolContext, bound_text, builtin_toolsets
from tidegate.tools import files as files_module
from tidegate.tools.files import PAGE_BYTES

pytestmark = pytest.mark.anyio

SECRET = "outside-secret"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text(SECRET)
    folder = tmp_path / "work"
    (folder / "sub/deep").mkdir(parents=True)
    (folder / "sub/deep/note.txt").write_text("inside\n")
    before = set(Path("/proc/self/fd").iterdir())
    yield folder
    assert len(set(Path("/proc/self/fd").iterdir()) - before) <= 1, "a descriptor was left open"


async def read(workspace: Path, **arguments: Any) -> str:
    (tool,) = builtin_toolsets()["files"].tools
    context = ToolContext(session="s", principal="p", channel="c", agent="a", turn="t", workspace=workspace)
    with anyio.fail_after(30):
        return await tool.run(context, msgspec.json.encode(arguments).decode())


async def refusal(workspace: Path, **arguments: Any) -> str:
    with pytest.raises(ToolFailed) as caught:
        await read(workspace, **arguments)
    assert SECRET not in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500
    return caught.value.message


async def test_a_file_of_the_workspace_is_read_as_it_is(workspace: Path) -> None:
    assert await read(workspace, path="sub/deep/note.txt") == "inside\n"
    assert await read(workspace, path="./sub//deep/./note.txt") == "inside\n"
    assert await read(workspace, path=str(workspace / "sub/deep/note.txt")) == "inside\n"
    (workspace / "crlf").write_bytes("a\r\nü🌊".encode())
    assert await read(workspace, path="crlf") == "a\r\nü🌊"


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret",
        "sub/../../outside/secret",
        "sub/deep/../../../outside/secret",
        "..",
        "sub/..",
        "sub/../sub/deep/note.txt",
    ],
)
async def test_a_path_with_two_dots_is_refused(workspace: Path, path: str) -> None:
    """X07: the workspace cannot be climbed out of."""
    assert 'contains ".."' in await refusal(workspace, path=path)


async def test_an_absolute_path_out_of_the_workspace_is_refused(workspace: Path) -> None:
    """X07: also one that shares the workspace's beginning."""
    for path in ("/etc/passwd", str(workspace.parent / "outside/secret"), f"{workspace}-other/x", "//etc/passwd"):
        assert "outside the workspace" in await refusal(workspace, path=path)
    assert 'contains ".."' in await refusal(workspace, path=f"{workspace}/../outside/secret")


async def test_a_symbolic_link_is_not_followed_wherever_it_leads(workspace: Path) -> None:
    """X07: a link to a file, to a folder, in the middle, absolute, relative, or one that stays inside."""
    (workspace / "file-link").symlink_to(workspace.parent / "outside/secret")
    (workspace / "relative-link").symlink_to("../outside/secret")
    (workspace / "folder-link").symlink_to(workspace.parent / "outside")
    (workspace / "sub/up").symlink_to("../..")
    (workspace / "inside-link").symlink_to("sub/deep/note.txt")
    (workspace / "loop").symlink_to("loop")
    paths = ("file-link", "relative-link", "folder-link/secret", "sub/up/outside/secret", "inside-link", "loop")
    for path in (*paths, f"{workspace}/file-link"):
        assert "symbolic link" in await refusal(workspace, path=path)


async def test_a_workspace_that_is_itself_a_link_is_the_operators_choice(workspace: Path) -> None:
    (workspace.parent / "alias").symlink_to(workspace)
    assert await read(workspace.parent / "alias", path="sub/deep/note.txt") == "inside\n"


@pytest.mark.parametrize("place", ["sub", "sub/deep", "sub/deep/secret"])
async def test_an_exchange_between_check_and_use_gains_nothing(
    workspace: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X07: what was checked is exchanged for a link in just that moment."""
    outside = workspace.parent / "outside"
    (outside / "deep").mkdir()
    (outside / "deep/secret").write_text(SECRET)
    (workspace / "sub/deep/secret").write_text("harmless")
    target = {"sub": outside, "sub/deep": outside / "deep", "sub/deep/secret": outside / "secret"}[place]
    real = os.stat
    exchanged = []

    def exchanging(name: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        found = real(name, *args, **kwargs)
        if name == Path(place).name and kwargs.get("dir_fd") is not None and not exchanged:
            exchanged.append(name)
            (workspace / place).rename(workspace / "moved")
            (workspace / place).symlink_to(target)
        return found

    monkeypatch.setattr(files_module.os, "stat", exchanging)
    assert "symbolic link" in await refusal(workspace, path="sub/deep/secret")
    assert exchanged


async def test_a_folder_exchanged_all_the_time_never_gives_what_is_outside(workspace: Path) -> None:
    """X07: the same without knowing the moment."""
    (workspace / "flip").mkdir()
    (workspace / "flip/secret").write_text("harmless")
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            (workspace / "flip").rename(workspace / "real")
            (workspace / "flip").symlink_to(workspace.parent / "outside")
            (workspace / "flip").unlink()
            (workspace / "real").rename(workspace / "flip")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        answers = set()
        for _ in range(200):
            try:
                answers.add(await read(workspace, path="flip/secret"))
            except ToolFailed:
                continue
    finally:
        stop.set()
        thread.join(30)
    assert answers <= {"harmless"}


async def test_what_is_not_a_file_is_named_and_never_waited_for(workspace: Path) -> None:
    """A pipe without a writer, a socket, a device, a folder."""
    os.mkfifo(workspace / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    try:
        os.chdir(workspace)  # a socket's path is bounded at about a hundred characters
        listener.bind("socket")
    finally:
        os.chdir(here)
        listener.close()
    assert "device, pipe or socket" in await refusal(workspace, path="pipe")
    assert "device, pipe or socket" in await refusal(workspace, path="socket")
    assert "device, pipe or socket" in await refusal(Path("/dev"), path="null")
    assert "is a folder" in await refusal(workspace, path="sub")
    assert "is a folder" in await refusal(workspace, path=".")
    assert "not a folder" in await refusal(workspace, path="sub/deep/note.txt/more")


async def test_what_cannot_be_opened_is_told_in_a_sentence(workspace: Path) -> None:
    assert await refusal(workspace, path="none") == 'read_file: there is no file "none" in the workspace'
    assert await refusal(workspace / "gone", path="x") == (
        f'read_file: this agent\'s workspace folder "{workspace / "gone"}" does not exist; the operator must make it'
    )
    assert "cannot be opened (Not a directory)" in await refusal(workspace / "sub/deep/note.txt", path="x")
    assert "cannot be opened (File name too long)" in await refusal(workspace, path="n" * 300)
    for path in ("", "a\0b", "x/" * 4000):
        assert 'the argument "path" must be' in await refusal(workspace, path=path)
    assert '"lines"' in await refusal(workspace, path="x", lines=0)
    assert '"offset"' in await refusal(workspace, path="x", offset=-1)


@pytest.mark.parametrize("data", [b"\x7fELF\0\0\x01", b"text\nthen \0", b"caf\xe9\n", b"\xff\xfea\0", b"cut \xf0\x9f"])
async def test_what_is_not_utf8_text_is_said_to_be_so(workspace: Path, data: bytes) -> None:
    (workspace / "data").write_bytes(data)
    assert await refusal(workspace, path="data") == (
        f'read_file: "data" is binary or not UTF-8 text ({len(data)} bytes); it cannot be shown'
    )


async def test_an_empty_file_and_the_end_of_a_file_are_told(workspace: Path) -> None:
    (workspace / "empty").touch()
    assert await read(workspace, path="empty") == "[the file is empty]"
    assert await read(workspace, path="empty", offset=5) == "[the file is empty]"
    for text in ("a\nb\nc\n", "a\nb\nc"):
        (workspace / "three").write_text(text)
        assert await refusal(workspace, path="three", offset=3) == (
            'read_file: offset 3 is past the end; "three" has 3 lines'
        )
        assert "has 3 lines" in await refusal(workspace, path="three", offset=10**12)


async def test_pages_meet_exactly(workspace: Path) -> None:
    """A page ends where the next begins; the last one says that it is the last."""
    (workspace / "ten").write_text("".join(f"{number}\n" for number in range(1, 11)))
    assert await read(workspace, path="ten", lines=10) == "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"
    assert await read(workspace, path="ten", lines=11) == "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"
    assert await read(workspace, path="ten", lines=4) == "1\n2\n3\n4\n[lines 1 to 4; more follow, go on with offset=4]"
    assert await read(workspace, path="ten", offset=4, lines=5) == (
        "5\n6\n7\n8\n9\n[lines 5 to 9; more follow, go on with offset=9]"
    )
    assert await read(workspace, path="ten", offset=9, lines=5) == "10\n[lines 10 to 10; the file ends here]"
    (workspace / "open").write_text("1\n2\n3")
    assert await read(workspace, path="open", lines=2) == "1\n2\n[lines 1 to 2; more follow, go on with offset=2]"
    assert await read(workspace, path="open", offset=1) == "2\n3\n[lines 2 to 3; the file ends here]"


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
async def test_every_line_is_in_exactly_one_page(workspace: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies on the boundary of two readings: a line break, an empty line, a character of four bytes."""
    text = "\n\na\n🌊🌊\n" + "é" * 20 + "\n\n\nend"
    (workspace / "text").write_text(text)
    monkeypatch.setattr(files_module, "CHUNK", chunk)
    for lines in (1, 2, 3, 50):
        pages, offset = "", 0
        while True:
            page = await read(workspace, path="text", offset=offset, lines=lines)
            body, mark, _place = page.rpartition("[lines ")
            pages += body if mark else page
            if "more follow" not in page:
                break
            offset += lines
        assert pages.removesuffix("\n") == text


async def test_a_page_is_bounded_in_bytes_and_fits_a_tools_output(workspace: Path) -> None:
    (workspace / "wide").write_text(("é" * 500 + "\n") * 300)
    page = await read(workspace, path="wide", lines=300)
    assert len(page.encode()) <= PAGE_BYTES + 200
    assert bound_text(page, 16 * 1024, 400) == page
    count = page.count("\n")
    assert page.endswith(f"[lines 1 to {count}; more follow, go on with offset={count}]")


@pytest.mark.parametrize("extra", [-1, 0, 1, 2, 3])
async def test_a_line_longer_than_a_page_is_shown_in_part_and_can_be_passed(workspace: Path, extra: int) -> None:
    """At its exact length, and with a character of four bytes across the cut."""
    line = "x" * (PAGE_BYTES - 4 + extra) + "🌊"
    (workspace / "long").write_text(line + "\nnext\n")
    page = await read(workspace, path="long")
    if len(line.encode()) + 1 <= PAGE_BYTES:
        assert page == line + "\n[lines 1 to 1; more follow, go on with offset=1]"
    else:
        shown, _, place = page.rpartition("\n")
        assert line.startswith(shown)
        assert len(shown.encode()) > PAGE_BYTES - 4
        assert place == "[line 1 is longer than a page, this is its beginning; what follows is at offset=1]"
    assert (await read(workspace, path="long", offset=1)).startswith("next\n")


async def test_a_huge_file_costs_no_memory_and_is_not_read_whole(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse file of a terabyte: its first page is text, and the search for a far line ends."""
    with (workspace / "huge").open("wb") as file:
        file.write(b"first\n" * 3000)
        file.truncate(10**12)
    assert (await read(workspace, path="huge", lines=2)).startswith("first\nfirst\n[lines 1 to 2; more follow")
    monkeypatch.setattr(files_module, "SCANNED_AT_MOST", 4 * 1024 * 1024)
    assert "too far to be reached" in await refusal(workspace, path="huge", offset=10**9)


async def test_a_long_reading_ends_when_it_is_cancelled(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L10: nobody waits for a page that nobody wants any more."""
    with (workspace / "huge").open("wb") as file:
        file.truncate(10**12)
    monkeypatch.setattr(files_module, "SCANNED_AT_MOST", 10**13)
    with anyio.fail_after(30):
        with anyio.move_on_after(0.05) as scope:
            await read(workspace, path="huge", offset=1)
        assert scope.cancelled_caught
