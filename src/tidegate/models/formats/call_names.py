"""Names and ids of tool calls, and names of participants, as every provider takes them, whoever made them up.

Guarantee: pure functions. What a provider takes anyway stays as it is; anything else becomes the same every time, and
no two ids become one. Part of every wire format: to change what comes out is to raise their versions.
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
"""Of the only ids that Mistral's models take: letters and digits, neither more nor fewer."""

_NOT_PARTICIPANT = re.compile(r"[\s<|\\/>]")
"""What OpenAI refuses in the name of who speaks."""
_NOT_NAME = re.compile(r"[^A-Za-z0-9_-]")
_SHORT_ID = re.compile(rf"[A-Za-z0-9]{{{SHORT_ID_CHARACTERS}}}")
# What servers send that only number the calls of one answer, or name them by nothing at all. Short ids may look so too,
# by chance.
_NUMBERED = re.compile(r"(?i)[a-z]*[_-]?\d{0,5}")


def call_name(given: str) -> str:
    """What a model called, which need not be the name of a tool: it may have dreamt it."""
    return _NOT_NAME.sub("_", given[:NAME_CHARACTERS]) or "_"


def participant_name(given: str) -> str:
    """Of who speaks, as a caller gave it."""
    return _NOT_PARTICIPANT.sub("_", given[:NAME_CHARACTERS])


def call_id(given: str, most: int) -> str:
    """Of at most so many characters, which are no fewer than 37."""
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
    """The same calls, each with an id that no other call of the conversation has: some servers give none, or begin to
    number anew with every answer, and providers refuse a request in which one id stands twice."""
    taken: set[str] = set()
    made: list[ToolCall] = []
    for call in calls:
        if call.id in taken or (_NUMBERED.fullmatch(call.id) and not is_short_id(call.id)):
            call = msgspec.structs.replace(call, id=f"call_{secrets.token_hex(12)}")
        taken.add(call.id)
        made.append(call)
    return tuple(made)
