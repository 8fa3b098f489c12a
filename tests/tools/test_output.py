"""The tool `output`: the rest of a long result, of this conversation only."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.store.rows import new_session
from tidegate.errors import ToolFailed
from tidegate.spool import Spool
from tidegate.store import Store
from tidegate.tools import ToolContext, builtin_toolsets
from tidegate.tools.builtin.output import output

pytestmark = pytest.mark.anyio
TEXT = "".join(f"line {number}\n" for number in range(1, 1001))


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    async with Store.open(tmp_path / "tidegate.db") as store:
        for session in ("s_1", "s_2"):
            await store.write(new_session, session)
        yield Spool(tmp_path / "spool", store, excerpt_bytes=2000, excerpt_lines=100, quota=1_000_000)


def context(spool: Spool, session: str = "s_1") -> ToolContext:
    return ToolContext(
        session=session,
        principal="p",
        channel="c",
        agent="a",
        turn="t",
        workspace=cast(Any, None),
        spool=spool.of(session, "t"),
    )


async def call(spool: Spool, session: str = "s_1", **arguments: Any) -> str:
    given = await output.run(context(spool, session), msgspec.json.encode(arguments).decode())
    assert isinstance(given, str)
    return given


async def spooled(spool: Spool) -> str:
    shown = await spool.of("s_1", "t").text("tool", TEXT)
    return shown.partition("the full text is ")[2].partition(";")[0]


def test_it_only_reads_and_may_be_run_again() -> None:
    """P04: a crash in the middle of it costs nothing."""
    assert (output.effect, output.repeatable, output.parallel) == ("read", True, True)
    assert builtin_toolsets()["output"].names == ("output",)


async def test_the_excerpt_names_what_this_tool_reads(spool: Spool) -> None:
    """D1: from the name in the excerpt to every page and place."""
    id = await spooled(spool)
    assert await call(spool, id=id, lines=2) == "line 1\nline 2\n[lines 1 to 2 of 1000; continue with offset=2]"
    assert (await call(spool, id=id, offset=999)).startswith("line 1000\n[line 1000 of 1000; the result ends here]")
    assert (await call(spool, id=id, byte=7, lines=1)).startswith("line 2\n[bytes 7 to 14 of")
    assert await call(spool, id=id, search="line 77", lines=2) == (
        "77 (byte 599): line 77\n770 (byte 6813): line 770\n[2 matches, and there are more; continue with byte=6822]"
    )
    assert (await call(spool, id=id, search=r"^line 9\d$", regex=True)).count("\n") == 10


async def test_a_full_page_fits_the_limit_of_results(spool: Spool) -> None:
    """D1: it is not spooled once more."""
    id = await spooled(spool)
    for arguments in ({}, {"lines": 100_000}, {"search": "line", "lines": 100_000}):
        shown = await call(spool, id=id, **arguments)
        assert await spool.of("s_1", "t").text("output", shown) == shown


async def test_another_conversations_result_is_not_there(spool: Spool) -> None:
    """X06, L26: nor is a path, nor anything else."""
    id = await spooled(spool)
    for session, name in (("s_2", id), ("s_1", "sp_0"), ("s_1", f"../s_1/{id}"), ("s_1", "/etc/passwd")):
        with pytest.raises(ToolFailed, match=r"There is no result .* in this conversation"):
            await call(spool, session, id=name)
        with pytest.raises(ToolFailed, match="There is no result"):
            await call(spool, session, id=name, search="x")


async def test_contradicting_arguments_are_refused(spool: Spool) -> None:
    id = await spooled(spool)
    with pytest.raises(ToolFailed, match="offset or byte, not both"):
        await call(spool, id=id, offset=1, byte=1)
    with pytest.raises(ToolFailed, match='"lines" is refused'):
        await call(spool, id=id, lines=0)
    with pytest.raises(ToolFailed, match="past the end"):
        await call(spool, id=id, offset=1000)
