"""Facts about a model: its limits, capabilities and prices.

They are plain values from the catalogue and the configuration, never guesses made at run time. Unknown facts have safe
defaults: a small window, no images, no audio, no price.
"""

from typing import Literal

import msgspec

from tidegate.values import Frozen, Usage

UNKNOWN_WINDOW = 32_768
"""The context window of an unknown model, in tokens. Even small local models usually run with a window of this size."""

UNKNOWN_OUTPUT = 8_192
"""The output limit for an unknown model, in tokens, for providers that require a limit."""

MOST_COST = 10**15
"""Maximum cost of one call, in billionths of a dollar. No real call costs more, and the store can add up thousands of
such amounts."""

UNKNOWN_TEXT = 512
"""The longest text of an unknown embeddings model, in tokens. Many small models accept no more."""

Thinking = Literal["none", "effort", "adaptive", "budget"]
"""How thinking effort is set. `none`: it cannot be set. `effort`: by level. `adaptive`: by level, and the model decides
when to think. `budget`: by number of tokens."""


class Prices(Frozen, frozen=True):
    """Prices in dollars per million tokens: for input, output, input read from the cache, and input written to the
    cache. If a request has more than `long` tokens, the prices are multiplied by `long_input` and `long_output`."""

    input: float
    output: float
    cached: float | None = None
    written: float | None = None
    long: int | None = None
    long_input: float = 1.0
    long_output: float = 1.0
    minute: float = 0.0
    """The price of a minute of sound that is transcribed."""
    characters: float = 0.0
    """The price of a million characters that are spoken."""

    def cost(self, usage: Usage, *, seconds: float = 0.0, characters: int = 0) -> int:
        """Returns the cost in billionths of a dollar. Without a cache price, cached tokens cost as much as other
        input."""
        fresh = max(0, usage.input - usage.cached - usage.written)
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.written is None else self.written
        input = fresh * self.input + usage.cached * cached + usage.written * written
        output = usage.output * self.output
        if self.long is not None and usage.input > self.long:
            input, output = input * self.long_input, output * self.long_output
        units = seconds / 60 * self.minute * 1_000_000 + characters * self.characters
        return min(round((input + output + units) * 1000), MOST_COST)


class Facts(Frozen, frozen=True):
    """The facts about one model. `efforts` are its levels of thinking effort, in ascending order; they include "none"
    if thinking can be switched off."""

    window: int = UNKNOWN_WINDOW
    output: int = UNKNOWN_OUTPUT
    vision: bool = False
    audio: bool = False
    thinking: Thinking = "none"
    efforts: tuple[str, ...] = ()
    prices: Prices | None = None
    known: bool = False
    """True if the model is in the catalogue or described in the configuration."""
    thinking_unknown: bool = False
    """True if it is unknown whether and how the model thinks. Requests then set an effort only if the caller has asked
    for one."""

    def takes(self, media_type: str) -> bool:
        """True if the model accepts media of this type. Documents depend on `vision`, since providers render their
        pages as images."""
        return self.audio if media_type.startswith("audio/") else self.vision

    def priced(self, usage: Usage, *, seconds: float = 0.0, characters: int = 0) -> Usage:
        if self.prices is None:
            return usage
        return msgspec.structs.replace(usage, cost=self.prices.cost(usage, seconds=seconds, characters=characters))
