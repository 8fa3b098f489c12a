"""Vectors of messages: filled in the background, fused with the words, bounded, owned, and never needed."""

import math
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.scripted.behaviour import Behaviour
from bench.scripted_model import ScriptedModel
from tests.recall.recall_store import BERT
from tests.recall.vector_store import open_vector_store, shown, usage_rows
from tidegate.errors import ToolFailed
from tidegate.recall.vectors import quantised
from tidegate.store import maintenance, ranking, sessions, vector_batches, vectors
from tidegate.store.tables.search.search_index import BLOCK
from tidegate.values import Message

pytestmark = pytest.mark.anyio

SYNONYMS = [["vessel", "boat", "ship"], ["crimson", "red"]]
"""The scripted embedding does not distinguish these words."""
MEANING = "the best matches by words and meaning first"
FILLER = [f"Entry {number} of the harbour log: wind and tide as usual." for number in range(12)]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(behaviour=Behaviour(synonyms=SYNONYMS)) as model:
        yield model


def misbehave(server: ScriptedModel, mood: str, times: int | None = None, **more: int) -> None:
    server.behave(Behaviour(synonyms=SYNONYMS, services={"embeddings": mood}, service_times=times, **more))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


async def test_a_message_without_a_word_of_the_question_is_found_by_its_meaning(
    home: Path, server: ScriptedModel
) -> None:
    """In the background, and by no search of its words alone."""
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", *FILLER, "My boat is red.", *FILLER)
        assert "My boat is red." not in shown(await recall.question("crimson vessel of mine"))
        await recall.fill()
        found = await recall.question("crimson vessel of mine")
        assert shown(found)[0] == "My boat is red." and MEANING in found
        assert (await recall.vectors.status()).waiting == 0


async def test_words_and_meaning_are_fused(home: Path, server: ScriptedModel) -> None:
    """A message that both rankings contain comes before those of one alone."""
    async with open_vector_store(home, server) as recall:
        await recall.say(
            "s_1", "The harbour master.", *FILLER, "A ship, crimson.", "The vessel in the harbour, crimson."
        )
        await recall.fill()
        assert shown(await recall.question("crimson vessel harbour"))[0] == "The vessel in the harbour, crimson."


async def test_only_new_messages_are_sent_and_none_twice(home: Path, server: ScriptedModel) -> None:
    """Also not after a restart; nothing is sent without a change."""
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", *FILLER)
        await recall.fill()
        await recall.fill()
        assert server.counts["texts"] == 12
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", "one more")
        await recall.fill()
        assert server.counts["texts"] == 13 and len(await recall.rows()) == 13


async def test_messages_beyond_one_block_get_vectors(home: Path, server: ScriptedModel) -> None:
    async with open_vector_store(home, server) as recall:
        for part in range(0, BLOCK + 40, 500):
            await recall.say("s_1", *(Message(role="tool", name="context_search", text="x") for _ in range(500)))
            assert part >= 0
        await recall.say("s_1", "My boat is red.")
        for _ in range(10):
            await recall.fill()
        assert server.counts["texts"] == 1, "messages that quote others get no vector"
        assert shown(await recall.question("crimson vessel"))[0] == "My boat is red."


async def test_another_model_makes_all_vectors_again_in_the_background(home: Path, server: ScriptedModel) -> None:
    """Vectors of the earlier model are never compared and are replaced; those of an unfinished change are used."""
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", *FILLER, "My boat is red.")
        await recall.fill()
        assert {len(vector) for _, _, vector in await recall.rows()} == {256}
    async with open_vector_store(home, server, model="dimensions = 64") as recall:
        found = await recall.question("crimson vessel")
        assert "My boat is red." not in shown(found), "the earlier vectors have another length"
        assert (await recall.vectors.status()).waiting == 1
        await recall.fill()
        assert shown(await recall.question("crimson vessel"))[0] == "My boat is red."
        stored = await recall.rows()
        assert {len(vector) for _, _, vector in stored} == {64} and len(stored) == 13
        assert (await recall.vectors.status()).bytes == 64 * 13


async def test_a_model_with_vectors_of_the_same_length_is_another_model(home: Path, server: ScriptedModel) -> None:
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", "My boat is red.")
        await recall.fill()
    async with open_vector_store(home, server, model='headers = { "X-Other" = "yes" }') as recall:
        await recall.fill()
        assert server.counts["texts"] == 1, "the same model"
        await recall.store.write(vectors.set_model, "another")
        assert await recall.store.read(vectors.nearest, bytes(256), "another", [(0, 2**60)], 10) == []


