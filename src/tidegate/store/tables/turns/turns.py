"""Turns: the processing of messages from acceptance to settlement.

A turn goes from queued to running to settled and never back, and is settled once. The messages with which a turn was
accepted get their positions in the transcript in the transaction that takes the turn. Turns are numbered within a
session: a later turn has a higher number. Taking a turn increases its `fence`; an earlier attempt's writes are then
refused. A task's usage is added to the turn that delegated it when the task is settled, in the same transaction and
therefore exactly once.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from tidegate.errors import Conflict, EarlierTurnOpen, NotFound, Superseded
from tidegate.store.interface import Db
from tidegate.store.rows import (
    ParentTurn,
    StopRequest,
    TurnNews,
    TurnRow,
    decode_call,
    decode_failure,
    decode_outcome,
    decode_stop,
    encode,
    encode_call,
    unpack,
)
from tidegate.values import Call, Failure, Message, OnDisconnect, Outcome, ToolCall, TurnState, Usage

COLUMNS = (
    "turns.id, session, number, state, turns.channel, call, on_disconnect, attempts, accepted, started, finished,"
    " finish, error, input, cached, output, written, reasoning, cost, estimated, steps, turns.job, within, depth,"
    " conversation, fence, stopping"
)
NOTHING = Usage()
_decode_notices = msgspec.json.Decoder(tuple[str, ...]).decode
INCOMING = "in-"
"""Prefix for the steps of a turn's own messages, in order: in-0, in-1, …"""
_ANSWER, _PARTIAL = "model-", "partial"
"""The steps for a model's output: the prefix for its answers, and the shown part of a stopped answer."""
_OPEN_APPROVALS = "SELECT 1 FROM approvals WHERE approvals.turn = turns.id AND approvals.state = 'open'"
_OPEN_TASKS = "FROM turns AS task WHERE task.within = turns.id AND task.state IN ('queued', 'running')"
_IS_WAITING = (
    f"((EXISTS ({_OPEN_APPROVALS}) OR EXISTS (SELECT 1 {_OPEN_TASKS}))"
    " AND NOT EXISTS (SELECT 1 FROM intents WHERE intents.turn = turns.id"
    f" AND NOT EXISTS ({_OPEN_APPROVALS} AND (approvals.step = intents.step"
    " OR substr(approvals.step, 1, length(intents.step) + 1) = intents.step || '-'))"
    f" AND turns.id || '/' || intents.step NOT IN (SELECT key FROM receipts WHERE turn IN (SELECT id {_OPEN_TASKS}))))"
)
"""True if the turn is waiting for a person or a task and none of its tools are running in the meantime. The names of a
call's requests begin with the call's own step."""
_NONE_EARLIER = (
    "NOT EXISTS (SELECT 1 FROM turns AS earlier WHERE earlier.session = turns.session"
    " AND earlier.number < turns.number AND earlier.state IN ('queued', 'running'))"
)


def row_of(row: Any) -> TurnRow:
    (id, session, number, state, channel, call, on_disconnect, attempts, accepted, started, finished) = row[:11]
    finish, error, spent_in, cached, spent_out, written, reasoning, cost, estimated, *rest = row[11:]
    rest[-1] = decode_stop(rest[-1])
    return TurnRow(
        id,
        session,
        number,
        state,
        channel,
        decode_call(call),
        on_disconnect,
        attempts,
        accepted,
        started,
        finished,
        finish,
        decode_failure(error),
        Usage(
            input=spent_in,
            cached=cached,
            output=spent_out,
            written=written,
            reasoning=reasoning,
            cost=cost,
            estimated=bool(estimated),
        )
        if spent_in or spent_out
        else NOTHING,
        *rest,
    )


def insert(
    db: Db,
    *,
    id: str,
    session: str,
    channel: str,
    call: Call,
    on_disconnect: OnDisconnect,
    now: float,
    job: str = "",
    running: bool = False,
    within: ParentTurn | None = None,
) -> TurnRow:
    """Adds a queued turn to a live session. If `running` is true, the turn starts immediately."""
    db.lock("session", session)
    parent = (None, 0, None) if within is None else (within.turn, within.depth, within.conversation)
    job = job if within is None else within.job
    state: TurnState = "running" if running else "queued"
    attempts, started = (1, now) if running else (0, None)
    fence = attempts
    number = db.execute(
        "INSERT INTO turns(id, session, number, state, channel, call, on_disconnect, attempts, accepted, started, job,"
        " within, depth, conversation, fence)"
        " SELECT ?, id, coalesce((SELECT max(number) FROM turns WHERE session = ?), 0) + 1, ?, ?, ?, ?, ?, ?, ?, ?, ?,"
        " ?, ?, ? FROM sessions WHERE id = ? AND ended IS NULL RETURNING number",
        (
            id,
            session,
            state,
            channel,
            encode_call(call),
            on_disconnect,
            attempts,
            now,
            started,
            job,
            *parent,
            fence,
            session,
        ),
    ).get
    if number is None:
        raise refusal(db, session)
    return TurnRow(
        id,
        session,
        number,
        state,
        channel,
        call,
        on_disconnect,
        attempts,
        now,
        started,
        None,
        "",
        None,
        NOTHING,
        0,
        job,
        within=parent[0],
        depth=parent[1],
        conversation=parent[2],
        fence=fence,
    )


