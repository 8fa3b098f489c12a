"""Token estimates without a tokenizer, learnt from the provider's counts.

The error of an estimate comes only from the difference between this text and the earlier requests; before the first
count it is the rate of usual prose. The learnt figure is tokens per byte, whose mean is unbiased for mixed texts; a
mean of bytes per token would promise space that is not there. Two numbers per configured model, for the process
lifetime.
"""

import math

TOKENS_PER_BYTE = 0.25
"""The rate of prose, code and JSON: tokenizers give 0.2 to 0.35 for these, so the first estimate is off by less than a
third; in other scripts it can be off by half. After four counts a fifth of that error is left."""

WEIGHT = 0.2
"""Weight of a new count: about ten requests are enough to follow a change of language, and one odd request changes
little. The first few counts weigh more, so that the initial assumption is replaced soon."""

LEAST_BYTES = 512
"""Smallest request to learn from: in a shorter one the provider's own framing is most of the count."""

_BOUNDS = (1 / 16, 2.0)
"""Least and most tokens per byte: a count outside this range does not describe the request."""


class TokenEstimate:
    __slots__ = ("_counts", "_tokens_per_byte")

    def __init__(self) -> None:
        self._tokens_per_byte = TOKENS_PER_BYTE
        self._counts = 1  # the initial assumption counts as one

    def tokens(self, size: int) -> int:
        """Tokens of a text of `size` bytes, rounded up."""
        return math.ceil(size * self._tokens_per_byte)

    def size(self, tokens: int) -> int:
        """Bytes of a text of `tokens` tokens."""
        return int(tokens / self._tokens_per_byte)

    def learn(self, size: int, tokens: int) -> None:
        """Learn from a request of `size` bytes that the provider counted as `tokens`."""
        if self.is_plausible(size, tokens):
            self._counts += 1
            self._tokens_per_byte += max(WEIGHT, 1 / self._counts) * (tokens / size - self._tokens_per_byte)

    @staticmethod
    def is_plausible(size: int, tokens: int) -> bool:
        """Whether `tokens` can be the count of a request of `size` bytes."""
        low, high = _BOUNDS
        return size >= LEAST_BYTES and low <= tokens / size <= high
