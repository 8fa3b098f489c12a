"""The log of a turn: every reader, from any position, gets each event once and in order."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engine import TurnLog
from tidegate.engine.turn_log import FOLD_FROM
from tidegate.values import Event, Notice, Outcome, TextDelta, TextReset, TurnEnded, TurnStarted

pytestmark = pytest.mark.anyio

END = TurnEnded(outcome=Outcome(turn="t", session="s", state="answered"))


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def read_all(log: TurnLog) -> list[Event]:
    return [event async for batch in log.read() for event in batch]


async def test_a_late_reader_gets_the_answer_from_its_beginning() -> None:
    """H18: a client that attaches to a running turn streams from the start."""
    log = TurnLog("t", "s")
    log.append(TurnStarted(turn="t"))
    log.append(TextDelta(text="one "))
    log.append(TextDelta(text="two"))
    log.append(END)
    with anyio.fail_after(5):
        assert text_of(await read_all(log)) == "one two"


async def test_a_long_answer_is_held_as_bytes_not_as_pieces() -> None:
    """L03: many small pieces do not stay as many objects, with a reader that follows and one that is stuck."""
    log = TurnLog("t", "s")
    stuck = log.read()
    follower = log.read()
    log.append(TextDelta(text="a"))
    assert await anext(stuck) == [TextDelta(text="a")]
    seen = text_of(await anext(follower))
    for _ in range(50):
        for _ in range(FOLD_FROM):
            log.append(TextDelta(text="b"))
        seen += text_of(await anext(follower))
    assert len(log.events) <= 2 * FOLD_FROM
    log.append(END)
    rest = [event async for batch in stuck for event in batch]
    assert seen == "a" + "b" * (50 * FOLD_FROM)
    assert text_of(rest) == "b" * (50 * FOLD_FROM)
    await follower.aclose()


@given(st.lists(st.sampled_from(["x", "yy", None, "|"]), max_size=60), st.data())
def test_folding_loses_and_reorders_nothing(script: list[str | None], data: st.DataObject) -> None:
    """H18: whatever is folded, each reader's text and the order of the other events are unchanged."""

    async def scenario() -> None:
        log = TurnLog("t", "s")
        readers: list[tuple[object, list[Event]]] = []
        said: list[Event] = []
        for piece in script:
            event: Event = (
                TextReset(reason="r") if piece is None else Notice(text="n") if piece == "|" else TextDelta(text=piece)
            )
            said.append(event)
            log.append(event)
            action = data.draw(st.sampled_from(["nothing", "open", "read", "fold"]))
            if action == "open":
                readers.append((log.read(), []))
            elif action == "read":
                for reader, got in readers:
                    if len(log.events) > 0 and text_of(got) != text_of(said):
                        with anyio.move_on_after(0):
                            got.extend(await anext(reader))  # type: ignore[call-overload]
            elif action == "fold":
                log.fold()
        log.append(END)
        for reader, got in readers:
            got.extend([event async for batch in reader for event in batch])  # type: ignore[attr-defined]
            assert shape(got) == shape([*said, END])
        assert shape(log.events) == shape([*said, END])

    anyio.run(scenario)


def shape(events: list[Event]) -> list[str]:
    """The events, with neighbouring pieces of text joined."""
    joined: list[str] = []
    for event in events:
        if isinstance(event, TextDelta) and joined and joined[-1].startswith("text:"):
            joined[-1] += event.text
        else:
            joined.append(f"text:{event.text}" if isinstance(event, TextDelta) else type(event).__name__)
    return joined


async def test_a_log_closed_without_an_end_releases_its_readers() -> None:
    """F1: when the gateway stops, no reader waits for ever."""
    log = TurnLog("t", "s")
    log.append(TextDelta(text="half"))
    log.close()
    with anyio.fail_after(5):
        assert text_of(await read_all(log)) == "half"


async def test_a_draft_starts_anew_after_a_reset() -> None:
    """P03: withdrawn text is not part of what a stop keeps."""
    log = TurnLog("t", "s")
    log.append(TextDelta(text="wrong"))
    log.append(TextReset(reason="the stream broke"))
    log.append(TextDelta(text="right "))
    log.append(Notice(text="by the way"))
    log.append(TextDelta(text="words"))
    assert log.draft() == "right words"
