"""Token counts: estimates, and counts reported by providers, which are checked for plausibility.

Missing counts are estimated, and so are implausible ones: values that are not numbers, or that exceed both the model's
window and the number of bytes (sent for input, received for output). Parts of a count (cached, written, reasoning) that
exceed the total are dropped. Estimated usage is marked as such, and implausible counts are logged, so one wrong figure
neither fails an answer nor uses up a budget.

Estimates need no tokenizer. They are based on the provider's earlier counts or, before the first count, on the rate for
typical prose.
"""

import json
import math
from typing import Any, Protocol

import msgspec

from tidegate.log import Log
from tidegate.models.catalog.facts import Facts
from tidegate.values import Usage

TOKENS = 10**9
"""A number of tokens that no request or answer reaches. It replaces larger numbers and values that are not numbers, and
is never plausible. The store can still add up many such values."""

USAGE_BYTES = 16 * 1024
"""Maximum size of a usage object that is decoded, in bytes: ten times the size of the largest in use."""

TOKENS_PER_BYTE = 0.25
"""The initial estimate of tokens per byte. Tokenizers produce 0.2 to 0.35 for prose, code and JSON, so the first
estimate is off by less than a third. For other scripts, it can be off by half. After four counts, a fifth of that error
is left."""

WEIGHT = 0.2
"""The weight of a new count. About ten requests are enough to adapt to a change of language, while a single unusual
request has little effect. The first few counts have a higher weight, so that the initial estimate is replaced soon."""

LEAST_BYTES = 512
"""The smallest request to learn from, in bytes. In shorter requests, the provider's own framing makes up most of the
count."""

_BOUNDS = (1 / 16, 2.0)
"""The smallest and largest plausible number of tokens per byte. A count outside this range does not describe the
request."""

log = Log(__name__)


class ReportedUsage:
    """A provider's usage object as received. Reading it never fails."""

    __slots__ = ("_fields",)

    def __init__(self, raw: bytes) -> None:
        self._fields: Any = _decode(raw)

    def update(self, other: "ReportedUsage") -> None:
        """Applies the counts from a later report. Counts missing from it stay unchanged."""
        if isinstance(self._fields, dict) and isinstance(other._fields, dict):
            self._fields.update({name: value for name, value in other._fields.items() if value is not None})
        else:
            self._fields = other._fields

    def tokens(self, *path: str) -> int:
        """Returns the count at this path. Returns 0 if it is missing, and `TOKENS` if the value is not a count."""
        value = self._fields
        for name in path:
            if value is None:
                return 0
            if not isinstance(value, dict):
                return TOKENS
            value = value.get(name)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < TOKENS:
            return TOKENS
        return int(value)


def _decode(raw: bytes) -> Any:
    """Decodes with msgspec or, for numbers out of msgspec's range, with `json`."""
    if len(raw) > USAGE_BYTES:
        return ""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return ""


class CountedModel(Protocol):
    """A model whose tokens are counted."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> Facts: ...

    @property
    def token_estimate(self) -> "TokenEstimate": ...


def checked_usage(model: CountedModel, reported: Usage | None, *, asked: int, received: int) -> Usage:
    """Returns the usage to charge for an answer. `asked` and `received` are the sizes of the request and the answer in
    bytes."""
    usage = reported or Usage()
    wrong: list[str] = []

    def whole(name: str, size: int) -> int:
        count: int = getattr(usage, name)
        if count > max(model.facts.window, size):
            wrong.append(name)
        elif count or not size:
            return count
        return model.token_estimate.tokens(size)

    def part(name: str, room: int) -> int:
        count: int = getattr(usage, name)
        if count <= room:
            return count
        wrong.append(name)
        return 0

    input, output = whole("input", asked), whole("output", received)
    cached = part("cached", input)
    written = part("written", input - cached)
    reasoning = part("reasoning", output)
    if not wrong and (input, output) == (usage.input, usage.output):
        return usage
    if wrong:
        log.warning(
            "a model reported impossible token counts; they are estimated instead",
            model=model.name,
            counts=", ".join(wrong),
            input=input,
            output=output,
        )
    return model.facts.priced(
        Usage(input=input, output=output, cached=cached, written=written, reasoning=reasoning, estimated=True)
    )


class TokenEstimate:
    """One configured model's tokens per byte, learnt from the provider's counts.

    An estimate is off only to the extent that the text differs from earlier requests. The mean of tokens per byte is
    unbiased for mixed text; a mean of bytes per token would overestimate the remaining space.
    """

    __slots__ = ("_counts", "_tokens_per_byte")

    def __init__(self) -> None:
        self._tokens_per_byte = TOKENS_PER_BYTE
        self._counts = 1  # the initial assumption counts as one

    def tokens(self, size: int) -> int:
        """Returns the estimated number of tokens in `size` bytes of text, rounded up."""
        return math.ceil(size * self._tokens_per_byte)

    def size(self, tokens: int) -> int:
        """Returns the estimated size in bytes of `tokens` tokens of text."""
        return int(tokens / self._tokens_per_byte)

    def learn(self, size: int, tokens: int) -> None:
        """Learns from a request of `size` bytes that the provider counted as `tokens`."""
        if self.is_plausible(size, tokens):
            self._counts += 1
            self._tokens_per_byte += max(WEIGHT, 1 / self._counts) * (tokens / size - self._tokens_per_byte)

    @staticmethod
    def is_plausible(size: int, tokens: int) -> bool:
        """True if `tokens` is a plausible count for a request of `size` bytes."""
        low, high = _BOUNDS
        return size >= LEAST_BYTES and low <= tokens / size <= high
