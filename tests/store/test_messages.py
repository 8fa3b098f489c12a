"""Messages: what goes in comes out, order, undo, packing, outcomes."""

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.store.rows import ANSWER, answered, complete_turn, count, new_session, new_turn, user_message
from tidegate.errors import Conflict, Refused
from tidegate.store import Db, Store, messages, open_turns, sessions, turns
from tidegate.store.rows import PACK_ABOVE, pack, unpack
from tidegate.values import Call, Failure, Message, ToolCall, Usage

pytestmark = pytest.mark.anyio

anything = st.text(st.characters(exclude_categories=("Cs",)))


@given(text=anything, aside=anything, arguments=anything, name=anything, repeated=st.integers(1, 400))
@examples(max_examples=150)
def test_any_message_comes_back_equal(text: str, aside: str, arguments: str, name: str, repeated: int) -> None:
    """S32, B4: the same bytes are read as were stored, short or long, compressed or not."""
    message = Message(
        role="assistant",
        text=text * repeated,
        aside=aside,
        calls=(ToolCall(id="c", name=name, arguments=arguments),),
        usage=Usage(input=1),
    )
    body, packed = pack(message)
    assert unpack(body, packed) == message
    assert packed in (0, 1)


@given(before=anything, after=anything, bad=st.characters(categories=["Cs"]))
@examples(max_examples=30)
def test_a_lone_surrogate_is_refused_before_it_reaches_a_row(before: str, after: str, bad: str) -> None:
    with pytest.raises(Refused, match="surrogate"):
        pack(user_message(before + bad + after))


