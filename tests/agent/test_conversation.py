"""Pictures in a conversation: they follow their results, are loaded only for a request, and are the same after a
reload."""

import base64
import hashlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.scripted_model import ScriptedModel
from tests.models.support import PREFIX, Listener, configured
from tidegate.agent import Conversation, in_call_order
from tidegate.agent.conversation import LOADED_BYTES, PICTURE_TEXT_BYTES
from tidegate.models import Model
from tidegate.tools import Toolset
from tidegate.values import Call, Media, Message, OpaqueItem, ToolCall, Usage

pytestmark = pytest.mark.anyio
PNG = b"\x89PNG\r\n\x1a\n"


class Files:
    """The files of a spool, and how often each was read."""

    def __init__(self, **given: bytes) -> None:
        self.given = given
        self.loaded: list[str] = []

    async def load(self, id: str) -> bytes:
        self.loaded.append(id)
        if id not in self.given:
            raise FileNotFoundError(2, "No such file", id)
        return self.given[id]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as server:
        yield server


@pytest.fixture
async def model(server: ScriptedModel) -> AsyncIterator[Model]:
    async with configured(server.base_url, vision=True) as model:
        yield model


def conversation(model: Model, messages: Sequence[Message] = (), files: Files | None = None) -> Conversation:
    given: dict[str, Any] = {} if files is None else {"load": files.load}
    return Conversation(
        model=model,
        lease=model.lease(),
        prefix=model.wire.encode_prefix(PREFIX),
        tools=Toolset(),
        signature=b"",
        messages=messages,
        **given,
    )


def spooled(id: str, note: str = "") -> Media:
    return Media(media_type="image/png", spooled=id, width=20, height=10, note=note)


def inline(data: bytes = PNG + b"small") -> Media:
    return Media(media_type="image/png", data=data, width=2, height=1)


def calling(*ids: str) -> Message:
    calls = tuple(ToolCall(id=id, name="read_file", arguments="{}") for id in ids)
    return Message(role="assistant", calls=calls, finish="tool_calls")


def result(id: str, *media: Media) -> Message:
    return Message(role="tool", call_id=id, name="read_file", text=f"result {id}", media=media)


def user(text: str = "hello") -> Message:
    return Message(role="user", text=text)


async def sent(server: ScriptedModel, held: Conversation) -> list[dict[str, Any]]:
    """The messages that the model receives, as a strict server accepted them."""
    listener = Listener()
    await held.ask(Call(), on_text=listener.pieces.append, on_reset=listener.reset)
    assert server.stats()["refused"] == 0
    messages: list[dict[str, Any]] = server.recorded[-1].decoded()["messages"][1:]
    return messages


def pictures(message: dict[str, Any]) -> list[bytes]:
    parts = message["content"] if isinstance(message["content"], list) else []
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


async def test_pictures_follow_the_last_result_of_their_step(server: ScriptedModel, model: Model) -> None:
    """D3: in one message, in the order of the calls; the results themselves are text."""
    files = Files(sp_1=PNG + b"one", sp_2=PNG + b"two")
    held = conversation(model, [user()], files)
    held.extend(
        [
            calling("a", "b", "c"),
            result("a", spooled("sp_1", "scaled from 60 x 30")),
            result("b"),
            result("c", inline(), spooled("sp_2")),
        ]
    )
    held.append(user("and now?"))
    messages = await sent(server, held)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "tool", "user", "user"]
    assert [message["content"] for message in messages[2:5]] == ["result a", "result b", "result c"]
    assert pictures(messages[5]) == [PNG + b"one", PNG + b"small", PNG + b"two"]
    told = messages[5]["content"][0]["text"]
    assert told.startswith("[Note from the gateway")
    assert "read_file (20 x 10, scaled from 60 x 30); read_file (2 x 1); read_file (20 x 10)." in told
    await held.release()


async def test_a_conversation_without_carried_reasoning_equals_a_new_one(model: Model) -> None:
    """S33: the estimate of its cost, too."""
    said = [user(), calling("a"), result("a", spooled("sp_1")), user("and now?")]
    held = conversation(model, said, Files(sp_1=PNG + b"one"))
    expected = (held.weight, held.estimated_bytes)
    held.drop_carried(said)
    assert (held.weight, held.estimated_bytes) == expected
    await held.release()


