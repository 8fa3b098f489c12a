"""The demo model's replies to pictures and sounds: a description, so that users see that they arrived."""

from typing import Any

import msgspec
import pytest

from tests.spool.sounds import wav
from tidegate.models.demo.model import FACTS
from tidegate.models.demo.script import read_request, reply
from tidegate.models.formats.openai.chat import ChatWire
from tidegate.values import Media, Message, ToolCall

WIRE = ChatWire("demo", FACTS)
SOUND = Media(media_type="audio/wav", data=wav(0.5), seconds=0.5)
SONG = Media(media_type="audio/mpeg", data=bytes(1000))
PAPER = Media(media_type="application/pdf", data=bytes(55), name="a.pdf", size=55)
PICTURE = Media(media_type="image/png", data=bytes(77), width=4, height=3)


def demo_answer(*messages: Message) -> str:
    encoded: list[Any] = [msgspec.Raw(WIRE.encode(message)) for message in messages]
    return reply(read_request(msgspec.json.encode({"messages": encoded}))).text


@pytest.mark.parametrize(
    ("media", "told"),
    [
        ((SOUND,), "a sound (wav, 16044 bytes)"),
        ((SONG,), "a sound (mp3, 1000 bytes)"),
        ((PICTURE,), "an image (png, 77 bytes)"),
        ((PAPER,), "a document (a.pdf, 55 bytes)"),
        ((SOUND, SONG, PICTURE), "a sound (wav, 16044 bytes), a sound (mp3, 1000 bytes) and an image (png, 77 bytes)"),
    ],
)
def test_it_describes_media_in_a_message(media: tuple[Media, ...], told: str) -> None:
    """D3: with text and without."""
    assert demo_answer(Message(role="user", media=media)).startswith(f"You gave me {told}. I am only the demo model")
    assert demo_answer(Message(role="user", text="who sings?", media=media)).startswith(
        f'You gave me {told}, and said: "who sings?".'
    )
    assert demo_answer(Message(role="user", text="say hello", media=media)) == "hello"


def test_it_describes_media_of_a_tool_result() -> None:
    """D3: media after a tool result is not the user's."""
    call = ToolCall(id="a", name="read_file", arguments="{}")
    result = Message(role="tool", call_id="a", name="read_file", text="[a sound]", media=(SOUND,))
    encoded = [
        WIRE.encode(Message(role="user", text="read file x.wav")),
        WIRE.encode(Message(role="assistant", calls=(call,), finish="tool_calls")),
        WIRE.encode_results([result]),
    ]
    answer = reply(read_request(b'{"messages":[%b]}' % b",".join(encoded)))
    assert answer.text == "read_file gave me this:\n[a sound]\n\nI was given a sound (wav, 16044 bytes)."
