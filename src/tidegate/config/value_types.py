"""The types of settings. Each type reads and validates TOML values, describes valid values, and writes values as TOML.

Reading a value returns it or raises `InvalidValue`, whose message completes a sentence ("must be …"). Invalid values
are quoted only if they cannot be secrets.
"""

import ipaddress
import json
import math
import pwd
import re
from collections.abc import Iterable
from typing import Any, Protocol
from urllib.parse import urlsplit

QUOTED_AT_MOST = 40
"""The maximum length of a quoted value. Longer values are described instead, since an error is one sentence and a long
value may be a secret."""

SECRET = re.compile(
    r"(?i)\bbearer\s+\S{6,}"
    r"|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}"
    r"|\btgc?_[A-Za-z0-9]{16,}"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|hf_)[A-Za-z0-9_-]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\."
)
"""Matches text that looks like a credential, anywhere in a value."""

DENSE = re.compile(r"(?=[^\s]*[0-9])(?=[^\s]*[A-Za-z])[A-Za-z0-9+/=_~.-]{24,}")
"""Matches a long word of letters and digits, which may be a key in an unknown format."""

ENV_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
FILE_REFERENCE = re.compile(r"file:[^\x00-\x1f\x7f]+")
LARGEST_USER = 2**32 - 2
"""The highest valid user id. The next number means "no user"."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FRAMING = frozenset(
    {"content-length", "transfer-encoding", "connection", "keep-alive", "expect", "upgrade", "te", "trailer"}
)
"""Headers that control the framing of a request and its connection."""
SENSITIVE_HEADER = re.compile(r"(?i)auth|cookie|key|token|secret|passw|credential")

DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
SIZE = re.compile(r"\s*(\d+)\s*(B|KiB|MiB|GiB)\s*")
BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
LONGEST = 100 * 366 * 86400.0
"""The longest time span, a century. A longer one must be a typing error, and would overflow dates."""
REFERENCES_AT_MOST = 100
"""Maximum number of keys for one endpoint."""
HIGHEST_PRICE = 1_000_000
"""The highest price, in dollars per million tokens. A higher one must be a typing error."""
LARGEST_BUDGET = 1_000_000_000
"""The largest budget in dollars. Converted to billionths of a dollar, it still fits into the store's integers."""


class InvalidValue(Exception):
    """A value is invalid. The message completes a sentence: "must be …"."""


def is_reference(text: str) -> bool:
    """True if `text` has the form of a reference to a secret: `env:NAME` or `file:PATH`."""
    return bool(ENV_REFERENCE.fullmatch(text) or FILE_REFERENCE.fullmatch(text))


def looks_secret(text: str) -> bool:
    """True if `text` may contain a credential and must not be quoted in a message."""
    return bool(SECRET.search(text) or DENSE.search(text))


def quote(value: Any) -> str:
    """Formats a value for an error message."""
    if isinstance(value, str):
        if looks_secret(value) or len(value) > QUOTED_AT_MOST:
            return f"text of {len(value)} characters"
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        shown = _number(value)
        return shown if len(shown) <= QUOTED_AT_MOST else "a very long number"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a table"
    return "a date or time"


def _number(value: int | float) -> str:
    # Python refuses to convert integers with thousands of digits to text.
    if isinstance(value, int) and value.bit_length() > 512:
        return "9" * (QUOTED_AT_MOST + 1)
    return repr(value)


