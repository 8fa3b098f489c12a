"""What the last process left: turns that were accepted and have not ended.

Guarantee: after `recover` every such turn goes on from its journal, or has ended with a reason that its user can read.
Which of the two is its channel's to say (`channels`), and so is in whose words. A turn that the process died in more
often than limits.resumes is not taken up again, so that a turn that kills the gateway cannot do so for ever. What works
on a task goes on only with the turn that gave it.
"""

from typing import TYPE_CHECKING

from tidegate.engine import PARENT_ENDED, stopped_failure
from tidegate.log import Log
from tidegate.store import Db, SessionRow, TurnRow, sessions, turns
from tidegate.turns.channels import Channel
from tidegate.values import Failure

if TYPE_CHECKING:
    from tidegate.sessions.service import Sessions

log = Log(__name__)


async def recover(service: "Sessions", *, older: float = 0.0) -> int:
    """How many turns go on. Also called on the timer: a turn that is open in the store and not live here is stranded
    (the store could not take its end), and is taken up like one that a crash
    left. `older` spares those that were accepted just now and may be on their way to the engine."""
    resumed = 0
    for turn, session in await service.store.read(_open):
        # At the start nothing is on its way, whatever the clock says of when it was accepted.
        if service.engine.log(turn.id) is not None or (older and turn.accepted > service.clock() - older):
            continue
        if turn.within is not None and service.engine.log(turn.within) is None:
            reason: Failure | None = stopped_failure(PARENT_ENDED)
        else:
            reason = _refusal(turn, session, service.channels.of(turn.channel), service.config.limits.resumes)
        if reason is not None:
            if await service.engine.give_up(turn, session, reason):
                log.warning("a turn is not resumed", session=session.id, turn=turn.id, reason=reason.message)
                if session.kind == "ephemeral":  # its rows are gone: what lay on disk for it is nobody's
                    await service.workspaces.discard(session.id)
                    await service.spool.remove(session.id)
        else:
            # One that was parked had begun too, though no attempt counts.
            service.engine.submit(
                session.id, turn.id, session.principal, resumed=turn.state == "running", within=turn.within
            )
            resumed += 1
    return resumed


def _open(db: Db) -> list[tuple[TurnRow, SessionRow]]:
    """Those that gave tasks before those that work on them."""
    found = [(turn, sessions.get(db, turn.session)) for turn in sorted(turns.open_turns(db), key=_depth)]
    return [(turn, session) for turn, session in found if session is not None]


def _depth(turn: TurnRow) -> int:
    return turn.depth


def _refusal(turn: TurnRow, session: SessionRow, channel: Channel, resumes: int) -> Failure | None:
    """Why the turn does not go on; None when it does."""
    if session.ended is not None:
        return stopped_failure("because its session ended")
    strategy = channel.strategy(turn, session)
    if strategy == "stop":
        return stopped_failure("because the gateway restarted and its caller had gone", abandoned=True)
    if strategy == "report":
        return _given_up(
            f"The gateway stopped while it worked on this, and what comes by the channel {channel.name!r} is not taken "
            f"up again by itself; {channel.again}.",
            "interrupted",
        )
    if turn.attempts > resumes:
        often = "once" if turn.attempts == 1 else f"{turn.attempts} times"
        return _given_up(
            f"The gateway stopped {often} while it worked on this (limits.resumes is {resumes}), so it was given up, "
            f"and its log says why; {channel.again}.",
            "resume_budget",
        )
    return None


def _given_up(message: str, code: str) -> Failure:
    return Failure(message=message, type="turn_error", code=code, status=502)
