"""How many tokens a text has, without a tokenizer: learnt from what the provider counted.

Guarantee: an estimate is never further from the truth than the text at hand is from what was asked before; before the
first count it is that of usual prose. Two numbers, process lifetime, one gauge for each configured model.
"""

BYTES_PER_TOKEN = 4.0
"""About what a token is, over prose, code and JSON."""

WEIGHT = 0.2
"""Of a new count: some ten requests are enough to follow a change of language, and one odd request changes little."""

LEAST_BYTES = 512
"""Of a request that is learnt from: in a shorter one the provider's own frame around it is most of the count."""

_BOUNDS = (0.5, 16.0)
"""Bytes of one token, at least and at most: a count beyond these is no count of what we sent."""


class Gauge:
    __slots__ = ("_bytes_per_token",)

    def __init__(self) -> None:
        self._bytes_per_token = BYTES_PER_TOKEN

    def tokens(self, size: int) -> int:
        """Of a text of so many bytes, rounded up."""
        return -int(-size // self._bytes_per_token)

    def learn(self, size: int, tokens: int) -> None:
        """A request of so many bytes had so many tokens."""
        if size < LEAST_BYTES or tokens <= 0:
            return
        low, high = _BOUNDS
        found = size / tokens
        if low <= found <= high:
            self._bytes_per_token += WEIGHT * (found - self._bytes_per_token)
