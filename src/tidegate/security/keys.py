"""API keys, one-time codes and page tokens: made here, kept only as digests.

Guarantee: two different tokens have different digests, whatever prefix they share, and neither digest nor comparison
tells anything about a token. The digest is a plain SHA-256: a token of ours has over 200 bits of chance, so that
there is nothing for a slow hash to protect.
"""

import hashlib
import hmac
import secrets
import string

_ALPHABET = string.ascii_letters + string.digits
KEY_PREFIX = "tg_"
CODE_PREFIX = "tgc_"
PAGE_PREFIX = "tgp_"
KEY_LENGTH = 40
"""238 bits: cannot be guessed, and a double click selects it whole."""
CODE_SECONDS = 900.0
"""How long a one-time link works: enough to open it, and another is one command away."""


def make_key() -> str:
    """A new API key: `tg_` and forty letters and digits."""
    return KEY_PREFIX + _chance(KEY_LENGTH)


def make_code() -> str:
    """A new one-time code for signing in to the page. It is no key; its own prefix tells it from one."""
    return CODE_PREFIX + _chance(KEY_LENGTH)


def make_page_token() -> str:
    """A new page token, the half of a browser's sign-in that is sent as a header."""
    return PAGE_PREFIX + _chance(KEY_LENGTH)


def digest(token: bytes | str) -> bytes:
    """What is stored and looked up instead of a token."""
    return hashlib.sha256(_as_bytes(token)).digest()


def same(left: bytes | str, right: bytes | str) -> bool:
    """Whether two tokens are equal, in a time that depends on neither's content nor length."""
    return hmac.compare_digest(digest(left), digest(right))


def _chance(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _as_bytes(token: bytes | str) -> bytes:
    # Text of a header may hold anything, lone surrogates too; each must map to bytes of its own.
    return token.encode("utf-8", "surrogatepass") if isinstance(token, str) else bytes(token)
