"""A deterministic embedding: the same text always has the same vector, and texts with common words have close ones.

Each stem of a text, or its group of synonyms, adds a few pseudo-random numbers to the vector; common words add none. It
shows that vectors are stored, compared and fused. It says nothing about the quality of a real embeddings model.
"""

import hashlib
import math
import re
from collections.abc import Mapping

import Stemmer  # type: ignore[import-not-found]

DIMENSIONS = 256
NUMBERS = 16
"""The numbers that one word changes."""
COMMON = frozenset(
    re.findall(
        r"\w+",
        "a about after all an and any are as at be been but by can could did do does for from had has have he her his "
        "how i if in into is it its just like me my no not of on or our out she so some than that the their them then "
        "there they this to up was we were what when where which who whom will with would you your",
    )
)
_WORD = re.compile(r"\w+")


def embedding(text: str, dimensions: int, synonyms: Mapping[str, str]) -> list[float]:
    """The vector of a text, of length 1."""
    stem = Stemmer.Stemmer("english").stemWord
    vector = [0.0] * dimensions
    words = _WORD.findall(text.lower())
    for word in [word for word in words if word not in COMMON] or words or [text]:
        token = synonyms.get(word) or stem(word)
        digest = hashlib.blake2b(token.encode(), digest_size=4 * NUMBERS).digest()
        for place in range(0, len(digest), 4):
            number = int.from_bytes(digest[place : place + 4], "big")
            vector[(number >> 1) % dimensions] += 1.0 if number & 1 else -1.0
    length = math.hypot(*vector) or 1.0
    return [number / length for number in vector]
