"""Secrets, keys, principals, approval policies and the redacted log.

In memory, a secret exists only as a `Secret`, whose text is available only through `reveal()`. Everything that is
logged passes through a `Redactor`. A key is stored only as its digest and compared in constant time. Identity is a
`Principal` passed as an argument, never ambient state.
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
