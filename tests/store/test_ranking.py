"""Ranked search: any text is a question, only the caller's messages answer it, and an older store is indexed again."""

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.store.rows import OWNER, complete_turn, count, get_meta, new_session, sessions_with
from tidegate.errors import StoreFailed
from tidegate.store import AllWords, Db, Mention, Store, migrations, ranking, search, search_index, sessions
from tidegate.store.rows import pack
from tidegate.store.sqlite.connections import connect
from tidegate.values import Message

pytestmark = pytest.mark.anyio

ANNA, BERT = OWNER, "p_bert"
MAY_7 = 1_683_450_000.0
"""7 May 2023."""


def text(mention: Mention) -> str:
    return mention.message.text


def best(db: Db, query: str, *, principal: str = ANNA, session: str | None = "s_1", **options: Any) -> list[str]:
    question = ranking.Question(query, search_index.analyzer(db), time.time())
    found, _ = ranking.search_ranked(
        db, question, text, principal=principal, session=session, own=session or "s_1", **options
    )
    return found


def say(db: Db, session: str, *texts: str, at: float = 1.0, first: int = 1) -> None:
    for place, said in enumerate(texts, first):
        body, packed = pack(Message(role="user", text=said))
        db.execute(
            "INSERT INTO messages(session, seq, role, body, packed, at) VALUES(?, ?, 'user', ?, ?, ?)",
            (session, place, body, packed, at + place),
        )


async def filled(store: Store, *texts: str) -> None:
    await store.write(new_session, "s_1")
    await store.write(say, "s_1", *texts)
    await search_index.catch_up(store)


async def test_a_question_finds_messages_with_some_of_its_words_in_other_forms(store: Store) -> None:
    """L20: the rarer words count more."""
    await filled(
        store, "nothing here", "", "", "she adopted two puppies", "", "", "the puppy slept", "", "", "two of us"
    )
    found = await store.read(best, "When did she adopt the puppies?")
    assert found[:2] == ["she adopted two puppies", "the puppy slept"]


async def test_an_answer_is_found_by_the_words_of_the_question_before_it(store: Store) -> None:
    await filled(
        store, *["something else"] * 5, "How long have you been married?", "Five years already!", *["more"] * 5
    )
    found = await store.read(best, "For how many years were they married?")
    assert set(found[:2]) == {"How long have you been married?", "Five years already!"}


async def test_newer_messages_come_first_among_equals(store: Store) -> None:
    await filled(store, "heron one", "", "", "heron two", "", "", "heron three")
    assert await store.read(best, "heron") == ["heron three", "heron two", "heron one"]
    assert await store.read(best, "heron", skip=1, limit=1) == ["heron two"]


@pytest.mark.parametrize(
    "query", ["heron on 7 May 2023", "heron, May 7th", "heron 2023-05-07", "heron in May 2023", "heron during may?"]
)
async def test_messages_of_the_day_in_question_come_first(store: Store, query: str) -> None:
    await store.write(new_session, "s_1")
    await store.write(say, "s_1", "the heron of that day", at=MAY_7)
    await store.write(say, "s_1", *["the heron later"] * 30, at=MAY_7 + 90 * 86_400, first=5)
    await search_index.catch_up(store)
    assert (await store.read(best, query))[0] == "the heron of that day"


async def test_scripts_without_spaces_are_searched_by_pairs_of_characters(store: Store) -> None:
    await filled(store, "我们昨天去了动物园看大熊猫", "", "", "今天天气很好", "", "", "東京タワーに行きました")
    assert (await store.read(best, "动物园怎么样？"))[0] == "我们昨天去了动物园看大熊猫"
    assert (await store.read(best, "東京"))[0] == "東京タワーに行きました"
    words = await store.read(exact, "大熊猫")
    assert words == ["我们昨天去了动物园看大熊猫"]
    assert await store.read(exact, "熊大") == []


def exact(db: Db, query: str) -> list[str]:
    found, _ = search.search_messages(
        db, AllWords(query, search_index.analyzer(db)), text, principal=ANNA, session=None, own="s_1"
    )
    return found


