"""Words as people use them: a few very often, most of them hardly ever.

Guarantee: the same seed gives the same text. The vocabulary is made up, of syllables; how often a word comes follows
Zipf's law, as it does in most languages. A `Prose` holds its vocabulary and nothing else.
"""

import random
from itertools import accumulate, product

VOCABULARY = 20_000
"""Words that a person's mails and notes of some years have, about."""
SHIFT = 2.7
"""In Zipf's law as Mandelbrot mended it: the commonest words are not quite as common as a mere 1/rank."""
_BEGINNINGS = ("b", "br", "d", "f", "g", "gr", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "w", "z")
_MIDDLES = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_ENDS = ("", "l", "n", "r", "s", "t", "ck")
SENTENCE = 12
"""Words, about."""


class Prose:
    def __init__(self, seed: int = 0, vocabulary: int = VOCABULARY) -> None:
        self._random = random.Random(seed)
        syllables = ["".join(parts) for parts in product(_BEGINNINGS, _MIDDLES, _ENDS)]
        made: dict[str, None] = {}
        while len(made) < vocabulary:
            # The commoner a word is, the shorter: there are as many of one syllable as a tenth of all.
            length = 1 if len(made) < min(vocabulary // 10, len(syllables) // 2) else 2 if len(made) % 3 else 3
            made["".join(self._random.choices(syllables, k=length))] = None
        self.words = tuple(made)
        """The commonest first."""
        self._weights = list(accumulate(1 / (rank + SHIFT) for rank in range(1, vocabulary + 1)))

    def some(self, count: int) -> list[str]:
        return self._random.choices(self.words, cum_weights=self._weights, k=count)

    def text(self, count: int) -> str:
        """So many words, in sentences."""
        words = self.some(count)
        words[SENTENCE - 1 :: SENTENCE] = [f"{word}." for word in words[SENTENCE - 1 :: SENTENCE]]
        return " ".join(words)
