"""The channels: the doors that messages come by, and what each wants of a turn that the death of a process cut off.

Guarantee: the table is closed. A message of a channel that is not in it is not accepted, and a turn that is found in
the store under such a name (its platform is no longer configured) is told of and not worked, since nobody would get its
answer. A platform that is added declares itself here in one line, and recovery needs no change for it.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from tidegate.store import SessionRow, TurnRow
from tidegate.values import Frozen

Resume = Literal["go_on", "stop", "report"]
"""Of a turn that was cut off: work it on from its journal; end it as stopped, as its caller's leaving would have; or
end it as failed, with a report of what happened, and leave it to whoever sent the message."""


class Channel(Frozen, frozen=True):
    name: str
    resume: Resume
    unread: Resume
    """The same for a turn that nobody but its caller's connection could have read: a one-shot call without a key."""
    interactive: bool
    """Whether a person is at the other end, who can be asked and can say something again."""

    def strategy(self, turn: TurnRow, session: SessionRow) -> Resume:
        if session.kind == "ephemeral" and turn.on_disconnect == "cancel":
            return self.unread
        # What had only waited was not cut off.
        return "go_on" if self.resume == "report" and turn.attempts == 0 else self.resume

    @property
    def again(self) -> str:
        """What whoever sent the message can do about a turn that was given up, as the end of a sentence."""
        if self.interactive:
            return "say it again if you still need it"
        return "send the request again, under a new Idempotency-Key if it had one, if its answer is still needed"


DELEGATE = "delegate"
"""The channel of tasks that one agent gives another. Whether a person can be asked, and what rules say of a channel, is
decided by the channel of the turn at the outside."""

CHANNELS = (
    Channel(name="http", resume="go_on", unread="stop", interactive=False),
    Channel(name="page", resume="go_on", unread="go_on", interactive=True),
    Channel(name="terminal", resume="go_on", unread="go_on", interactive=True),
    Channel(name=DELEGATE, resume="go_on", unread="go_on", interactive=False),
)


class Channels:
    """Channels by name."""

    def __init__(self, channels: Iterable[Channel] = CHANNELS) -> None:
        self._by_name: Mapping[str, Channel] = MappingProxyType({channel.name: channel for channel in channels})

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def of(self, name: str) -> Channel:
        """The channel of that name; one that is not configured any more reports, and has nobody to ask."""
        known = self._by_name.get(name)
        return known or Channel(name=name, resume="report", unread="stop", interactive=False)