def set_call(db: Db, id: str, call: Call) -> None:
    db.lock("turn", id)
    db.execute("UPDATE turns SET call = ? WHERE id = ?", (encode_call(call), id))


def get(db: Db, id: str) -> TurnRow | None:
    """Returns the turn with this id, whoever it belongs to. For internal use."""
    row = db.execute(f"SELECT {COLUMNS} FROM turns WHERE id = ?", (id,)).get
    return None if row is None else row_of(row)


def take(db: Db, id: str, now: float) -> TurnRow:
    """Marks the turn as running and increases its fence. If it comes from the queue, its waiting messages get the next
    positions and the names in-0, in-1, …. If it is resumed after a crash, its attempt counter is increased, but its
    messages are not touched; `messages.place_steered` handles messages accepted in the meantime. A turn that was
    waiting for a person or a delegated task cannot have caused the crash, so its counter is not increased, and it may
    wait through any number of restarts. Raises EarlierTurnOpen if an earlier turn in the session has not ended,
    wherever it is waiting or running."""
    db.lock("turn", id)
    found = db.execute(
        "UPDATE turns SET attempts = attempts + 1, fence = fence + 1, started = ?, state = 'running'"
        f" WHERE id = ? AND state = 'queued' AND {_NONE_EARLIER} RETURNING {COLUMNS}",
        (now, id),
    ).get
    queued = found is not None
    if not queued:
        found = db.execute(
            f"UPDATE turns SET fence = fence + 1, attempts = attempts + CASE WHEN {_IS_WAITING} THEN 0 ELSE 1 END"
            f" WHERE id = ? AND state = 'running' RETURNING {COLUMNS}",
            (id,),
        ).get
    if found is None:
        raise _not_taken(db, id)
    turn = row_of(found)
    live = db.execute(
        "UPDATE sessions SET version = version + 1, active = CASE WHEN active < ?1 THEN ?1 ELSE active END"
        " WHERE id = ?2 AND ended IS NULL RETURNING 1",
        (now, turn.session),
    ).get
    if live is None:
        raise refusal(db, turn.session)
    if queued:
        place_waiting(db, turn.session, id, INCOMING)
    return turn


def check_fence(db: Db, id: str, fence: int) -> TurnNews:
    """Raises Superseded if the turn's fence is no longer `fence` because another attempt has taken the turn. Every
    transaction in which an attempt writes calls this first. Returns the news for the attempt, read in the same
    statement."""
    db.lock("turn", id)
    return news(db, id, fence)


def news(db: Db, id: str, fence: int) -> TurnNews:
    """Like `check_fence`, for a transaction that only reads."""
    found = db.execute(
        "SELECT stopping, EXISTS(SELECT 1 FROM messages WHERE messages.turn = turns.id AND messages.seq IS NULL)"
        " FROM turns WHERE id = ? AND fence = ?",
        (id, fence),
    ).get
    if found is None:
        raise Superseded
    stopping, is_steered = found
    return TurnNews(decode_stop(stopping), bool(is_steered))


def request_stop(db: Db, id: str, request: StopRequest) -> TurnState | None:
    """Records that an open turn is to stop, unless this has already been requested. Returns the turn's state, or None
    if it is not open. The caller settles a queued turn; for a running turn, its attempt will find the request."""
    db.lock("turn", id)
    state: TurnState | None = db.execute(
        "UPDATE turns SET stopping = coalesce(stopping, ?)"
        " WHERE id = ? AND state IN ('queued', 'running') RETURNING state",
        (encode(request), id),
    ).get
    return state


def park(db: Db, id: str, fence: int) -> bool:
    """Records that the running turn was paused on purpose between two steps, to continue at the next startup. This
    attempt does not count towards the limit of attempts. If the turn is waiting for a person or a task, the attempt
    that takes the turn is not counted instead (`take`). Returns False if the turn is not running or has been taken by
    another attempt."""
    db.lock("turn", id)
    parked = db.execute(
        f"UPDATE turns SET attempts = attempts - CASE WHEN attempts < 1 OR {_IS_WAITING} THEN 0 ELSE 1 END"
        " WHERE id = ? AND fence = ? AND state = 'running' RETURNING 1",
        (id, fence),
    ).get
    return parked is not None


