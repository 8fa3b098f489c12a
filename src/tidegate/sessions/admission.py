"""Admission of a message, in one transaction.

When the transaction commits, the message is durable and belongs to exactly one turn, its receipts are recorded, and the
acknowledgement is accurate. If it does not commit, nothing of the message exists. A second delivery finds the first
one. Every lookup is limited to the caller's principal.
"""

import textwrap
from typing import Literal

import msgspec

from tidegate.engine import StartedTurn, accept_and_start
from tidegate.errors import Busy, Conflict, IdempotencyMismatch, NotFound, Refused
from tidegate.spool import UploadFolder
from tidegate.store import Db, ParentTurn, ReceiptRow, SessionRow, messages, receipts, sessions, turns
from tidegate.values import (
    DELEGATED,
    IDEMPOTENCY,
    RETRY,
    RETRY_MARK,
    Frozen,
    Inbound,
    Message,
    OnDisconnect,
    Prefix,
    ToolsNote,
    new_id,
)

TITLE_CHARACTERS = 60
"""Length of a title made from the first message."""


class NewSession(Frozen, frozen=True):
    """The beginning of a new session, prepared outside the transaction."""

    prefix: Prefix
    encoder: int
    memory_seen: int = 0


class Admission(Frozen, frozen=True):
    """The result of admitting a message. `begun` is set if its turn was started in the same transaction."""

    turn: str
    session: str
    how: Literal["queued", "steered", "attached", "replayed"]
    begun: StartedTurn | None = None
    tools: ToolsNote = ToolsNote()


def admit(
    db: Db,
    inbound: Inbound,
    turn: str,
    fresh: NewSession | None,
    *,
    queue_length: int,
    take: bool,
    now: float,
    arrivals: UploadFolder | None = None,
) -> Admission:
    """With `take`, a turn may start now: in an idle session it is started in this transaction, which saves one of its
    own. `arrivals` holds the larger media of the messages."""
    known = _known(db, inbound, now)
    if known is not None:
        return known
    id = arrivals.session if arrivals is not None and arrivals.is_new else new_id("s")
    session, created = _session(db, inbound, fresh, id, now)
    if arrivals is not None:
        arrivals.commit(db, session.id)
    if inbound.busy == "steer" and not created and inbound.messages[0].role != "tool":
        running = turns.running(db, session.id)
        # Rules about a channel apply to its messages, so a message never joins a turn of another channel.
        if running is not None and turns.channel(db, running) == inbound.channel:
            if messages.count_waiting(db, running) >= queue_length:
                raise _queue_full(queue_length)
            _accept(db, inbound, session.id, running, now)
            _note_receipts(db, inbound, running, ToolsNote(), now)
            return Admission(turn=running, session=session.id, how="steered")
    within = _within(db, inbound)
    idle = created or turns.is_idle(db, session.id)
    inbound = _with_calls(db, inbound, session.id, idle=idle)
    if not idle and turns.waiting(db, session.id) >= queue_length:
        raise _queue_full(queue_length)
    clashes = _shadowed(db, inbound, session)
    changed = not created and inbound.call.tools_digest != _tools_ahead(db, session, idle=idle)
    tools = ToolsNote(shadowed=clashes, changed=changed)
    _note_receipts(db, inbound, turn, tools, now)
    leaving = on_disconnect(inbound, ephemeral=session.kind == "ephemeral")
    if take and idle:
        begun = accept_and_start(
            db,
            session,
            turn=turn,
            channel=inbound.channel,
            call=inbound.call,
            on_disconnect=leaving,
            incoming=inbound.messages,
            now=now,
            job=inbound.job,
            within=within,
        )
        return Admission(turn=turn, session=session.id, how="queued", begun=begun, tools=tools)
    turns.insert(
        db,
        id=turn,
        session=session.id,
        channel=inbound.channel,
        call=inbound.call,
        on_disconnect=leaving,
        now=now,
        job=inbound.job,
        within=within,
    )
    _accept(db, inbound, session.id, turn, now)
    return Admission(turn=turn, session=session.id, how="queued", tools=tools)


