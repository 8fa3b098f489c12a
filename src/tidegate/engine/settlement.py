"""The end of a turn, in one transaction.

When it commits, the turn has its final state and its answer, and every tool call in its rows has a result: a call that
began and left none was interrupted, whatever ended the turn; only a call without an intent was not run. A message that
was steered into it too late has become a turn of its own; in a session that is over it stands in the transcript, marked
as unanswered, and the turn's notices say so. An ephemeral session is gone but for its usage and the outcome kept under
its receipts. Tasks that the turn gave leave only their usage, which is counted to it and to the turns it is within.
When it does not commit, the turn is still running and goes on at the next start.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tidegate.agent import interrupted, missing, not_run
from tidegate.engine.journal import Billing, bill, commit_row, record_call
from tidegate.errors import Conflict
from tidegate.store import Db, MessageRow, approvals, intents, messages, receipts, sessions, turns
from tidegate.values import Call, CallerTools, Failure, Frozen, Message, Outcome, TurnState, Usage, new_id

LONG_TURN = 60.0
"""Seconds after which a turn's end counts as activity of its own; before that, its beginning is recent enough."""


class TurnEnd(Frozen, frozen=True):
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
    error: Failure | None = None
    usage: Usage = Usage()
    steps: int = 0
    cut_calls: tuple[tuple[str, Usage], ...] = ()
    """Model and tokens of calls that broke off: they are part of `usage`, and of no row."""
    hosts: Mapping[str, Sequence[str]] = MappingProxyType({})
    """Hosts that calls without a result have contacted, by step."""
    notices: tuple[str, ...] = ()
    within: str | None = None
    """The turn that gave it its task."""
    delegated: bool = False
    """Whether it may have given tasks, whose receipts nobody asks for any more."""
    withdrawn: bool = False
    """Stopped before it was taken: what it was to read stays out of the transcript, and nobody else takes it."""


class Settlement(Frozen, frozen=True):
    outcome: Outcome
    rows: tuple[MessageRow, ...] = ()
    spilled: str | None = None
    """The turn that late steering became."""
    version: int = -1
    """The session's version now, by which a resident knows whether it is up to date; -1 when there is none."""


def settle(db: Db, ending: TurnEnd, now: float) -> Settlement:
    first = turns.settle(
        db,
        ending.turn,
        state=ending.state,
        finish=_finish(ending),
        error=ending.error,
        usage=ending.usage,
        steps=ending.steps,
        now=now,
    )
    if not first:
        raise Conflict(f"Turn {ending.turn} has ended already.", code="turn_ended")

    def commit(step: str, message: Message) -> MessageRow:
        return commit_row(db, ending.turn, ending.session, step, message, ending.billing, now, settling=True)

    rows = [commit(step, message) for step, message in ending.tail]
    if ending.state != "answered":
        approvals.cancel_turn(db, ending.turn, now)
        rows += [commit(step, message) for step, message in _owed(db, ending, now)]
        intents.clear_turn(db, ending.turn)
    for model, tokens in ending.cut_calls:
        bill(db, ending.turn, model, tokens, ending.billing, now)
    if ending.within is not None:
        turns.add_usage(db, ending.within, ending.usage)
    if ending.delegated:
        receipts.forget_tasks(db, ending.billing.principal, ending.turn)
    if now - ending.accepted > LONG_TURN:
        sessions.touch(db, ending.session, now)
    late = 0 if ending.withdrawn else messages.count_waiting(db, ending.turn)
    goes_on = not ending.ephemeral and sessions.is_live(db, ending.session)
    spilled = _spill(db, ending, now) if late and goes_on else None
    notices = (*ending.notices, *_late_notices(late, spilled))
    if notices:
        turns.set_notices(db, ending.turn, notices)
    outcome = _outcome(ending, notices, now)
    if ending.ephemeral:
        receipts.finish(db, ending.turn, outcome)
        sessions.delete(db, ending.session)
        return Settlement(outcome=outcome, rows=tuple(rows))
    if not goes_on:
        rows += messages.close_inbox(db, ending.session)
    return Settlement(outcome=outcome, rows=tuple(rows), spilled=spilled, version=sessions.version(db, ending.session))


def _owed(db: Db, ending: TurnEnd, now: float) -> Iterator[tuple[str, Message]]:
    """The results that the turn's calls still lack. Those that had begun are recorded as interrupted."""
    begun = intents.open_of(db, ending.turn)
    why = ending.error.message if ending.error is not None else "The turn ended first."
    for step, call in missing([(row.step or "", row.message) for row in messages.journal(db, ending.turn)]):
        intent = begun.get(step)
        if intent is None:
            yield step, not_run(call, why)
        else:
            record_call(
                db,
                ending.turn,
                step,
                intent.tool,
                intent.digest,
                "interrupted",
                ending.billing,
                now,
                ending.hosts.get(step, ()),
            )
            yield step, interrupted(call, why, read_only=intent.read_only)


def _answer(ending: TurnEnd) -> Message | None:
    said = (message for _, message in reversed(ending.tail) if message.role == "assistant")
    return ending.concluded or next(said, None)


def _finish(ending: TurnEnd) -> str:
    answer = _answer(ending)
    return (answer.finish if answer else "") or ("error" if ending.error else "")


def _outcome(ending: TurnEnd, notices: tuple[str, ...], now: float) -> Outcome:
    answer = _answer(ending)
    return Outcome(
        turn=ending.turn,
        session=ending.session,
        state=ending.state,
        agent=ending.billing.agent,
        text=answer.text if answer else "",
        calls=answer.calls if answer else (),
        logprobs=answer.logprobs if answer else None,
        finish=_finish(ending),
        usage=ending.usage,
        steps=ending.steps,
        error=ending.error,
        accepted=ending.accepted,
        finished=now,
        notices=notices,
    )


def _late_notices(late: int, spilled: str | None) -> Iterator[str]:
    """What the turn's user is told of messages that were steered into it and that it did not read."""
    if not late:
        return
    some, be, it = ("1 message", "is", "it") if late == 1 else (f"{late} messages", "are", "them")
    if spilled is not None:
        yield f"{some} came too late for this turn and {be} answered next, by turn {spilled}."
    else:
        yield f"{some} {be} not answered, because the conversation ended first; send {it} again in a new one."


def _spill(db: Db, ending: TurnEnd, now: float) -> str:
    """What was accepted into this turn and not drained becomes the next turn, so that it is taken exactly once. The
    caller tools stay as they are."""
    turn = new_id("t")
    turns.insert(
        db,
        id=turn,
        session=ending.session,
        channel=ending.billing.channel,
        call=Call(caller_tools=CallerTools()),
        on_disconnect="continue",
        now=now,
        job=ending.billing.job,
    )
    messages.move(db, ending.turn, turn)
    return turn
