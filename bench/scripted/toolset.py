"""The tools of a request. The same bytes are checked only once. At most KEPT sets are cached, refused sets never."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from bench.scripted.interface import Refusal

KEPT = 64
Checked = TypeVar("Checked")


class Toolsets(Generic[Checked]):
    def __init__(self, check: Callable[[bytes], Checked]) -> None:
        self._check = check
        self._kept: OrderedDict[bytes, Checked] = OrderedDict()

    def of(self, raw: bytes) -> Checked:
        found = self._kept.get(raw)
        if found is None:
            found = self._kept[raw] = self._check(raw)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found


def check_unique(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        doubled = sorted(name for name, times in Counter(names).items() if times > 1)
        raise Refusal(f"Tool names must be unique; twice: {', '.join(doubled)}.", param="tools")


def is_strict(schema: dict[str, Any]) -> bool:
    """Whether the first level of an object's schema follows the rules of `strict`."""
    named = set(schema.get("required", ())) == set(schema.get("properties", ()))
    return named and schema.get("additionalProperties") is False
