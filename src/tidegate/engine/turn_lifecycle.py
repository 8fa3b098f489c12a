"""The start and the end of a turn in the store, each one transaction.

`start` takes a turn from the queue and adds its messages to the transcript. It returns the turn, its session, its
settings and its journal as read in the same transaction. If nothing else runs or waits in the session,
`accept_and_start` starts the turn in the transaction that accepts its message.

`settle` writes the end of the turn, which was decided from the attempt to run it. A turn that has given its answer
counts as answered, even if it is stopped afterwards. A turn that has neither answered nor failed was stopped; the text
it had already shown is kept.

When the transaction of `settle` commits, the turn has its final state and its answer, and every tool call in its rows
has a result. A call that began and left no result is recorded as interrupted, whatever ended the turn; only a call
without an intent is recorded as not run. A message that was steered in too late becomes a new turn. If the session has
ended, the message is instead added to the transcript, marked as unanswered, and the turn's notices say so. An ephemeral
session is deleted except for its usage and the outcome stored under its receipts. Of a delegated task, only the usage
remains. It is added to this turn and to its parent turns. If that transaction does not commit, the turn counts as still
running and continues at the next start.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from tidegate.agent import interrupted, missing, not_run
from tidegate.engine.journal import Billing, Journal, bill, commit_row, record_call
from tidegate.engine.live_turn import LiveTurn, StartedTurn, TakenTurn
from tidegate.engine.turn_failures import stopped_failure
from tidegate.errors import Conflict, NotFound
from tidegate.store import (
    Db,
    MessageRow,
    ParentTurn,
    SessionRow,
    SettingRow,
    TurnRow,
    approvals,
    intents,
    messages,
    notes,
    receipts,
    sessions,
    settings,
    turns,
)
from tidegate.values import Call, CallerTools, Failure, Frozen, Message, OnDisconnect, Outcome, TurnState, Usage, new_id

NOTICE = f"{turns.INCOMING}notice"
"""The step name of the gateway's notice to the agent. The notice follows the user's messages."""

LONG_TURN = 60.0
"""If a turn took longer than this many seconds, its end counts as session activity. The start of a shorter turn is
recent enough."""


# -- the start --


def is_incoming(row: MessageRow) -> bool:
    """True if the row is one of the messages that the turn was started with."""
    return (row.step or "").startswith(turns.INCOMING)


def start(db: Db, turn: str, now: float) -> StartedTurn:
    """Take a turn that is in the queue or that an earlier process left unfinished."""
    changed = _take_caller_tools(db, turn, now)
    row = turns.take(db, turn, now)
    session = sessions.get(db, row.session)
    if session is None:
        raise NotFound("This conversation was deleted; send the message to a new one.")
    recorded = messages.journal(db, turn)
    current = tuple(settings.get_all(db, row.session, now))
    if all(is_incoming(each) and each.step != NOTICE for each in recorded):
        recorded += _append_notice(db, session, turn, current, now)
    return StartedTurn(
        taken=TakenTurn(turn=row, session=session, settings=current, tools_changed=changed),
        incoming=tuple((each.seq or 0, each.message) for each in recorded if is_incoming(each)),
        recorded=tuple(recorded),
        intents=intents.open_of(db, turn),
    )


def accept_and_start(
    db: Db,
    session: SessionRow,
    *,
    turn: str,
    channel: str,
    call: Call,
    on_disconnect: OnDisconnect,
    incoming: Sequence[Message],
    now: float,
    job: str = "",
    within: ParentTurn | None = None,
) -> StartedTurn:
    """Accept and take a turn in one transaction, if no other turn of the session waits or runs. The turn's rows are
    then written only once."""
    before = session
    session = freeze_caller_tools(db, session, call)
    row = turns.insert(
        db,
        id=turn,
        session=session.id,
        channel=channel,
        call=_frozen(call),
        on_disconnect=on_disconnect,
        now=now,
        job=job,
        running=True,
        within=within,
    )
    closed = _close_calls(db, before, incoming, now, turn)
    rows = [
        messages.append(db, session=session.id, turn=turn, step=f"{turns.INCOMING}{number}", message=message, now=now)
        for number, message in enumerate(incoming)
    ]
    current = tuple(settings.get_all(db, session.id, now))
    rows += _append_notice(db, session, turn, current, now)
    session = msgspec.structs.replace(session, version=session.version + len(rows) + closed, active=now)
    if closed:
        rows = messages.journal(db, turn)
    changed = session.caller_tools != before.caller_tools
    return StartedTurn(
        taken=TakenTurn(turn=row, session=session, settings=current, tools_changed=changed),
        incoming=tuple((each.seq or 0, each.message) for each in rows),
    )


def _append_notice(
    db: Db, session: SessionRow, turn: str, current: tuple[SettingRow, ...], now: float
) -> list[MessageRow]:
    """Commits notices, model switches and changed notes as one separate message after the user's messages."""
    texts = [messages.take_notices(db, session.id), settings.take_switches(db, session.id, current, now)]
    if session.memory_seen:
        texts.append(notes.take_changes(db, session, turn, now))
    text = "\n".join(filter(None, texts))
    if not text:
        return []
    notice = Message(role="user", aside=text)
    return [messages.append(db, session=session.id, turn=turn, step=NOTICE, message=notice, now=now)]


