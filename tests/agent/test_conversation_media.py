"""Sounds and documents in a conversation: loaded only while a request is written, otherwise described in words."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.scripted_model import ScriptedModel
from tests.agent.test_conversation import Files, conversation
from tests.models.support import Listener, configured
from tests.spool.sounds import mp3, wav
from tidegate.agent import Conversation
from tidegate.agent.conversation import LOADED_BYTES, weigh_media
from tidegate.models import Model
from tidegate.spool import DOCUMENT_BYTES, SOUND_BYTES
from tidegate.values import Call, Media, Message, ToolCall

pytestmark = pytest.mark.anyio
WAV, MP3 = wav(0.2), mp3(8)
FILES = {"sp_1": wav(3), "sp_2": mp3(100), "sp_3": wav(30)}


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as server:
        yield server


@pytest.fixture
async def hearing(server: ScriptedModel) -> AsyncIterator[Model]:
    async with configured(server.base_url, audio=True) as model:
        yield model


@pytest.fixture
async def deaf(server: ScriptedModel) -> AsyncIterator[Model]:
    async with configured(server.base_url, audio=False) as model:
        yield model


def spooled(id: str, seconds: float = 3.0) -> Media:
    media_type = "audio/mpeg" if id == "sp_2" else "audio/wav"
    return Media(media_type=media_type, spooled=id, seconds=seconds)


def turn(*media: Media, id: str = "a") -> list[Message]:
    return [
        Message(role="user", text="hello"),
        Message(role="assistant", calls=(ToolCall(id=id, name="read_file", arguments="{}"),), finish="tool_calls"),
        Message(role="tool", call_id=id, name="read_file", text=f"result {id}", media=media),
    ]


async def sent(server: ScriptedModel, held: Conversation) -> list[dict[str, Any]]:
    listener = Listener()
    await held.ask(Call(), on_text=listener.pieces.append, on_reset=listener.reset)
    assert server.stats()["refused"] == 0
    messages: list[dict[str, Any]] = server.recorded[-1].decoded()["messages"][1:]
    return messages


def sounds(messages: list[dict[str, Any]]) -> list[tuple[str, bytes]]:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    given = [part["input_audio"] for part in parts if part["type"] == "input_audio"]
    return [(sound["format"], base64.b64decode(sound["data"])) for sound in given]


async def test_sounds_of_results_and_of_users_reach_the_model_in_order(server: ScriptedModel, hearing: Model) -> None:
    """D3: byte for byte, spooled and inline, from tools and from callers."""
    files = Files(**FILES)
    said = Message(role="user", text="and this?", media=(Media(media_type="audio/mpeg", data=MP3), spooled("sp_3", 30)))
    held = conversation(hearing, [*turn(spooled("sp_1"), Media(media_type="audio/wav", data=WAV)), said], files)
    messages = await sent(server, held)
    assert sounds(messages) == [("wav", FILES["sp_1"]), ("wav", WAV), ("mp3", MP3), ("wav", FILES["sp_3"])]
    assert "read_file (audio/wav, 3.0 s)" in msgspec.json.encode(messages).decode()
    await held.release()


async def test_sounds_are_held_only_while_a_request_is_written(server: ScriptedModel, hearing: Model) -> None:
    """D3: between requests only their names are in memory; during one they are accounted for."""
    files = Files(**FILES)
    held = conversation(hearing, turn(spooled("sp_3", 30)), files)
    before = held.weight
    assert files.loaded == [] and before < 4000
    during: list[int] = []
    for _ in range(2):
        await held.ask(Call(), on_text=lambda _text: during.append(held.request_bytes), on_reset=lambda *_: None)
    assert files.loaded == ["sp_3", "sp_3"]
    assert min(during) > len(FILES["sp_3"]) * 4 / 3 and held.request_bytes == 0
    assert held.weight == before
    await held.release()


async def test_a_model_without_sound_support_gets_words_and_nothing_is_loaded(
    server: ScriptedModel, deaf: Model
) -> None:
    """D3: media that a model does not accept become a note."""
    files = Files(**FILES)
    held = conversation(deaf, turn(spooled("sp_1"), Media(media_type="audio/mpeg", data=MP3)), files)
    messages = await sent(server, held)
    assert sounds(messages) == [] and files.loaded == []
    words = msgspec.json.encode(messages).decode()
    assert "[A sound (audio/wav, 3.0 s) stands here, which this model cannot hear.]" in words
    assert "[A sound (audio/mpeg) stands here, which this model cannot hear.]" in words
    await held.release()


async def test_a_missing_or_oversized_sound_is_replaced_by_words(server: ScriptedModel, hearing: Model) -> None:
    """D3, D5: the largest one fits alone; the next one is omitted, always the same one."""
    assert SOUND_BYTES <= LOADED_BYTES
    files = Files(sp_1=b"RIFF\0\0\0\0WAVE" + bytes(SOUND_BYTES - 12), sp_3=bytes(LOADED_BYTES - SOUND_BYTES + 1))
    held = conversation(hearing, turn(spooled("sp_1"), spooled("sp_2"), spooled("sp_3")), files)
    messages = await sent(server, held)
    assert sounds(messages) == [("wav", files.given["sp_1"])]
    words = messages[2]["content"]
    assert words == (
        "result a\nSound 2 is no longer available.\n"
        "Sound 3 is omitted: this conversation has more media than fit in a request."
    )
    await held.release()


async def test_a_missing_or_oversized_document_is_replaced_by_words(server: ScriptedModel) -> None:
    """D3, D5: the largest one fits alone."""
    assert DOCUMENT_BYTES <= LOADED_BYTES
    files = Files(sp_1=b"%PDF-1.7" + bytes(DOCUMENT_BYTES - 8), sp_3=bytes(LOADED_BYTES - DOCUMENT_BYTES + 1))
    papers = [Media(media_type="application/pdf", spooled=f"sp_{place}", name="a.pdf") for place in (1, 2, 3)]
    async with configured(server.base_url, vision=True) as model:
        held = conversation(model, turn(*papers), files)
        messages = await sent(server, held)
        await held.release()
    assert messages[2]["content"] == (
        "result a\nDocument 2 is no longer available.\n"
        "Document 3 is omitted: this conversation has more media than fit in a request."
    )
    (shown,) = [part["file"] for part in messages[3]["content"] if part["type"] == "file"]
    assert base64.b64decode(shown["file_data"].partition(",")[2]) == files.given["sp_1"]


def test_a_larger_document_is_estimated_to_cost_more() -> None:
    """By its size, inline or not, up to the longest document that providers accept."""
    sizes = (10, 100_000, 1_000_000, 5_000_000, DOCUMENT_BYTES)
    costs = [weigh_media(Media(media_type="application/pdf", spooled="sp_1", size=size)) for size in sizes]
    assert costs == sorted(costs) and costs[0] == 6400 and costs[1] == 3 * 6400
    assert costs[-2:] == [640_000, 640_000]


async def test_a_longer_sound_is_estimated_to_cost_more(hearing: Model) -> None:
    """By its seconds, not its bytes."""
    files = Files(**FILES)
    costs: list[int] = []
    for media in (spooled("sp_1", 1), spooled("sp_1", 60), spooled("sp_1", 3600)):
        held = conversation(hearing, turn(media), files)
        costs.append(held.estimated_bytes)
        await held.release()
    assert costs == sorted(set(costs))
    assert costs[2] > 100_000


media = st.sampled_from(
    [
        spooled("sp_1"),
        spooled("sp_2", 2.6),
        Media(media_type="audio/wav", data=WAV, seconds=0.2),
        Media(media_type="audio/mpeg", data=MP3),
    ]
)


@given(st.lists(st.lists(media, max_size=3), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_reloaded_conversation_with_sounds_is_the_same(
    server: ScriptedModel, hearing: Model, steps: list[list[Media]]
) -> None:
    """D3, B4, S32: the same bytes after a round trip through the store's JSON; and requests only grow."""
    rows = [message for place, given in enumerate(steps) for message in turn(*given, id=f"c{place}")]
    stored = [msgspec.json.decode(msgspec.json.encode(row), type=Message) for row in rows]
    bodies: list[bytes] = []
    for messages in (rows[:-3], rows, stored):
        if messages:
            held = conversation(hearing, messages, Files(**FILES))
            await sent(server, held)
            bodies.append(server.recorded[-1].body)
            await held.release()
    assert bodies[-1] == bodies[-2]
    assert bodies[-1].startswith(bodies[0].removesuffix(b"]}"))
