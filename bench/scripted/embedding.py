"""A deterministic embedding: the same text always has the same vector, and texts with common words have close ones.

Each stem of a text, or its group of synonyms, adds a few pseudo-random numbers to the vector. It shows that vectors are
stored, compared and fused. It says nothing about the quality of a real embeddings model.
"""

import hashlib
import math
import re
from collections.abc import Mapping

import Stemmer  # type: ignore[import-not-found]

DIMENSIONS = 256
NUMBERS = 16
"""The numbers that one word changes."""
_WORD = re.compile(r"\w+")


def embedding(text: str, dimensions: int, synonyms: Mapping[str, str]) -> list[float]:
    """The vector of a text, of length 1."""
    stem = Stemmer.Stemmer("english").stemWord
    vector = [0.0] * dimensions
    for word in _WORD.findall(text.lower()) or [text]:
        token = synonyms.get(word) or stem(word)
        digest = hashlib.blake2b(token.encode(), digest_size=4 * NUMBERS).digest()
        for place in range(0, len(digest), 4):
            number = int.from_bytes(digest[place : place + 4], "big")
            vector[(number >> 1) % dimensions] += 1.0 if number & 1 else -1.0
    length = math.hypot(*vector) or 1.0
    return [number / length for number in vector]