async def test_an_exact_search_finds_words_as_written_phrases_and_prefixes(store: Store) -> None:
    """X19: stems and words that are not indexed make no difference to it."""
    await filled(store, "the red boats of a harbour", "a boat is red", "running to the reddish boat", "conditionally")
    for query, wanted in {
        "boats": [0],
        "boat red": [1],
        "the boat": [2],
        '"is red"': [1],
        '"red is"': [],
        "boat*": [2, 1, 0],
        "runn*": [2],
        "conditiona*": [3],
        "red* boat": [2, 1],
        "harbour th*": [0],
    }.items():
        said = ["the red boats of a harbour", "a boat is red", "running to the reddish boat", "conditionally"]
        assert await store.read(exact, query) == [said[place] for place in wanted], query


async def test_a_language_can_be_changed_and_all_is_indexed_again(store: Store) -> None:
    await filled(store, "die Häuser am Hafen", "", "", "the boats")
    assert await store.read(best, "Haus") == []
    await store.write(search_index.set_language, "german")
    assert await store.read(search_index.count_unindexed) == 4
    await search_index.catch_up(store)
    assert await store.read(best, "Hafens") == ["die Häuser am Hafen"]
    await store.write(search_index.set_language, "none")
    await search_index.catch_up(store)
    assert await store.read(best, "boat") == [] and await store.read(best, "boats") == ["the boats"]


async def test_messages_that_get_their_position_later_are_indexed_then(store: Store) -> None:
    await store.write(new_session, "s_1")

    def waiting(db: Db) -> None:
        body, packed = pack(Message(role="user", text="a heron waits"))
        db.execute(
            "INSERT INTO messages(id, session, role, body, packed, at) VALUES(1, 's_1', 'user', ?, ?, 1)",
            (body, packed),
        )

    await store.write(waiting)
    await search_index.catch_up(store)
    assert await store.read(best, "heron") == [] and await store.read(count, "index_unplaced") == 1
    await store.write(lambda db: db.execute("UPDATE messages SET seq = 1").get)
    assert await store.read(search_index.is_behind, "t_1")
    await search_index.catch_up(store)
    assert await store.read(best, "heron") == ["a heron waits"] and await store.read(count, "index_unplaced") == 0


async def test_a_long_conversation_has_several_blocks_and_is_found_and_removed_as_one(store: Store) -> None:
    """V06, X06: neighbours in the index are neighbours in the conversation."""

    def fill(db: Db) -> None:
        new_session(db, "s_1")
        new_session(db, "s_2")
        for place in (1, search_index.BLOCK - 1, search_index.BLOCK, search_index.BLOCK + 1, 3 * search_index.BLOCK):
            say(db, "s_1", f"heron {place}", first=place)
        say(db, "s_2", "heron of another")

    await store.write(fill)
    await search_index.catch_up(store)
    assert len(await store.read(best, "heron")) == 5
    assert len(await store.read(search_index.ranges, ANNA, "s_1")) == 1
    await store.write(sessions.delete, "s_1")
    assert await store.read(count, "message_terms") == await store.read(count, "index_blocks") == 1


def test_any_text_is_a_question_and_nobody_finds_what_others_said(tmp_path: Path) -> None:
    """X06, X19: by no kind of search, whatever is asked."""
    db = connect(tmp_path / "t.db", "process", 1 << 20)
    with contextlib.closing(db):
        migrations.migrate(db)
        for principal, session, kind in ((ANNA, "s_1", "named"), (BERT, "s_2", "named"), (ANNA, "s_3", "ephemeral")):
            new_session(db, session, principal=principal, kind=kind)  # type: ignore[arg-type]
            say(db, session, *(f"{session} said heron number {place} on 7 May, 大熊猫 🎉 to be" for place in range(20)))
        while search_index.index(db):
            pass

        @given(
            query=st.text() | st.text("heronsaid 1s2_3\"*'()大熊猫🎉May7 \x00") | st.text(min_size=3000, max_size=9000)
        )
        @examples(max_examples=200, deadline=None)
        def only_own(query: str) -> None:
            for session in (None, "s_1", "s_2", "s_3"):
                own = "s_1"
                question = ranking.Question(query, search_index.analyzer(db), 1e9)
                ranked, _ = ranking.search_ranked(db, question, text, principal=ANNA, session=session, own=own)
                words = AllWords(query, search_index.analyzer(db))
                plain, _ = search.search_messages(db, words, text, principal=ANNA, session=session, own=own)
                assert all(found.startswith("s_1 ") for found in (*ranked, *plain))
                assert len(question.terms) <= ranking.TERMS

        only_own()
        assert len(best(db, "heron", session=None)) == 20


# -- stores of an earlier format ---------------------------------------------------------------------------------------


MESSAGES = 150