async def test_a_conversation_loaded_at_once_equals_one_that_grew(model: Model) -> None:
    """B4, S03: the same bytes, the same estimate and the same count, for every kind of message."""
    said: list[Message] = []
    for number in range(200):
        usage = Usage(input=500 + 40 * number, output=9, estimated=number > 150)
        said += (user(f"question {number} ☃"), answer(f"answer {number}", model, usage))
        if number % 20 == 7:
            said += (calling("a", "b"), result("b"), result("a", spooled("p1") if number > 100 else inline()))
    said = in_call_order(said)
    grown, loaded = conversation(model), conversation(model, said)
    for message in said:
        grown.append(message)
    assert joined(grown) == joined(loaded)
    assert (grown.tokens, grown.estimated_bytes) == (loaded.tokens, loaded.estimated_bytes)
    assert grown.has_token_count and loaded.has_token_count
    before = loaded.estimated_bytes
    loaded.extend([user("x" * 1000), answer("y" * 1000, model, Usage(input=1, output=1))])
    assert 2000 < loaded.estimated_bytes - before < 2200
    await grown.release()
    await loaded.release()


def answer(text: str, model: Model, usage: Usage) -> Message:
    return Message(role="assistant", text=text, finish="stop", model=model.provider_model, usage=usage)


def joined(held: Conversation) -> list[Any]:
    """The history, with neighbouring encoded pieces joined."""
    kinds = itertools.groupby(held.history.parts, type)
    return [b",".join(cast(Any, parts)) if kind is bytes else list(parts) for kind, parts in kinds]


async def test_pictures_are_loaded_only_while_a_request_is_written(server: ScriptedModel, model: Model) -> None:
    """D3: none of them stays in memory between requests, and during one they are accounted for."""
    files = Files(sp_1=PNG + bytes(1_000_000))
    held = conversation(model, [user(), calling("a"), result("a", spooled("sp_1"))], files)
    before = held.weight
    assert files.loaded == [] and before < 4000
    during: list[int] = []
    for _ in range(2):
        await held.ask(Call(), on_text=lambda _text: during.append(held.request_bytes), on_reset=lambda *_: None)
    assert files.loaded == ["sp_1", "sp_1"]
    assert 1_300_000 < min(during) == max(during), "one request after another counts as one"
    assert held.request_bytes == 0
    assert held.weight == before
    assert all(len(msgspec.json.encode(kept)) < 1000 for kept in held.history.parts if isinstance(kept, tuple))
    await held.release()


