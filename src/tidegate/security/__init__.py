"""Secrets, keys, principals, and the log that never shows one.

Guarantee: a secret is in memory only as a `Secret`, which shows itself to nobody who does not ask with `reveal()`;
what is written out goes through a `Redactor`; a key is kept only as its digest and compared in constant time.
Identity is a `Principal` that is passed as an argument, never taken from the surroundings.
"""

from tidegate.security.keys import digest, make_code, make_key, same
from tidegate.security.logs import configure_logging
from tidegate.security.principal import Principal
from tidegate.security.redactor import HIDDEN, Redactor
from tidegate.security.secret import Secret, resolve

__all__ = [
    "HIDDEN",
    "Principal",
    "Redactor",
    "Secret",
    "configure_logging",
    "digest",
    "make_code",
    "make_key",
    "resolve",
    "same",
]