def place_waiting(db: Db, session: str, turn: str, prefix: str) -> list[int]:
    """Gives the turn's waiting messages the next positions in the transcript, in order of acceptance, and the names
    <prefix>0, <prefix>1, …. Returns their row ids."""
    db.lock("session", session)
    ids = [row[0] for row in db.execute("SELECT id FROM messages WHERE turn = ? AND seq IS NULL ORDER BY id", (turn,))]
    for number, id in enumerate(ids):
        db.execute(
            "UPDATE messages SET step = ?, seq = (SELECT coalesce(max(seq), 0) + 1 FROM messages WHERE session = ?)"
            " WHERE id = ?",
            (f"{prefix}{number}", session, id),
        )
    return ids


def settle(
    db: Db,
    id: str,
    *,
    state: TurnState,
    fence: int | None = None,
    takes: bool = False,
    finish: str = "",
    error: Failure | None = None,
    usage: Usage = NOTHING,
    steps: int = 0,
    now: float,
) -> bool:
    """Records the end of the turn. Returns False if it has already been settled. Raises Superseded if the turn's fence
    differs from `fence`; None accepts any fence. `takes` increases the fence, so that an attempt that is still running
    elsewhere can no longer write. Works in ended sessions, too."""
    db.lock("turn", id)
    held, fences = ("", ()) if fence is None else (" AND fence = ?", (fence,))
    done = db.execute(
        "UPDATE turns SET state = ?, finish = ?, error = ?, input = ?, cached = ?, output = ?, written = ?,"
        " reasoning = ?, cost = ?, estimated = ?, steps = ?, finished = ?,"
        f" fence = fence + ? WHERE id = ? AND state IN ('queued', 'running'){held} RETURNING 1",
        (
            state,
            finish,
            None if error is None else encode(error),
            usage.input,
            usage.cached,
            usage.output,
            usage.written,
            usage.reasoning,
            usage.cost,
            usage.estimated,
            steps,
            now,
            int(takes),
            id,
            *fences,
        ),
    ).get
    if done is None and fence is not None:
        now_held = db.execute("SELECT fence FROM turns WHERE id = ?", (id,)).get
        if now_held is not None and now_held != fence:
            raise Superseded
    return done is not None


def add_usage(db: Db, id: str, usage: Usage) -> None:
    """Adds a finished task's usage to the running turn that delegated it. A turn that has already been settled has
    counted this usage before."""
    db.lock("turn", id)
    db.execute(
        "UPDATE turns SET input = input + ?, cached = cached + ?, output = output + ?, written = written + ?,"
        " reasoning = reasoning + ?, cost = cost + ?, estimated = CASE WHEN estimated = 1 THEN 1 ELSE ? END"
        " WHERE id = ? AND state = 'running'",
        (
            usage.input,
            usage.cached,
            usage.output,
            usage.written,
            usage.reasoning,
            usage.cost,
            usage.estimated,
            id,
        ),
    )


def channel(db: Db, id: str) -> str | None:
    """Returns the channel on which the turn's message arrived."""
    found: str | None = db.execute("SELECT channel FROM turns WHERE id = ?", (id,)).get
    return found


def outermost(db: Db, id: str) -> TurnRow | None:
    """Returns the outermost turn from which this turn was delegated, or the turn itself if it was not delegated. None
    if a turn in between no longer exists."""
    return (get(db, id), *outer_turns(db, id))[-1]


def outer_turns(db: Db, id: str) -> list[TurnRow | None]:
    """Returns the chain of turns from which this turn was delegated, nearest first. The last element is None if a turn
    no longer exists."""
    found: list[TurnRow | None] = []
    turn = get(db, id)
    while turn is not None and turn.within is not None:
        turn = get(db, turn.within)
        found.append(turn)
    return found


def conversation(db: Db, session: str) -> str:
    """Returns the conversation to which this session belongs: the session itself, unless it was created for a task."""
    found: str | None = db.execute(
        "SELECT conversation FROM turns WHERE session = ? AND conversation IS NOT NULL LIMIT 1", (session,)
    ).get
    return found or session


def set_notices(db: Db, id: str, notices: tuple[str, ...]) -> None:
    """Stores the notices that the user has received with the answer. Most turns have none."""
    db.lock("turn", id)
    db.execute("UPDATE turns SET notices = ? WHERE id = ?", (encode(notices), id))