steps = st.lists(
    st.tuples(
        st.lists(
            st.lists(st.sampled_from([inline(), spooled("sp_1"), spooled("sp_2"), spooled("sp_gone")]), max_size=3),
            min_size=1,
            max_size=3,
        ),
        st.permutations(range(3)),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@given(steps)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_reloaded_conversation_sends_the_same_bytes_and_only_grows(given: list[Any]) -> None:
    """B4, D3, S32: live and reloaded at every step, in whatever order the results were committed."""
    async with ScriptedModel() as server, configured(server.base_url) as model:
        files = Files(sp_1=PNG + b"one", sp_2=PNG + b"two")
        live = conversation(model, [], files)
        rows: list[Message] = []
        bodies: list[bytes] = []
        ids = itertools.count()
        for shown, order, noted in given:
            names = [f"c{next(ids)}" for _ in shown]
            results = [result(name, *media) for name, media in zip(names, shown, strict=True)]
            step = [user(f"step {len(bodies)}"), calling(*names)]
            note = [Message(role="user", aside="a note")] if noted else []
            live.extend([*step, *results, *note])
            rows += [*step, *(results[place] for place in order if place < len(results)), *note]
            await sent(server, live)
            bodies.append(server.recorded[-1].body)
            stored = [msgspec.json.decode(msgspec.json.encode(row), type=Message) for row in rows]
            reloaded = conversation(model, in_call_order(stored), files)
            await sent(server, reloaded)
            assert server.recorded[-1].body == bodies[-1]
            await reloaded.release()
        for before, after in itertools.pairwise(bodies):
            assert after.startswith(before.removesuffix(b"]}"))
        await live.release()


async def test_a_missing_picture_is_replaced_by_words(server: ScriptedModel, model: Model) -> None:
    """D3, D5: the conversation continues."""
    files = Files(sp_1=PNG + b"one")
    held = conversation(model, [user(), calling("a"), result("a", spooled("sp_gone"), spooled("sp_1"))], files)
    messages = await sent(server, held)
    assert pictures(messages[-1]) == [PNG + b"one"]
    assert messages[-2]["content"] == "result a\nPicture 1 is no longer available."
    await held.release()


async def test_pictures_beyond_the_limit_are_omitted_from_the_end(server: ScriptedModel, model: Model) -> None:
    """D7, S32: a request is bounded, and begins like the one before."""
    files = Files(sp_1=PNG + bytes(LOADED_BYTES // 5))
    held = conversation(model, [user()], files)
    bodies: list[bytes] = []
    for place in range(7):
        held.extend([calling(f"c{place}"), result(f"c{place}", spooled("sp_1"))])
        messages = await sent(server, held)
        bodies.append(server.recorded[-1].body)
    assert sum(len(pictures(message)) for message in messages) == 4
    assert "omitted" in messages[-1]["content"]
    for before, after in itertools.pairwise(bodies):
        assert after.startswith(before.removesuffix(b"]}"))
    await held.release()


async def test_loading_carried_reasoning_hashes_the_prefix_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """S32: the tools may be long, and so may the history."""
    carried = (OpaqueItem(item=msgspec.Raw(b'{"message":{"reasoning":"so"}}'), text=0, calls=0),)
    past = [
        Message(role="assistant", text="yes", model=model.provider_model, carrier="openai-chat", carried=carried)
    ] * 50
    digests: list[bytes] = []
    digest = hashlib.blake2b

    def counted(data: bytes, **given: Any) -> Any:
        digests.append(data)
        return digest(data, **given)

    monkeypatch.setattr(hashlib, "blake2b", counted)
    conversation(model, past)
    assert len(digests) == 1


async def test_a_users_pictures_are_sent_with_the_message(server: ScriptedModel, model: Model) -> None:
    """D3: inline or spooled."""
    files = Files(sp_1=PNG + b"one")
    said = Message(role="user", text="look at this", media=(inline(), spooled("sp_1")))
    held = conversation(model, [said, Message(role="user", text="and this", media=(inline(),))], files)
    messages = await sent(server, held)
    assert [pictures(message) for message in messages] == [[PNG + b"small", PNG + b"one"], [PNG + b"small"]]
    assert messages[0]["content"][0]["text"] == "look at this"
    await held.release()


async def test_pictures_of_a_result_are_shown_although_another_result_is_missing(model: Model) -> None:
    """D3: nothing is lost, and nothing is shown twice."""
    held = conversation(
        model, [user(), calling("a", "b"), result("a", inline()), user("go on"), calling("c"), result("c")]
    )
    parts = [kept for kept in held.history.parts if isinstance(kept, bytes)]
    kinds = [said["role"] for said in msgspec.json.decode(b"[" + b",".join(parts) + b"]")]
    assert kinds == ["user", "assistant", "tool", "user", "user", "assistant", "tool"]
    await held.release()


async def test_without_a_loader_a_spooled_picture_fails_clearly(server: ScriptedModel, model: Model) -> None:
    held = conversation(model, [user(), calling("a"), result("a", spooled("sp_1"))])
    with pytest.raises(RuntimeError, match="sp_1 cannot be loaded: this conversation has no loader"):
        await sent(server, held)
    await held.release()


async def test_an_estimate_counts_a_picture_by_its_cost_and_not_by_its_bytes(model: Model) -> None:
    """D7: a large picture must not use up the day's budget if a provider does not count."""
    plain = conversation(model, [user(), calling("a"), result("a")])
    shown = conversation(model, [user(), calling("a"), result("a", inline(PNG + bytes(200_000)), spooled("sp_1"))])
    more = shown.estimated_bytes - plain.estimated_bytes
    assert 2 * PICTURE_TEXT_BYTES < more < 2 * PICTURE_TEXT_BYTES + 1000
    await plain.release()
    await shown.release()
