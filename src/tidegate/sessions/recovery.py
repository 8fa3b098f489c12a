"""Recovery of turns that an earlier process accepted and did not finish.

After `recover`, every such turn either continues from its journal or has ended with a reason that the user can read.
The channel of the turn determines which of the two happens (`turns.channels`). A turn is not resumed if the process was
killed more than limits.resumes times while it ran, so a turn that kills the gateway cannot do so forever. A task
continues only together with the turn that delegated it.
"""

from tidegate.engine import PARENT_ENDED, stopped_failure
from tidegate.log import Log
from tidegate.sessions.components import Components
from tidegate.store import Db, SessionRow, TurnRow, sessions, turns
from tidegate.turns import Channel
from tidegate.values import Failure

log = Log(__name__)


async def recover(components: Components, *, older: float = 0.0) -> int:
    """Recovers open turns and returns the number of turns that were resumed. The maintenance timer calls this too: a
    turn that is open in the store but not live in this process is stranded, because its end could not be stored. It is
    treated as after a crash. Turns accepted within the last `older` seconds are skipped, since they may not have
    reached the engine yet."""
    resumed, engine = 0, components.engine
    for turn, session in await components.store.read(_open):
        # At the start no turn can be on its way to the engine, whatever the clock says about when it was accepted.
        if engine.log(turn.id) is not None or (older and turn.accepted > components.clock() - older):
            continue
        if turn.within is not None and engine.log(turn.within) is None:
            reason: Failure | None = stopped_failure(PARENT_ENDED)
        else:
            reason = _refusal(turn, session, components.channels.of(turn.channel), components.config.limits.resumes)
        if reason is not None:
            if await engine.give_up(turn, session, reason):
                log.warning("a turn is not resumed", session=session.id, turn=turn.id, reason=reason.message)
                if session.kind == "ephemeral":  # its rows are deleted, so its files have no owner
                    await components.workspaces.discard(session.id)
                    await components.spool.remove(session.id)
        else:
            # A parked turn had also started, although no attempt is counted for it.
            engine.submit(session.id, turn.id, session.principal, resumed=turn.state == "running", within=turn.within)
            resumed += 1
    return resumed


def _open(db: Db) -> list[tuple[TurnRow, SessionRow]]:
    """Returns the open turns. A turn that delegated tasks comes before the turns of these tasks."""
    found = [(turn, sessions.get(db, turn.session)) for turn in sorted(turns.open_turns(db), key=_depth)]
    return [(turn, session) for turn, session in found if session is not None]


def _depth(turn: TurnRow) -> int:
    return turn.depth


def _refusal(turn: TurnRow, session: SessionRow, channel: Channel, resumes: int) -> Failure | None:
    """Returns the reason why the turn is not resumed; None if it is resumed."""
    if session.ended is not None:
        return stopped_failure("because its session ended")
    strategy = channel.strategy(turn, session)
    if strategy == "stop":
        return stopped_failure("because the gateway restarted and its caller had disconnected", abandoned=True)
    if strategy == "report":
        return _failure(
            f"The gateway stopped while it worked on this, and messages of the channel {channel.name!r} are not "
            f"resumed automatically; {channel.retry_advice}.",
            "interrupted",
        )
    if turn.attempts > resumes:
        often = "once" if turn.attempts == 1 else f"{turn.attempts} times"
        return _failure(
            f"The gateway stopped {often} while it worked on this (limits.resumes is {resumes}), so it was given up, "
            f"and the log says why; {channel.retry_advice}.",
            "resume_budget",
        )
    return None


def _failure(message: str, code: str) -> Failure:
    return Failure(message=message, type="turn_error", code=code, status=502)