async def test_without_a_model_the_vectors_are_removed_in_batches(home: Path, server: ScriptedModel) -> None:
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", *(f"message {number}" for number in range(600)))
        for _ in range(3):
            await recall.fill()
        assert len(await recall.rows()) == 600
        assert await recall.store.write(vectors.remove_unused) == 0
        await recall.store.write(vectors.set_model, "")
        await recall.say("s_1", "later")
        await recall.index()
        assert await recall.store.read(vectors.count_due) == 0
        assert await recall.store.write(vectors.remove_unused) == vectors.REMOVED
        assert await recall.store.write(vectors.remove_unused) == 100
        assert await recall.rows() == [] and (await recall.store.read(vectors.model)).bytes == 0


async def test_nobodys_vectors_are_compared_with_anybody_elses(home: Path, server: ScriptedModel) -> None:
    """X06: neither in one conversation nor in all of a person; and other people's vectors are not even read."""
    async with open_vector_store(home, server) as recall:
        await recall.begin("s_b", principal=BERT)
        await recall.begin("s_2")
        await recall.say("s_1", "My boat is red.")
        await recall.say("s_2", "The ship was crimson.")
        await recall.say("s_b", "Bert's vessel is red as well.")
        await recall.fill()
        here = shown(await recall.question("crimson vessel"))
        assert here == ["My boat is red."]
        wide = recall.context("s_1", agent="wide")
        everywhere = shown(await recall.search("crimson vessel", context=wide, exact=False, everywhere=True))
        assert set(everywhere) == {"My boat is red.", "The ship was crimson."}
        bert = recall.context("s_b", agent="wide", principal=BERT)
        assert shown(await recall.search("crimson vessel", context=bert, exact=False, everywhere=True)) == [
            "Bert's vessel is red as well."
        ]
        # However many nearer ones somebody else has, they are not even compared.
        await recall.say("s_b", *["crimson vessel"] * 2 * ranking.NEAR)
        for _ in range(10):
            await recall.fill()
        assert shown(await recall.question("crimson vessels")) == ["My boat is red."]


async def test_a_deleted_conversation_leaves_no_vector(home: Path, server: ScriptedModel) -> None:
    """Nor does one that is deleted while its vectors are made."""
    async with open_vector_store(home, server) as recall:
        await recall.begin("s_2")
        await recall.say("s_1", *FILLER)
        await recall.say("s_2", "stays")
        await recall.fill()
        await recall.say("s_1", "being made")
        await recall.index()
        batch = await recall.store.read(vector_batches.next_batch, 2e12, 10, 1000)
        assert batch is not None and batch.session.id == "s_1"
        await recall.store.write(sessions.end, "s_1", reason="delete", hooks=(), now=1.0)
        assert await maintenance.delete_session(recall.store, "s_1")
        assert len(await recall.rows()) == 1
        number = (await recall.store.read(vectors.model)).number
        assert not await recall.store.write(vector_batches.save, batch, number, {13: bytes(256)})
        assert len(await recall.rows()) == 1 and await recall.store.read(vectors.count_due) == 0
        assert (await recall.store.read(vectors.model)).bytes == 256


@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("hang", "failed (timeout)"),
        ("status 500", "failed (overloaded)"),
        ("status 401", "failed (authorisation)"),
        ("garbage", "failed (protocol)"),
        ("html", "failed (protocol)"),
        ("impossible", "failed (protocol)"),
        ("zero", "has no vector for this query"),
        ("dimensions 7", "answered with a vector of 7 numbers instead of 256"),
    ],
)
async def test_a_search_answers_by_words_when_the_model_does_not(
    home: Path, server: ScriptedModel, mood: str, said: str
) -> None:
    """Down, slow, or with an answer that cannot be used: the output says so."""
    async with open_vector_store(home, server, query_seconds=0.3) as recall:
        await recall.say("s_1", *FILLER, "My boat is red.")
        await recall.fill()
        misbehave(server, mood)
        found = await recall.question("red boats")
        assert shown(found)[0] == "My boat is red."
        assert f"the embeddings model 'near' {said}, so only words were compared" in found
        assert "the best matches for any of the words first" in found


