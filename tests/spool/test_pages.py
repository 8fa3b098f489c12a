"""Reading spooled results of the same session by page and by search."""

import os
import re

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.spool.spools import BYTES, LINES, SESSION, WAIT, recorded
from tests.store.rows import new_session
from tidegate.errors import ToolFailed
from tidegate.line_search import BLOCK, OVERLAP
from tidegate.spool import SessionSpool, Spool
from tidegate.store import Store

pytestmark = pytest.mark.anyio
PLACE = re.compile(r"\[(.*)\]\Z")
GO_ON = re.compile(r"continue (?:in it )?with (offset|byte)=(\d+)\]\Z")


async def spooled(mine: SessionSpool, data: bytes) -> str:
    recorder = mine.record("tool")
    await recorded(recorder, [data])
    assert recorder.spooled
    return recorder.spooled


async def test_a_page_gives_its_position_and_how_to_continue(mine: SessionSpool) -> None:
    """D1: by lines, up to the end."""
    id = await spooled(mine, b"".join(b"line %d\n" % number for number in range(1, 101)))
    first = await mine.page(id, lines=3)
    assert first == "line 1\nline 2\nline 3\n[lines 1 to 3 of 100; continue with offset=3]"
    assert await mine.page(id, offset=98) == "line 99\nline 100\n[lines 99 to 100 of 100; the result ends here]"
    assert await mine.page(id, offset=49, lines=1) == "line 50\n[line 50 of 100; continue with offset=50]"
    with pytest.raises(ToolFailed, match="past the end: the result has 100 lines"):
        await mine.page(id, offset=100)
    with pytest.raises(ToolFailed, match="past the end: the result has 792 bytes"):
        await mine.page(id, byte=792)


async def test_a_line_longer_than_a_page_can_be_read_to_its_end(mine: SessionSpool) -> None:
    """D1: every part of a result can be reached."""
    text = "start\n" + "🌊" * 3000 + "\nend\n"
    id = await spooled(mine, text.encode())
    assert (await mine.page(id, lines=1)).startswith("start\n[line 1 of 3; continue with offset=1]")
    page = await mine.page(id, offset=1)
    assert "longer than a page; continue in it with byte=" in page
    assert "?" not in page


content = st.one_of(st.binary(max_size=9000), st.text("aé🌊\n漢", min_size=700, max_size=3000).map(str.encode))


@given(content, st.integers(1, LINES))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_all_pages_together_are_the_complete_result(
    mine: SessionSpool, spool: Spool, data: bytes, lines: int
) -> None:
    """D1: following the instruction on each page returns every byte of any result, within the limits."""
    data += b"\nx" * LINES
    id = await spooled(mine, data)
    where: dict[str, int] = {}
    pages: list[str] = []
    for _ in range(len(data) + 1):
        page = await mine.page(id, lines=lines, **where)
        assert len(page.encode()) <= BYTES and page.count("\n") < LINES
        text, _, _ = page.rpartition("[")
        pages.append(text)
        following = GO_ON.search(page)
        if following is None:
            break
        where = {following[1]: int(following[2])}
    shown = data.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()
    # A page ends with a line break of its own where its text has none.
    assert "".join(pages).replace("\n", "") == shown.replace("\n", "")
    await spool.remove(SESSION)


async def test_results_of_other_sessions_and_unknown_names_do_not_exist(
    mine: SessionSpool, spool: Spool, store: Store
) -> None:
    """X08, X06, L26: an id of another session is as unknown as any other text, including paths."""
    await store.write(new_session, "s_2")
    id = await spooled(mine, b"secret\n" * 1000)
    other = spool.of("s_2", None)
    for name in (id, "sp_unknown", "../s_1/" + id, "/etc/passwd", ""):
        with pytest.raises(ToolFailed, match="no result"):
            await other.page(name)
        with pytest.raises(ToolFailed, match="no result"):
            await other.search(name, "secret")
        with pytest.raises(OSError):
            await spool.load("s_2", name)


async def test_a_missing_file_is_reported(mine: SessionSpool, spool: Spool) -> None:
    id = await spooled(mine, b"x" * 5000)
    spool.file(SESSION, id).unlink()
    for reading in (mine.page(id), mine.search(id, "x"), mine.search(id, "x", regex=True)):
        with pytest.raises(ToolFailed, match="no longer exists"):
            await reading


# -- searching ---------------------------------------------------------------------------------------------------------