def usage_so_far(db: Db, id: str) -> tuple[Usage, int]:
    """Returns the usage of an unsettled turn's committed answers, including its finished tasks, and the number of
    answers."""
    turn = get(db, id)
    cost, answers = NOTHING if turn is None else turn.usage, 0
    for step, message in _model_messages(db, id):
        if step.startswith(_ANSWER):
            answers += 1
            cost += message.usage or NOTHING
    return cost, answers


def outcome(db: Db, id: str) -> Outcome | None:
    """Returns the turn's current or final outcome, from its rows or, if these have been deleted, from a receipt. For
    internal use; responses to callers use `outcome_for`."""
    return _outcome(db, id, None)


def outcome_for(db: Db, id: str, principal: str) -> Outcome | None:
    """Like `outcome`, if the turn belongs to this principal."""
    return _outcome(db, id, principal)


def listing(db: Db, session: str, limit: int) -> list[TurnRow]:
    """Returns the session's turns, latest first."""
    rows = db.execute(f"SELECT {COLUMNS} FROM turns WHERE session = ? ORDER BY number DESC LIMIT ?", (session, limit))
    return [row_of(row) for row in rows]


def refusal(db: Db, session: str) -> Conflict | NotFound:
    """Returns the error that explains why nothing can be added to this session."""
    if db.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).get is None:
        return NotFound("There is no such session.")
    return Conflict("The session has ended; start a new one.", code="session_ended")


def _not_taken(db: Db, id: str) -> Conflict | NotFound | EarlierTurnOpen:
    state = db.execute("SELECT state FROM turns WHERE id = ?", (id,)).get
    if state is None:
        return NotFound("There is no such turn.")
    if state == "queued":
        return EarlierTurnOpen()
    return Conflict("The turn has already ended.", code="turn_ended")


def _outcome(db: Db, id: str, principal: str | None) -> Outcome | None:
    whose, values = ("", (id,)) if principal is None else (" AND principal = ?", (id, principal))
    found = db.execute(
        f"SELECT {COLUMNS}, estimated IS NULL, notices, agent FROM turns JOIN sessions ON sessions.id = turns.session"
        f" WHERE turns.id = ?{whose}",
        values,
    ).get
    if found is None:
        kept = db.execute(
            f"SELECT outcome FROM receipts WHERE turn = ? AND outcome IS NOT NULL{whose} LIMIT 1", values
        ).get
        return decode_outcome(kept)
    turn = row_of(found[:-3])
    # The turn's answer is its last answer, or the part that had been shown when it was stopped. The text of earlier
    # steps, which called tools, is not part of it.
    ended_by = {"answered": _ANSWER, "stopped": _PARTIAL}.get(turn.state)
    answer: Message | None = None
    answered_by = ""
    cost = NOTHING
    for step, message in _model_messages(db, id):
        if step.startswith(_ANSWER):
            cost += message.usage or NOTHING
        if ended_by is not None and step.startswith(ended_by):
            answer, answered_by = message, step
    # A turn in an older format does not record this: an interrupted call has no row, and its cost is an estimate.
    estimated = bool(found[-3]) and turn.finished is not None and (cost.estimated or cost.tokens != turn.usage.tokens)
    return Outcome(
        turn=id,
        session=turn.session,
        state=turn.state,
        agent=found[-1],
        text="" if answer is None else answer.text,
        calls=() if answer is None else _calls_of_caller(db, id, answered_by, answer),
        logprobs=None if answer is None else answer.logprobs,
        finish=turn.finish,
        usage=msgspec.structs.replace(turn.usage, estimated=True) if estimated else turn.usage,
        steps=turn.steps,
        error=turn.error,
        accepted=turn.accepted,
        finished=turn.finished or 0.0,
        notices=() if found[-2] is None else _decode_notices(found[-2]),
    )


def _calls_of_caller(db: Db, id: str, step: str, answer: Message) -> tuple[ToolCall, ...]:
    """Returns the calls in a turn's last answer that the caller must run. The turn has already run all others."""
    if not answer.calls:
        return ()
    number = step.removeprefix(_ANSWER)
    rows = db.execute("SELECT step FROM messages WHERE turn = ? AND role = 'tool' AND step IS NOT NULL", (id,))
    run = {row[0] for row in rows}
    return tuple(call for place, call in enumerate(answer.calls) if f"tool-{number}-{place}" not in run)


def _model_messages(db: Db, id: str) -> Iterator[tuple[str, Message]]:
    """Yields the model's messages in this turn in order, each with its step. The messages are read one at a time, since
    an answer may be long."""
    rows = db.execute(
        "SELECT step, body, packed FROM messages WHERE turn = ? AND step IS NOT NULL AND role = 'assistant'"
        " ORDER BY seq NULLS FIRST",
        (id,),
    )
    for step, body, packed in rows:
        yield step, unpack(body, packed)
