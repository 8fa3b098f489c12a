"""Channels: the ways in which a message reaches the gateway, and the recovery of unfinished turns on each.

The table is closed. A message of an unknown channel is not accepted. A turn in the store with an unknown channel (its
platform is no longer configured) is reported and not run, since nobody would receive its answer. A new platform needs
one line here and no change to recovery.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from tidegate.store import SessionRow, TurnRow
from tidegate.values import Frozen

Resume = Literal["go_on", "stop", "report"]
"""The recovery of an interrupted turn: it continues from its journal, ends as stopped as if its caller had left, or
ends as failed with a report to the sender of the message."""


class Channel(Frozen, frozen=True):
    name: str
    resume: Resume
    unread: Resume
    """The same for a turn that only its caller's connection could have read: a one-shot call without a key."""
    interactive: bool
    """True if a person is at the other end, who can answer questions and repeat a message."""

    def strategy(self, turn: TurnRow, session: SessionRow) -> Resume:
        if session.kind == "ephemeral" and turn.on_disconnect == "cancel":
            return self.unread
        # A turn that was only waiting has not been interrupted.
        return "go_on" if self.resume == "report" and turn.attempts == 0 else self.resume

    @property
    def retry_advice(self) -> str:
        """Advice to the sender about a turn that was given up, as the end of a sentence."""
        if self.interactive:
            return "say it again if you still need it"
        return "send the request again, under a new Idempotency-Key if it had one, if its answer is still needed"


DELEGATE = "delegate"
"""The channel of tasks that one agent gives another. Whether a person can be asked, and which channel rules apply, is
decided by the channel of the outermost turn."""

CHANNELS = (
    Channel(name="http", resume="go_on", unread="stop", interactive=False),
    Channel(name="page", resume="go_on", unread="go_on", interactive=True),
    Channel(name="terminal", resume="go_on", unread="go_on", interactive=True),
    Channel(name=DELEGATE, resume="go_on", unread="go_on", interactive=False),
)


class Channels:
    def __init__(self, channels: Iterable[Channel] = CHANNELS) -> None:
        self.by_name: Mapping[str, Channel] = MappingProxyType({channel.name: channel for channel in channels})

    def of(self, name: str) -> Channel:
        """The channel of that name. An unknown one reports, and has nobody to ask."""
        known = self.by_name.get(name)
        return known or Channel(name=name, resume="report", unread="stop", interactive=False)
