"""The end of a turn in the store, in one transaction.

`settle` stores the end of a turn, as determined by the attempt to run it. A turn that has given its answer counts as
answered, even if it is stopped afterwards. A turn that has neither answered nor failed counts as stopped; the text that
it has already shown is kept. `stop_turn` settles a queued turn without an attempt, and stores a request for a running
one.

When the transaction of `settle` commits, the turn has its final state and its answer, and every tool call in its rows
has a result. A call that was started but left no result is recorded as interrupted, however the turn ended; only a call
without an intent is recorded as not run. A message that was steered in too late becomes a new turn. If the session has
ended, the message is instead added to the transcript, marked as unanswered, and the turn's notices say so. An ephemeral
session is deleted, except for its usage and its outcome. The outcome can be fetched until it expires, because a
follower of the turn may not receive it: the process may be killed right after this transaction. Only the usage of a
delegated task is kept. It is added to this turn and to its parent turns. If the transaction does not commit, the turn
counts as still running and continues at the next start.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from tidegate.agent import interrupted, missing, not_run
from tidegate.engine.interface import TakenTurn
from tidegate.engine.journal import Billing, Journal, bill, commit_row, record_call
from tidegate.engine.live_turn import LiveTurn
from tidegate.error_mapping import stopped_failure
from tidegate.errors import Conflict
from tidegate.store import (
    Db,
    MessageRow,
    SessionRow,
    StopRequest,
    TurnRow,
    approvals,
    intents,
    messages,
    open_turns,
    receipts,
    sessions,
    turns,
)
from tidegate.values import Call, CallerTools, Failure, Frozen, Message, Outcome, TurnState, Usage, new_id

LONG_TURN = 60.0
"""If a turn took longer than this many seconds, its end counts as session activity. For a shorter turn, the start is
recent enough."""


class Attempt(msgspec.Struct):
    """What one attempt to run a turn has produced so far."""

    taken: TakenTurn | None = None
    journal: Journal | None = None
    failure: Failure | None = None


class TurnEnd(Frozen, frozen=True):
    """The end of a turn, as decided by the engine before it is written."""

    turn: str
    session: str
    billing: Billing
    state: TurnState
    ephemeral: bool
    accepted: float
    final_rows: tuple[tuple[str, Message], ...] = ()
    concluded: Message | None = None
    """The answer, if it has already been committed. The answer's calls are left to the caller."""
    error: Failure | None = None
    usage: Usage = Usage()
    steps: int = 0
    cut_calls: tuple[tuple[str, Usage], ...] = ()
    """Models and usage of calls that were cut off. They are included in `usage` but have no row."""
    hosts: Mapping[str, Sequence[str]] = MappingProxyType({})
    """The hosts contacted by tool calls without a result, by step."""
    notices: tuple[str, ...] = ()
    within: str | None = None
    """The parent turn, if this turn is a delegated task."""
    delegated: bool = False
    """True if the turn may have delegated tasks, whose receipts are no longer needed."""
    fence: int | None = None
    """The attempt's fence, or None if the turn was never taken here."""
    takes: bool = False
    """True if the end was not determined by an attempt. An attempt may still be running in another process."""
    is_followed: bool = False
    """True if somebody is following the turn to its end and will most likely receive its outcome."""
    abandoned: bool = False
    """True if the turn was stopped because its caller had disconnected, so nobody will ask for its outcome."""
    withdrawn: bool = False
    """True if the turn was stopped before it was taken. Its messages do not enter the transcript, and no other turn
    takes them."""


class Settlement(Frozen, frozen=True):
    """The result of settling a turn, for the engine to publish."""

    outcome: Outcome
    rows: tuple[MessageRow, ...] = ()
    follow_up: str | None = None
    """The id of the turn that will answer messages that were steered in too late."""
    version: int = -1
    """The session's current version, to tell whether a resident conversation is up to date; -1 if there is none."""


def turn_end(live: LiveTurn, attempt: Attempt, taken: TakenTurn, tally: tuple[Usage, int]) -> TurnEnd:
    """Returns the end of a turn after an attempt. `tally` is the turn's usage and number of steps."""
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
    held = attempt.taken or (live.start.taken if live.start is not None else None)
    fence = held.turn.fence if held is not None else None
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
        fence=fence,
        takes=fence is None,
        is_followed=live.log.readers > 0,
        abandoned=live.abandoned,
        withdrawn=withdrawn,
    )


class Stopped(NamedTuple):
    """The effect of a stop request: whether the turn was open, and the settlement if it was queued."""

    is_open: bool
    settlement: Settlement | None = None


def stop_turn(db: Db, turn: str, request: StopRequest, now: float, *, is_followed: bool = False) -> Stopped:
    """Stops a turn, in the writer's transaction: a queued turn is settled; for a running turn, the request is
    stored."""
    state = turns.request_stop(db, turn, request)
    taken = peek(db, turn) if state == "queued" else None
    if taken is None:
        return Stopped(state is not None)
    usage, steps = turns.usage_so_far(db, turn)
    end = TurnEnd(
        turn=turn,
        session=taken.session.id,
        billing=billing_of(taken.turn, taken.session),
        state="stopped",
        ephemeral=taken.session.kind == "ephemeral",
        accepted=taken.turn.accepted,
        error=stopped_failure(request.by, abandoned=request.abandoned),
        usage=usage,
        steps=steps,
        within=taken.turn.within,
        fence=taken.turn.fence,
        takes=True,
        is_followed=is_followed,
        abandoned=request.abandoned,
        withdrawn=True,
    )
    return Stopped(True, settle(db, end, now))


