"""The encoded history of a conversation: complete, with only its end in memory."""

import errno
import tempfile
from collections.abc import Callable
from typing import BinaryIO

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.logs import capture_logs
from tidegate.agent import history as history_module
from tidegate.agent.history import IN_MEMORY_BYTES, KEPT_PIECES, PIECES, Group, History
from tidegate.values import Message

pytestmark = pytest.mark.anyio

PICTURE = (Message(role="user", aside="a picture"),)


def nameless() -> BinaryIO:
    return tempfile.TemporaryFile(buffering=0)


def joined(parts: "list[bytes | Group]") -> list[bytes | Group]:
    """The parts, with neighbours joined into one piece, as they are sent."""
    found: list[bytes | Group] = []
    for part in parts:
        if isinstance(part, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += b"," + part
        else:
            found.append(part)
    return found


async def filled(rows: int, overflow: Callable[[], BinaryIO] | None = nameless) -> tuple[History, list[bytes]]:
    history = History(overflow)
    said = [b'{"n":%d,"x":"%b"}' % (number, b"x" * 4000) for number in range(rows)]
    for row in said:
        history.append(row)
        await history.settle()
    return history, said


async def test_a_long_history_is_read_back_from_its_file_byte_for_byte() -> None:
    """L03, S32: a request does not depend on where its pieces were stored."""
    history, said = await filled(500)
    assert history.memory <= IN_MEMORY_BYTES
    assert history.memory + history.filed > len(b",".join(said))
    assert joined(list(await history.read())) == [b",".join(said)]
    history.release()


async def test_a_usual_conversation_has_no_file() -> None:
    """F5: a descriptor is used only when it is needed."""
    history, said = await filled(40)
    assert not history.has_file
    assert list(await history.read()) == said
    history.release()


async def test_a_released_history_holds_nothing() -> None:
    """B5: neither file nor bytes."""
    history, _ = await filled(200)
    assert history.has_file
    history.release()
    assert not history.has_file and history.parts == []
    history.release()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EMFILE])
async def test_if_the_disk_refuses_everything_stays_in_memory_and_is_logged_once(code: int) -> None:
    """D5: the turn does not fail."""

    def refuse() -> BinaryIO:
        raise OSError(code, "refused")

    with capture_logs() as logged:
        history, said = await filled(200, refuse)
    assert joined(list(await history.read())) == [b",".join(said)]
    assert [line["error"] for line in logged] == ["refused"]


@given(
    steps=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=60).map(lambda data: b'"' + data.hex().encode() + b'"'),
            st.just(PICTURE),
            st.just(None),
        ),
        max_size=60,
    )
)
def test_appended_and_moved_messages_are_read_back_in_order(steps: list[bytes | Group | None]) -> None:
    """S32: messages that cannot be encoded yet stay in their positions."""

    async def run() -> None:
        history = History(nameless, memory_bytes=bound, kept_bytes=kept)
        wanted: list[bytes | Group] = []
        try:
            for step in steps:
                if step is None:
                    await history.settle()
                    assert history.memory <= max(bound, unmovable(history))
                elif isinstance(step, bytes):
                    history.append(step)
                    wanted.append(step)
                else:
                    history.append_unencoded(step, 10)
                    wanted.append(step)
            assert joined(list(await history.read())) == joined(wanted)
        finally:
            history.release()

    def unmovable(history: History) -> int:
        return sum(10 + history_module.ROW_OVERHEAD for part in history.parts if isinstance(part, tuple)) + kept

    bound, kept = 600, 300
    anyio.run(run)


async def test_a_request_has_few_pieces_however_long_the_history_is() -> None:
    """S32: the newest are separate pieces, since a format may mark them."""
    history = History(None)
    said = [b'{"n":%d}' % number for number in range(2000)]
    for row in said:
        history.append(row)
        assert len(history.parts) <= PIECES
        assert history.parts[-KEPT_PIECES:] == said[: int(row[5:-1]) + 1][-KEPT_PIECES:]
    assert joined(list(await history.read())) == [b",".join(said)]
    assert history.memory < len(b",".join(said)) + (PIECES + 1) * history_module.ROW_OVERHEAD
    history.release()
