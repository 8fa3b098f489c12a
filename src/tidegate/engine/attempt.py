"""One attempt to run a turn, and the end that follows from it.

Guarantee: a turn that has given its answer counts as answered, even if it is stopped afterwards. A turn that has
neither answered nor failed was stopped; the text it had already shown is kept. This module reads and writes nothing.
"""

from tidegate.engine.journal import Billing, Journal
from tidegate.engine.live import LiveTurn
from tidegate.engine.settlement import TurnEnd
from tidegate.engine.turn_failures import stopped_failure
from tidegate.engine.turn_start import TakenTurn
from tidegate.store import SessionRow, TurnRow
from tidegate.values import Failure, Message, Usage


class Attempt:
    __slots__ = ("failure", "journal", "taken")

    def __init__(self) -> None:
        self.taken: TakenTurn | None = None
        self.journal: Journal | None = None
        self.failure: Failure | None = None


def turn_end(live: LiveTurn, attempt: Attempt, taken: TakenTurn, tally: tuple[Usage, int]) -> TurnEnd:
    """The end of a turn after an attempt. `tally` is the turn's usage and its number of steps."""
    journal, failure = attempt.journal, attempt.failure
    answer = journal.final_row if journal is not None else None
    final_rows = (answer,) if answer is not None else ()
    concluded = journal.concluded if journal is not None else None
    withdrawn = False
    if answer is not None or concluded is not None:
        failure = None
    elif failure is None:
        failure = stopped_failure(live.stopped_by or "before it answered", abandoned=live.abandoned)
        withdrawn = taken.turn.state == "queued"
        if draft := live.log.draft():
            final_rows = (("partial", Message(role="assistant", text=draft, finish="stopped")),)
    usage, steps = tally
    return TurnEnd(
        turn=live.turn,
        session=live.session,
        billing=billing_of(taken.turn, taken.session),
        state="answered" if failure is None else "stopped" if failure.code == "stopped" else "failed",
        ephemeral=taken.session.kind == "ephemeral",
        accepted=taken.turn.accepted,
        final_rows=final_rows,
        concluded=concluded,
        error=failure,
        usage=usage,
        steps=steps,
        cut_calls=journal.cut_calls if journal is not None else (),
        hosts=journal.hosts if journal is not None else {},
        notices=tuple(live.notices),
        within=taken.turn.within,
        delegated=live.delegated,
        withdrawn=withdrawn,
    )


def turn_end_without_resume(turn: TurnRow, session: SessionRow, failure: Failure, tally: tuple[Usage, int]) -> TurnEnd:
    """The end of a turn that an earlier process left behind and that is not resumed."""
    usage, steps = tally
    return TurnEnd(
        turn=turn.id,
        session=session.id,
        billing=billing_of(turn, session),
        state="stopped" if failure.code == "stopped" else "failed",
        ephemeral=session.kind == "ephemeral",
        accepted=turn.accepted,
        error=failure,
        usage=usage,
        steps=steps,
        within=turn.within,
        delegated=True,
        withdrawn=turn.state == "queued",
    )


def billing_of(turn: TurnRow, session: SessionRow) -> Billing:
    return Billing(
        session=turn.payer, principal=session.principal, agent=session.agent, channel=turn.channel, job=turn.job
    )
