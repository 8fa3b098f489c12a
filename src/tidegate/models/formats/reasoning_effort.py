"""How hard a model is asked to think, in its own words.

Guarantee: of the words that a model knows, the one nearest to what was asked for and not above it, or its least; never
one that it does not know. A pure function.
"""

from collections.abc import Sequence

from tidegate.models.catalog.facts import Facts

_RANKS = {"off": 0, "none": 0, "minimal": 1, "low": 2, "medium": 3, "high": 4, "xhigh": 5, "max": 6}
"""Ours and the providers' words on one scale; ours go from off to max."""


def asked_of(facts: Facts, reasoning: str | None) -> str | None:
    """The word that goes out; None when nothing is to be said of it. A model that nobody knows may not be able to think
    at all: it is not told to think as little as it can when it was told not to."""
    if reasoning is None or facts.thinking == "none" or (reasoning == "off" and facts.supposed):
        return None
    return word_for(reasoning, facts.efforts)


def word_for(reasoning: str, efforts: Sequence[str]) -> str | None:
    """None when the model knows no such word at all. A word of the caller's own is handed through."""
    if reasoning not in _RANKS:
        return reasoning
    known = sorted((effort for effort in efforts if effort in _RANKS), key=_RANKS.__getitem__)
    if not known:
        return None
    fitting = [effort for effort in known if _RANKS[effort] <= _RANKS[reasoning]]
    return fitting[-1] if fitting else known[0]
