"""Signatures and seals of the scripted model's own thinking, so that it can recognise it later.

The key is a constant, so that conversations survive a restart of the server. It protects nothing.
"""

import base64
import binascii
import hmac

_KEY = b"a scripted model's own hand"
_MAC_BYTES = 32


def signature(tail: str, *parts: str) -> str:
    """A signature over all parts in order; `tail` ties it to one answer."""
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
    """The sealed content, or None if it was not sealed here."""
    try:
        data = base64.b64decode(given.encode("ascii"), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    mac, text = data[:_MAC_BYTES], data[_MAC_BYTES:]
    return text.decode() if hmac.compare_digest(mac, _mac(text)) else None


def _mac(data: bytes) -> bytes:
    return hmac.digest(_KEY, data, "sha256")