async def test_a_model_that_is_down_is_not_called_for_every_search(home: Path, server: ScriptedModel) -> None:
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", "My boat is red.")
        await recall.fill()
        misbehave(server, "status 503")
        await recall.question("red boats")
        calls = server.counts["embeddings"]
        found = await recall.question("red ships")
        assert "failed a moment ago and is not asked again yet" in found and server.counts["embeddings"] == calls
        misbehave(server, "")
        recall.clock.ahead += 61
        assert MEANING in await recall.question("red ships")


@pytest.mark.parametrize("mood", ["garbage", "fewer", "mixed", "impossible", "status 500", "cut", "dimensions 7"])
async def test_nothing_is_stored_of_an_answer_that_cannot_be_used(home: Path, server: ScriptedModel, mood: str) -> None:
    """The messages wait and get their vectors later. The status says what is wrong."""
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", "A first message.")
        await recall.fill()
        misbehave(server, mood)
        await recall.say("s_1", "My boat is red.", "And blue.")
        await recall.fill()
        assert len(await recall.rows()) == 1
        assert (await recall.vectors.status()).problem and (await recall.vectors.status()).waiting == 1
        misbehave(server, "")
        recall.clock.ahead += 1000
        await recall.fill()
        assert len(await recall.rows()) == 3 and (await recall.vectors.status()).problem == ""


async def test_a_text_that_the_model_refuses_is_skipped_and_no_other(home: Path, server: ScriptedModel) -> None:
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", *FILLER, "a forbidden word", "My boat is red.")
        misbehave(server, "refuse forbidden")
        await recall.fill()
        assert len(await recall.rows()) == 13 and (await recall.vectors.status()).waiting == 0
        assert "My boat is red." in shown(await recall.question("crimson vessel"))


async def test_an_endpoint_that_refuses_everything_loses_no_message(home: Path, server: ScriptedModel) -> None:
    """A wrong address or model name is not the fault of the messages."""
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", *FILLER)
        misbehave(server, "status 404")
        await recall.fill()
        await recall.fill()
        assert "no such model or path" in (await recall.vectors.status()).problem
        misbehave(server, "")
        recall.clock.ahead += 1000
        await recall.fill()
        assert len(await recall.rows()) == 12


async def test_texts_are_cut_to_what_the_model_accepts(home: Path, server: ScriptedModel) -> None:
    """A window that is shorter than known is learnt from the refusals."""
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", "red boat " * 5_000, "zwölf Boxkämpfer 日本語 " * 900)
        misbehave(server, "", text_tokens=300)
        await recall.fill()
        assert len(await recall.rows()) == 2
        assert max(len(request.body) for request in list(server.recorded)[-1:]) < 3_000


async def test_each_call_is_charged_to_the_conversation_whose_texts_it_contains(
    home: Path, server: ScriptedModel
) -> None:
    """One usage row for each call, with the provider's count and the price of the catalogue."""
    async with open_vector_store(home, server) as recall:
        await recall.begin("s_b", principal=BERT)
        await recall.say("s_1", "My boat is red.")
        await recall.say("s_b", "Bert says something else.")
        await recall.fill()
        await recall.question("crimson vessel")
        found = await recall.store.read(usage_rows)
        assert sorted(found[:2]) == [
            ("s_1", "text-embedding-3-small", 4, 80, None),
            ("s_b", "text-embedding-3-small", 7, 140, None),
        ]
        assert found[2:] == [("s_1", "text-embedding-3-small", 4, 80, "t_now")]


async def test_a_spent_budget_stops_the_vectors_of_its_user_alone(home: Path, server: ScriptedModel) -> None:
    """No call is made once it is spent; the messages wait, and a search goes on with words."""
    limit = '[budgets.small]\nper = "session"\neach = "total"\ntokens = 3\n'
    async with open_vector_store(home, server, extra=limit) as recall:
        await recall.begin("s_2")
        await recall.say("s_1", "My boat is red.")
        await recall.fill()
        await recall.say("s_1", "It is also fast.")
        await recall.say("s_2", "Another conversation.")
        await recall.fill()
        assert [row[0] for row in await recall.store.read(usage_rows)] == ["s_1", "s_2"]
        assert await recall.store.read(vectors.count_due) == 1
        found = await recall.question("red boats")
        assert shown(found)[0] == "My boat is red." and "(budgets.small)" in found
        assert server.counts["embeddings"] == 2


