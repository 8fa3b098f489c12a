"""How many tokens a text has, without a tokenizer: learnt from what the provider counted.

Guarantee: an estimate is never further from the truth than the text at hand is from what was asked before; before the
first count it is that of usual prose. What is learnt is tokens per byte, whose mean errs to neither side when texts are
mixed; that of bytes per token would promise room that is not there. Two numbers, process lifetime, one gauge for each
configured model.
"""

import math

TOKENS_PER_BYTE = 0.25
"""About what prose, code and JSON have: for these, tokenizers give 0.2 to 0.35, so that the first estimate is wrong by
less than a third; in other scripts it can be by half. After four counts a fifth of that is left."""

WEIGHT = 0.2
"""Of a new count: some ten requests are enough to follow a change of language, and one odd request changes little. The
first few count for more, as what is only supposed so far should not outlive them."""

LEAST_BYTES = 512
"""Of a request that is learnt from: in a shorter one the provider's own frame around it is most of the count."""

_BOUNDS = (1 / 16, 2.0)
"""Tokens of one byte, at least and at most: a count beyond these is no count of what we sent."""


class TokenEstimate:
    __slots__ = ("_counts", "_tokens_per_byte")

    def __init__(self) -> None:
        self._tokens_per_byte = TOKENS_PER_BYTE
        self._counts = 1  # what is supposed counts as one

    def tokens(self, size: int) -> int:
        """Of a text of so many bytes, rounded up."""
        return math.ceil(size * self._tokens_per_byte)

    def size(self, tokens: int) -> int:
        """Bytes of a text of so many tokens."""
        return int(tokens / self._tokens_per_byte)

    def learn(self, size: int, tokens: int) -> None:
        """A request of so many bytes had so many tokens."""
        if self.believes(size, tokens):
            self._counts += 1
            self._tokens_per_byte += max(WEIGHT, 1 / self._counts) * (tokens / size - self._tokens_per_byte)

    @staticmethod
    def believes(size: int, tokens: int) -> bool:
        """Whether so many tokens can be a count of so many bytes that we sent."""
        low, high = _BOUNDS
        return size >= LEAST_BYTES and low <= tokens / size <= high