def nearest(word: str, words: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` if there is a close match, else a list of the valid words."""
    known = sorted(words)
    import difflib  # imported only for an error

    close = difflib.get_close_matches(word[:100], known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; valid: {', '.join(known)}" if known else ""


class ValueType(Protocol):
    """A setting's type. `read` validates a value, `write` formats it as TOML, and `shape` describes valid values in
    errors and documentation."""

    @property
    def shape(self) -> str: ...
    def read(self, value: Any) -> Any: ...
    def write(self, value: Any) -> str: ...


class Plain:
    """Base class for types whose values are scalars or lists of scalars, written as JSON."""

    def write(self, value: Any) -> str:
        # DEL is the only character that must be escaped in TOML but not in JSON.
        return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False).replace(
            "\x7f", "\\u007f"
        )


class Flag(Plain):
    shape = "true or false"

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidValue(f"must be true or false, not {quote(value)}")
        return value


class Integer(Plain):
    def __init__(self, at_least: int, at_most: int = 2**40) -> None:
        self.at_least, self.at_most = at_least, at_most

    @property
    def shape(self) -> str:
        upper = f" and at most {self.at_most}" if self.at_most < 2**40 else ""
        return f"a whole number of at least {self.at_least}{upper}"

    def read(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        if not self.at_least <= value <= self.at_most:
            raise InvalidValue(
                f"must be {self.shape if value < self.at_least else f'at most {self.at_most}'}, not {quote(value)}"
            )
        return value


class Fraction(Plain):
    """A fraction between two bounds."""

    def __init__(self, at_least: float, at_most: float) -> None:
        self.at_least, self.at_most = at_least, at_most

    @property
    def shape(self) -> str:
        return f"a fraction from {self.at_least:g} to {self.at_most:g}"

    def read(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        if not self.at_least <= value <= self.at_most:
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        return float(value)


class Price(Plain):
    """A price in dollars. An integer is read as a float."""

    shape = "a price in dollars, a number of at least 0"

    def read(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        if value > HIGHEST_PRICE:
            raise InvalidValue(f"must be at most {HIGHEST_PRICE}, not {quote(value)}")
        return float(value)


class Dollars(Plain):
    """A spending limit in dollars."""

    shape = "dollars, a number above 0"

    def read(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        if value > LARGEST_BUDGET:
            raise InvalidValue(f"must be at most {LARGEST_BUDGET}, not {quote(value)}")
        return float(value)


class Size:
    """A number of bytes: an integer, or text such as "64 MiB". If `auto` is true, "auto" is also valid and lets the
    gateway choose."""

    def __init__(self, at_least: int, at_most: int = 2**40, *, auto: bool = False) -> None:
        self.at_least, self.at_most, self.auto = at_least, at_most, auto

    @property
    def shape(self) -> str:
        auto = ', or "auto"' if self.auto else ""
        return f'a size in bytes or like "64 MiB", at least {self.write(self.at_least).strip(chr(34))}{auto}'

    def read(self, value: Any) -> int | None:
        if self.auto and value == "auto":
            return None
        size = value
        if isinstance(value, str) and len(value) <= QUOTED_AT_MOST and (found := SIZE.fullmatch(value)):
            size = int(found[1]) * BYTES[found[2]]
        if isinstance(size, bool) or not isinstance(size, int) or size < self.at_least:
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        if size > self.at_most:
            raise InvalidValue(f"must be at most {self.write(self.at_most).strip(chr(34))}, not {quote(value)}")
        return size

    def write(self, value: int | None) -> str:
        if value is None:
            return '"auto"'
        for unit in ("GiB", "MiB", "KiB"):
            if value and value % BYTES[unit] == 0:
                return f'"{value // BYTES[unit]} {unit}"'
        return str(value)


class Duration:
    """A time span: a number of seconds, or text such as "30s", "5m", "12h", "90d". If `never` is true, "never" is also
    valid."""

    def __init__(self, at_least: float = 0.0, *, never: bool = False) -> None:
        self.at_least, self.never = at_least, never

    @property
    def shape(self) -> str:
        least = f" of at least {self.write(self.at_least).strip(chr(34))}" if self.at_least else ""
        never = ', or "never"' if self.never else ""
        return f'a duration in seconds or like "12h"{least}{never}'

    def read(self, value: Any) -> float | None:
        if self.never and value == "never":
            return None
        span = value
        if isinstance(value, str) and len(value) <= QUOTED_AT_MOST and (found := DURATION.fullmatch(value)):
            span = float(found[1]) * SECONDS[found[2]]
        if isinstance(span, bool) or not isinstance(span, int | float) or not math.isfinite(_clamp(span)):
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        if span < self.at_least or span < 0:
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        if span > LONGEST:
            raise InvalidValue(f"must be at most a hundred years, not {quote(value)}")
        return float(span)

    def write(self, value: float | None) -> str:
        if value is None:
            return '"never"'
        for unit in ("d", "h", "m"):
            if value and value % SECONDS[unit] == 0 and value >= SECONDS[unit]:
                return f'"{int(value) // SECONDS[unit]}{unit}"'
        return str(int(value)) if value == int(value) else repr(value)


def _clamp(number: int | float) -> float:
    return min(number, LONGEST * 2) if isinstance(number, int) else number


class Text(Plain):
    """Any text. `one_line` refuses control characters, and `needed` refuses empty text."""

    def __init__(self, *, needed: bool = False, one_line: bool = True, at_most: int = 4096) -> None:
        self.needed, self.one_line, self.at_most = needed, one_line, at_most

    @property
    def shape(self) -> str:
        return "one line of text" if self.one_line else "text"

    def read(self, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        if self.needed and not value.strip():
            raise InvalidValue("must not be empty")
        if self.one_line and any(ord(c) < 32 or ord(c) == 127 for c in value):
            raise InvalidValue("must be one line of text without control characters")
        if len(value) > self.at_most:
            raise InvalidValue(f"must have at most {self.at_most} characters, not {len(value)}")
        return value


class UserName(Text):
    shape = "a name or number of a user other than root"

    def __init__(self) -> None:
        super().__init__(at_most=256)

    def read(self, value: Any) -> str:
        name = super().read(value)
        try:
            number = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid if name else None
        except KeyError:
            raise InvalidValue(f"must be {self.shape}; there is no user {quote(name)} here") from None
        if number == 0 or (number is not None and number > LARGEST_USER):
            raise InvalidValue(f"must be {self.shape}, not {quote(name)}")
        return name


class FilePath(Text):
    shape = "a path"

    def __init__(self) -> None:
        super().__init__(needed=True)


class OneOf(Plain):
    """One of several words. If the setting was a boolean in earlier versions, `flags` are the words that replace true
    and false."""

    def __init__(self, *words: str, flags: tuple[str, str] | None = None) -> None:
        self.words = words
        self._flags = {} if flags is None else {True: flags[0], False: flags[1]}

    @property
    def shape(self) -> str:
        return "one of " + ", ".join(f'"{word}"' for word in self.words)

    def read(self, value: Any) -> str:
        if isinstance(value, bool):
            value = self._flags.get(value, value)
        if not isinstance(value, str) or value not in self.words:
            hint = nearest(value, self.words) if isinstance(value, str) else ""
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}{hint if '?' in hint else ''}")
        return value


class Subset(Plain):
    """A list of one or more of the words, returned in the order in which they were declared."""

    def __init__(self, *words: str) -> None:
        self.words = words

    @property
    def shape(self) -> str:
        return "a list of some of " + ", ".join(f'"{word}"' for word in self.words)

    def read(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise InvalidValue(f"must be {self.shape}, not {'an empty list' if value == [] else quote(value)}")
        for word in value:
            if not isinstance(word, str) or word not in self.words:
                raise InvalidValue(f"must be {self.shape}, but contains {quote(word)}")
        return tuple(word for word in self.words if word in value)


class NameList(Plain):
    """A list of names, in the order given. Duplicates are removed or, with `once`, refused."""

    shape = "a list of names"

    def __init__(self, *, once: bool = False) -> None:
        self.once = once

    def read(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        for word in value:
            if not isinstance(word, str) or not NAME.fullmatch(word):
                raise InvalidValue(f"must be {self.shape} (letters, digits, '.', '_', '-'), but contains {quote(word)}")
            if self.once and value.count(word) > 1:
                raise InvalidValue(f"must contain each name at most once, but contains {quote(word)} several times")
        return tuple(dict.fromkeys(value))


class TextLines(Plain):
    """A list of lines of text, in the order given."""

    shape = "a list of lines of text"

    def read(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        line = Text(needed=True)
        return tuple(line.read(each) for each in value)


class Arguments(Plain):
    """A list of arguments of a program, which may be empty texts. Credentials are refused, since every program on the
    machine can read them; invalid values are never quoted."""

    shape = "a list of texts"

    def read(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) and "\0" not in each for each in value):
            raise InvalidValue(f"must be {self.shape}")
        if any(SECRET.search(each) for each in value):
            raise InvalidValue("must not contain a secret; use a variable in `env` with a reference instead")
        return tuple(value)


class Networks(Plain):
    """A list of IP addresses and networks in canonical form."""

    shape = 'a list of addresses or networks like "192.168.1.10" or "10.0.0.0/8"'

    def read(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        for text in value:
            try:
                if not isinstance(text, str):
                    raise ValueError
                ipaddress.ip_network(text)
            except ValueError:
                raise InvalidValue(f"must be {self.shape}, but contains {quote(text)}") from None
        return tuple(dict.fromkeys(value))


class Origins(Plain):
    shape = 'a list of origins like "https://chat.example.org"'

    def read(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        for origin in value:
            if not isinstance(origin, str) or not _is_origin(origin):
                raise InvalidValue(f"must be {self.shape}, without a path or '*', but contains {quote(origin)}")
        return tuple(dict.fromkeys(value))


def _is_origin(text: str) -> bool:
    parts = _split_url(text)
    return parts is not None and not (parts[1] or parts[2]) and not text.endswith(("/", "?", "#")) and "*" not in text


def _split_url(text: str) -> tuple[str, str, str] | None:
    """Splits an http or https address into host, path, and query with fragment. Returns None if the address is invalid
    or contains a user name or password."""
    if any(ord(c) <= 32 or ord(c) == 127 for c in text):
        return None
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or port == 0:
        return None
    return parts.hostname, parts.path, parts.query + parts.fragment


class BaseUrl(Plain):
    """The base URL of an HTTP API. URLs are shown and logged, so they must not contain secrets: URLs with a user name,
    password or query are refused, and invalid ones are never quoted."""

    shape = 'an address like "https://api.example.org/v1"'

    def read(self, value: Any) -> str:
        parts = _split_url(value) if isinstance(value, str) else None
        if not isinstance(value, str) or parts is None or parts[2] or len(value) > 2000:
            raise InvalidValue(f"must be {self.shape}, without a user name, password or query")
        if looks_secret(value.split("://", 1)[1].partition("/")[2]) and SECRET.search(value):
            raise InvalidValue("must not contain a secret; use a reference in `key` instead")
        return value.rstrip("/")


class Proxy(Plain):
    """The proxy for requests: the environment's proxy, none, an address, or a reference to an address with a password.
    Invalid values are never quoted."""

    shape = '"environment", "none", an address like "http://proxy.example.org:3128", or a reference to one'

    def read(self, value: Any) -> str:
        if isinstance(value, str) and (value in ("environment", "none") or is_reference(value)):
            return value
        if isinstance(value, str) and "@" in value:
            raise InvalidValue('must not contain a password; use a reference to the address, such as "env:PROXY"')
        parts = _split_url(value) if isinstance(value, str) else None
        if parts is None or parts[2] or len(value) > 300 or value.rstrip("/").count("/") > 2:
            raise InvalidValue(f"must be {self.shape}")
        return str(value).rstrip("/")


class Reference(Plain):
    """A reference to a secret, never the secret itself. Invalid values are never quoted."""

    shape = 'a reference ("env:NAME" or "file:PATH")'

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or not is_reference(value):
            raise InvalidValue(f"must be {self.shape}; the secret itself must not be in this file")
        return value


class References(Plain):
    """A list of one or more references, without duplicates. Invalid values are never quoted."""

    shape = 'a list of references, "env:NAME" or "file:PATH"'

    def read(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value or len(value) > REFERENCES_AT_MOST:
            raise InvalidValue(f"must be {self.shape}, with 1 to {REFERENCES_AT_MOST} entries")
        if not all(isinstance(each, str) and is_reference(each) for each in value):
            raise InvalidValue(f"must be {self.shape}; the secret itself must not be in this file")
        if len(set(value)) < len(value):
            raise InvalidValue("must contain each reference only once")
        return tuple(value)


class Headers:
    """Extra HTTP headers. Anything that may be a credential must be a reference; invalid values are never quoted."""

    shape = "a table of header names and values (with credentials only as references)"

    def read(self, value: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        for name, text in value.items():
            if not HEADER.fullmatch(name):
                raise InvalidValue(f"has {quote(name)}, which is not a valid HTTP header name")
            if name.lower() in FRAMING:
                raise InvalidValue(f"has the header {quote(name)}, which the gateway sets itself; remove it")
            if not isinstance(text, str) or any(ord(c) < 32 or ord(c) >= 127 for c in text):
                raise InvalidValue(f"has the header {quote(name)}, whose value must be one line of plain text")
            if (SENSITIVE_HEADER.search(name) or looks_secret(text)) and not is_reference(text):
                raise InvalidValue(
                    f'has the header {quote(name)}, whose value must be a reference: "env:NAME" or "file:PATH"'
                )
        return dict(value)

    def write(self, value: Any) -> str:
        inner = ", ".join(f"{json.dumps(name)} = {json.dumps(text)}" for name, text in value.items())
        return f"{{ {inner} }}" if inner else "{}"


class Variables(Headers):
    """Environment variables. Anything that may be a credential must be a reference; invalid values are never quoted."""

    shape = "a table of variable names and values (with credentials only as references)"

    def read(self, value: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise InvalidValue(f"must be {self.shape}, not {quote(value)}")
        for name, text in value.items():
            if not VARIABLE.fullmatch(name):
                raise InvalidValue(f"has {quote(name)}, which is not a valid name of an environment variable")
            if not isinstance(text, str) or "\0" in text or len(text) > 32_768:
                raise InvalidValue(f"has the variable {quote(name)}, whose value must be text")
            if looks_secret(text) and not is_reference(text):
                raise InvalidValue(
                    f'has the variable {quote(name)}, whose value must be a reference: "env:NAME" or "file:PATH"'
                )
        return dict(value)
