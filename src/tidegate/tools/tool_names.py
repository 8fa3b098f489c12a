"""Names of tools that come from elsewhere, made to fit what providers accept.

Guarantee: `fit_name` gives 1 to 64 letters, digits, `_` and `-`, the same for the same pair in every process, and
different for different pairs. A pair that fits stays readable as `server__name`; every other gets a digest of the
whole pair at its end, and a name that only looks as if it had one gets one too, so that the two kinds cannot meet.
"""

import base64
import hashlib
import re

LONGEST = 64
DIGEST = 16
"""Base 32 characters, 80 bits: nobody finds two pairs with the same one."""

SEPARATOR = "__"
_FITS = re.compile(r"[A-Za-z0-9_-]+")
_LOOKS_DIGESTED = re.compile(rf".*_[a-z2-7]{{{DIGEST}}}")


def fit_name(server: str, name: str) -> str:
    """The name under which the tool `name` of `server` is offered to a model."""
    plain = f"{server}{SEPARATOR}{name}"
    fits = _FITS.fullmatch(server) and _FITS.fullmatch(name) and len(plain) <= LONGEST
    # With no separator within or at the end of the server's part, the pair can be read back from the name.
    apart = SEPARATOR not in server and not server.endswith("_")
    if fits and apart and not _LOOKS_DIGESTED.fullmatch(plain):
        return plain
    room = LONGEST - DIGEST - 1 - len(SEPARATOR)
    head = _clean(server)[: room // 3]
    readable = f"{head}{SEPARATOR}{_clean(name)[: room - len(head)]}"
    return f"{readable}_{_digest(server, name)}"


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)


def _digest(server: str, name: str) -> str:
    raw = server.encode("utf-8", "surrogatepass")
    whole = len(raw).to_bytes(8, "big") + raw + name.encode("utf-8", "surrogatepass")
    return base64.b32encode(hashlib.sha256(whole).digest()).decode().lower()[:DIGEST]
