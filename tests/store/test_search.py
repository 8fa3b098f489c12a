"""Search: any text is a valid query, and the index keeps up off the hot path."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.store.rows import OWNER, complete_turn, count, get_meta, new_session, sessions_with
from tidegate.store import AllWords, Db, Store, messages, migrations, search, search_index, session_search, sessions
from tidegate.store.sqlite.connections import connect

pytestmark = pytest.mark.anyio

OTHER = "p_other"


async def test_words_are_found_in_their_messages(store: Store) -> None:
    await store.write(new_session, "s_1")
    await store.write(
        complete_turn, "s_1", "t_1", "The ÉCLUSE at the harbour opens lock_gates, noon. " + "filler " * 200
    )
    await store.write(complete_turn, "s_1", "t_2", "Nothing of the kind.")
    for query in ("ecluse", "Écluse noon", "harb", "opens*", "the harbour at", "lock_gates", "(noon)", '"harbour"'):
        assert await sessions_with(store, query, principal=OWNER) == ["s_1"], query
    for query in ('harbour" OR "x', "noon AND (", "arbour", "kind harbour", "", "_", "!", "at the"):
        assert await sessions_with(store, query, principal=OWNER) == [], query


async def test_titles_and_names_are_found_before_messages(store: Store) -> None:
    """X06: with the same words, under the same principal, in their current form; a session with matches in both is
    found once."""
    for id, name, principal in (("s_1", "harbour-1", OWNER), ("s_2", None, OWNER), ("s_3", "harbour", OTHER)):
        await store.write(new_session, id, name=name, principal=principal)
        await store.write(complete_turn, id, f"t_{id}", "hello")
    await store.write(new_session, "s_4")
    await store.write(complete_turn, "s_4", "t_4", "We meet at the harbour.")
    await store.write(sessions.set_title, "s_2", "The ÉCLUSE_of the Harbour")
    await store.write(complete_turn, "s_2", "t_5", "the harbour again", now=9.0)
    found = await sessions_with(store, "harbour", principal=OWNER)
    assert found[:2] == ["s_2", "s_1"] and found[2:] == ["s_4"]
    assert await sessions_with(store, "harbour", principal=OWNER, limit=1) == ["s_2"]
    assert sorted(await sessions_with(store, "harbour", principal=None)) == ["s_1", "s_2", "s_3", "s_4"]
    for query, wanted in (("ecluse harb", ["s_2"]), ("HARBOUR 1", ["s_1"]), ("arbour", []), ("ecluse 1", [])):
        assert await sessions_with(store, query, principal=OWNER) == wanted, query
    await store.write(sessions.set_title, "s_2", "Renamed")
    assert await sessions_with(store, "ecluse", principal=OWNER) == []


async def test_a_session_that_says_a_word_often_hides_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """L24: titles and messages are read in bounded pieces, until all are read."""
    monkeypatch.setattr(session_search, "HITS", 3)
    for number in range(5):
        await store.write(new_session, f"s_{number}", now=float(number))
        await store.write(complete_turn, f"s_{number}", f"t_{number}", f"tide number{number}", now=float(number))
    for number in range(20):
        await store.write(complete_turn, "s_4", f"u_{number}", "tide", now=10.0)
    await store.write(sessions.set_title, "s_0", "gate")
    for principal in (OWNER, None):
        assert await sessions_with(store, "tide", principal=principal) == ["s_4", "s_3", "s_2", "s_1", "s_0"]
        assert await sessions_with(store, "gate", principal=principal) == ["s_0"]
    assert await sessions_with(store, "tide", principal=OTHER) == []


def shown(mention: search.Mention) -> tuple[str, int, str]:
    return mention.session, mention.place, mention.message.text


async def found(store: Store, query: str, **options: Any) -> list[tuple[str, int, str]]:
    given = {"principal": OWNER, "session": None, "own": "s_1", **options}
    await search_index.catch_up(store)
    places, _ = await store.read(matching, query, **given)
    return places


def matching(db: Db, query: str, **options: Any) -> tuple[list[tuple[str, int, str]], int | None]:
    return search.search_messages(db, AllWords(query, search_index.analyzer(db)), shown, **options)


async def test_messages_are_found_in_one_conversation_or_in_all_of_a_person(store: Store) -> None:
    """X06: never those of others, for any number; the newest conversation first, and its latest message first."""
    for id, principal in (("s_1", OWNER), ("s_2", OTHER), ("s_3", OWNER)):
        await store.write(new_session, id, principal=principal)
    for number in range(2):
        for id in ("s_1", "s_2", "s_3"):
            await store.write(complete_turn, id, f"t_{id}_{number}", f"tide {number}")
    every = [("s_3", 3, "tide 1"), ("s_3", 1, "tide 0"), ("s_1", 3, "tide 1"), ("s_1", 1, "tide 0")]
    assert await found(store, "tide") == every
    assert await found(store, "TIDE", session="s_1") == every[2:]
    assert await found(store, "tide", session="s_1", turn="t_s_1_1") == every[3:]
    assert await found(store, "tide", session="s_2", own="s_2") == []
    assert await found(store, "tide", principal=OTHER) == [("s_2", 3, "tide 1"), ("s_2", 1, "tide 0")]
    assert await found(store, "tide", principal="p_nobody") == await found(store, "tide", session="s_none") == []
    assert await found(store, "tid") == [] and len(await found(store, "tid*")) == 4
    assert await found(store, "") == await found(store, "!* *") == []


async def test_one_shot_calls_are_found_by_themselves_only(store: Store) -> None:
    await store.write(new_session, "s_1")
    await store.write(new_session, "s_once", kind="ephemeral")
    for id in ("s_1", "s_once"):
        await store.write(complete_turn, id, f"t_{id}", "tide")
    assert await found(store, "tide") == [("s_1", 1, "tide")]
    assert await found(store, "tide", own="s_once") == [("s_once", 1, "tide"), ("s_1", 1, "tide")]
    assert await found(store, "tide", session="s_once", own="s_once") == [("s_once", 1, "tide")]


async def test_messages_are_read_page_by_page_and_none_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L24: pages are bounded by number, by bytes, and by the matches that one read checks."""
    await store.write(new_session, "s_1")
    for number in range(30):
        await store.write(complete_turn, "s_1", f"t_{number}", f"tide {number}")
    for turn in ("t_3", "t_4", "t_5", "t_17"):
        await store.write(messages.undo, turn, 5.0)
    left = [f"tide {number}" for number in range(29, -1, -1) if number not in (3, 4, 5, 17)]
    await search_index.catch_up(store)
    for name, value in (("HITS", 2), ("MENTION_BYTES", 1), ("HITS", 10_000)):
        monkeypatch.setattr(search, name, value)
        for limit in (1, 7, 100):
            got: list[str] = []
            below: int | None = search_index.LAST
            while below is not None:
                page, below = await store.read(
                    matching,
                    "tide",
                    principal=OWNER,
                    session="s_1",
                    own="s_1",
                    below=below,
                    limit=limit,
                )
                assert len(page) <= limit
                got += [text for _, _, text in page]
            assert got == left, (name, limit)


