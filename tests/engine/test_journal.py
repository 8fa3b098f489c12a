"""Messages as user interfaces receive them: without payload."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tidegate.agent import EXCERPT_CHARACTERS
from tidegate.engine import TurnLog
from tidegate.values import Media, Message

media = st.builds(
    Media,
    media_type=st.sampled_from(["image/png", "audio/wav"]),
    data=st.binary(max_size=20),
    spooled=st.sampled_from(["", "sp_1"]),
    width=st.integers(1, 9),
    note=st.text(max_size=5),
)
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool"]),
    text=st.text(max_size=30).map(lambda text: text * 40),
    name=st.text(max_size=5),
    call_id=st.text(max_size=5),
    failed=st.booleans(),
    media=st.lists(media, max_size=3).map(tuple),
)


@given(messages)
def test_an_event_has_no_payload_and_the_original_message_is_unchanged(message: Message) -> None:
    """D6: a result is shortened, a picture is described by kind, size and name; the function is idempotent."""
    before = msgspec.json.encode(message)
    slimmed = TurnLog.row_event(1, message).message
    assert msgspec.json.encode(message) == before
    assert TurnLog.row_event(1, slimmed).message == slimmed
    assert not any(picture.data for picture in slimmed.media)
    whole = message.text if message.role != "tool" else message.text[:EXCERPT_CHARACTERS]
    assert slimmed.text == whole
    kept = tuple(msgspec.structs.replace(picture, data=b"") for picture in message.media)
    assert slimmed == msgspec.structs.replace(message, text=whole, media=kept)


def test_a_message_without_payload_is_not_copied() -> None:
    """D6: most messages are small, and their events share them."""
    message = Message(role="tool", text="short", media=(Media(media_type="image/png", spooled="sp_1"),))
    assert TurnLog.row_event(1, message).message is message
