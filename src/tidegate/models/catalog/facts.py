"""What is known of a model beside how it is asked: how much it takes, what it can do, what it costs.

Guarantee: values only; they come from the catalogue and the configuration, never from a guess made on the way. What is
not known has a default that is safe: a small window, no pictures, no sounds, no price.
"""

from typing import Literal

import msgspec

from tidegate.values import Frozen, Usage

UNKNOWN_WINDOW = 32_768
"""Tokens: what even small local models are run with."""

UNKNOWN_OUTPUT = 8_192
"""Tokens of an answer, where a provider wants to be told a limit."""

MOST_COST = 10**15
"""Billionths of a dollar for one call: nobody means more, and the store can add up thousands of them."""

Thinking = Literal["none", "effort", "adaptive", "budget"]
"""How a model is told how hard to think: not at all, by a word, by a word where it decides itself when to, or by a
number of tokens."""


class Prices(Frozen, frozen=True):
    """Dollars for a million tokens: new ones, ones read from the cache, ones written to it, and those of the answer.
    In a request of more than `long` tokens they cost as many times as much as `long_input` and `long_output` say."""

    input: float
    output: float
    cached: float | None = None
    written: float | None = None
    long: int | None = None
    long_input: float = 1.0
    long_output: float = 1.0

    def cost(self, usage: Usage) -> int:
        """In billionths of a dollar. Where a price is not given, tokens of the cache cost what new ones do."""
        fresh = max(0, usage.input - usage.cached - usage.written)
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.written is None else self.written
        asked = fresh * self.input + usage.cached * cached + usage.written * written
        answered = usage.output * self.output
        if self.long is not None and usage.input > self.long:
            asked, answered = asked * self.long_input, answered * self.long_output
        return min(round((asked + answered) * 1000), MOST_COST)


class Facts(Frozen, frozen=True):
    """`efforts` are the words that the model knows for how hard to think, in rising order; "none" is among them if it
    can be told not to."""

    window: int = UNKNOWN_WINDOW
    output: int = UNKNOWN_OUTPUT
    vision: bool = False
    audio: bool = False
    thinking: Thinking = "none"
    efforts: tuple[str, ...] = ()
    prices: Prices | None = None
    known: bool = False
    """Whether the catalogue or the configuration knows the model."""
    thinking_unknown: bool = False
    """Whether nobody knows how it thinks, if it does: then nothing is said of that unless somebody asks for it."""

    def takes(self, media_type: str) -> bool:
        """Whether the model can be shown this kind of thing. Documents follow `vision`: providers show a model their
        pages as pictures."""
        return self.audio if media_type.startswith("audio/") else self.vision

    def priced(self, usage: Usage) -> Usage:
        return usage if self.prices is None else msgspec.structs.replace(usage, cost=self.prices.cost(usage))
