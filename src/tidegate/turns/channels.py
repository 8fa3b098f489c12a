"""Channels: the ways in which messages reach the gateway, and how unfinished turns of each are recovered.

The table is closed: messages of an unknown channel are not accepted. A stored turn with an unknown channel, whose
platform is no longer configured, is reported and not run, since nobody would receive its answer. A new platform needs
one line here and no change to recovery.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from tidegate.store import SessionRow, TurnRow
from tidegate.values import Frozen

Resume = Literal["go_on", "stop", "report"]
"""How an interrupted turn is recovered. It continues from its journal, is stopped as if its caller had disconnected, or
fails with a report to the sender of the message."""


class Channel(Frozen, frozen=True):
    name: str
    resume: Resume
    unread: Resume
    """The same for a one-shot call without a key, whose answer only the caller's connection could have received."""
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
"""The channel of tasks that one agent delegates to another. The channel of the outermost turn decides whether a person
can be asked and which channel rules apply."""

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
        """The channel of this name. Turns of an unknown channel are reported, and nobody can be asked on it."""
        known = self.by_name.get(name)
        return known or Channel(name=name, resume="report", unread="stop", interactive=False)
