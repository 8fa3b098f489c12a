"""The redactor: removes secrets from log lines, errors, nested values and bytes.

The output contains no known secret in plain, JSON, URL or base64 form, and nothing that looks like a credential, at any
depth, in keys and values. It consists of plain, bounded values. The redactor knows at most `KNOWN_AT_MOST` secrets.
Secrets shorter than `SHORTEST` are ignored, since replacing them would hide ordinary words and protect nothing.
"""

import base64
import json
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from tidegate.errors import Misconfigured
from tidegate.security.secret import Secret

HIDDEN = "[hidden]"
SHORTEST = 4
KNOWN_AT_MOST = 1024
"""Maximum number of known secrets. A gateway has only a few; the bound keeps the pattern small."""

DEPTH = 8
ITEMS = 200
TEXT = 16 * 1024
"""The bounds on one logged value: a log line must be readable, and cyclic values must not be followed forever."""

_WORD = r"(?:[A-Z]?[a-z]{1,14}|[A-Z]{1,8})[.:!?)\]}`]*(?![^\s\"',;\\])"
"""An ordinary word after "bearer", such as "token". Credentials are longer or mix letters with other characters."""

_LOOKS = (
    r"(?i:\b(?P<scheme>authorization[\"']?[ \t]*[:=,][ \t]*b?[\"']?(?:bearer|basic))[ \t]+)[^\s\"',;\\]+"
    rf"|\b(?P<bearer>(?i:bearer))[ \t]+(?!{_WORD})[A-Za-z0-9._~+/=%-]{{{SHORTEST}}}[^\s\"',;\\]*"
    r"|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}"
    r"|\btg[cp]?_[A-Za-z0-9]{16,}"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|hf_)[A-Za-z0-9_-]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{8,1024}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?"
    r"|(?P<user>://[^\s/:@]*:)[^\s/@]+(?=@)"
)

_NAMES = frozenset(
    (
        *("authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "apikey"),
        *("password", "passwd", "secret", "client-secret", "access-token", "refresh-token", "token", "x-page-token"),
    )
)
"""Names (in lower case, with hyphens) whose values are always hidden."""


class Redactor:
    """Replaces secrets with `[hidden]`."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._known: dict[Secret, None] = {}
        self._pattern = re.compile(_LOOKS)
        self.learn(*secrets)

    def learn(self, *secrets: Secret) -> None:
        """Adds secrets to hide from now on."""
        fresh = [s for s in secrets if len(s.reveal()) >= SHORTEST and s not in self._known]
        if not fresh:
            return
        if len(self._known) + len(fresh) > KNOWN_AT_MOST:
            raise Misconfigured(f"more than {KNOWN_AT_MOST} secrets are configured; remove some")
        self._known.update(dict.fromkeys(fresh))
        forms = {form for secret in self._known for form in _forms(secret.reveal())}
        # Longest first: if one secret is a prefix of another, the rest of the longer one must not remain.
        exact = "|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form)))
        self._pattern = re.compile(f"{exact}|{_LOOKS}")

    def __repr__(self) -> str:
        return f"Redactor({len(self._known)} secrets)"

    def text(self, text: str) -> str:
        return self._pattern.sub(_replacement, text)

    def replacements(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yields the replacements that the method `text` would make, as (start, end, replacement), for callers whose
        text arrives in parts."""
        for found in self._pattern.finditer(text):
            yield found.start(), found.end(), _replacement(found)

    def begun(self, text: str) -> int:
        """Returns the length of the longest suffix of a truncated text that may be the beginning of a known secret."""
        longest = 0
        for secret in self._known:
            plain = secret.reveal()
            for size in range(min(len(plain) - 1, len(text)), max(SHORTEST - 1, longest), -1):
                if text.endswith(plain[:size]):
                    longest = size
                    break
        return longest

    def bytes(self, data: bytes) -> bytes:
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def value(self, value: Any) -> Any:
        """Returns a copy without secrets, consisting of plain values (dict, list, str, numbers, None)."""
        return self._value(value, DEPTH)

    def error(self, error: BaseException) -> str:
        """Returns the traceback, including causes, contexts and exception groups, without secrets."""
        return self.text("".join(traceback.format_exception(error)).rstrip("\n"))

    def _value(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self._clip(self.text(str(value)))
        if isinstance(value, bytes | bytearray | memoryview):
            return self._clip(self.text(bytes(value).decode("utf-8", "backslashreplace")))
        if isinstance(value, BaseException):
            return self._clip(self.error(value))
        if depth == 0:
            return "…"
        if isinstance(value, msgspec.Struct):
            value = msgspec.structs.asdict(value)
        if isinstance(value, Mapping):
            return {
                name: HIDDEN if _is_sensitive(name) and item is not None else self._value(item, depth - 1)
                for name, item in self._items(value, depth)
            }
        if isinstance(value, list | tuple | set | frozenset):
            items = [self._value(item, depth - 1) for item in list(value)[:ITEMS]]
            return [*items, f"… {len(value) - ITEMS} more"] if len(value) > ITEMS else items
        return self._clip(self.text(_representation(value)))

    def _items(self, value: Mapping[Any, Any], depth: int) -> Iterable[tuple[str, Any]]:
        for index, (name, item) in enumerate(value.items()):
            if index == ITEMS:
                yield "…", f"{len(value) - ITEMS} more"
                return
            yield str(self._value(name, depth - 1)), item

    def _clip(self, text: str) -> str:
        # Only after redaction, since a secret that is cut in two would not be recognised.
        return text if len(text) <= TEXT else f"{text[:TEXT]}… {len(text) - TEXT} more characters"


def _forms(secret: str) -> Iterable[str]:
    """Returns the common encodings of a secret."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield quote(secret, safe="")
    yield quote(secret)
    yield quote_plus(secret)
    raw = secret.encode("utf-8", "surrogatepass")
    yield repr(raw)[2:-1]
    # Without the padding and the last group, which depend on the bytes that follow.
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        if len(raw) >= 2 * SHORTEST:
            yield encode(raw).decode().rstrip("=")[: len(raw) // 3 * 4]


def _replacement(found: re.Match[str]) -> str:
    kept = found["scheme"] or found["bearer"] or found["user"]
    if kept is None:
        return HIDDEN
    return kept + HIDDEN if found["user"] else f"{kept} {HIDDEN}"


def _is_sensitive(name: str) -> bool:
    return name.lower().replace("_", "-") in _NAMES


def _representation(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # a log line must not fail because of a __repr__
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