def _shadowed(db: Db, inbound: Inbound, session: SessionRow) -> tuple[str, ...]:
    """The names of caller tools that will not be offered. Refuses a `tool_choice` that requires a call if no tool is
    offered, or not the one that it names."""
    chosen = inbound.call.chosen_tool
    if (inbound.call.caller_tools is None and not inbound.call.is_forced) or session.prefix is None:
        return ()
    prefix = sessions.prefix(db, session.prefix).with_caller_tools(inbound.call.caller_tools)
    if inbound.call.is_forced and not chosen and not prefix.offered:
        raise Refused(
            "`tool_choice` requires a tool call, but this agent has no tools; send `tools`, or leave it out.",
            param="tool_choice",
        )
    if chosen and all(tool.name != chosen for tool in prefix.offered):
        raise Refused(
            f"`tool_choice` names the tool {chosen[:100]!r}, which is neither in `tools` nor the agent's own.",
            param="tool_choice",
        )
    return tuple(sorted(prefix.shadowed))


def _tools_ahead(db: Db, session: SessionRow, *, idle: bool) -> bytes:
    """The digest of the caller tools that the session will have once its last waiting turn has started."""
    calls = [] if idle else turns.waiting_calls(db, session.id)
    fixed = (call for call in calls if call.caller_tools is None or call.caller_tools.definitions)
    last = next(fixed, None)
    return session.caller_tools if last is None else last.tools_digest


def _with_calls(db: Db, inbound: Inbound, session: str, *, idle: bool) -> Inbound:
    """The same message with the call id of every tool result. In a stored conversation, results answer the calls that
    its last answer left to the caller. Results of the older `functions` format name only the function."""
    results = any(message.role == "tool" for message in inbound.messages)
    if not results or (inbound.name is None and inbound.session is None):
        return inbound
    calls = {call.id: call for call in messages.open_calls(db, session)} if idle else {}
    found: list[Message] = []
    for message in inbound.messages:
        if message.role == "tool":
            same = (call.id for call in calls.values() if call.name == message.name)
            id = message.call_id or next(same, message.name)
            if id not in calls:
                raise Refused(
                    f"This session has no open tool call {id[:100]!r}: send one result for each tool call of its last "
                    "answer, before any other message.",
                    param="messages",
                    code="unknown_tool_call",
                )
            message = msgspec.structs.replace(message, call_id=id, name=calls.pop(id).name)
        found.append(message)
    return msgspec.structs.replace(inbound, messages=tuple(found))


def on_disconnect(inbound: Inbound, *, ephemeral: bool) -> OnDisconnect:
    """The reaction of a turn to its reader leaving. A named conversation continues. A one-shot call is cancelled,
    unless its caller chose an Idempotency-Key and can return for the answer."""
    if inbound.on_disconnect is not None:
        return inbound.on_disconnect
    keyed = any(receipt.source == IDEMPOTENCY for receipt in inbound.receipts)
    return "cancel" if ephemeral and not keyed else "continue"


def _queue_full(length: int) -> Busy:
    return Busy(
        f"This session already has {length} messages waiting (limits.queue_length); try again when it has answered "
        "some.",
        retry_after=5,
        code="queue_full",
    )


def _known(db: Db, inbound: Inbound, now: float) -> Admission | None:
    for receipt in inbound.receipts:
        if receipt.source == RETRY_MARK:
            continue
        source = RETRY_MARK if receipt.source == RETRY else receipt.source
        row = receipts.find(db, inbound.principal, source, receipt.key, now)
        if row is None:
            continue
        if row.digest != receipt.digest:
            raise IdempotencyMismatch(
                "This Idempotency-Key was already used with another request; choose a new key for a new request.",
                param="Idempotency-Key",
            )
        found = _follow(db, row, final=receipt.source == DELEGATED)
        if found is not None:
            return found
    return None


