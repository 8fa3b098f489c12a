"""Seals: what the fake has thought itself, and nobody else, can come back to it unchanged.

The key is a constant, so that a conversation outlives the server it was begun with; it protects nothing.
"""

import base64
import binascii
import hmac

_KEY = b"a scripted model's own hand"
_MAC_BYTES = 32


def signature(tail: str, *parts: str) -> str:
    """Over all the parts, in their order; `tail` makes it one answer's own."""
    data = "\0".join((tail, *parts)).encode("utf-8", "surrogatepass")
    return f"{tail}.{base64.b64encode(_mac(data)).decode()}"


def signed_tail(given: str) -> str:
    return given.partition(".")[0]


def is_signature(given: str, *parts: str) -> bool:
    tail = signed_tail(given)
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), signature(tail, *parts).encode())


def sealed(text: str) -> str:
    data = text.encode()
    return base64.urlsafe_b64encode(_mac(data) + data).decode()


def unsealed(given: str) -> str | None:
    """What was sealed, or None if it is not a seal of this hand."""
    try:
        data = base64.b64decode(given.encode("ascii"), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    mac, text = data[:_MAC_BYTES], data[_MAC_BYTES:]
    return text.decode() if hmac.compare_digest(mac, _mac(text)) else None


def _mac(data: bytes) -> bytes:
    return hmac.digest(_KEY, data, "sha256")