def test_only_long_bodies_that_gain_are_packed() -> None:
    """L20: bodies are compressed only if that saves space."""
    assert pack(user_message("a" * (PACK_ABOVE // 2)))[1] == 0
    body, packed = pack(user_message("word " * 2000))
    assert packed == 1 and len(body) < 1000


@pytest.mark.parametrize(
    "text", ["", "\x00", "a\x00b\x00", "\ufeff\u2028\U0001f600", "x" * 10_000_000, "\x00\u00e9" * 2_000_000]
)
async def test_odd_and_large_texts_round_trip_through_the_file(store: Store, text: str) -> None:
    await store.write(new_session, "s_1")
    await store.write(new_turn, "s_1", "t_1", text)
    await store.write(turns.take, "t_1", 2.0)
    (row,) = await store.read(messages.journal, "t_1")
    assert row.message.text == text


async def test_history_is_in_order_without_the_running_turn_and_undone_messages(store: Store) -> None:
    """S19, B4: one transcript; the messages that models see are a pure function of its rows."""
    await store.write(new_session, "s_1")
    for number in range(3):
        await store.write(complete_turn, "s_1", f"t_{number}", f"question {number}")
    await store.write(new_turn, "s_1", "t_3", "question 3")
    await store.write(turns.take, "t_3", 3.0)
    texts = [message.text for message in await store.read(messages.history, "s_1", "t_3")]
    assert texts == ["question 0", ANSWER.text, "question 1", ANSWER.text, "question 2", ANSWER.text]
    assert await store.write(messages.undo, "t_2", 4.0) == 2
    assert await store.write(messages.undo, "t_2", 5.0) == 0
    texts = [message.text for message in await store.read(messages.history, "s_1")]
    assert texts == ["question 0", ANSWER.text, "question 1", ANSWER.text, "question 3"]
    assert len(await store.read(messages.page, "s_1")) == 5
    assert len(await store.read(messages.page, "s_1", undone=True)) == 7
    page = await store.read(messages.page, "s_1", after=2, limit=2)
    assert [row.seq for row in page] == [3, 4]


async def test_steered_messages_enter_once_and_late_ones_move_to_a_turn_of_their_own(store: Store) -> None:
    """S14: a message accepted for a running turn enters that turn or becomes the next one; never both."""
    await store.write(new_session, "s_1")
    await store.write(new_turn, "s_1", "t_1", "begin")
    await store.write(turns.take, "t_1", 2.0)

    def steer(db: Db, text: str) -> int:
        return messages.accept(db, session="s_1", turn="t_1", message=user_message(text), now=3.0)

    await store.write(steer, "one")
    await store.write(steer, "two")
    drained = await store.write(messages.place_steered, "t_1", "steer-0-", 4.0)
    assert [(row.step, row.seq, row.message.text) for row in drained] == [
        ("steer-0-0", 2, "one"),
        ("steer-0-1", 3, "two"),
    ]
    assert await store.write(messages.place_steered, "t_1", "steer-1-", 4.0) == []
    await store.write(steer, "late")
    assert await store.read(messages.count_waiting, "t_1") == 1
    with pytest.raises(Conflict):
        await store.write(messages.move, "t_1", "t_none")
    await store.write(new_turn, "s_1", "t_2")
    assert await store.write(messages.move, "t_1", "t_2") == 1
    await store.write(turns.settle, "t_1", state="answered", now=5.0)
    with pytest.raises(Conflict, match="ended"):
        await store.write(steer, "much too late")
    await store.write(turns.take, "t_2", 6.0)
    assert [row.message.text for row in await store.read(messages.journal, "t_2")] == ["late"]
    assert await store.read(count, "messages") == 4


async def test_a_turn_taken_again_keeps_its_places_and_counts_its_attempts(store: Store) -> None:
    """F4, S17: a resumed turn repeats no row; a planned pause does not count as an attempt."""
    await store.write(new_session, "s_1")
    await store.write(new_turn, "s_1", "t_1", "a", "b")
    first = await store.write(turns.take, "t_1", 2.0)
    again = await store.write(turns.take, "t_1", 9.0)
    assert (first.attempts, again.attempts) == (1, 2)
    assert first.started == again.started == 2.0
    assert await store.write(turns.park, "t_1", again.fence)
    assert (await store.write(turns.take, "t_1", 10.0)).attempts == 2
    rows = await store.read(messages.journal, "t_1")
    assert [(row.step, row.seq) for row in rows] == [("in-0", 1), ("in-1", 2)]
    assert [row.id for row in await store.read(open_turns.listing)] == ["t_1"]
    assert await store.read(open_turns.running, "s_1") == "t_1"


async def test_a_turn_gives_its_parameters_and_numbers_back(store: Store) -> None:
    call = Call(temperature=0.5, stop=("end",), metadata={"a": "[1, null]"})
    await store.write(new_session, "s_1")
    await store.write(turns.insert, id="t_1", session="s_1", channel="http", call=call, on_disconnect="cancel", now=1.0)
    assert (await store.write(new_turn, "s_1", "t_2")).number == 2
    row = await store.read(turns.get, "t_1")
    assert row is not None and (row.call, row.number, row.on_disconnect) == (call, 1, "cancel")
    assert (await store.read(open_turns.of_session, "s_1")).waiting == 2
    assert [row.number for row in await store.read(turns.listing, "s_1", 10)] == [2, 1]


async def test_an_outcome_is_rebuilt_from_rows(store: Store) -> None:
    """F4: the answer is the same live, from the store, and replayed."""
    calls = (ToolCall(id="c1", name="clock", arguments="{}"),)
    spent = Usage(input=2, cached=1, output=1)
    asked = Message(role="assistant", text="Let me look.", calls=calls, finish="tool_calls", usage=spent)
    await store.write(new_session, "s_1")
    await store.write(new_turn, "s_1", "t_1", "what time is it", now=1.5)

    def work(db: Db) -> None:
        turns.take(db, "t_1", 2.0)
        messages.append(db, session="s_1", turn="t_1", step="model-0", message=asked, now=2.0)
        result = Message(role="tool", text="noon", call_id="c1")
        messages.append(db, session="s_1", turn="t_1", step="tool-0-0", message=result, now=2.0)
        messages.append(db, session="s_1", turn="t_1", step="model-1", message=ANSWER, now=3.0)
        turns.settle(
            db, "t_1", state="answered", finish="stop", usage=Usage(input=9, cached=4, output=3), steps=2, now=4.0
        )

    running = await store.read(turns.outcome, "t_1")
    assert running is not None and running.state == "queued" and running.text == ""
    await store.write(work)
    outcome = await store.read(turns.outcome, "t_1")
    assert outcome is not None
    assert (outcome.text, outcome.calls, outcome.state, outcome.finish) == (ANSWER.text, (), "answered", "stop")
    assert (outcome.usage, outcome.steps) == (Usage(input=9, cached=4, output=3), 2)
    assert (outcome.accepted, outcome.finished, outcome.agent) == (1.5, 4.0, "main")


async def test_a_failure_is_kept_with_its_turn(store: Store) -> None:
    failure = Failure(message="The model did not answer.", code="timeout", status=504, retry=True)
    await store.write(new_session, "s_1")
    await store.write(new_turn, "s_1", "t_1", "x")
    await store.write(turns.settle, "t_1", state="failed", finish="error", error=failure, now=4.0)
    outcome = await store.read(turns.outcome, "t_1")
    assert outcome is not None and outcome.error == failure


async def test_a_turn_of_an_unloaded_store_reads_the_same_after_reopening(store: Store) -> None:
    """B4, S03: every message is equal after it is read back."""
    await store.write(new_session, "s_1")
    await store.write(complete_turn, "s_1", "t_1", "hello\x00 there " * 500)
    before = await store.read(messages.history, "s_1")
    await store.close()
    async with Store.open(store.path) as again:
        assert await again.read(messages.history, "s_1") == before
        row = await again.read(sessions.get, "s_1")
        assert row is not None and row.version > 0


async def test_bulk_text_takes_at_most_1_3_of_its_size_on_disk_with_its_index(store: Store) -> None:
    """L20, P20: one compressed copy and an index of words."""
    from tidegate.store import maintenance, search_index

    words = [f"{stem}{ending}" for stem in ("tide", "gate", "water", "level", "lock", "flood") for ending in range(300)]
    text = " ".join(words[(number * 7919 + number // 11) % len(words)] for number in range(200_000))
    total = 0
    await store.write(new_session, "s_1")
    await store.write(new_turn, "s_1", "t_1")
    for number in range(30):
        piece = text[number * 40_000 : (number + 1) * 40_000]
        total += len(piece)
        await store.write(
            lambda db, piece=piece, number=number: messages.append(
                db, session="s_1", turn="t_1", step=f"x{number}", message=user_message(piece), now=1.0
            )
        )
    while await store.write(search_index.index):
        pass
    await store.write(maintenance.checkpoint)
    assert store.path.stat().st_size <= 1.3 * total


async def test_answers_do_not_change_what_was_committed(store: Store) -> None:
    """F4: a committed step cannot be committed again."""
    await store.write(new_session, "s_1")
    await store.write(new_turn, "s_1", "t_1", "x")
    await store.write(answered, "s_1", "t_1")
    with pytest.raises(Conflict, match="already committed") as caught:
        await store.write(
            lambda db: messages.append(
                db, session="s_1", turn="t_1", step="model-0", message=user_message("again"), now=9.0
            )
        )
    assert caught.value.code == "step_committed"
    assert [row.message for row in await store.read(messages.journal, "t_1")][1:] == [ANSWER]
