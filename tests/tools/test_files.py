"""read_file, write_file, list_files, search_files: their results for a model."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.spool.pictures import bomb, noise, plain, saved
from tests.spool.sounds import mp3, tag, wav
from tests.spool.spools import SESSION, spool_of
from tests.store.rows import new_session
from tests.workspaces.file_tree import FileTree as Yard
from tidegate.errors import ToolFailed
from tidegate.spool import SessionSpool, bound_text
from tidegate.store import Store
from tidegate.tools import builtin_toolsets
from tidegate.tools.builtin.files import listing
from tidegate.tools.builtin.files import read as reading
from tidegate.tools.builtin.files import write as writing
from tidegate.tools.builtin.files.listing import listed
from tidegate.tools.builtin.files.read import PAGE_BYTES
from tidegate.tools.builtin.files.search import searched
from tidegate.tools.builtin.files.write import write
from tidegate.workspaces.files import FileFilter, SearchQuery, file_search
from tidegate.workspaces.files.file_search import SearchBounds

pytestmark = pytest.mark.anyio


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[SessionSpool]:
    async with Store.open(tmp_path / "tidegate.db") as store:
        await store.write(new_session, SESSION)
        yield spool_of(tmp_path / "spool", store, quota=100_000_000).of(SESSION, "t_1")


async def read(yard: Yard, spool: SessionSpool, path: str, **options: int) -> str:
    result = await reading.read(yard.files(), spool, path, **options)
    assert not result.failed and result.media == ()
    return result.text


async def refusal(yard: Yard, spool: SessionSpool, path: str, **options: int) -> str:
    with pytest.raises(ToolFailed) as caught:
        await read(yard, spool, path, **options)
    return caught.value.message


def test_the_toolset_says_what_each_of_its_tools_may_change() -> None:
    """F4: what only reads may be run again after a crash, what writes may not."""
    tools = {tool.name: tool for tool in builtin_toolsets()["files"].tools}
    assert {name: (tool.effect, tool.repeatable, tool.parallel) for name, tool in tools.items()} == {
        "read_file": ("read", True, True),
        "list_files": ("read", True, True),
        "search_files": ("read", True, True),
        "write_file": ("write", False, False),
        "edit_file": ("write", False, False),
    }


# -- read_file: text --


async def test_a_text_file_is_read_as_it_is(yard: Yard, spool: SessionSpool) -> None:
    yard.put({"crlf": "a\r\nü🌊", "bom": "\ufeffa\n"})
    assert await read(yard, spool, "crlf") == "a\r\nü🌊"
    assert await read(yard, spool, "bom") == "\ufeffa\n"


@pytest.mark.parametrize("data", [b"\x7fELF\0\0\x01", b"text\nthen \0", b"caf\xe9\n", b"\xff\xfea\0", b"cut \xf0\x9f"])
async def test_files_that_are_not_utf8_are_refused(yard: Yard, spool: SessionSpool, data: bytes) -> None:
    yard.put({"data": data})
    assert f'"data" is binary or not UTF-8 text ({len(data)} bytes)' in await refusal(yard, spool, "data")


async def test_empty_files_and_offsets_past_the_end_are_reported(yard: Yard, spool: SessionSpool) -> None:
    yard.put({"empty": "", "closed": "a\nb\nc\n", "open": "a\nb\nc"})
    assert await read(yard, spool, "empty") == "[the file is empty]"
    assert await read(yard, spool, "empty", offset=5) == "[the file is empty]"
    for path in ("closed", "open"):
        assert await refusal(yard, spool, path, offset=3) == f'Offset 3 is past the end: "{path}" has 3 lines.'
        assert "has 3 lines" in await refusal(yard, spool, path, offset=10**12)


async def test_pages_say_which_lines_they_are_and_how_to_go_on(yard: Yard, spool: SessionSpool) -> None:
    yard.put({"ten": "".join(f"{number}\n" for number in range(1, 11)), "open": "1\n2\n3"})
    assert await read(yard, spool, "ten", lines=10) == "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"
    assert await read(yard, spool, "ten", lines=4) == "1\n2\n3\n4\n[lines 1 to 4; more follow, continue with offset=4]"
    assert await read(yard, spool, "ten", offset=4, lines=5) == (
        "5\n6\n7\n8\n9\n[lines 5 to 9; more follow, continue with offset=9]"
    )
    assert await read(yard, spool, "ten", offset=9, lines=5) == "10\n[lines 10 to 10; the file ends here]"
    assert await read(yard, spool, "open", lines=2) == "1\n2\n[lines 1 to 2; more follow, continue with offset=2]"
    assert await read(yard, spool, "open", offset=1) == "2\n3\n[lines 2 to 3; the file ends here]"


LINES = st.lists(st.text("ab é🌊\r", max_size=8), min_size=1, max_size=30)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, ended=st.booleans(), count=st.integers(1, 12), page=st.integers(8, 60))
async def test_the_pages_of_a_text_add_up_to_the_text(
    yard: Yard, spool: SessionSpool, lines: list[str], ended: bool, count: int, page: int
) -> None:
    """For any bounds in which a line fits; each page says where the next one begins."""
    text = "\n".join(lines) + "\n" * ended
    yard.put({"text": text})
    pages, offset = "", 0
    page_bytes = max(page, *(len(line.encode()) + 1 for line in lines))
    while text:
        shown = await read(yard, spool, "text", offset=offset, lines=count, page_bytes=page_bytes)
        body, mark, place = shown.rpartition("[lines ")
        if not mark:
            assert shown == text
            return
        pages += body
        if "more follow" not in place:
            break
        offset = int(place.rpartition("=")[2].removesuffix("]"))
    assert pages.removesuffix("\n") == text.removesuffix("\n")


async def test_a_page_is_bounded_in_bytes_and_fits_a_tools_output(yard: Yard, spool: SessionSpool) -> None:
    """D1: it would be cut otherwise, and its last line with it."""
    yard.put({"wide": ("é" * 500 + "\n") * 300})
    page = await read(yard, spool, "wide", lines=300)
    assert len(page.encode()) <= PAGE_BYTES + 200
    assert bound_text(page, 16 * 1024, 400) == page
    count = page.count("\n")
    assert page.endswith(f"[lines 1 to {count}; more follow, continue with offset={count}]")


@pytest.mark.parametrize("extra", [-1, 0, 1, 2, 3])
async def test_a_line_longer_than_a_page_is_shown_in_part_and_can_be_passed(
    yard: Yard, spool: SessionSpool, extra: int
) -> None:
    """At its exact length, and with a character of four bytes across the cut."""
    line = "x" * (PAGE_BYTES - 4 + extra) + "🌊"
    yard.put({"long": line + "\nnext\n"})
    page = await read(yard, spool, "long")
    if len(line.encode()) + 1 <= PAGE_BYTES:
        assert page == line + "\n[lines 1 to 1; more follow, continue with offset=1]"
    else:
        shown, _, place = page.rpartition("\n")
        assert line.startswith(shown)
        assert len(shown.encode()) > PAGE_BYTES - 4
        assert place == "[line 1 is longer than a page; this is its beginning; the next line is at offset=1]"
    assert (await read(yard, spool, "long", offset=1)).startswith("next\n")


# -- read_file: pictures and sounds --


@pytest.mark.parametrize(("format", "media_type"), [("PNG", "png"), ("JPEG", "jpeg"), ("GIF", "gif"), ("WEBP", "webp")])
async def test_a_picture_is_shown_as_one(yard: Yard, spool: SessionSpool, format: str, media_type: str) -> None:
    """D3, D8: by its content, whatever its name says."""
    yard.put({"notes.txt": saved(plain(30, 20), format)})
    result = await reading.read(yard.files(), spool, "notes.txt")
    assert result.text == f'["notes.txt": image/{media_type}, 30 x 20]'
    (media,) = result.media
    assert (media.media_type, media.width, media.height) == (f"image/{media_type}", 30, 20)


async def test_a_picture_obeys_the_limits_of_every_picture(yard: Yard, spool: SessionSpool) -> None:
    """D2, D8: too large a one is scaled and says so, a bomb is refused with a sentence."""
    yard.put({"large.png": saved(noise(2400, 300), "PNG"), "bomb.png": bomb(30_000, 30_000)})
    result = await reading.read(yard.files(), spool, "large.png")
    (media,) = result.media
    assert (media.width, media.height) == (2000, 250)
    assert "2400" in result.text and "2000 x 250" in result.text
    with pytest.raises(ToolFailed, match="bomb"):
        await reading.read(yard.files(), spool, "bomb.png")


@pytest.mark.parametrize(("data", "told"), [(wav(3.2), "audio/wav, 3.2 s"), (tag(50) + mp3(100), "audio/mpeg, 2.6 s")])
async def test_a_sound_is_given_as_one(yard: Yard, spool: SessionSpool, data: bytes, told: str) -> None:
    """D3, D8: by its content, whatever its name says, byte for byte."""
    yard.put({"notes.txt": data})
    result = await reading.read(yard.files(), spool, "notes.txt")
    assert result.text == f'["notes.txt": {told}]'
    (media,) = result.media
    assert (f"{media.media_type}, {media.seconds:.1f} s", media.data) == (told, data)


async def test_unsupported_and_fake_sounds_are_refused_with_a_sentence(yard: Yard, spool: SessionSpool) -> None:
    """D3: what it is, and how to convert it; text that begins like a sound's name is text."""
    yard.put({"a.mp3": b"OggS\0" + bytes(90), "b.wav": b"RIFF\x04\0\0\0WAVE", "c.mp3": b"\xff\xfb\x90\0" + bytes(20)})
    for path, why in (("a.mp3", "is Ogg"), ("b.wav", "ends before its audio"), ("c.mp3", "it has no frame")):
        message = await refusal(yard, spool, path)
        assert why in message and "ffmpeg" in message and message.endswith(".")
    yard.put({"d.wav": "RIFF, or how WAVE files are made\n", "e.mp3": "ID3: a history\n", "f.ogg": "OggS\n"})
    for path in ("d.wav", "e.mp3", "f.ogg"):
        assert await read(yard, spool, path)


