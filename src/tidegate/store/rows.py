"""What the store hands out: one frozen value per row, and the one way a value becomes bytes in a column.

Guarantee: a message that was stored comes back equal, whatever its text holds; a text that has no UTF-8 form (a lone
surrogate) is refused before it reaches a row. A body is packed only when it is long and packing saves space. Rows are
plain values: they own nothing and refer to no connection.
"""

import zlib
from typing import Any, Literal

import apsw
import msgspec

from tidegate.errors import Refused
from tidegate.values import Call, Failure, Message, OnDisconnect, Outcome, Prefix, TurnState, Usage

Db = apsw.Connection
"""What a function that runs in the store is given; it is valid for the length of that call."""

PACK_ABOVE = 1024
"""Bytes. Below this a packed body saves less than the work of packing costs."""
PACK_LEVEL = 1
"""Level 1 already gives most of what zlib can give on text, at a third of the time of the default."""

SessionKind = Literal["named", "ephemeral"]
ApprovalState = Literal["pending", "approved", "denied", "cancelled", "expired"]
DeliveryState = Literal["prepared", "sending", "sent", "unknown", "dead"]
KeyKind = Literal["key", "code", "cookie"]


class Row(msgspec.Struct, frozen=True):
    """A row as a value; its fields stand in the order of the columns that are selected for it."""


class SessionRow(Row, frozen=True):
    id: str
    principal: str
    channel: str
    name: str | None
    kind: SessionKind
    agent: str
    title: str
    extra: str
    prefix: bytes | None
    encoder: int
    parent: str | None
    created: float
    active: float
    version: int
    ended: float | None
    end_reason: str | None


class TurnRow(Row, frozen=True):
    id: str
    session: str
    number: int
    state: TurnState
    channel: str
    call: Call
    on_disconnect: OnDisconnect
    attempts: int
    accepted: float
    started: float | None
    finished: float | None
    finish: str
    error: Failure | None
    usage: Usage
    steps: int


class MessageRow(Row, frozen=True):
    id: int
    session: str
    turn: str | None
    seq: int | None
    step: str | None
    at: float
    undone: float | None
    message: Message


class ReceiptRow(Row, frozen=True):
    principal: str
    source: str
    key: str
    digest: bytes
    turn: str
    at: float
    expires: float
    outcome: Outcome | None


class Setting(Row, frozen=True):
    session: str
    key: str
    value: Any
    source: str
    at: float
    expires: float | None


class ApprovalRow(Row, frozen=True):
    id: str
    session: str
    turn: str | None
    digest: bytes
    action: bytes
    state: ApprovalState
    asked: float
    expires: float | None
    answered: float | None
    answered_by: str | None


class DeliveryRow(Row, frozen=True):
    id: str
    session: str | None
    turn: str | None
    channel: str
    target: str
    body: bytes
    state: DeliveryState
    attempts: int
    created: float
    due: float
    expires: float
    external: str | None
    error: str | None


class PrincipalRow(Row, frozen=True):
    id: str
    name: str
    role: str
    agents: tuple[str, ...] | None
    created: float


class KeyRow(Row, frozen=True):
    """A key without its digest: nothing that was handed out can be rebuilt from it."""

    id: str
    principal: str
    kind: KeyKind
    label: str
    created: float
    expires: float | None
    used: float | None
    revoked: float | None


class UsageTotal(Row, frozen=True):
    key: str
    turns: int
    input: int
    cached: int
    output: int


class Found(Row, frozen=True):
    """A message that a search found; `excerpt` is text around the first word that matched."""

    session: str
    title: str
    seq: int
    role: str
    at: float
    excerpt: str


_encode = msgspec.json.Encoder().encode
_message = msgspec.json.Decoder(Message).decode
_call = msgspec.json.Decoder(Call).decode
_failure = msgspec.json.Decoder(Failure).decode
_outcome = msgspec.json.Decoder(Outcome).decode
_prefix = msgspec.json.Decoder(Prefix).decode
_EMPTY_CALL = Call()
_EMPTY_CALL_BYTES = _encode(_EMPTY_CALL)


def encode(value: object) -> bytes:
    """The JSON form of a value. Refuses text that has no UTF-8 form."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        raise Refused("The text holds a lone surrogate, which no UTF-8 text can; send valid Unicode.") from None


def pack(message: Message) -> tuple[bytes, int]:
    """The body of a message row and whether it is packed."""
    body = encode(message)
    if len(body) > PACK_ABOVE:
        packed = zlib.compress(body, PACK_LEVEL)
        if len(packed) < len(body):
            return packed, 1
    return body, 0


def unpack(body: bytes, packed: int) -> Message:
    return _message(zlib.decompress(body) if packed else body)


def encode_call(call: Call) -> bytes:
    return _EMPTY_CALL_BYTES if call == _EMPTY_CALL else encode(call)


def decode_call(body: bytes) -> Call:
    return _EMPTY_CALL if body == _EMPTY_CALL_BYTES else _call(body)


def decode_failure(body: bytes | None) -> Failure | None:
    return None if body is None else _failure(body)


def decode_outcome(body: bytes | None) -> Outcome | None:
    return None if body is None else _outcome(body)


def decode_prefix(body: bytes) -> Prefix:
    return _prefix(body)
