"""The tool `clock`: the time in UTC and in other zones."""

import re
from datetime import UTC, datetime, timedelta

import anyio
import msgspec
import pytest

from tests.tools.contexts import bare
from tidegate.errors import ToolFailed
from tidegate.tools import builtin_toolsets

pytestmark = pytest.mark.anyio

CONTEXT = bare()


async def tell(**arguments: str) -> str:
    (clock,) = builtin_toolsets()["clock"].tools
    with anyio.fail_after(30):
        return await clock.run(CONTEXT, msgspec.json.encode(arguments).decode() if arguments else "")


def moment(line: str) -> datetime:
    found = re.fullmatch(r"[A-Z][a-z]+day (\S+) \((\S+)\)", line)
    assert found
    return datetime.fromisoformat(found[1])


async def test_the_time_is_returned_in_utc() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    for arguments in ({}, {"zone": ""}, {"zone": "utc"}):
        told = await tell(**arguments)
        assert told.endswith("Z (UTC)")
        assert before <= moment(told) <= datetime.now(UTC)


async def test_the_time_is_returned_in_a_zone_as_well() -> None:
    there, utc = (await tell(zone="Asia/Kolkata")).split("\n")
    assert moment(there).utcoffset() == timedelta(hours=5, minutes=30)
    assert moment(there) == moment(utc)
    assert there.endswith("(Asia/Kolkata)")


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "../../etc/passwd", "/etc/passwd", "America", "a\0b", "x" * 10_000, "ü", "."]
)
async def test_an_unknown_zone_is_an_error_of_one_sentence(zone: str) -> None:
    """X07: a zone is a name, never a path."""
    with pytest.raises(ToolFailed) as caught:
        await tell(zone=zone)
    assert caught.value.message.startswith("clock: there is no time zone ")
    assert len(caught.value.message) < 300


async def test_an_unknown_argument_error_lists_the_arguments() -> None:
    with pytest.raises(ToolFailed, match='there is no argument "place"; it accepts zone'):
        await tell(place="Berlin")
