"""Recovery of turns that an earlier process has accepted but not finished.

After `recover`, the engine has every such turn. The attempt that takes a turn decides from its rows whether the turn
continues or the gateway has given up on it (`turns.resumption`). The only decision made here is one that does not
follow from the rows: a one-shot call whose caller was connected to the earlier process is stopped, because it can no
longer be answered. A task continues when the turn that delegated it asks for it again.
"""

from tidegate.sessions.components import Components
from tidegate.sessions.lifecycle import STOP_SECONDS
from tidegate.store import Db, SessionRow, TurnRow, open_turns, sessions

CALLER_GONE = "because the gateway restarted and its caller had disconnected"


async def recover(components: Components, *, older: float = 0.0) -> int:
    """Passes open turns to the engine and returns their number. The maintenance timer calls this too: a turn that is
    open in the store but not live in this process is stranded because its end could not be stored. It is treated as if
    the process had crashed. Turns accepted within the last `older` seconds are skipped, since they may not have reached
    the engine yet."""
    recovered, engine = 0, components.engine
    ended: list[str] = []
    for turn, session in await components.store.read(_open):
        # At startup, no turn can be on its way to the engine, whatever its acceptance time according to the clock.
        if engine.follow(turn.id) is not None or (older and turn.accepted > components.clock() - older):
            continue
        stops = components.channels.of(turn.channel).strategy(turn, session) == "stop"
        if stops:
            await engine.stop(turn.id, CALLER_GONE, abandoned=True)
        if not stops or turn.state == "running":
            engine.submit(session.id, turn.id, within=turn.within)
            recovered += 1
        if stops:
            engine.wake(turn.id)  # a turn that only has to be stopped needs no slot
        if session.ended is not None:
            ended.append(session.id)
    for each in ended:  # before their end hooks run
        await engine.stop_session(each, "because its session ended", STOP_SECONDS)
    return recovered


def _open(db: Db) -> list[tuple[TurnRow, SessionRow]]:
    """Returns the open turns, except for tasks of open turns."""
    rows = open_turns.listing(db)
    ids = {turn.id for turn in rows}
    found = [(turn, sessions.get(db, turn.session)) for turn in rows if turn.within not in ids]
    return [(turn, session) for turn, session in found if session is not None]
