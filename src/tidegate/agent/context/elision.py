"""Messages of which a part is left out of a request: long results, long text, pictures and sounds.

Guarantee: pure; the beginning and the end of a text stay, and between them stands how much is left out and of which
message, so that nothing is cut silently and it can be looked up. A message that is short enough stays the same object.
Calls keep their ids and stay valid JSON.
"""

from collections.abc import Sequence

import msgspec

from tidegate.store import ElisionRow
from tidegate.values import Message, ToolCall

TAIL_SHARE = 4
"""One part in so many of an excerpt is the end of the text: most things say first what they are."""


def elided(place: int, message: Message, elisions: Sequence[ElisionRow]) -> Message:
    """The message in that place as it is shown under these; of several, the one that leaves least counts."""
    here = [row for row in elisions if row.first <= place <= row.last]
    if any(row.kind == "media" for row in here):
        message = _without_media(message)
    of_calls = [row.characters for row in here if row.kind != "media"]
    of_text = [
        row.characters for row in here if row.kind == "text" or (row.kind == "payload" and message.role == "tool")
    ]
    if of_text:
        message = _shortened(place, message, min(of_text))
    if of_calls and any(len(call.arguments) > min(of_calls) for call in message.calls):
        calls = tuple(_short_call(call, min(of_calls)) for call in message.calls)
        message = msgspec.structs.replace(message, calls=calls)
    return message


def excerpt(place: int, text: str, characters: int) -> str:
    """The beginning and the end of a text, and what is not there."""
    last = characters // TAIL_SHARE
    first = characters - last
    left_out = f"[… {len(text) - characters:,} characters of message {place} are left out here; they are kept …]"
    return f"{text[:first]}\n{left_out}\n{text[len(text) - last :] if last else ''}"


def _shortened(place: int, message: Message, characters: int) -> Message:
    if len(message.text) <= characters and len(message.aside) <= characters:
        return message
    text, aside = (
        excerpt(place, part, characters) if len(part) > characters else part for part in (message.text, message.aside)
    )
    return msgspec.structs.replace(message, text=text, aside=aside)


def _short_call(call: ToolCall, characters: int) -> ToolCall:
    if len(call.arguments) <= characters:
        return call
    left_out = f"{len(call.arguments):,} characters of arguments are left out here; they are kept"
    return msgspec.structs.replace(call, arguments=msgspec.json.encode({"left_out": left_out}).decode())


def _without_media(message: Message) -> Message:
    if not message.media:
        return message
    words = "\n".join(f"{media.words[:-1]}, left out here]" for media in message.media)
    if message.role == "tool":
        text, aside = "\n".join(filter(None, (message.text, words))), message.aside
    else:
        text, aside = message.text, "\n".join(filter(None, (message.aside, words)))
    return msgspec.structs.replace(message, text=text, aside=aside, media=())
