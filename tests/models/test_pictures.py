"""Pictures in chat completions: as users' parts, in data URLs, and checked as strictly as a provider does."""

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

from bench.scripted_model import ScriptedModel
from bench.scripted_wire import IMAGE_BYTES, Image, ImageUrl, Refusal, check_images
from tests.models.support import ask, configured
from tests.models.test_scripted_model import calling, post, result
from tidegate.models.demo_script import read_request, reply
from tidegate.models.openai_wire import ASIDE_HEADING, OpenAIWire
from tidegate.values import Media, Message

pytestmark = pytest.mark.anyio
WIRE = OpenAIWire()
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PICTURE = Media(media_type="image/png", data=PNG, width=4, height=3)
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


def test_a_picture_is_a_part_behind_the_words() -> None:
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


def test_a_tools_result_goes_without_its_pictures() -> None:
    """D3: they follow in a message that this format takes them from."""
    plain = Message(role="tool", call_id="c", name="read_file", text="a picture")
    assert WIRE.encode(msgspec.structs.replace(plain, media=(PICTURE,))) == WIRE.encode(plain)


@given(messages)
def test_a_message_with_pictures_encodes_to_the_same_canonical_bytes_when_reloaded(message: Message) -> None:
    """B4, S32: there and back through the store's JSON."""
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    encoded = WIRE.encode(message)
    assert WIRE.encode(stored) == encoded
    assert msgspec.json.encode(msgspec.json.decode(encoded)) == encoded


def test_a_picture_that_was_not_loaded_is_a_mistake_of_ours() -> None:
    """D3: nothing is sent in its place."""
    with pytest.raises(ValueError, match="sp_1 was not loaded"):
        WIRE.encode(Message(role="user", media=(Media(media_type="image/png", spooled="sp_1"),)))


def test_the_demo_model_goes_on_after_pictures() -> None:
    """D3: what follows its tool's result is not a message of the user's."""
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
async def test_the_scripted_model_refuses_what_is_no_picture(server: ScriptedModel, message: dict[str, Any]) -> None:
    status, answer = await post(server, {"model": "m", "messages": [message]})
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"


def test_the_scripted_model_refuses_a_picture_that_is_too_large() -> None:
    large = "data:image/png;base64," + base64.b64encode(PNG + bytes(IMAGE_BYTES)).decode()
    with pytest.raises(Refusal, match="larger than"):
        check_images([Image(image_url=ImageUrl(url=large))], "user", "messages.[0]")


async def test_the_scripted_model_takes_pictures_of_users_and_no_others(server: ScriptedModel) -> None:
    user = {"role": "user", "content": "hi"}
    status, answer = await post(server, {"model": "m", "messages": [user, looking(GOOD, detail="low")]})
    assert status == 200
    assert answer["usage"]["prompt_tokens"] > 1600
    shown = {**result("a"), "content": looking(GOOD)["content"]}
    status, answer = await post(server, {"model": "m", "messages": [user, calling("a"), shown]})
    assert status == 400


async def test_a_picture_reaches_the_model_as_it_is(server: ScriptedModel) -> None:
    """D3: over the wire, to a strict server."""
    async with configured(server.base_url) as asked:
        await ask(asked, [Message(role="user", text="look", media=(PICTURE,))])
    sent = server.recorded[-1].decoded()["messages"][-1]["content"][1]["image_url"]["url"]
    assert base64.b64decode(sent.partition(",")[2]) == PNG
