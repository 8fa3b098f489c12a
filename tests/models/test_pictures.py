"""Pictures in chat completions: parts of user messages, as data URLs, checked as strictly as by a provider."""

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

from bench.scripted.chat_request import Image, ImageUrl, check_media
from bench.scripted.interface import Refusal
from bench.scripted.media import IMAGE_BYTES
from bench.scripted_model import ScriptedModel
from tests.models.support import ask, configured
from tests.models.test_scripted_model import calling, post, result
from tidegate.models.catalog.facts import Facts
from tidegate.models.demo.script import read_request, reply
from tidegate.models.formats.openai.chat import ChatWire
from tidegate.models.formats.request_text import ASIDE_HEADING
from tidegate.values import Media, Message

pytestmark = pytest.mark.anyio
WIRE = ChatWire("m", Facts(vision=True, audio=True))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PICTURE = Media(media_type="image/png", data=PNG, width=4, height=3)
SOUND = Media(media_type="audio/mpeg", data=b"ID3 sound", seconds=2.5)
DOCUMENT = Media(media_type="application/pdf", data=b"%PDF-1.7", name="a.pdf", size=8)
texts = st.text(max_size=30)
pictures = st.builds(
    Media,
    media_type=st.sampled_from(["image/png", "image/jpeg", "image/gif", "image/webp"]),
    data=st.binary(min_size=1, max_size=60),
    width=st.integers(1, 2000),
    height=st.integers(1, 2000),
    note=texts,
)
messages = st.builds(
    Message, role=st.just("user"), text=texts, aside=texts, media=st.lists(pictures, min_size=1, max_size=3).map(tuple)
)


def test_a_picture_is_a_part_after_the_text() -> None:
    """D3: as media, not as a path."""
    encoded = WIRE.encode(Message(role="user", text="look", aside="a note", media=(PICTURE, PICTURE)))
    part = {"image_url": {"url": "data:image/png;base64," + base64.b64encode(PNG).decode()}, "type": "image_url"}
    assert msgspec.json.decode(encoded) == {
        "role": "user",
        "content": [
            {"text": "look", "type": "text"},
            {"text": ASIDE_HEADING + "a note", "type": "text"},
            part,
            part,
        ],
    }
    TypeAdapter(ChatCompletionMessageParam).validate_json(encoded)


def result_of(name: str, *shown: Media) -> Message:
    return Message(role="tool", call_id=f"of {name}", name=name, text=f"said by {name}", media=shown)


@pytest.mark.parametrize(("own_service", "detail"), [(True, "original"), (False, "high")])
def test_the_newest_detail_of_a_picture_is_sent_only_to_openais_own_service(own_service: bool, detail: str) -> None:
    """D3: a server that refuses it would refuse every later request of the conversation."""
    wire = ChatWire("m", Facts(vision=True), completion_tokens=own_service)
    picture = msgspec.structs.replace(PICTURE, detail="original")
    content = msgspec.json.decode(wire.encode(Message(role="user", text="look", media=(picture,))))["content"]
    assert content[1]["image_url"]["detail"] == detail


def test_media_of_results_follows_the_last_result_in_one_message() -> None:
    """D3: the format accepts media only from users, and nothing between the results of a step."""
    scaled = msgspec.structs.replace(PICTURE, note="scaled")
    encoded = WIRE.encode_results([result_of("a", PICTURE), result_of("b"), result_of("c", scaled, PICTURE)])
    *results, shown = msgspec.json.decode(b"[" + encoded + b"]")
    assert [(result["role"], result["content"]) for result in results] == [("tool", f"said by {n}") for n in "abc"]
    assert shown["role"] == "user"
    assert [part["type"] for part in shown["content"]] == ["text", "image_url", "image_url", "image_url"]
    assert shown["content"][0]["text"] == (
        ASIDE_HEADING + "Pictures that these results show, in this order: a (4 x 3); c (4 x 3, scaled); c (4 x 3)."
    )


def test_results_without_media_add_no_message() -> None:
    """D3, S32: a step without media costs no message."""
    assert len(msgspec.json.decode(b"[" + WIRE.encode_results([result_of("a"), result_of("b")]) + b"]")) == 2


@pytest.mark.parametrize(("media_type", "format"), [("audio/wav", "wav"), ("audio/mpeg", "mp3")])
def test_a_sound_is_sent_unchanged(media_type: str, format: str) -> None:
    """D3: in the two types that the format accepts."""
    sound = msgspec.structs.replace(SOUND, media_type=media_type)
    encoded = WIRE.encode(Message(role="user", text="listen", media=(sound,)))
    part = msgspec.json.decode(encoded)["content"][1]
    assert part == {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(SOUND.data).decode(), "format": format},
    }
    TypeAdapter(ChatCompletionMessageParam).validate_json(encoded)


def test_media_of_results_is_described_in_order() -> None:
    """D3: each by its kind."""
    encoded = WIRE.encode_results([result_of("a", SOUND, PICTURE)])
    shown = msgspec.json.decode(b"[" + encoded + b"]")[-1]["content"]
    assert "Pictures and sounds that these results show, in this order: a (audio/mpeg, 2.5 s); a (4 x 3)." in str(shown)
    assert [part["type"] for part in shown] == ["text", "input_audio", "image_url"]
    alone = msgspec.json.decode(b"[" + WIRE.encode_results([result_of("a", SOUND)]) + b"]")[-1]["content"]
    assert "]\nSounds that" in alone[0]["text"]


