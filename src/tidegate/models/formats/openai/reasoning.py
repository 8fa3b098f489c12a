"""What compatible endpoints put on their answers beside the chat-completions format, and want back.

Guarantee: thoughts come out whole however they were cut, under the name that the endpoint gave them, and only once
where it told them twice; marks come out verbatim, and are JSON. Whatever else stands in these places is passed over.
All of it is weighed by who asks. It belongs to one answer.
"""

import io
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.models.formats.answer import check_depth

_GROWING = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""Kinds of details that come in pieces, and the field that grows."""

_encode = msgspec.json.Encoder().encode


class _Detail:
    """`fields` are the newest of each name; what grows is kept apart."""

    __slots__ = ("fields", "growing", "grown")

    def __init__(self, fields: dict[str, Any], growing: str) -> None:
        self.fields = fields
        self.growing = growing
        self.grown = io.StringIO()

    def whole(self) -> dict[str, Any]:
        return {**self.fields, self.growing: self.grown.getvalue()} if self.growing else self.fields


Weigh = Callable[[str], None]
"""Counts what is kept. It is not kept itself: it is the answer's, which keeps this."""


class EndpointReasoning:
    __slots__ = ("_content", "_details", "_mark", "_plain")

    def __init__(self) -> None:
        self._content: io.StringIO | None = None
        self._plain = io.StringIO()
        self._details: list[_Detail] = []  # lint: allow `weigh` bounds an answer
        self._mark = b""

    def content(self, thought: object, weigh: Weigh) -> None:
        """`reasoning_content`; its endpoints want the field back even when it is empty."""
        if isinstance(thought, str):
            self._content = self._content or io.StringIO()
            weigh(thought)
            self._content.write(thought)

    def plain(self, thought: object, weigh: Weigh) -> None:
        """`reasoning`"""
        if isinstance(thought, str) and thought:
            weigh(thought)
            self._plain.write(thought)

    def details(self, details: object, weigh: Weigh) -> None:
        """`reasoning_details`: pieces of one detail follow each other, and repeat what else is said of it."""
        for detail in details if isinstance(details, list) else ():
            if isinstance(detail, dict):
                weigh(_encode(detail).decode())
                check_depth(detail)
                self._add(detail)

    def mark(self, mark: msgspec.Raw, weigh: Weigh) -> None:
        """`extra_content`; the newest is the one that counts."""
        self._mark = checked(mark, weigh) or self._mark

    def fields(self) -> bytes:
        """What goes back on the message, a JSON object; nothing if there is nothing."""
        wanted: dict[str, Any] = {}
        if self._details:
            wanted["reasoning_details"] = [detail.whole() for detail in self._details]
        elif self._content is not None:
            wanted["reasoning_content"] = self._content.getvalue()
        elif plain := self._plain.getvalue():
            wanted["reasoning"] = plain
        if self._mark:
            wanted["extra_content"] = msgspec.Raw(self._mark)
        return _encode(wanted) if wanted else b""

    def _add(self, detail: dict[str, Any]) -> None:
        kind = detail.get("type")
        growing = _GROWING.get(kind, "") if isinstance(kind, str) else ""
        piece = detail.get(growing)
        if growing and not isinstance(piece, str | None):
            growing = ""
        last = self._details[-1] if self._details else None
        if (
            last is None
            or not growing
            or last.growing != growing
            or last.fields.get("index") != detail.get("index")
            or last.fields.get("signature")
        ):
            last = _Detail(detail, growing)
            self._details.append(last)
        else:
            last.fields.update({name: value for name, value in detail.items() if value is not None})
        if growing:
            last.grown.write(piece or "")


def checked(mark: msgspec.Raw, weigh: Weigh) -> bytes:
    """A copy, for the mark itself is a part of its event. Nothing for `null`; DecodeError for what is no JSON."""
    kept = bytes(mark)
    if kept in (b"", b"null"):
        return b""
    weigh(kept.decode())
    check_depth(msgspec.json.decode(kept))
    return kept