async def test_a_search_returns_line_byte_and_context(mine: SessionSpool) -> None:
    """D1: for plain text and for regular expressions."""
    id = await spooled(mine, b"".join(b"line %d\n" % number for number in range(1, 1001)))
    with anyio.fail_after(WAIT):
        assert await mine.search(id, "line 500") == "500 (byte 4383): line 500\n[1 match; searched to the end]"
        assert await mine.search(id, "LINE") == "[nothing found; searched to the end]"
        found = await mine.search(id, r"(?i)^LINE \d*99$", regex=True, limit=3)
        assert found.splitlines() == [
            "99 (byte 775): line 99",
            "199 (byte 1674): line 199",
            "299 (byte 2574): line 299",
            "[3 matches, and there are more; continue with byte=3474]",
        ]
        assert (await mine.search(id, "line", byte=8883)).startswith("1000 (byte 8883): line 1000\n[1 match")
        assert (await mine.search(id, "line", offset=999)).startswith("1000 (byte 8883): line 1000\n[1 match")
        assert await mine.search(id, "a.c") == "[nothing found; searched to the end]"
        with pytest.raises(ToolFailed, match="not a valid regular expression"):
            await mine.search(id, "(", regex=True)
        for wrong in ("", "x" * 1001):
            with pytest.raises(ToolFailed, match="1 to 1000 characters"):
                await mine.search(id, wrong)


async def test_all_matches_are_found_by_continuing(mine: SessionSpool) -> None:
    """D1: also in one endless line and across its pieces; each match once."""
    data = bytearray(b"x" * 300_000)
    places = [0, 5000, 200_000, BLOCK - OVERLAP + 500, BLOCK - 3, 299_994]
    for place in places:
        data[place : place + 6] = "nädel".encode()
    id = await spooled(mine, bytes(data))
    for regex in (False, True):
        found: list[int] = []
        where = 0
        for _ in range(20):
            shown = await mine.search(id, "nädel", regex=regex, byte=where, limit=2)
            found += [int(byte) for byte in re.findall(r"^1 \(byte (\d+)\)", shown, re.MULTILINE)]
            following = GO_ON.search(shown)
            if following is None:
                break
            where = int(following[2])
        assert found == places


async def test_matches_are_bounded_and_invalid_bytes_do_no_harm(mine: SessionSpool) -> None:
    """D1, D7: with many long lines, binary content and empty matches."""
    id = await spooled(mine, (b"\xff" * 500 + b"needle" + b"\xfe" * 500 + b"\n") * 500)
    with anyio.fail_after(WAIT):
        for pattern, regex in (("needle", False), ("n..dle", True)):
            shown = await mine.search(id, pattern, regex=regex, limit=1000)
            assert len(shown.encode()) <= BYTES and len(shown.splitlines()) <= LINES
            assert "…" in shown and "there are more" in shown
        empty = await spooled(mine, b"a\n\nb\n" * 1000)
        assert (await mine.search(empty, "^$", regex=True, limit=2)).startswith(
            "2 (byte 2): \n5 (byte 7): \n[2 matches"
        )


async def test_a_pattern_that_would_backtrack_is_as_fast_as_any(mine: SessionSpool) -> None:
    """D7, L15: no pattern needs more than time in proportion to the text."""
    id = await spooled(mine, b"a" * 5000 + b"!")
    with anyio.fail_after(WAIT):
        assert await mine.search(id, "(a+)+$", regex=True) == "[nothing found; searched to the end]"


async def test_a_search_that_is_stopped_leaves_nothing(mine: SessionSpool) -> None:
    """L15: its thread has ended before the caller continues; the leak fixture looks for its file."""
    slow = "|".join(f"a.{{{count}}}b" for count in range(1, 35))
    id = await spooled(mine, bytes(b"ac"[byte & 1] for byte in os.urandom(3 * BLOCK)))
    with anyio.move_on_after(0.2) as scope:
        await mine.search(id, slow, regex=True)
    assert scope.cancelled_caught


async def test_a_long_search_reports_how_far_it_got(mine: SessionSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: nothing is left out silently, and the rest can be searched."""
    monkeypatch.setattr("tidegate.spool.search.SECONDS", 0.0)
    id = await spooled(mine, b"line\n" * 100_000)
    shown = await mine.search(id, "line", limit=1)
    assert shown == "[nothing found, but the time of 0 s ran out; continue with byte=0]"
