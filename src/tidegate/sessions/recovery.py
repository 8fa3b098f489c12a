"""What the last process left: turns that were accepted and have not ended.

Guarantee: after `recover` every such turn goes on from its journal, or has ended with a reason that its user can read.
A turn that the process died in more often than limits.resumes is not taken up again, so that a turn that kills the
gateway cannot do so for ever. One whose only reader was a connection is stopped, as that reader's leaving would have.
"""

from typing import TYPE_CHECKING

import structlog

from tidegate.engine import stopped
from tidegate.store import Db, SessionRow, TurnRow, sessions, turns
from tidegate.values import Failure

if TYPE_CHECKING:
    from tidegate.sessions.door import Sessions

log = structlog.stdlib.get_logger(__name__)


async def recover(door: "Sessions", *, older: float = 0.0) -> int:
    """How many turns go on. Also called on the timer: a turn that is open in the store and not live here is stranded
    (the store could not take its end), and is taken up like one that a crash
    left. `older` spares those that were accepted just now and may be on their way to the engine."""
    resumed = 0
    for turn, session in await door.store.read(_open):
        # At the start nothing is on its way, whatever the clock says of when it was accepted.
        if door.engine.log(turn.id) is not None or (older and turn.accepted > door.clock() - older):
            continue
        reason = _refusal(turn, session, door.config.limits.resumes)
        if reason is not None:
            if await door.engine.give_up(turn, session, reason):
                log.warning("a turn is not resumed", session=session.id, turn=turn.id, reason=reason.message)
        else:
            door.engine.submit(session.id, turn.id, resumed=turn.attempts > 0)
            resumed += 1
    return resumed


def _open(db: Db) -> list[tuple[TurnRow, SessionRow]]:
    found = [(turn, sessions.get(db, turn.session)) for turn in turns.open_turns(db)]
    return [(turn, session) for turn, session in found if session is not None]


def _refusal(turn: TurnRow, session: SessionRow, resumes: int) -> Failure | None:
    if session.ended is not None:
        return stopped("because its session ended")
    if session.kind == "ephemeral" and turn.on_disconnect == "cancel":
        return stopped("because the gateway restarted and its caller had gone", abandoned=True)
    if turn.attempts > resumes:
        return Failure(
            message=f"The gateway stopped {turn.attempts} times while it worked on this (limits.resumes is {resumes}), "
            "so it was given up; its log says why.",
            type="turn_error",
            code="resume_budget",
            status=502,
        )
    return None