def peek(db: Db, turn: str) -> TakenTurn | None:
    """Read a turn without taking it."""
    row = turns.get(db, turn)
    session = sessions.get(db, row.session) if row is not None else None
    return TakenTurn(turn=row, session=session, settings=()) if row is not None and session is not None else None


def freeze_caller_tools(db: Db, session: SessionRow, call: Call) -> SessionRow:
    """Puts the caller tools of a starting turn into the session's prefix, unless the prefix has them already. A call
    without definitions, such as a retry, uses the tools of the session."""
    tools = call.caller_tools
    if call.tools_digest == session.caller_tools or session.prefix is None:
        return session
    if tools is not None and not tools.definitions:
        return session
    prefix = sessions.prefix(db, session.prefix).with_caller_tools(tools)
    return sessions.set_caller_tools(db, session, prefix, call.tools_digest)


def _take_caller_tools(db: Db, turn: str, now: float) -> bool:
    """Freezes the caller tools of a queued turn and closes the session's open calls. Returns True if the prefix
    changed."""
    row = turns.get(db, turn)
    session = sessions.get(db, row.session) if row is not None else None
    if row is None or session is None or row.state != "queued" or session.ended is not None:
        return False
    _close_calls(db, session, messages.waiting(db, turn), now, turn)
    if row.call.caller_tools is not None:
        turns.set_call(db, turn, _frozen(row.call))
    return freeze_caller_tools(db, session, row.call).caller_tools != session.caller_tools


def _close_calls(db: Db, session: SessionRow, incoming: Iterable[Message], now: float, turn: str) -> int:
    if not session.caller_tools:
        return 0
    answered = frozenset(message.call_id for message in incoming if message.role == "tool")
    return messages.close_calls(db, session.id, now, except_ids=answered, turn=turn)


def _frozen(call: Call) -> Call:
    """Returns the call without its tool definitions, which are in the session's prefix."""
    if call.caller_tools is None:
        return call
    return msgspec.structs.replace(call, caller_tools=msgspec.structs.replace(call.caller_tools, definitions=()))


# -- the end --


class Attempt(msgspec.Struct):
    """The results so far of one attempt to run a turn."""

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
    """The answer, if it has been committed already. Its calls are the ones that are left to the caller."""
    error: Failure | None = None
    usage: Usage = Usage()
    steps: int = 0
    cut_calls: tuple[tuple[str, Usage], ...] = ()
    """Model and usage of model calls that were cut off. They are included in `usage` but have no row."""
    hosts: Mapping[str, Sequence[str]] = MappingProxyType({})
    """The hosts contacted by tool calls that have no result, by step."""
    notices: tuple[str, ...] = ()
    within: str | None = None
    """The parent turn, if this turn runs a delegated task."""
    delegated: bool = False
    """True if the turn may have delegated tasks, whose receipts are no longer needed."""
    fence: int | None = None
    """The fence of the attempt; None if the turn was never taken here."""
    takes: bool = False
    """True if the end was not decided by an attempt. An attempt may still be running in another process."""
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
    """The session's current version, which shows whether a resident conversation is up to date; -1 if there is none."""


def turn_end(live: LiveTurn, attempt: Attempt, taken: TakenTurn, tally: tuple[Usage, int]) -> TurnEnd:
    """Returns the end of a turn after an attempt. `tally` is the turn's usage and its number of steps."""
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
        withdrawn=withdrawn,
    )


def turn_end_without_resume(turn: TurnRow, session: SessionRow, failure: Failure, tally: tuple[Usage, int]) -> TurnEnd:
    """Returns the end of a turn that an earlier process left unfinished and that is not resumed."""
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
        fence=turn.fence,
        takes=True,
        withdrawn=turn.state == "queued",
    )


def billing_of(turn: TurnRow, session: SessionRow) -> Billing:
    return Billing(
        session=turn.payer, principal=session.principal, agent=session.agent, channel=turn.channel, job=turn.job
    )


def settle(db: Db, end: TurnEnd, now: float) -> Settlement:
    """Writes the end of a turn, in the writer's transaction. Raises Conflict if the turn has ended already, and
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
        receipts.finish(db, end.turn, outcome)
        sessions.delete(db, end.session)
        return Settlement(outcome=outcome, rows=tuple(rows))
    if not goes_on:
        rows += messages.close_inbox(db, end.session)
    return Settlement(outcome=outcome, rows=tuple(rows), follow_up=follow_up, version=sessions.version(db, end.session))


def _missing_results(db: Db, end: TurnEnd, now: float) -> Iterator[tuple[str, Message]]:
    """Returns a result for each of the turn's calls that has none. Calls that had begun are recorded as interrupted."""
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
    exactly once. The caller tools do not change."""
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
