"""API keys, one-time codes and page tokens. They are stored only as digests.

Different tokens have different digests, and neither a digest nor a comparison reveals anything about a token. The
digest is a plain SHA-256: our tokens have over 200 random bits, so a slow hash would add nothing.
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
"""Number of random characters in a key. Their 238 bits cannot be guessed; a double click selects all of them."""
CODE_SECONDS = 900.0
"""How long a one-time link works: long enough to open it. If it expires, a command creates another one."""


def make_key() -> str:
    """Returns a new API key: `tg_` and forty letters and digits."""
    return KEY_PREFIX + _random(KEY_LENGTH)


def make_code() -> str:
    """Returns a new one-time code for signing in to the page. The prefix distinguishes the code from a key."""
    return CODE_PREFIX + _random(KEY_LENGTH)


def make_page_token() -> str:
    """Returns a new page token: the half of a browser's sign-in that is sent as a header."""
    return PAGE_PREFIX + _random(KEY_LENGTH)


def digest(token: bytes | str) -> bytes:
    """Returns the value that is stored and looked up instead of a token."""
    return hashlib.sha256(_as_bytes(token)).digest()


def same(left: bytes | str, right: bytes | str) -> bool:
    """True if two tokens are equal. The comparison takes the same time whatever their content and length."""
    return hmac.compare_digest(digest(left), digest(right))


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _as_bytes(token: bytes | str) -> bytes:
    # A header's text may contain anything, even lone surrogates; different texts must map to different bytes.
    return token.encode("utf-8", "surrogatepass") if isinstance(token, str) else bytes(token)
