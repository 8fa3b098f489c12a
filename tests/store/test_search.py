"""Search: any text is a valid query, and the index keeps up off the hot path."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.store.making import OWNER, count, get_meta, new_session, whole_turn
from tidegate.store import Store, messages, migrations, search, sessions
from tidegate.store._writer import connect

pytestmark = pytest.mark.anyio


async def test_words_are_found_where_they_were_said_with_an_excerpt(store: Store) -> None:
    await store.write(new_session, "s_1")
    await store.write(sessions.set_title, "s_1", "Harbour")
    await store.write(whole_turn, "s_1", "t_1", "The ÉCLUSE at the harbour opens at noon. " + "filler " * 200)
    await store.write(whole_turn, "s_1", "t_2", "Nothing of the kind.")
    for query in ("ecluse", "Écluse noon", "harb", 'harbour" OR "x', "noon AND (", "opens*", "AT the"):
        found = await search.search(store, query, principal=OWNER)
        expected = 0 if "OR" in query or "AND" in query else 1
        assert len(found) == expected, query
    (hit,) = await search.search(store, "harbour", principal=OWNER, session="s_1")
    assert (hit.session, hit.title, hit.seq, hit.role) == ("s_1", "Harbour", 1, "user")
    assert "harbour" in hit.excerpt and len(hit.excerpt) < 200
    assert await search.search(store, "harbour", principal=OWNER, session="s_2") == []


async def test_what_was_undone_or_never_taken_is_not_found(store: Store) -> None:
    await store.write(new_session, "s_1")
    await store.write(whole_turn, "s_1", "t_1", "regretted words")
    assert len(await search.search(store, "regretted", principal=OWNER)) == 1
    await store.write(messages.undo, "t_1", 5.0)
    assert await search.search(store, "regretted", principal=OWNER) == []


async def test_indexing_goes_in_batches_and_catches_up_before_a_search(store: Store) -> None:
    """L20: no turn waits for the index; a search does."""
    await store.write(new_session, "s_1")
    for number in range(30):
        await store.write(whole_turn, "s_1", f"t_{number}", f"word{number}")
    assert await store.read(count, "messages_text") == 0
    assert await store.write(search.index, 7) == 7
    assert await store.read(get_meta, "indexed") == 7
    assert await store.read(search.behind) == 53
    assert len(await search.search(store, "word29", principal=OWNER)) == 1
    assert await store.write(search.index, 7) == 0


async def test_a_row_number_that_is_given_again_is_indexed_again(store: Store) -> None:
    """L20: after a delete the highest row numbers come back; what gets them must still be found."""
    await store.write(new_session, "s_1")
    await store.write(whole_turn, "s_1", "t_1", "first")
    await store.write(new_session, "s_2")
    await store.write(whole_turn, "s_2", "t_2", "second")
    assert len(await search.search(store, "second", principal=OWNER)) == 1
    await store.write(sessions.delete, "s_2")
    await store.write(new_session, "s_3")
    await store.write(whole_turn, "s_3", "t_3", "third")
    assert await search.search(store, "second", principal=OWNER) == []
    assert [hit.session for hit in await search.search(store, "third", principal=OWNER)] == ["s_3"]


def test_any_text_is_a_valid_query(tmp_path: Path) -> None:
    """X19: what a person types is words, never syntax."""
    db = connect(tmp_path / "t.db", "process", 1 << 20)
    with contextlib.closing(db):
        migrations.migrate(db)
        new_session(db, "s_1")
        whole_turn(db, "s_1", "t_1", "some words to find")
        search.index(db)

        @given(query=st.text() | st.text("\"'*()^:-+{}ANDORNEAR \x00"))
        @examples(max_examples=200)
        def never_breaks(query: str) -> None:
            search.find(db, query, principal=OWNER)

        never_breaks()
        assert len(search.find(db, "SOME words", principal=OWNER)) == 1


async def test_long_texts_are_indexed_a_bounded_amount_at_a_time(store: Store) -> None:
    """L20: no turn waits behind the indexing of pages and dumps."""
    await store.write(new_session, "s_1")
    for number in range(6):
        await store.write(whole_turn, "s_1", f"t_{number}", "bulk " * 30_000 + f"end{number}")
    steps = []
    while done := await store.write(search.index):
        steps.append(done)
    assert len(steps) >= 3
    assert len(await search.search(store, "end5", principal=OWNER)) == 1