def stop_session(db: Db, session: str, request: StopRequest, now: float) -> list[Settlement]:
    """Stops all of a session's turns, like `stop_turn`. Returns the queued turns' settlements."""
    db.lock("session", session)
    stopped = [stop_turn(db, turn, request, now) for turn in open_turns.ids(db, session)]
    return [each.settlement for each in stopped if each.settlement is not None]


def peek(db: Db, turn: str) -> TakenTurn | None:
    """Reads a turn without taking it."""
    row = turns.get(db, turn)
    session = sessions.get(db, row.session) if row is not None else None
    return TakenTurn(turn=row, session=session, settings=()) if row is not None and session is not None else None


def billing_of(turn: TurnRow, session: SessionRow) -> Billing:
    return Billing(
        session=turn.payer, principal=session.principal, agent=session.agent, channel=turn.channel, job=turn.job
    )


def settle(db: Db, end: TurnEnd, now: float) -> Settlement:
    """Stores the end of a turn, in the writer's transaction. Raises Conflict if the turn has already ended, and
    Superseded if another attempt has taken it."""
    answer = _answer(end)
    finish = (answer.finish if answer else "") or ("error" if end.error else "")
    first = turns.settle(
        db,
        end.turn,
        fence=end.fence,
        takes=end.takes,
        state=end.state,
        finish=finish,
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
        turns.add_usage(db, end.within, end.usage)
    if end.delegated:
        receipts.forget_tasks(db, end.billing.principal, end.turn)
    if now - end.accepted > LONG_TURN:
        sessions.touch(db, end.session, now)
    late = 0 if end.withdrawn else messages.count_waiting(db, end.turn)
    goes_on = not end.ephemeral and sessions.is_live(db, end.session)
    follow_up = _queue_follow_up(db, end, now) if late and goes_on else None
    notices = (*end.notices, *_late_notices(late, follow_up)) if late else end.notices
    if notices:
        turns.set_notices(db, end.turn, notices)
    outcome = _outcome(end, answer, finish, notices, now)
    if end.ephemeral:
        kept_until, needed_until = receipts.finish(db, end.turn, outcome), _needed_until(end, now)
        if kept_until < needed_until:
            receipts.keep_outcome(db, end.billing.principal, outcome, now, needed_until)
        sessions.delete(db, end.session)
        return Settlement(outcome=outcome, rows=tuple(rows))
    if not goes_on:
        rows += messages.close_inbox(db, end.session)
    return Settlement(outcome=outcome, rows=tuple(rows), follow_up=follow_up, version=sessions.version(db, end.session))


def _needed_until(end: TurnEnd, now: float) -> float:
    """Returns the time until which a one-shot call's outcome must be available, or 0 if nobody will ask for it. The
    turn that delegated a task finds the outcome in the task's receipt."""
    if end.abandoned or end.within is not None:
        return 0.0
    soon = now + receipts.FOLLOWED_SECONDS
    return soon if end.is_followed else max(soon, end.accepted + receipts.UNFOLLOWED_SECONDS)


def _missing_results(db: Db, end: TurnEnd, now: float) -> Iterator[tuple[str, Message]]:
    """Returns a result for each of the turn's calls that has none. Calls that had started are recorded as
    interrupted."""
    open_intents = intents.open_of(db, end.turn)
    why = end.error.message if end.error is not None else "The turn ended first."
    for step, call in missing([(row.step or "", row.message) for row in messages.journal(db, end.turn)]):
        intent = open_intents.get(step)
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
    answers = (message for _, message in reversed(end.final_rows) if message.role == "assistant")
    return end.concluded or next(answers, None)


def _outcome(end: TurnEnd, answer: Message | None, finish: str, notices: tuple[str, ...], now: float) -> Outcome:
    return Outcome(
        turn=end.turn,
        session=end.session,
        state=end.state,
        agent=end.billing.agent,
        text=answer.text if answer else "",
        calls=answer.calls if answer else (),
        logprobs=answer.logprobs if answer else None,
        finish=finish,
        usage=end.usage,
        steps=end.steps,
        error=end.error,
        accepted=end.accepted,
        finished=now,
        notices=notices,
    )


def _late_notices(late: int, follow_up: str | None) -> Iterator[str]:
    """Returns notices for the user about messages that were steered into the turn but not read by it."""
    some, be, it = ("1 message", "is", "it") if late == 1 else (f"{late} messages", "are", "them")
    if follow_up is not None:
        yield f"{some} came too late for this turn and {be} answered next, by turn {follow_up}."
    else:
        yield f"{some} {be} not answered, because the conversation ended first; send {it} again in a new one."


def _queue_follow_up(db: Db, end: TurnEnd, now: float) -> str:
    """Creates a turn for the messages that were steered into this turn but not drained, so that each message is taken
    exactly once. The caller's tools do not change."""
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
