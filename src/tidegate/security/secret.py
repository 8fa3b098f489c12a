"""Secrets in memory, and the resolution of references to secrets in the configuration.

A `Secret` can be printed, formatted, compared and copied without revealing its text, and cannot be serialised.
`resolve` reads exactly what the reference names; nothing else is read from the environment.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tidegate.config import is_reference
from tidegate.errors import Misconfigured
from tidegate.security.keys import digest, same

FILE_BYTES = 64 * 1024
"""Maximum size of a file that contains a secret. No credential is larger, so a larger file is a mistake."""


class Secret:
    """A secret string. Only `reveal()` returns its text, and should be called only where the text is needed."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def digest(self) -> bytes:
        """Returns a digest that distinguishes secrets without revealing them."""
        return digest(self._text)

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __format__(self, _spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and same(self._text, other._text)

    def __hash__(self) -> int:
        return hash(self.digest())

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> "Secret":
        return self

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise TypeError("a secret cannot be serialised")


def resolve(reference: str, env: Mapping[str, str], home: Path) -> Secret:
    """Returns the secret to which `env:NAME` or `file:PATH` (relative to the home folder) refers."""
    if not is_reference(reference):
        raise Misconfigured('a secret must be a reference: "env:NAME" or "file:PATH"')
    kind, _, name = reference.partition(":")
    if kind == "env":
        if not env.get(name, "").strip():
            raise Misconfigured(f"{reference}: the environment variable {name} is not set; set it and restart")
        return _checked(env[name], reference)
    return _checked(_read(name, reference, home), reference)


def _read(name: str, reference: str, home: Path) -> str:
    try:
        # Non-blocking, so that a pipe in place of a file cannot delay the start.
        fd = os.open(home / Path(name).expanduser(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Misconfigured(f"{reference}: this is not a file; put the secret into a file and refer to that")
            data = os.read(fd, FILE_BYTES + 1)
        finally:
            os.close(fd)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "the path is not valid"
        raise Misconfigured(f"{reference}: the file cannot be read ({reason})") from None
    if len(data) > FILE_BYTES:
        raise Misconfigured(f"{reference}: the file is larger than {FILE_BYTES} bytes; it must contain only the secret")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Misconfigured(f"{reference}: the file is not text; it must contain only the secret") from None


def _checked(text: str, reference: str) -> Secret:
    text = text.strip()
    if not text:
        raise Misconfigured(f"{reference}: it is empty; it must contain the secret")
    # The secret is used in an HTTP header, where a line break would start another header.
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise Misconfigured(f"{reference}: it has several lines or control characters; it must contain only the secret")
    return Secret(text)
