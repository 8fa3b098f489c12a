"""Secrets, keys, principals, and the log that never shows one.

Guarantee: a secret is in memory only as a `Secret`, which shows itself to nobody who does not ask with `reveal()`;
what is written out goes through a `Redactor`; a key is kept only as its digest and compared in constant time.
Identity is a `Principal` that is passed as an argument, never taken from the surroundings.
"""

from tidegate.security.keys import CODE_SECONDS, digest, make_code, make_key, make_page_token, same
from tidegate.security.log_setup import configure_logging
from tidegate.security.principal import ROLES, Principal, Right, UserRole, may_grant
from tidegate.security.redactor import HIDDEN, Redactor
from tidegate.security.secret import Secret, resolve

__all__ = [
    "CODE_SECONDS",
    "HIDDEN",
    "ROLES",
    "Principal",
    "Redactor",
    "Right",
    "Secret",
    "UserRole",
    "configure_logging",
    "digest",
    "make_code",
    "make_key",
    "make_page_token",
    "may_grant",
    "resolve",
    "same",
]