@pytest.fixture
def former(path: Path) -> Path:
    """A store as the previous format wrote it, completely indexed."""
    with contextlib.closing(connect(path, "process", 1 << 20)) as db:
        for number, step in enumerate(migrations.MIGRATIONS[:12], start=1):
            with db:
                step(db)
                db.execute(f"PRAGMA user_version = {number}")
                db.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
        for place, (session, principal) in enumerate((("s_1", ANNA), ("s_2", BERT))):
            db.execute(
                "INSERT INTO sessions(id, principal, channel, name, kind, agent, title, created, active)"
                " VALUES(?, ?, 'http', NULL, 'named', 'main', ?, 1, 1)",
                (session, principal, f"Birds of {principal}"),
            )
            db.execute("INSERT INTO indexed_extents VALUES(?, ?, 4096, 1)", (principal, 4096 * place))
            db.execute("INSERT INTO indexed_sessions VALUES(?, ?)", (session, 4096 * place))
            for seq in range(1, MESSAGES + 1):
                said = f"{session} saw heron{seq} and herons" if seq % 50 == 1 else f"{session} saw nothing"
                body, packed = pack(Message(role="user", text=said))
                id = db.execute(
                    "INSERT INTO messages(session, seq, role, body, packed, at) VALUES(?, ?, 'user', ?, ?, 1)"
                    " RETURNING id",
                    (session, seq, body, packed),
                ).get
                db.execute("INSERT INTO messages_text(rowid, text) VALUES(?, ?)", (4096 * place << 32 | id, said))
        db.execute("UPDATE meta SET value = ? WHERE key = 'indexed'", (2 * MESSAGES,))
    return path


async def test_a_store_of_the_previous_format_is_indexed_again_while_searches_go_on(former: Path) -> None:
    """L18, X06: every message is found at every moment, and the earlier index is dropped at the end."""
    wanted = {f"s_1 saw heron{seq} and herons" for seq in range(1, MESSAGES + 1, 50)}
    async with Store.open(former) as store:
        assert await store.read(search_index.count_former) == 2 * MESSAGES
        steps = 0
        while await store.read(search_index.count_former):
            for query in ("herons", "what about the herons?"):
                assert set(await store.read(best, query)) & wanted == wanted, steps
            assert await store.read(best, "heron51 herons") and not await store.read(best, "heron7")
            for query in ("heron51", "birds"):
                assert await sessions_with(store, query, principal=ANNA) == ["s_1"]
            steps += 1
            await store.write(search_index.index_former, 70)
        assert steps >= 4
        assert set(await store.read(best, "herons")) == wanted
        assert await store.read(exact, "heron51") == ["s_1 saw heron51 and herons"]
        assert await store.read(count, "sqlite_master", "name LIKE 'messages_text%'") == 0
        assert await store.read(count, "message_terms") == 2 * MESSAGES


async def test_indexing_again_continues_after_a_kill(former: Path) -> None:
    """L18: each batch is committed with its mark, so nothing is missed and nothing is indexed twice."""
    for _ in range(4):
        async with Store.open(former) as store:
            before = await store.read(search_index.count_former)
            await store.write(search_index.index_former, 30)
            with pytest.raises(StoreFailed):
                await store.write(_broken_batch)
            assert await store.read(search_index.count_former) == max(0, before - 30)
    async with Store.open(former) as store:
        while await store.write(search_index.index_former, 30):
            pass
        assert await store.read(count, "message_terms") == 2 * MESSAGES
        assert await store.read(get_meta, "former") == 0


def _broken_batch(db: Db) -> None:
    search_index.index_former(db, 30)
    db.execute("SELECT * FROM nowhere")


async def test_a_session_deleted_while_the_store_is_indexed_again_leaves_nothing(former: Path) -> None:
    """V06: in neither index."""
    async with Store.open(former) as store:
        await store.write(search_index.index_former, 30)
        await store.write(sessions.delete, "s_1")
        assert await store.read(count, "messages_text") == MESSAGES
        while await store.write(search_index.index_former, 30):
            pass
        assert await store.read(count, "message_terms") == MESSAGES


async def test_a_turn_is_found_as_soon_as_it_is_complete(store: Store) -> None:
    """L20: the search itself indexes what waits."""
    await store.write(new_session, "s_1")
    await store.write(complete_turn, "s_1", "t_1", "a lonely heron")
    assert await store.read(search_index.is_behind, "t_2")
    await search_index.catch_up(store)
    assert await store.read(best, "herons") == ["a lonely heron"]