def _follow(db: Db, row: ReceiptRow, *, final: bool) -> Admission | None:
    """The turn that a receipt leads to; None if its outcome said "try again", so that the message is admitted again. A
    `final` receipt is never tried again: the agent that delegated a task decides what to do about a failure."""
    if row.outcome is not None:
        if not final and row.outcome.error is not None and row.outcome.error.retry:
            return None
        return Admission(turn=row.turn, session=row.outcome.session, how="replayed", tools=row.tools)
    turn = turns.get(db, row.turn)
    if turn is None:
        return None
    if turn.state in ("queued", "running"):
        return Admission(turn=turn.id, session=turn.session, how="attached", tools=row.tools)
    if not final and turn.error is not None and turn.error.retry:
        return None
    return Admission(turn=turn.id, session=turn.session, how="replayed", tools=row.tools)


def _within(db: Db, inbound: Inbound) -> ParentTurn | None:
    """The place of the turn in a tree of tasks; None if it is not delegated."""
    if not inbound.within:
        return None
    parent = turns.get(db, inbound.within)
    if parent is None or parent.state != "running":
        raise Conflict("The turn that delegated this task has ended.", code="turn_ended")
    return ParentTurn(parent.id, inbound.depth, parent.payer, parent.job)


def _accept(db: Db, inbound: Inbound, session: str, turn: str, now: float) -> None:
    for message in inbound.messages:
        messages.accept(db, session=session, turn=turn, message=message, now=now)


def _note_receipts(db: Db, inbound: Inbound, turn: str, tools: ToolsNote, now: float) -> None:
    for receipt in inbound.receipts:
        kept = msgspec.structs.replace(receipt, source=RETRY_MARK) if receipt.source == RETRY else receipt
        receipts.put(db, inbound.principal, kept, turn, now, tools)


def _session(db: Db, inbound: Inbound, fresh: NewSession | None, id: str, now: float) -> tuple[SessionRow, bool]:
    """The existing session, or a new one with this id."""
    row = None
    if inbound.session is not None:
        row = sessions.get(db, inbound.session)
        if row is None or row.principal != inbound.principal:
            raise NotFound(f"There is no session {inbound.session}.", code="session_not_found")
        if row.ended is not None:
            raise Conflict(
                "This session has ended; start a new one, or use /resume to continue it in a new one.", code="ended"
            )
    elif inbound.name is not None:
        row = sessions.live_by_name(db, inbound.principal, inbound.name)
    if row is not None:
        if inbound.extra_prompt is not None and not sessions.has_extra(row, inbound.extra_prompt):
            raise Conflict(
                "This session began with another system message; send the same one or none, or start a new session."
                if row.extra_length
                else "This session began without a system message; leave it out, or start a new session with it.",
                code="system_message_differs",
                param="messages",
            )
        if inbound.session is None and inbound.agent != row.agent:
            raise Conflict(
                f"This session belongs to the agent {row.agent!r}; use that model name, or another X-Session-Id.",
                code="agent_differs",
                param="model",
            )
        return row, False
    assert fresh is not None, "a message without a session id comes with the beginning of a new session"
    named = inbound.name is not None or inbound.new
    row = sessions.create(
        db,
        id=id,
        principal=inbound.principal,
        channel=inbound.channel,
        name=inbound.name,
        kind="named" if named else "ephemeral",
        agent=inbound.agent,
        extra=inbound.extra_prompt or "",
        title=title_from(inbound.messages[-1].text) if inbound.new else "",
        parent=None,
        prefix=fresh.prefix.with_caller_tools(inbound.call.caller_tools),
        encoder=fresh.encoder,
        memory_seen=fresh.memory_seen if named else 0,
        caller_tools=inbound.call.tools_digest,
        now=now,
    )
    return row, True


def title_from(text: str) -> str:
    """The title of a session without a name, from its first message, until a user sets one. One line."""
    return textwrap.shorten(text[: 4 * TITLE_CHARACTERS], TITLE_CHARACTERS, placeholder=" …") or text[:TITLE_CHARACTERS]
