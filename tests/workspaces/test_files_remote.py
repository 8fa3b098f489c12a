"""Files of another machine: the same answers as locally, and what differs in between."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.workspaces.conformance import Place, opened, spawner, spec_of
from tests.workspaces.harness import WAIT
from tidegate.errors import ToolFailed
from tidegate.workspaces.backends.interface import Sandbox
from tidegate.workspaces.backends.local import LocalBackend
from tidegate.workspaces.files import FileFilter, Files, SearchQuery
from tidegate.workspaces.files import remote_files as remote_module
from tidegate.workspaces.files.remote_files import RemoteFiles

pytestmark = pytest.mark.anyio


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """The sandbox is on this machine, so that remote and local answers can be compared."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "given").write_text("to be read\n")
    async with opened(LocalBackend(spawner()), spec_of(tmp_path, read_only=(tmp_path / "shared",))) as made:
        yield made


@pytest.fixture
def local(place: Place) -> Files:
    return place.backend.files(place.spec, _opening(place))


@pytest.fixture
def remote(place: Place) -> RemoteFiles:
    return RemoteFiles(_opening(place), place.spec.read_only, place.spec.temporary)


def _opening(place: Place) -> Callable[[], Awaitable[Sandbox]]:
    async def sandbox() -> Sandbox:
        return place.sandbox

    return sandbox


async def result_or_refusal(call: Awaitable[Any]) -> Any:
    """The result of a call: its answer, or the message with which it is refused."""
    with anyio.fail_after(WAIT):
        try:
            return await call
        except ToolFailed as error:
            return error.message


def fill(folder: Path) -> None:
    (folder / "sub" / ".hidden").mkdir(parents=True)
    (folder / "sub" / "text").write_text("".join(f"line {number}\n" for number in range(2000)))
    (folder / "sub" / ".hidden" / "file").write_text("line 7 hidden\n")
    (folder / "binary").write_bytes(bytes(range(256)) * 100)
    (folder / "empty").touch()
    (folder / "ünï\udcff").write_text("line 1 strange\n")
    (folder / "in").symlink_to("sub/text")
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe")


async def test_protected_files_are_not_written_on_another_machine(place: Place) -> None:
    """X11, X12: the check is sent along; commands run there without a sandbox."""
    files = RemoteFiles(_opening(place), (), place.spec.temporary)
    for path in (".git/hooks/post-commit", ".envrc", "sub/.git/config"):
        assert "is read-only: other programs" in await result_or_refusal(files.write(path, b"evil"))
    home = await place.output_of("echo $HOME")
    assert "is read-only" in await result_or_refusal(files.write(f"{home}/.local/bin/git", b"evil"))
    await files.write(".gitignore", b"x")


@pytest.mark.parametrize(
    "path",
    [
        "sub/text",
        "./sub//text",
        "in",
        "empty",
        "binary",
        "out",
        "up/x",
        "../x",
        "/etc/passwd",
        "pipe",
        "sub",
        "gone",
        "ünï\udcff",
        "",
    ],
)
async def test_remote_reading_is_the_same(place: Place, local: Files, remote: RemoteFiles, path: str) -> None:
    """X07: and so are refusals."""
    fill(place.spec.folder)
    for offset, lines, most in ((0, 5, 1000), (1990, 100, 1000), (3, 50, 20)):
        page = {"offset": offset, "lines": lines, "max_bytes": most}
        assert await result_or_refusal(remote.lines(path, **page)) == await result_or_refusal(local.lines(path, **page))
    assert await result_or_refusal(remote.load(path, limit=20_000)) == await result_or_refusal(
        local.load(path, limit=20_000)
    )


async def test_remote_mounts_are_the_commands_folders_and_read_only_folders(
    place: Place, local: Files, remote: RemoteFiles
) -> None:
    await place.output_of("echo 1 > ~/a; echo 2 > $TMPDIR/b; echo 3 > c")
    spec = place.spec
    for path in (f"{spec.home}/a", f"{spec.temporary}/b", f"{spec.folder}/c", str(spec.read_only[0] / "given")):
        answer = await result_or_refusal(remote.load(path, limit=100))
        assert answer == await result_or_refusal(local.load(path, limit=100)) and not isinstance(answer, str)
    given = str(spec.read_only[0] / "given")
    assert "read-only" in await result_or_refusal(remote.write(given, b"x"))


@pytest.mark.parametrize(
    "choice", [FileFilter(), FileFilter(glob="**/t*"), FileFilter(hidden=True), FileFilter(glob="{a,b}")]
)
async def test_remote_listing_is_the_same(place: Place, local: Files, remote: RemoteFiles, choice: FileFilter) -> None:
    fill(place.spec.folder)
    for path in (".", "gone", "binary", "up"):
        for recursive, limit in ((True, 100), (False, 2)):
            shape = {"recursive": recursive, "limit": limit}
            assert await result_or_refusal(remote.list(path, choice, **shape)) == await result_or_refusal(
                local.list(path, choice, **shape)
            )


