"""An endpoint's keys, used one at a time.

A key is used until the endpoint rejects it or reports that its quota is exhausted or its rate limit reached. The key
then gets a cooldown, and the next key is used. A provider's prompt cache belongs to a key's account, so keys are
changed only when necessary. A single key gets no cooldown because there is no other key to use. Logs identify a key by
its reference, never by its value.

A key ring lives as long as the process. Models at the same endpoint that use the same key share its cooldown.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.errors import ModelFailed
from tidegate.log import Log
from tidegate.models.http.cooldown import Cooldowns

log = Log(__name__)

ROTATED = frozenset({"quota", "rate", "authorisation"})
"""Failures that are caused by the key, not by the endpoint or the conversation."""


class Key(NamedTuple):
    """A key for an endpoint. `reference` is the setting's value, such as `env:NAME`. An endpoint without a key has one
    Key whose secret is None."""

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
        """Returns the first key that is not in cooldown. If all keys are, returns the key whose cooldown ends first."""
        return min(self.keys, key=self._wait)

    def worked(self, key: Key) -> None:
        self._cooldowns.end(self._name(key))

    def failed(self, key: Key, failure: ModelFailed) -> bool:
        """Handles a failed request. If the key caused the failure and there are other keys, the key's cooldown starts.
        Returns True if another key can be used now. If all keys are in cooldown, sets `failure.retry_after` to the
        shortest remaining time."""
        if len(self.keys) == 1 or failure.kind not in ROTATED:
            return False
        seconds = self._cooldowns.begin(self._name(key), failure)
        soonest = min(map(self._wait, self.keys))
        log.warning(
            "a key is in cooldown",
            key=key.reference,
            why=failure.kind,
            seconds=round(seconds or 0),
            others_ready=soonest == 0,
        )
        if soonest > 0:
            failure.retry_after = soonest
            return False
        return True

    @property
    def in_cooldown(self) -> int:
        """The number of keys in cooldown."""
        return sum(self._wait(key) > 0 for key in self.keys) if len(self.keys) > 1 else 0

    def _wait(self, key: Key) -> float:
        return self._cooldowns.wait(self._name(key))

    def _name(self, key: Key) -> str:
        """Returns the name of a key's cooldown. Cooldowns are per key and endpoint, because other endpoints do not
        share the quota."""
        return f"{key.reference} at {self._endpoint}"
