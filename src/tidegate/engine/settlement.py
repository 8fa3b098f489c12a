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
    final_rows: tuple[tuple[str, Message], ...] = ()
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
    follow_up: str | None = None
    """The turn that late steering became."""
    version: int = -1
    """The session's version now, by which a resident knows whether it is up to date; -1 when there is none."""


def settle(db: Db, end: TurnEnd, now: float) -> Settlement:
    first = turns.settle(
        db,
        end.turn,
        state=end.state,
        finish=_finish(end),
        error=end.error,
        usage=end.usage,
        steps=end.steps,
        now=now,
    )
    if not first:
        raise Conflict(f"Turn {end.turn} has ended already.", code="turn_ended")

    def commit(step: str, message: Message) -> MessageRow:
        return commit_row(db, end.turn, end.session, step, message, end.billing, now, settling=True)

    rows = [commit(step, message) for step, message in end.final_rows]
    if end.state != "answered":
        approvals.cancel_turn(db, end.turn, now)
        rows += [commit(step, message) for step, message in _missing_results(db, end, now)]
        intents.clear_turn(db, end.turn)
    for model, tokens in end.cut_calls:
        bill(db, end.turn, model, tokens, end.billing, now)
    if end.within is not None:
        turns.add_used(db, end.within, end.usage)
    if end.delegated:
        receipts.forget_tasks(db, end.billing.principal, end.turn)
    if now - end.accepted > LONG_TURN:
        sessions.touch(db, end.session, now)
    late = 0 if end.withdrawn else messages.untaken(db, end.turn)
    goes_on = not end.ephemeral and sessions.is_live(db, end.session)
    follow_up = _queue_follow_up(db, end, now) if late and goes_on else None
    notices = (*end.notices, *_late_notices(late, follow_up))
    if notices:
        turns.tell(db, end.turn, notices)
    outcome = _outcome(end, notices, now)
    if end.ephemeral:
        receipts.finish(db, end.turn, outcome)
        sessions.delete(db, end.session)
        return Settlement(outcome=outcome, rows=tuple(rows))
    if not goes_on:
        rows += messages.close_inbox(db, end.session)
    return Settlement(outcome=outcome, rows=tuple(rows), follow_up=follow_up, version=sessions.version(db, end.session))


def _missing_results(db: Db, end: TurnEnd, now: float) -> Iterator[tuple[str, Message]]:
    """The results that the turn's calls still lack. Those that had begun are recorded as interrupted."""
    begun = intents.open_of(db, end.turn)
    why = end.error.message if end.error is not None else "The turn ended first."
    for step, call in missing([(row.step or "", row.message) for row in messages.journal(db, end.turn)]):
        intent = begun.get(step)
        if intent is None:
            yield step, not_run(call, why)
        else:
            record_call(
                db,
                end.turn,
                step,
                intent.tool,
                intent.digest,
                "interrupted",
                end.billing,
                now,
                end.hosts.get(step, ()),
            )
            yield step, interrupted(call, why, read_only=intent.read_only)


def _answer(end: TurnEnd) -> Message | None:
    said = (message for _, message in reversed(end.final_rows) if message.role == "assistant")
    return end.concluded or next(said, None)


def _finish(end: TurnEnd) -> str:
    answer = _answer(end)
    return (answer.finish if answer else "") or ("error" if end.error else "")


def _outcome(end: TurnEnd, notices: tuple[str, ...], now: float) -> Outcome:
    answer = _answer(end)
    return Outcome(
        turn=end.turn,
        session=end.session,
        state=end.state,
        agent=end.billing.agent,
        text=answer.text if answer else "",
        calls=answer.calls if answer else (),
        logprobs=answer.logprobs if answer else None,
        finish=_finish(end),
        usage=end.usage,
        steps=end.steps,
        error=end.error,
        accepted=end.accepted,
        finished=now,
        notices=notices,
    )


def _late_notices(late: int, follow_up: str | None) -> Iterator[str]:
    """What the turn's user is told of messages that were steered into it and that it did not read."""
    if not late:
        return
    some, be, it = ("1 message", "is", "it") if late == 1 else (f"{late} messages", "are", "them")
    if follow_up is not None:
        yield f"{some} came too late for this turn and {be} answered next, by turn {follow_up}."
    else:
        yield f"{some} {be} not answered, because the conversation ended first; send {it} again in a new one."


def _queue_follow_up(db: Db, end: TurnEnd, now: float) -> str:
    """What was accepted into this turn and not drained becomes the next turn, so that it is taken exactly once. The
    caller tools stay as they are."""
    turn = new_id("t")
    turns.insert(
        db,
        id=turn,
        session=end.session,
        channel=end.billing.channel,
        call=Call(caller_tools=CallerTools()),
        on_disconnect="continue",
        now=now,
        job=end.billing.job,
    )
    messages.move(db, end.turn, turn)
    return turn