def test_documents_of_results_are_described_in_order() -> None:
    """D3: by file name, also next to other media."""
    encoded = WIRE.encode_results([result_of("a", DOCUMENT, PICTURE), result_of("b", SOUND)])
    shown = msgspec.json.decode(b"[" + encoded + b"]")[-1]["content"]
    assert shown[0]["text"] == ASIDE_HEADING + (
        "Pictures, sounds and documents that these results show, in this order: a (application/pdf, a.pdf); a (4 x 3); "
        "b (audio/mpeg, 2.5 s)."
    )
    assert [part["type"] for part in shown] == ["text", "file", "image_url", "input_audio"]
    url = "data:application/pdf;base64," + base64.b64encode(DOCUMENT.data).decode()
    assert shown[1] == {"type": "file", "file": {"filename": "a.pdf", "file_data": url}}


@pytest.mark.parametrize(
    ("facts", "media_type", "taken"),
    [
        (Facts(vision=True), "image/png", True),
        (Facts(vision=True), "image/tiff", False),
        (Facts(vision=True), "audio/wav", False),
        (Facts(audio=True), "audio/wav", True),
        (Facts(audio=True), "audio/ogg", False),
        (Facts(audio=True), "image/png", False),
        (Facts(vision=True), "application/pdf", True),
        (Facts(audio=True), "application/pdf", False),
        (Facts(), "image/png", False),
    ],
)
def test_unsupported_media_is_replaced_by_a_note(facts: Facts, media_type: str, taken: bool) -> None:
    """D3, A2: if the model or the format does not accept it, loaded or not."""
    wire = ChatWire("m", facts)
    assert wire.takes(media_type) is taken
    if not taken:
        media = Media(media_type=media_type, spooled="sp_1", width=4, height=3)
        (part,) = msgspec.json.decode(wire.encode(Message(role="user", media=(media,))))["content"]
        assert part["type"] == "text"
        assert "stands here, which this model cannot" in part["text"]


@given(messages)
def test_a_message_with_pictures_encodes_to_the_same_canonical_bytes_when_reloaded(message: Message) -> None:
    """B4, S32: after a round trip through the store's JSON."""
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    encoded = WIRE.encode(message)
    assert WIRE.encode(stored) == encoded
    assert msgspec.json.encode(msgspec.json.decode(encoded)) == encoded


def test_encoding_a_picture_that_was_not_loaded_is_an_error() -> None:
    """D3: nothing is sent instead."""
    with pytest.raises(ValueError, match="sp_1 was not loaded"):
        WIRE.encode(Message(role="user", media=(Media(media_type="image/png", spooled="sp_1"),)))


def test_the_demo_model_continues_after_pictures() -> None:
    """D3: media after a tool result is not a message of the user."""
    said = [
        {"role": "user", "content": "read file x.png"},
        calling("a"),
        {"role": "tool", "tool_call_id": "a", "content": "a picture"},
        msgspec.json.decode(WIRE.encode(Message(role="user", aside="Pictures: x", media=(PICTURE,)))),
    ]
    assert reply(read_request(msgspec.json.encode({"messages": said}))).text == "The clock says: a picture"


# -- the scripted server -----------------------------------------------------------------------------------------------


def looking(url: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url, **more}}]}


GOOD = "data:image/png;base64," + base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    "message",
    [
        looking("https://example.org/x.png"),
        looking("file:///etc/passwd"),
        looking("data:image/svg+xml;base64,AAAA"),
        looking("data:image/png,AAAA"),
        looking("data:image/png;base64,not base64!"),
        looking("data:image/jpeg;base64," + base64.b64encode(PNG).decode()),
        looking(GOOD, detail="most"),
        {"role": "user", "content": [{"type": "image_url", "image_url": GOOD}]},
        {"role": "user", "content": [{"type": "picture", "picture": GOOD}]},
        {"role": "system", "content": looking(GOOD)["content"]},
    ],
)
async def test_the_scripted_model_refuses_an_invalid_picture(server: ScriptedModel, message: dict[str, Any]) -> None:
    status, answer = await post(server, {"model": "m", "messages": [message]})
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"


def test_the_scripted_model_refuses_a_picture_that_is_too_large() -> None:
    large = "data:image/png;base64," + base64.b64encode(PNG + bytes(IMAGE_BYTES)).decode()
    with pytest.raises(Refusal, match="larger than"):
        check_media([Image(image_url=ImageUrl(url=large))], "user", "messages.[0]")


async def test_the_scripted_model_accepts_pictures_only_from_users(server: ScriptedModel) -> None:
    user = {"role": "user", "content": "hi"}
    status, answer = await post(server, {"model": "m", "messages": [user, looking(GOOD, detail="low")]})
    assert status == 200
    assert answer["usage"]["prompt_tokens"] > 1600
    shown = {**result("a"), "content": looking(GOOD)["content"]}
    status, answer = await post(server, {"model": "m", "messages": [user, calling("a"), shown]})
    assert status == 400


async def test_a_picture_reaches_the_model_unchanged(server: ScriptedModel) -> None:
    """D3: over the wire, to a strict server."""
    async with configured(server.base_url, vision=True) as asked:
        await ask(asked, [Message(role="user", text="look", media=(PICTURE,))])
    sent = server.recorded[-1].decoded()["messages"][-1]["content"][1]["image_url"]["url"]
    assert base64.b64decode(sent.partition(",")[2]) == PNG
