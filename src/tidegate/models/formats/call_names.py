"""Names and ids of tool calls, and names of participants, in forms that every provider accepts.

Acceptable names and ids are left unchanged. All others are mapped deterministically, and different ids remain
different. The functions are pure, except that `distinct_calls` creates random ids. They are part of every wire format:
raise the formats' `version` when the output of a mapping changes.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Sequence

import msgspec

from tidegate.values import ToolCall

NAME_CHARACTERS = 64
SHORT_ID_CHARACTERS = 9
"""Mistral's models accept only ids of exactly this many letters and digits."""

_NOT_PARTICIPANT = re.compile(r"[\s<|\\/>]")
"""Characters that OpenAI does not accept in a participant's name."""
_NOT_NAME = re.compile(r"[^A-Za-z0-9_-]")
_SHORT_ID = re.compile(rf"[A-Za-z0-9]{{{SHORT_ID_CHARACTERS}}}")
# Ids from servers that only number the calls within an answer, or send no ids. A short id may match by chance.
_NUMBERED = re.compile(r"(?i)[a-z]*[_-]?\d{0,5}")


def call_name(given: str) -> str:
    """Returns an acceptable name for a tool call. The model may have invented the given name."""
    return _NOT_NAME.sub("_", given[:NAME_CHARACTERS]) or "_"


def participant_name(given: str) -> str:
    """Returns an acceptable form of a participant's name from the caller's request."""
    return _NOT_PARTICIPANT.sub("_", given[:NAME_CHARACTERS])


def call_id(given: str, most: int) -> str:
    """Returns a call id of at most `most` characters; `most` must be at least 37."""
    if 0 < len(given) <= most:
        return given
    return "call_" + hashlib.blake2b(given.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def is_short_id(given: str) -> bool:
    return _SHORT_ID.fullmatch(given) is not None


def short_id(given: str) -> str:
    if is_short_id(given):
        return given
    digest = hashlib.blake2b(given.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return base64.b32encode(digest).decode()[:SHORT_ID_CHARACTERS]


def distinct_calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Returns the calls, each with an id that is unique in the conversation. Some servers send no ids, or number the
    calls in every answer from the start, but providers refuse requests in which an id occurs twice."""
    taken: set[str] = set()
    made: list[ToolCall] = []
    for call in calls:
        if call.id in taken or (_NUMBERED.fullmatch(call.id) and not is_short_id(call.id)):
            call = msgspec.structs.replace(call, id=f"call_{secrets.token_hex(12)}")
        taken.add(call.id)
        made.append(call)
    return tuple(made)