async def test_fake_pictures_are_refused_with_a_sentence(yard: Yard, spool: SessionSpool) -> None:
    yard.put({"cut.png": b"\x89PNG\r\n\x1a\n", "text.gif": "GIF89a is a format.\n"})
    for path in ("cut.png", "text.gif"):
        with pytest.raises(ToolFailed, match=path):
            await reading.read(yard.files(), spool, path)


# -- write_file --


async def test_a_write_reports_its_effect(yard: Yard) -> None:
    files = yard.files()
    assert await write(files, "a/b.txt", "é\n") == 'Wrote 3 bytes to "a/b.txt" (a new file).'
    assert await write(files, "a/b.txt", "") == 'Wrote 0 bytes to "a/b.txt" (in place of 3 bytes).'
    with pytest.raises(ToolFailed, match="lone surrogates"):
        await write(files, "a/b.txt", "\ud800")
    most = writing.WRITTEN_BYTES
    longest = "é" * (most // 2)
    await write(files, "a/b.txt", longest)
    with pytest.raises(ToolFailed, match=f"has {most + 1} bytes; at most {most} can be written"):
        await write(files, "a/b.txt", longest + "x")
    assert (yard.work / "a/b.txt").read_text() == longest


# -- list_files --


async def test_a_listing_is_a_line_for_each_name(yard: Yard) -> None:
    yard.put({"b.py": "12345", "a/c.py": "", ".git/x": "", "odd\nname": "1"})
    (yard.work / "link").symlink_to("b.py")
    os.mkfifo(yard.work / "pipe")
    assert await listed(yard.files()) == (
        "- a/\n5 b.py\n- link -> b.py\n1 odd\\nname\n- pipe (a device, pipe or socket)\n"
        "[left out: .git; hidden=true includes them]"
    )
    assert await listed(yard.files(), "a") == "0 a/c.py"
    assert await listed(yard.files(), ".", "*.py") == ("5 b.py\n[left out: .git; hidden=true includes them]")
    for glob in ("**/*.py", "**/*.{py,pyc}"):
        assert (await listed(yard.files(), ".", glob, hidden=True)).split("\n") == ["0 a/c.py", "5 b.py"]
    assert await listed(yard.files(), ".", "*.rs", recursive=True, hidden=True) == "[nothing fits the glob]"


async def test_empty_and_oversized_folders_are_reported(yard: Yard) -> None:
    (yard.work / "empty").mkdir()
    assert await listed(yard.files(), "empty") == "[the folder is empty]"
    most = listing.MOST
    yard.put({f"many/{number:03}": "" for number in range(most + 1)})
    *entries, note = (await listed(yard.files(), "many")).split("\n")
    assert entries == [f"0 many/{number:03}" for number in range(most)]
    assert note == f"[not all: there are more than {most}; choose a subfolder or a glob]"


# -- search_files --


async def found(yard: Yard, pattern: str, **options: Any) -> str:
    choice = FileFilter(glob=options.pop("glob", ""))
    return await searched(yard.files(), ".", SearchQuery(pattern=pattern, choice=choice, **options))


async def test_matches_are_listed_under_their_file(yard: Yard) -> None:
    yard.put({"a.py": "x\nhit 1\ny\nz\n\nhit 2\n", "b.py": "hit" + "é" * 500})
    assert await found(yard, "hit", glob="a.py") == "a.py\n2: hit 1\n6: hit 2\n\n[2 lines in 1 of 1 file]"
    assert await found(yard, "hit", context=1) == (
        "a.py\n1- x\n2: hit 1\n3- y\n--\n5- \n6: hit 2\n\nb.py\n1: hit" + "é" * 198 + "…\n\n[3 lines in 2 of 2 files]"
    )
    assert await found(yard, "ebb") == "[nothing found in 2 files]"
    assert await found(yard, "hit", limit=1) == (
        "a.py\n2: hit 1\n\n[the first 1 line; there are more: narrow the search, or raise limit (at most 200)]"
    )


async def test_files_that_were_not_searched_are_mentioned(yard: Yard) -> None:
    yard.put({"a": "hit\0", "b": "x", ".c": "hit", "d": "x"})
    os.truncate(yard.work / "b", file_search.FILE_BYTES + 1)
    assert await found(yard, "hit") == (
        "[nothing found in 1 file]\n[left out for its size: 1 file]\n[left out as binary: 1 file]\n"
        "[left out: .c; hidden=true includes them]"
    )
    files = yard.files(bounds=SearchBounds(files=0))
    answer = await searched(files, ".", SearchQuery(pattern="hit"))
    assert "[not all was searched: only 0 files were searched; use a path or a glob]" in answer


async def test_a_file_changed_during_the_search_is_reported(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.put({"a": "hit\n"})
    real = file_search.lines_around

    def changing(*arguments: Any) -> Any:
        yard.put({"a": "something else\n"})
        return real(*arguments)

    monkeypatch.setattr(file_search, "lines_around", changing)
    assert (await found(yard, "hit")).startswith("a\n[changed during the search; search again]\n")