async def test_a_persons_conversations_lie_side_by_side_however_many_they_are(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L20: a search in all of them reads a few ranges of the index and misses none."""
    monkeypatch.setattr(search_index, "EXTENT", 2)
    monkeypatch.setattr(search_index, "EXTENT_GROWTH", 2)
    people = ("p_a", "p_b", "p_c")
    for number in range(60):
        whose = people[number % 3]
        await store.write(new_session, f"s_{number:02}", principal=whose)
        await store.write(complete_turn, f"s_{number:02}", f"t_{number}", "tide")
    for offset, whose in enumerate(people):
        mine = [f"s_{number:02}" for number in range(offset, 60, 3)]
        assert [session for session, _, _ in await found(store, "tide", principal=whose, limit=100)] == mine[::-1]
        assert await sessions_with(store, "tide", principal=whose, limit=100) == mine[::-1]
        assert len(await store.read(search_index.ranges, whose)) <= 4
        assert [id for _, id in await store.read(search_index.sessions_below, whose, 1 << 30, 100)] == mine[::-1]


async def test_a_deleted_conversation_leaves_nothing_in_the_index(store: Store) -> None:
    """V06: not even its number; other conversations keep theirs."""
    for id in ("s_1", "s_2"):
        await store.write(new_session, id)
        await store.write(complete_turn, id, f"t_{id}", "tide")
    await search_index.catch_up(store)
    await store.write(sessions.delete, "s_1")
    assert await store.read(count, "message_terms") == 2
    assert await store.read(count, "index_blocks") == 1
    assert [id for id, _, _ in await found(store, "tide")] == ["s_2"]


async def test_the_last_word_is_completed_however_many_words_begin_with_it(store: Store) -> None:
    """X06: words of other people and of deleted messages complete nothing."""
    for id, principal in (("s_1", OWNER), ("s_2", OTHER), ("s_3", OWNER)):
        await store.write(new_session, id, principal=principal)
        await store.write(complete_turn, id, f"t_{id}", f"carpenter's carpet {id.replace('_', 'x')}")
    assert await sessions_with(store, "carpet", principal=OWNER) == ["s_3", "s_1"]
    assert await sessions_with(store, "carpen", principal=OTHER) == ["s_2"]
    assert await sessions_with(store, "carp sx", principal=OWNER) == []
    await store.write(sessions.delete, "s_2")
    assert await sessions_with(store, "sx", principal=None) == ["s_3", "s_1"]
    await store.write(search_index.sweep)
    await store.write(sessions.delete, "s_3")  # while a sweep has begun
    while await store.write(search_index.sweep):
        pass
    assert await sessions_with(store, "carp", principal=OWNER) == ["s_1"]
    kept = [row[0] for row in await store.read(lambda db: db.execute("SELECT term FROM index_words").fetchall())]
    assert "sx1" in kept and not {"sx2", "sx3"} & set(kept) and "carpent" in kept


async def test_ended_sessions_are_found_apart(store: Store) -> None:
    """V06: their transcripts and titles stay readable."""
    for id in ("s_1", "s_2"):
        await store.write(new_session, id)
        await store.write(sessions.set_title, id, "gate")
        await store.write(complete_turn, id, f"t_{id}", "tide")
    await store.write(sessions.end, "s_1", reason="new", hooks=(), now=5.0)
    for query in ("gate", "tide"):
        assert await sessions_with(store, query, principal=OWNER, ended=True) == ["s_1"]
        assert await sessions_with(store, query, principal=OWNER, ended=False) == ["s_2"]
        assert sorted(await sessions_with(store, query, principal=OWNER)) == ["s_1", "s_2"]


async def test_undone_and_waiting_messages_are_not_found(store: Store) -> None:
    await store.write(new_session, "s_1")
    await store.write(complete_turn, "s_1", "t_1", "regretted words")
    assert len(await sessions_with(store, "regretted", principal=OWNER)) == 1
    await store.write(messages.undo, "t_1", 5.0)
    assert await sessions_with(store, "regretted", principal=OWNER) == []


async def test_indexing_goes_in_batches_and_catches_up_before_a_search(store: Store) -> None:
    """L20: turns do not wait for the index; searches do."""
    await store.write(new_session, "s_1")
    for number in range(30):
        await store.write(complete_turn, "s_1", f"t_{number}", f"word{number}")
    assert await store.read(count, "message_terms") == 0
    assert await store.write(search_index.index, 7) == 7
    assert await store.read(get_meta, "indexed") == 7
    assert await store.read(search_index.count_unindexed) == 53
    assert len(await sessions_with(store, "word29", principal=OWNER)) == 1
    assert await store.write(search_index.index, 7) == 0


async def test_a_row_number_that_is_given_again_is_indexed_again(store: Store) -> None:
    """L20: after a deletion the highest row numbers are reused, and their new rows must be found."""
    await store.write(new_session, "s_1")
    await store.write(complete_turn, "s_1", "t_1", "first")
    await store.write(new_session, "s_2")
    await store.write(complete_turn, "s_2", "t_2", "second")
    assert len(await sessions_with(store, "second", principal=OWNER)) == 1
    await store.write(sessions.delete, "s_2")
    await store.write(new_session, "s_3")
    await store.write(complete_turn, "s_3", "t_3", "third")
    assert await sessions_with(store, "second", principal=OWNER) == []
    assert await sessions_with(store, "third", principal=OWNER) == ["s_3"]


def test_any_text_is_a_valid_query(tmp_path: Path) -> None:
    """X19: a query consists of words; nothing in it is syntax."""
    db = connect(tmp_path / "t.db", "process", 1 << 20)
    with contextlib.closing(db):
        migrations.migrate(db)
        new_session(db, "s_1", name="a name")
        complete_turn(db, "s_1", "t_1", "some words to find")
        search_index.index(db)

        def find(db: Db, query: str) -> list[str]:
            found = session_search.find(db, query, principal=OWNER)
            return [each.id for each in found[0]] if found else []

        @given(query=st.text() | st.text("\"'*()^:-+{}_%ANDORNEAR \x00\u19b0"))
        @examples(max_examples=200)
        def never_breaks(query: str) -> None:
            find(db, query)

        never_breaks()
        assert find(db, "SOME words") == find(db, "A nam") == ["s_1"]


async def test_long_texts_are_indexed_a_bounded_amount_at_a_time(store: Store) -> None:
    """L20: no turn waits while dumps and pages are indexed."""
    await store.write(new_session, "s_1")
    for number in range(6):
        await store.write(complete_turn, "s_1", f"t_{number}", "bulk " * 30_000 + f"end{number}")
    steps = []
    while done := await store.write(search_index.index):
        steps.append(done)
    assert len(steps) >= 3
    assert len(await sessions_with(store, "end5", principal=OWNER)) == 1
