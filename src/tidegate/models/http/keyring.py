"""The keys of one endpoint, of which one is used at a time.

Guarantee: the same key is used until the endpoint says that it has no quota, is asked too often or is not known; then
it rests and the next is used, so that a provider's cache, which belongs to a key's account, is left only when it must
be. A ring of one never rests: there is nothing to use instead. Keys are named in logs by where they come from, never by
what they are. Process lifetime; models of one endpoint that name the same key know of its rest.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.errors import ModelFailed
from tidegate.log import Log
from tidegate.models.http.cooldown import Cooldowns

log = Log(__name__)

ROTATED = frozenset({"quota", "rate", "authorisation"})
"""What is the key's fault, and not the endpoint's or the conversation's."""


class Key(NamedTuple):
    """`reference` is where it comes from; an endpoint that wants no key has one without a secret."""

    reference: str
    secret: str | None

    def __repr__(self) -> str:
        return f"Key({self.reference!r})"


class KeyRing:
    def __init__(self, keys: Sequence[Key], cooldowns: Cooldowns, endpoint: str) -> None:
        self.keys = tuple(keys) or (Key("", None),)
        self._cooldowns = cooldowns
        self._endpoint = endpoint

    def key(self) -> Key:
        """The first that does not rest; when all do, the one that comes back first."""
        return min(self.keys, key=self._wait)

    def worked(self, key: Key) -> None:
        self._cooldowns.end(self._name(key))

    def failed(self, key: Key, failure: ModelFailed) -> bool:
        """Whether another key can be used now instead of this one. When all rest, `failure` says until when."""
        if len(self.keys) == 1 or failure.kind not in ROTATED:
            return False
        seconds = self._cooldowns.begin(self._name(key), failure)
        soonest = min(map(self._wait, self.keys))
        log.warning(
            "a key rests", key=key.reference, why=failure.kind, seconds=round(seconds or 0), others_ready=soonest == 0
        )
        if soonest > 0:
            failure.retry_after = soonest
            return False
        return True

    @property
    def resting(self) -> int:
        return sum(self._wait(key) > 0 for key in self.keys) if len(self.keys) > 1 else 0

    def _wait(self, key: Key) -> float:
        return self._cooldowns.wait(self._name(key))

    def _name(self, key: Key) -> str:
        """The same key may be used at another endpoint, which knows nothing of its quota here."""
        return f"{key.reference} at {self._endpoint}"