async def test_a_call_that_was_cut_off_is_charged_by_an_estimate(home: Path, server: ScriptedModel) -> None:
    async with open_vector_store(home, server, query_seconds=0.2) as recall:
        misbehave(server, "hang")
        await recall.say("s_1", "My boat is red.")
        await recall.question("a query of some length")
        ((session, _, tokens, _, _),) = await recall.store.read(usage_rows)
        assert session == "s_1" and tokens == 6


async def test_the_disk_space_is_bounded(home: Path, server: ScriptedModel) -> None:
    """Beyond the limit no vector is made, the status says so, and searches go on."""
    async with open_vector_store(home, server, context='vector_bytes = "1 MiB"') as recall:
        await recall.store.write(lambda db: db.execute("UPDATE vector_models SET bytes = ?", (1 << 20,)).fetchall())
        await recall.say("s_1", "My boat is red.")
        await recall.fill()
        assert await recall.rows() == [] and server.counts["embeddings"] == 0
        assert "the limit context.vector_bytes" in (await recall.vectors.status()).problem
        assert shown(await recall.question("red boats")) == ["My boat is red."]


async def test_the_pages_of_a_search_continue_it(home: Path, server: ScriptedModel) -> None:
    """With one vector for all pages; without the model, a search with vectors does not continue without them."""
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", *(f"The boat number {number} is red." for number in range(30)))
        await recall.fill()
        whole = shown(await recall.question("crimson ships", limit=30))
        calls = server.counts["embeddings"]
        pages, after = [], ""
        for _ in range(3):
            page = await recall.question("crimson ships", limit=10, after=after)
            pages += shown(page)
            after = page.partition("after='")[2].partition("'")[0]
        assert pages == whole and len(set(pages)) == 30 and server.counts["embeddings"] == calls
        misbehave(server, "status 500")
        with pytest.raises(ToolFailed, match="cannot be continued, since the embeddings model 'near' failed"):
            await recall.question("other words", limit=10, after="m10")


async def test_all_pages_together_have_each_message_once(home: Path, server: ScriptedModel) -> None:
    """Also those that are too many to be compared by their texts or their vectors."""
    async with open_vector_store(home, server) as recall:
        said = [f"The boat number {number} is red." for number in range(ranking.RERANKED + ranking.NEAR // 2)]
        await recall.say("s_1", *said)
        await recall.fill()
        found, after = [], ""
        while True:
            page = await recall.question("red boats", limit=40, after=after)
            found += shown(page)
            after = page.partition("after='")[2].partition("'")[0]
            if not after.startswith("m"):
                break
        assert sorted(found) == sorted(said)


async def test_undone_and_running_messages_are_not_found(home: Path, server: ScriptedModel) -> None:
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", "My boat is red.", turn="t_now")
        await recall.fill()
        assert shown(await recall.question("crimson vessel")) == []
        await recall.say("s_1", "My ship is red.")
        await recall.fill()
        await recall.store.write(lambda db: db.execute("UPDATE messages SET undone = 1.0").fetchall())
        assert shown(await recall.question("crimson vessel")) == []
        await recall.store.write(vectors.set_model, "")
        await recall.store.write(vectors.set_model, recall.vectors.identity)
        await recall.fill()
        assert await recall.rows() == [], "undone messages get no vector"


async def test_the_number_of_compared_vectors_is_bounded(home: Path, server: ScriptedModel) -> None:
    """The newest are compared."""
    async with open_vector_store(home, server) as recall:
        await recall.say("s_1", "My boat is red.", *FILLER, "My ship is red.")
        await recall.fill()
        query = await recall.vectors.query("crimson vessel", "s_1", "t_now")
        everything = [(0, 2**60)]
        near = await recall.store.read(vectors.nearest, query.vector, query.identity, everything, 2)
        assert sorted(number for number, _ in near) == [1, 14]
        near = await recall.store.read(vectors.nearest, query.vector, query.identity, everything, 9, compared=5)
        assert near[0][0] == 14 and min(near)[0] == 10


@pytest.mark.parametrize("numbers", [[0.5, -0.25, 0.1], [1e30, -1e30, 3e29], [1e-20, -3e-21, 0.0]])
def test_a_stored_vector_has_the_direction_of_the_original(numbers: list[float]) -> None:
    stored = array("b", quantised(array("f", numbers)))
    product = sum(a * b for a, b in zip(stored, numbers, strict=True))
    assert product / math.hypot(*stored) / math.hypot(*numbers) > 0.9999


def test_a_vector_without_direction_is_not_stored() -> None:
    assert quantised(array("f", [0.0, 0.0])) == b""
