"""The end of a turn, in one transaction.

Guarantee: when it commits, the turn has its final state and its answer, every tool call in its rows has a result, what
was steered into it too late has become a turn of its own, and an ephemeral session is gone but for its usage and the
outcome kept under its receipts. Of the tasks that it gave nothing is left but what they used, which is counted to it,
and to whoever gave it its own task. When it does not commit, the turn is still running and goes on at the next start.
"""

from tidegate.agent import missing
from tidegate.engine.journal import Billing, bill, commit_row
from tidegate.errors import Conflict
from tidegate.store import Db, MessageRow, approvals, intents, messages, receipts, sessions, turns
from tidegate.values import Call, Failure, Frozen, Message, Outcome, TurnState, Usage, new_id

LONG_TURN = 60.0
"""Seconds after which a turn's end counts as activity of its own; before that, its beginning is recent enough."""


class Ending(Frozen, frozen=True):
    """How a turn ends, decided by the engine before it is written."""

    turn: str
    session: str
    billing: Billing
    state: TurnState
    ephemeral: bool
    accepted: float
    tail: tuple[tuple[str, Message], ...] = ()
    concluded: Message | None = None
    """The answer, where it is committed already: its calls are those that are left to the caller."""
    unanswered: str = "Not run: the turn ended first."
    error: Failure | None = None
    usage: Usage = Usage()
    steps: int = 0
    cut_calls: tuple[tuple[str, Usage], ...] = ()
    """Model and tokens of calls that broke off: they are part of `usage`, and of no row."""
    notices: tuple[str, ...] = ()
    within: str | None = None
    """The turn that gave it its task."""
    delegated: bool = False
    """Whether it may have given tasks, whose receipts nobody asks for any more."""
    withdrawn: bool = False
    """Stopped before it was taken: what it was to read stays out of the transcript, and nobody else takes it."""


class Settled(Frozen, frozen=True):
    outcome: Outcome
    rows: tuple[MessageRow, ...] = ()
    spilled: str | None = None
    """The turn that late steering became."""
    refused: int = 0
    """Messages steered into it that nobody will take, because the session has ended."""
    version: int = -1
    """The session's version now, by which a resident knows whether it is up to date; -1 when there is none."""


def settle(db: Db, ending: Ending, now: float) -> Settled:
    outcome = _outcome(ending, now)
    first = turns.settle(
        db,
        ending.turn,
        state=ending.state,
        finish=outcome.finish,
        error=ending.error,
        usage=ending.usage,
        steps=ending.steps,
        now=now,
    )
    if not first:
        raise Conflict(f"Turn {ending.turn} has ended already.", code="turn_ended")

    if ending.notices:
        turns.tell(db, ending.turn, ending.notices)

    def commit(step: str, message: Message) -> MessageRow:
        return commit_row(db, ending.turn, ending.session, step, message, ending.billing, now, settling=True)

    rows = [commit(step, message) for step, message in ending.tail]
    if ending.state != "answered":
        approvals.cancel_turn(db, ending.turn, now)
        journal = [(row.step or "", row.message) for row in messages.journal(db, ending.turn)]
        for step, message in missing(journal, ending.unanswered):
            intents.clear(db, ending.turn, step)
            rows.append(commit(step, message))
    for model, tokens in ending.cut_calls:
        bill(db, ending.turn, model, tokens, ending.billing, now)
    if ending.within is not None:
        turns.add_used(db, ending.within, ending.usage)
    if ending.delegated:
        receipts.forget_tasks(db, ending.billing.principal, ending.turn)
    if now - ending.accepted > LONG_TURN:
        sessions.touch(db, ending.session, now)
    spilled, refused = _spill(db, ending, now)
    if ending.ephemeral and spilled is None:
        receipts.finish(db, ending.turn, outcome)
        sessions.delete(db, ending.session)
        return Settled(outcome=outcome, rows=tuple(rows))
    return Settled(
        outcome=outcome,
        rows=tuple(rows),
        spilled=spilled,
        refused=refused,
        version=sessions.version(db, ending.session),
    )


def _outcome(ending: Ending, now: float) -> Outcome:
    said = (message for _, message in reversed(ending.tail) if message.role == "assistant")
    answer = ending.concluded or next(said, None)
    return Outcome(
        turn=ending.turn,
        session=ending.session,
        state=ending.state,
        agent=ending.billing.agent,
        text=answer.text if answer else "",
        calls=answer.calls if answer else (),
        finish=(answer.finish if answer else "") or ("error" if ending.error else ""),
        usage=ending.usage,
        steps=ending.steps,
        error=ending.error,
        accepted=ending.accepted,
        finished=now,
        notices=ending.notices,
    )


def _spill(db: Db, ending: Ending, now: float) -> tuple[str | None, int]:
    """What was accepted into this turn and not drained becomes the next turn, so that it is taken exactly once; in a
    session that has ended it stays where it is, refused like everything that waited there. The new turn, or how many
    were refused."""
    if ending.withdrawn:
        return None, 0
    untaken = messages.untaken(db, ending.turn)
    if not untaken:
        return None, 0
    session = sessions.get(db, ending.session)
    if session is None or session.ended is not None:
        return None, untaken
    turn = new_id("t")
    turns.insert(
        db,
        id=turn,
        session=ending.session,
        channel=ending.billing.channel,
        call=Call(),
        on_disconnect="continue",
        now=now,
        job=ending.billing.job,
    )
    messages.move(db, ending.turn, turn)
    return turn, 0
