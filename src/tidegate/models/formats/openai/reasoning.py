"""Reasoning fields that compatible endpoints add to chat completions and expect back.

Reasoning is reassembled from its pieces under the endpoint's own field name, and only once if the endpoint sends it in
two fields. Signatures are stored verbatim and are valid JSON. Anything else in these fields is ignored. The caller
counts the stored text towards the answer's limits. Each object belongs to one answer.
"""

import io
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.models.formats.answer import check_depth

_GROWING = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The kinds of details that arrive in pieces, each with its growing field."""

_encode = msgspec.json.Encoder().encode


class _Detail:
    """One entry of `reasoning_details`. `fields` contains the newest value for each name; the growing field is stored
    separately."""

    __slots__ = ("fields", "growing", "grown")

    def __init__(self, fields: dict[str, Any], growing: str) -> None:
        self.fields = fields
        self.growing = growing
        self.grown = io.StringIO()

    def whole(self) -> dict[str, Any]:
        return {**self.fields, self.growing: self.grown.getvalue()} if self.growing else self.fields


CountBytes = Callable[[str], None]
"""A function that counts text as it is stored. These objects keep no reference to it, because it belongs to the answer,
which refers to them."""


class EndpointReasoning:
    __slots__ = ("_content", "_details", "_mark", "_plain")

    def __init__(self) -> None:
        self._content: io.StringIO | None = None
        self._plain = io.StringIO()
        self._details: list[_Detail] = []  # lint: allow `count_bytes` bounds an answer
        self._mark = b""

    def content(self, thought: object, count_bytes: CountBytes) -> None:
        """Adds a piece of `reasoning_content`. Endpoints with this field expect it back even if it is empty."""
        if isinstance(thought, str):
            self._content = self._content or io.StringIO()
            count_bytes(thought)
            self._content.write(thought)

    def plain(self, thought: object, count_bytes: CountBytes) -> None:
        """Adds a piece of `reasoning`."""
        if isinstance(thought, str) and thought:
            count_bytes(thought)
            self._plain.write(thought)

    def details(self, details: object, count_bytes: CountBytes) -> None:
        """Adds pieces of `reasoning_details`. The pieces of a detail follow each other and repeat its other fields."""
        for detail in details if isinstance(details, list) else ():
            if isinstance(detail, dict):
                count_bytes(_encode(detail).decode())
                check_depth(detail)
                self._add(detail)

    def mark(self, mark: msgspec.Raw, count_bytes: CountBytes) -> None:
        """Sets `extra_content`. A newer value replaces an older one."""
        self._mark = checked(mark, count_bytes) or self._mark

    def fields(self) -> bytes:
        """Returns the fields to send back with the message, as a JSON object; empty if there are none."""
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


def checked(mark: msgspec.Raw, count_bytes: CountBytes) -> bytes:
    """Returns a copy of a mark, because the mark itself is only a view of its event. The copy is empty for `null`.
    Raises DecodeError if the mark is not JSON."""
    kept = bytes(mark)
    if kept in (b"", b"null"):
        return b""
    count_bytes(kept.decode())
    check_depth(msgspec.json.decode(kept))
    return kept