@pytest.mark.parametrize(
    "pattern",
    [
        "line 1",
        "7 hidden$",
        "^nothing$",
        "[sS]trange",
        "E 15",
        "[[:alpha:]]+ 1[[:digit:]_]$",
        "e{,2}|7{1,2}$",
        "\\S\\s[^\\n]9",
        "(a",
    ],
)
async def test_remote_searching_is_the_same(place: Place, local: Files, remote: RemoteFiles, pattern: str) -> None:
    fill(place.spec.folder)
    for query in (
        SearchQuery(pattern=pattern, ignore_case=True, limit=10, context=2),
        SearchQuery(pattern=pattern, limit=2000, choice=FileFilter(hidden=True)),
    ):
        for path in (".", "sub/text", "gone", "out"):
            assert await result_or_refusal(remote.search(path, query)) == await result_or_refusal(
                local.search(path, query)
            )


async def test_what_only_the_local_engine_has_is_refused_in_one_sentence(remote: RemoteFiles) -> None:
    for pattern in ("\\pL", "(?U)a+", "[[:^alpha:]]"):
        assert "cannot be used on the other machine" in await result_or_refusal(
            remote.search(".", SearchQuery(pattern=pattern))
        )


async def test_remote_writing_is_the_same(place: Place, remote: RemoteFiles) -> None:
    folder = place.spec.folder
    data = os.urandom(3_000_000)[: 2 * 1024 * 1024]
    assert (await remote.write("new/deep/file", data)).replaced is None
    assert (folder / "new/deep/file").read_bytes() == data
    loaded = await remote.load("new/deep/file", limit=len(data))
    assert loaded.data == data
    assert (await remote.write("new/deep/file", b"second", expected=loaded.version)).replaced == len(data)
    with pytest.raises(ToolFailed, match="was changed by someone else"):
        await remote.write("new/deep/file", b"third", expected=loaded.version)
    assert (folder / "new/deep/file").read_bytes() == b"second"
    (folder / "out").symlink_to("/etc")
    with pytest.raises(ToolFailed, match="outside the workspace"):
        await remote.write("out/passwd", b"x")


async def test_an_opened_remote_file_is_a_copy(place: Place, remote: RemoteFiles) -> None:
    data = os.urandom(1_500_000)
    (place.spec.folder / "picture").write_bytes(data)
    async with remote.opened("picture") as fd:
        assert await anyio.to_thread.run_sync(lambda: os.pread(fd, len(data) + 1, 0)) == data
    with pytest.raises(ToolFailed, match="There is no file"):
        async with remote.opened("gone"):
            pass
    assert list(place.spec.temporary.iterdir()) == []


async def test_a_remote_file_that_is_too_large_to_copy_is_refused(place: Place, remote: RemoteFiles) -> None:
    limit = remote_module.OPENED_BYTES
    with (place.spec.folder / "large").open("wb") as file:
        file.truncate(limit + 1)
    with pytest.raises(ToolFailed, match=f"has {limit + 1} bytes, more than the limit of {limit}"):
        async with remote.opened("large"):
            pass


async def test_an_endless_remote_search_is_stopped(place: Place) -> None:
    remote = RemoteFiles(_opening(place), place.spec.read_only, place.spec.temporary, search_seconds=0.5)
    (place.spec.folder / "slow").write_text("a" * 40 + "\n")
    found = await remote.search(".", SearchQuery(pattern="(a+)+b"))
    assert found.hits == () and found.stopped.startswith("the search was stopped after 0.5 s")
    assert (await place.sandbox.load()).processes == 0


async def test_a_cancelled_remote_call_leaves_nothing(place: Place, remote: RemoteFiles) -> None:
    (place.spec.folder / "slow").write_text("a" * 40 + "\n")
    with anyio.move_on_after(0.5):
        await remote.search(".", SearchQuery(pattern="(a+)+b"))
    assert (await place.sandbox.load()).processes == 0


@pytest.mark.parametrize(
    "program",
    [
        "exit 1",
        "echo nonsense",
        "echo 5; echo '{}'",
        "echo 99999999999",
        'echo 30; echo \'{"told": 3, "bytes": 99}   \'',
        "echo 12; echo '[1, 2, 3, 4]'",
    ],
)
async def test_any_output_of_the_other_machine_is_only_an_answer(
    place: Place, remote: RemoteFiles, program: str
) -> None:
    """X19: an invalid answer becomes one sentence."""
    fake = place.spec.home / ".local" / "bin" / "python3"
    fake.parent.mkdir(parents=True)
    fake.write_text(f"#!/bin/sh\n{program}\n")
    fake.chmod(0o755)
    for call in (remote.load("x", limit=10), remote.list(".", FileFilter(), recursive=True, limit=10)):
        assert await result_or_refusal(call) in (
            "Files on the other machine cannot be reached: no reason was given.",
            "The other machine sent an answer that cannot be read.",
            "The file was changed while it was being read; read it again.",
        )


async def test_concurrent_remote_calls_do_not_mix(place: Place, remote: RemoteFiles) -> None:
    for number in range(4):
        (place.spec.folder / f"file{number}").write_text(str(number) * 1000)
    with anyio.fail_after(WAIT):
        loaded = await asyncio.gather(*(remote.load(f"file{number}", limit=2000) for number in range(4)))
    assert [one.data for one in loaded] == [str(number).encode() * 1000 for number in range(4)]
