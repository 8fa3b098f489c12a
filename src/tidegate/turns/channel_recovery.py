"""Channels: the ways in which messages reach the gateway, and how each channel's unfinished turns are recovered.

The list of channels is fixed: messages from an unknown channel are not accepted. If a stored turn has an unknown
channel because its platform is no longer configured, the turn is reported but not run, since nobody would receive its
answer. A new platform requires its own package next to `web/` and one line here, but no code in recovery.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from tidegate.store import SessionRow, TurnRow
from tidegate.values import Frozen

Resume = Literal["go_on", "stop", "report"]
"""How an interrupted turn is recovered. The turn continues from its journal (`go_on`), is stopped as if its caller had
disconnected (`stop`), or fails with a report to the message's sender (`report`)."""


class Channel(Frozen, frozen=True):
    name: str
    resume: Resume
    unread: Resume
    """How to recover a one-shot call without an idempotency key, whose answer could only have been sent on the caller's
    connection."""
    interactive: bool
    """True if there is a person at the other end who can answer questions and repeat a message."""

    def strategy(self, turn: TurnRow, session: SessionRow) -> Resume:
        if session.kind == "ephemeral" and turn.on_disconnect == "cancel":
            return self.unread
        return self.resume

    @property
    def retry_advice(self) -> str:
        """Advice to the sender about a turn that the gateway has given up on, phrased as the end of a sentence."""
        if self.interactive:
            return "say it again if you still need it"
        return "send the request again, under a new Idempotency-Key if it had one, if its answer is still needed"


DELEGATE = "delegate"
"""The channel of tasks that one agent delegates to another. The outermost turn's channel determines whether a person
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
        """Returns the channel with this name. Turns on an unknown channel are reported, and nobody can be asked a
        question there."""
        known = self.by_name.get(name)
        return known or Channel(name=name, resume="report", unread="stop", interactive=False)
