"""The keys of one endpoint, of which one is used at a time.

Guarantee: the same key is used until the endpoint says that it has no quota, is asked too often or is not known; then
it rests and the next is used, so that a provider's cache, which belongs to a key's account, is left only when it must
be. A ring of one never rests: there is nothing to use instead. Keys are named in logs by where they come from, never by
what they are. Process lifetime; shared by the models of one endpoint that name the same keys.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.errors import ModelFailed
from tidegate.log import Log
from tidegate.models.resting import Rests

log = Log(__name__)

ROTATED = frozenset({"quota", "rate", "authorisation"})
"""What is the key's fault, and not the endpoint's or the conversation's."""


class Key(NamedTuple):
    """`reference` is where it comes from; an endpoint that wants no key has one without a secret."""

    reference: str
    secret: str | None


class KeyRing:
    def __init__(self, keys: Sequence[Key], rests: Rests) -> None:
        self.keys = tuple(keys) or (Key("", None),)
        self._rests = rests

    def key(self) -> Key:
        """The first that does not rest; when all do, the one that comes back first."""
        return min(self.keys, key=lambda key: self._rests.wait(key.reference))

    def failed(self, key: Key, failure: ModelFailed) -> bool:
        """Whether another key can be used now instead of this one. When all rest, `failure` says until when."""
        if len(self.keys) == 1 or failure.kind not in ROTATED:
            return False
        seconds = self._rests.begin(key.reference, failure)
        soonest = min(self._rests.wait(other.reference) for other in self.keys)
        log.warning(
            "a key rests", key=key.reference, why=failure.kind, seconds=round(seconds or 0), others_ready=soonest == 0
        )
        if soonest > 0:
            failure.retry_after = soonest
            return False
        return True

    @property
    def resting(self) -> int:
        return sum(self._rests.of(key.reference) is not None for key in self.keys) if len(self.keys) > 1 else 0
