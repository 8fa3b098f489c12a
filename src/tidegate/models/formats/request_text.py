"""Text that the gateway adds to requests, and the encoding of media. Both are the same in every wire format.

All functions are pure. The text is part of every wire format: raise the formats' `version` when a sentence changes.
"""

import base64
from collections.abc import Sequence

from tidegate.values import Media, Message

ASIDE_HEADING = "[Note from the gateway, not written by the user]\n"
"""Tells the model who wrote the text that follows."""

UNNAMED = "document.pdf"
"""The name used for a document sent without a name."""

SUMMARY_TASK = "You write the summary of one part of a conversation between a person and an agent."
"""The first sentence of the summary prompt."""

NOTES_TASK = "You write down what is worth remembering of a person after a conversation with an agent."
"""The first sentence of the prompt for the notes at the end of a conversation."""


def message_list(before: bytes, system: bytes, history: Sequence[bytes]) -> list[bytes]:
    """Returns the last part of a request body, in pieces: a list of messages. `before` is the text that opens the
    list."""
    pieces = [before]
    if system:
        pieces += (system, b",")
    for messages in history:
        pieces += (messages, b",")
    if pieces[-1] == b",":
        pieces.pop()
    pieces.append(b"]}")
    return pieces


def aside(text: str) -> str:
    return ASIDE_HEADING + text


def described(media: Media) -> str:
    """Returns a short description of media, in parentheses."""
    if media.is_document:
        return f"({media.about})"
    if media.is_sound:
        about = f"{media.media_type}, {media.seconds:.1f} s" if media.seconds else media.media_type
    else:
        about = f"{media.width} x {media.height}"
    return f"({about}, {media.note})" if media.note else f"({about})"


def media_placeholder(media: Media) -> str:
    """Returns the text that replaces media that the model does not accept."""
    if media.is_document:
        return f"[A document {described(media)} stands here, which this model cannot read.]"
    if media.is_sound:
        return f"[A sound {described(media)} stands here, which this model cannot hear.]"
    return f"[A picture {described(media)} stands here, which this model cannot see.]"


def file_name(media: Media) -> str:
    """Returns a document's name in a request. Formats with a field for the name require a value."""
    return media.name or UNNAMED


def base64_data(media: Media) -> bytes:
    if not media.data:
        raise ValueError(f"the media {media.spooled} was not loaded before it was encoded")
    return base64.b64encode(media.data)


def data_url(media: Media) -> bytes:
    """Returns a data URL as a JSON string with its quotes. The URL needs no escaping."""
    return b'"data:%b;base64,%b"' % (media.media_type.encode(), base64_data(media))


def media_caption(results: Sequence[Message]) -> str:
    """Returns the text placed before media from tool results, for formats in which results cannot contain media."""
    shown = [(result.name, media) for result in results for media in result.media]
    if not shown:
        return ""
    found = {media.kind for _, media in shown}
    *others, last = (f"{kind}s" for kind in ("picture", "sound", "document") if kind in found)
    kinds = f"{', '.join(others)} and {last}" if others else last
    told = "; ".join(f"{name} {described(media)}" for name, media in shown)
    return f"{kinds.capitalize()} that these results show, in this order: {told}."
