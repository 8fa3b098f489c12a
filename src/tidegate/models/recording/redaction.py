"""Removal of secrets from recorded requests and answers.

The values of headers with credentials are removed. No secret that the redactor knows remains in a request or answer,
even if a model writes the secret across several events, the network splits it, or a stream breaks off in the middle of
it. Validity is preserved: JSON stays JSON, events stay events, and the number of pieces stays the same. All functions
are pure. They take longer for larger input, so they are called in threads.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, AnyStr, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from tidegate.config import SENSITIVE_HEADER
from tidegate.http_client import Target
from tidegate.security import HIDDEN, Redactor

PATH_SAFE = "/%:@!$&'()*+,;=~"
_OF_AN_ACCOUNT = re.compile(r"(?i)cookie|auth|api-?key|secret|organization|project")
"""Matches response headers with account information, which readers of a recording do not need."""
_PLACES = ("index", "output_index", "content_index", "summary_index")
"""Fields by which the formats distinguish parts that grow in parallel in one stream."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Head(NamedTuple):
    origin: str
    path: str
    headers: dict[str, str]


def redacted_head(target: Target, referred: Collection[str], redactor: Redactor) -> Head:
    """Returns a request's head without secrets. `referred` contains the lower-case names of headers whose values are
    always secret."""
    parts = urlsplit(target.url)
    headers: dict[str, str] = {}
    for name, value in target.headers.items():
        secret = name.lower() in referred or SENSITIVE_HEADER.search(name)
        headers[name.lower()] = HIDDEN if secret else redactor.text(value)
    return Head(f"{parts.scheme}://{parts.netloc}", redactor.text(quote(parts.path, safe=PATH_SAFE)), headers)


def redacted_headers(headers: Mapping[str, str], redactor: Redactor) -> dict[str, str]:
    """Returns a response's headers without secrets."""
    return {name: redactor.text(value) for name, value in headers.items() if not _OF_AN_ACCOUNT.search(name)}


def redacted_body(body: bytes, redactor: Redactor) -> Any:
    """Returns a request's body without secrets: its JSON, or its text if it is not JSON."""
    try:
        return redacted_value(msgspec.json.decode(body), redactor)
    except _UNREADABLE:
        return redactor.text(body.decode("utf-8", "replace"))


def redacted_value(value: Any, redactor: Redactor) -> Any:
    return _rewritten(value, redactor, lambda _, text: redactor.text(text))


def redacted_pieces(pieces: Sequence[bytes], redactor: Redactor, *, cut: bool) -> list[bytes]:
    """Returns an answer's pieces without secrets. `cut` is true if the answer is incomplete, so its end may be the
    beginning of a secret."""
    edits = list(_edits(b"".join(pieces), redactor, cut))
    return list(pieces) if not edits else list(_applied(pieces, edits))


def _edits(whole: bytes, redactor: Redactor, cut: bool) -> Iterator[tuple[int, int, bytes]]:
    """Yields the replacements in order, each with its start, its end and the new bytes."""
    before = len(whole) - len(whole.lstrip())
    if whole[before : before + 1] in (b"{", b"["):
        yield from _of_documents(whole, [(before, len(whole))], redactor, cut)
        return
    documents: list[tuple[int, int]] = []
    start = 0
    for line in whole.split(b"\n"):
        end = start + len(line)
        begin = start
        if line.startswith(b"data:"):
            begin = end - len(line[5:].lstrip())
        documents.append((begin, begin + len(whole[begin:end].rstrip())))
        start = end + 1
    yield from _of_documents(whole, documents, redactor, cut)


def _of_documents(
    whole: bytes, documents: Sequence[tuple[int, int]], redactor: Redactor, cut: bool
) -> Iterator[tuple[int, int, bytes]]:
    """Yields the replacements for documents, in two passes. The first pass collects the text at each path across all
    documents. The second pass produces the redacted documents; it is needed only if that text contains a secret."""
    said: dict[str, list[str]] = {}

    def listen(place: str, text: str) -> str:
        said.setdefault(place, []).append(text)
        return text

    clean = True
    for number, (start, end) in enumerate(documents):
        value = _document(whole[start:end])
        if value is None:
            text = _text(whole[start:end])
            clean &= _hidden(text, redactor, cut and number == len(documents) - 1) == text
        else:
            clean &= _rewritten(value, redactor, listen) == value
    left = {place: _parted(texts, redactor, cut) for place, texts in said.items()}
    if clean and all(left[place] is texts for place, texts in said.items()):
        return
    remaining = {place: iter(texts) for place, texts in left.items()}
    for number, (start, end) in enumerate(documents):
        value = _document(whole[start:end])
        if value is None:
            text = _text(whole[start:end])
            new = _hidden(text, redactor, cut and number == len(documents) - 1).encode("utf-8", "surrogateescape")
            changed = new != whole[start:end]
        else:
            kept = _rewritten(value, redactor, lambda place, _: next(remaining[place]))
            new = msgspec.json.encode(kept)
            changed = kept != value
        if changed:
            yield start, end, new


def _document(data: bytes) -> Any:
    """Returns a JSON object or list, or None for anything else."""
    if data[:1] not in (b"{", b"["):
        return None
    try:
        return msgspec.json.decode(data)
    except _UNREADABLE:
        return None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _hidden(text: str, redactor: Redactor, cut: bool) -> str:
    text = redactor.text(text)
    begun = redactor.begun(text) if cut else 0
    return text[:-begun] + HIDDEN if begun else text


def _rewritten(value: Any, redactor: Redactor, visit: Callable[[str, str], str], place: str = "") -> Any:
    """Returns a copy of a JSON value in which each string is replaced by `visit(path, string)`, in order."""
    if isinstance(value, str):
        return visit(place, value)
    if isinstance(value, list):
        return [_rewritten(item, redactor, visit, f"{place}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, dict):
        marks = "".join(f"#{value[name]}" for name in _PLACES if isinstance(value.get(name), int))
        return {
            redactor.text(name): _rewritten(item, redactor, visit, f"{place}{marks}.{name}")
            for name, item in value.items()
        }
    return value


def _parted(texts: list[str], redactor: Redactor, cut: bool) -> list[str]:
    """Removes secrets that span several consecutive texts, which stay split at the same places. Returns the same list
    if there are none."""
    whole = "".join(texts)
    found = [*redactor.replacements(whole)]
    begun = redactor.begun(whole) if cut else 0
    if begun and (not found or found[-1][1] <= len(whole) - begun):
        found.append((len(whole) - begun, len(whole), HIDDEN))
    if not found:
        return texts
    return list(_applied(texts, found))


def _applied(pieces: Sequence[AnyStr], edits: Sequence[tuple[int, int, AnyStr]]) -> Iterator[AnyStr]:
    """Applies the edits (start, end, new) to the pieces. A replacement goes into the piece in which the old text
    starts."""
    start = 0
    waiting = 0
    for piece in pieces:
        end = start + len(piece)
        kept = piece[:0]
        place = start
        while waiting < len(edits) and edits[waiting][0] < end:
            begin, until, new = edits[waiting]
            if begin >= place:
                kept += piece[place - start : begin - start] + new
            place = max(place, min(until, end))
            if until > end:
                break
            waiting += 1
        yield kept + piece[place - start :]
        start = end
