"""The decision on whether an attempt resumes a turn that an earlier attempt has left unfinished.

It depends only on the turn's rows and its channel's properties (`channels`), so every process comes to the same
decision. A turn is not resumed if the process has been killed more than limits.resumes times while the turn was
running, so a turn that crashes the gateway cannot do so forever.
"""

from tidegate.engine import TakenTurn
from tidegate.errors import GivenUp
from tidegate.log import Log
from tidegate.turns.channel_recovery import Channel

log = Log(__name__)


def check_resumption(taken: TakenTurn, channel: Channel, resumes: int) -> None:
    """Raises GivenUp if the turn, which has been interrupted before, is not to be resumed."""
    turn, session, interruptions = taken.turn, taken.session, taken.interruptions
    if channel.strategy(turn, session) == "report":
        reason, code = (
            "The gateway stopped while it was working on this, and messages on the channel "
            f"{channel.name!r} are not resumed automatically; {channel.retry_advice}.",
            "interrupted",
        )
    elif interruptions > resumes:
        often = "once" if interruptions == 1 else f"{interruptions} times"
        reason, code = (
            f"The gateway stopped {often} while it was working on this (limits.resumes is {resumes}), so it was "
            f"given up, "
            f"and the log says why; {channel.retry_advice}.",
            "resume_budget",
        )
    else:
        return
    log.warning("a turn is not resumed", session=session.id, turn=turn.id, reason=reason)
    raise GivenUp(reason, code=code)
