"""Generated prose with a natural distribution of words.

The same seed gives the same text. The vocabulary is made up of syllables; word frequencies follow Zipf's law, as in
most languages. A `Prose` holds only its vocabulary.
"""

import random
from itertools import accumulate, product

VOCABULARY = 20_000
"""Roughly the distinct words in a few years of a person's mails and notes."""
SHIFT = 2.7
"""The offset of the Zipf-Mandelbrot law: the most common words are less common than 1/rank."""
_BEGINNINGS = ("b", "br", "d", "f", "g", "gr", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "w", "z")
_MIDDLES = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_ENDS = ("", "l", "n", "r", "s", "t", "ck")
SENTENCE = 12
"""Words of a sentence."""


class Prose:
    def __init__(self, seed: int = 0, vocabulary: int = VOCABULARY) -> None:
        self._random = random.Random(seed)
        syllables = ["".join(parts) for parts in product(_BEGINNINGS, _MIDDLES, _ENDS)]
        made: dict[str, None] = {}
        while len(made) < vocabulary:
            # Common words are short: a tenth of all words have one syllable.
            length = 1 if len(made) < min(vocabulary // 10, len(syllables) // 2) else 2 if len(made) % 3 else 3
            made["".join(self._random.choices(syllables, k=length))] = None
        self.words = tuple(made)
        """Most common first."""
        self._weights = list(accumulate(1 / (rank + SHIFT) for rank in range(1, vocabulary + 1)))

    def some(self, count: int) -> list[str]:
        return self._random.choices(self.words, cum_weights=self._weights, k=count)

    def text(self, count: int) -> str:
        """A text of `count` words, in sentences."""
        words = self.some(count)
        words[SENTENCE - 1 :: SENTENCE] = [f"{word}." for word in words[SENTENCE - 1 :: SENTENCE]]
        return " ".join(words)
