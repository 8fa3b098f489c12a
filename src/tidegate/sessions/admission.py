"""Admission of messages: checks, acceptance in one transaction, and starting the turn.

All callers use `Intake.accept` and are subject to the same limits: the HTTP API with and without a session, the page,
the terminal, delegated tasks and finished processes. Once the transaction has committed, the message is durable and
belongs to exactly one turn, its receipts are recorded, and it can be acknowledged. If the transaction fails, no trace
of the message remains. A repeated delivery is answered with the turn of the first delivery. Every lookup is limited to
the caller's principal.

The intake's only state is a flag that is set while it is open; the turns belong to the engine.
"""

import textwrap
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

import msgspec

from tidegate.config import Config, LimitSettings
from tidegate.engine import Engine, NewTurn, StartedTurn
from tidegate.errors import Busy, Conflict, IdempotencyMismatch, NotFound, Refused, Stopping, StoreLost, TooLarge
from tidegate.sessions.prompt_prefix import NewSession, PromptPrefixes
from tidegate.sessions.uploads import accept_media
from tidegate.spool import Spool, UploadFolder
from tidegate.store import (
    Db,
    OpenTurns,
    ParentTurn,
    ProcessRow,
    ReceiptRow,
    SessionRow,
    StopRequest,
    Store,
    messages,
    open_turns,
    processes,
    receipts,
    sessions,
    turns,
)
from tidegate.turns import DELEGATE, Channels
from tidegate.values import (
    DELEGATED,
    IDEMPOTENCY,
    RETRY,
    RETRY_MARK,
    Acceptance,
    Frozen,
    Inbound,
    Message,
    OnDisconnect,
    ToolsNote,
    new_id,
)

TITLE_CHARACTERS = 60
"""Maximum length of a title derived from the first message."""


Accept = Callable[..., StartedTurn | None]
"""`Engine.accept`, which stores an accepted turn in its message's transaction."""


class Admission(Frozen, frozen=True):
    """The result of admitting a message. `started` is set if its turn was started in the same transaction."""

    turn: str
    session: str
    how: Literal["queued", "steered", "attached", "replayed"]
    started: StartedTurn | None = None
    ahead: int = 0
    """The number of open turns ahead of this turn in its session."""
    stops: str | None = None
    """The running turn that was asked to stop because of this message."""
    tools: ToolsNote = ToolsNote()


class Intake:
    def __init__(
        self,
        store: Store,
        config: Config,
        engine: Engine,
        channels: Channels,
        prompt_prefixes: PromptPrefixes,
        spool: Spool,
        clock: Callable[[], float],
        related: Callable[[Inbound], Awaitable[Message | None]] | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._engine = engine
        self._channels = channels
        self._prompt_prefixes = prompt_prefixes
        self._spool = spool
        self._clock = clock
        self._related = related
        self._open = True

    def close(self) -> None:
        """Refuses new turns, except tasks of turns that are still running."""
        self._open = False

    async def accept(self, inbound: Inbound) -> Acceptance:
        """Accepts a message. When this returns, the message survives a kill."""
        terms = await self._terms(inbound)
        if inbound.attachments:
            return await accept_media(inbound, self._store, self._spool, self._accept_with)
        return await self._store.write_then(partial(self._acknowledge, inbound), admit, **terms)

    async def _accept_with(self, inbound: Inbound, uploads: UploadFolder) -> Acceptance:
        terms = {**await self._terms(inbound), "uploads": uploads}
        return await self._store.write_then(partial(self._acknowledge, inbound), admit, **terms)

    async def process_finished(self, process: ProcessRow, text: str) -> None:
        """Reports the end of a background process, once, as a message to the session that started the process. The
        message's turn runs on the channel on which the process was started, with that channel's permissions and
        approvers."""
        session: SessionRow | None = await self._store.read(sessions.get, process.session)
        if session is None:
            return
        report = Inbound(
            principal=session.principal,
            channel=process.channel or session.channel,
            agent=session.agent,
            session=session.id,
            messages=(Message(role="user", aside=text),),
        )
        terms = await self._terms(report)
        await self._store.write_then(
            lambda admission: admission and self._acknowledge(report, admission), _admit_report, process.id, **terms
        )

    async def _terms(self, inbound: Inbound) -> dict[str, Any]:
        """Returns the arguments for `admit`. Raises an error if the message must be refused."""
        self._check(inbound)
        return {
            "inbound": inbound,
            "turn": new_id("t"),
            "fresh": await self._fresh(inbound),
            "offer": None if self._related is None else await self._related(inbound),
            "limits": self._config.limits,
            "take": self._engine.can_start(inbound.within),
            "accept": self._engine.accept,
            "now": self._clock(),
        }

    async def _fresh(self, inbound: Inbound) -> NewSession | None:
        """Prepares the session that this message may create. Returns None if the message names a session by id."""
        if inbound.session is not None:
            return None
        caller_tools = inbound.call.caller_tools
        return await self._prompt_prefixes.of(
            inbound.agent,
            inbound.principal,
            inbound.extra_prompt or "",
            own_tools=caller_tools is None or not caller_tools.only,
        )

    def check_open(self, within: str = "") -> None:
        """Raises an error if no new turns can be accepted now. `within` is the running turn that delegates the new
        turn, since running turns may delegate until they are parked."""
        if not self._open and not within:
            raise Stopping("The gateway is stopping; send this again when it is running again.", retry_after=5)
        if (lost := self._store.lost) is not None:
            raise StoreLost(lost)

    def _check(self, inbound: Inbound) -> None:
        self.check_open(inbound.within)
        if inbound.channel not in self._channels.by_name or (inbound.channel == DELEGATE) != bool(inbound.within):
            raise Refused(f"There is no channel {inbound.channel!r}.", code="unknown_channel")
        if inbound.agent not in self._config.agents:
            known = ", ".join(sorted(self._config.agents))
            raise NotFound(f"There is no agent {inbound.agent!r}; choose one of: {known}.", code="model_not_found")
        limits = self._config.limits
        if len(inbound.messages) > limits.call_messages:
            raise TooLarge(
                f"The call has {len(inbound.messages)} messages, more than limits.call_messages "
                f"({limits.call_messages}); name a session and send only what is new.",
                limit="limits.call_messages",
                value=limits.call_messages,
                param="messages",
            )
        for text in (*(message.text for message in inbound.messages), inbound.extra_prompt or ""):
            if 4 * len(text) > limits.message_bytes and len(text.encode(errors="replace")) > limits.message_bytes:
                raise TooLarge(
                    f"A message is longer than limits.message_bytes ({limits.message_bytes} bytes).",
                    limit="limits.message_bytes",
                    value=limits.message_bytes,
                )

    def _acknowledge(self, inbound: Inbound, admission: Admission) -> Acceptance:
        """Submits the turn to the engine. Nothing is awaited between the commit and this call."""
        session, turn = admission.session, admission.turn
        if admission.how == "steered":
            self._engine.wake(turn)
            return Acceptance(turn=turn, session=session, how="steered")
        if admission.how == "replayed":
            return Acceptance(turn=turn, session=session, how="replayed", tools=admission.tools)
        if admission.how == "attached":
            self._engine.submit(session, turn, within=inbound.within or None)
            return Acceptance(turn=turn, session=session, how="attached", tools=admission.tools)
        self._engine.submit(session, turn, within=inbound.within or None, started=admission.started)
        how: Literal["started", "queued", "interrupting"] = "queued" if admission.ahead else "started"
        if admission.stops is not None:
            self._engine.wake(admission.stops)
            how = "interrupting"
        return Acceptance(turn=turn, session=session, how=how, ahead=admission.ahead, tools=admission.tools)


def check_waiting(db: Db, principal: str, limits: LimitSettings) -> None:
    """Raises an error if no more of this principal's turns may wait."""
    most, each = limits.waiting_total, limits.waiting_each
    waiting = open_turns.waiting(db)
    if waiting >= most:
        raise _overloaded(f"{most} turns are already waiting (limits.waiting_total)")
    if waiting >= each and open_turns.waiting_of(db, principal) >= each:
        raise _overloaded(f"{each} of your turns are already waiting (limits.waiting_each)")


def _overloaded(what: str) -> Busy:
    return Busy(f"{what}; try again soon.", retry_after=5, code="overloaded")


def _admit_report(db: Db, /, process: str, **terms: Any) -> Admission | None:
    """Admits the report about a finished process and marks the process as reported, in one step. Returns None if the
    process has already been reported."""
    if not processes.mark_reported(db, process):
        return None
    return admit(db, **terms)


def admit(
    db: Db,
    inbound: Inbound,
    turn: str,
    fresh: NewSession | None,
    *,
    limits: LimitSettings,
    take: bool,
    accept: Accept,
    now: float,
    offer: Message | None = None,
    uploads: UploadFolder | None = None,
) -> Admission:
    """Admits a message. If `take` is true, the engine may start an idle session's turn in this transaction, which saves
    a second one. `accept` is the engine's method. `offer` contains notes for the model that match the message.
    `uploads` contains the messages' larger media."""
    _lock(db, inbound)
    known = _repeated_delivery(db, inbound, now)
    if known is not None:
        return known
    id = uploads.session if uploads is not None and uploads.is_new else None
    session, created = _session(db, inbound, fresh, id, now)
    if uploads is not None:
        uploads.commit(db, session.id)
    if inbound.busy == "steer" and not created and inbound.messages[0].role != "tool":
        running = open_turns.running(db, session.id)
        # Rules about a channel apply to its messages, so a message never joins a turn on another channel.
        if running is not None and turns.channel(db, running) == inbound.channel:
            if messages.count_waiting(db, running) >= limits.queue_length:
                raise _queue_full(limits.queue_length)
            _accept(db, inbound, session.id, running, now)
            _note_receipts(db, inbound, running, ToolsNote(), now)
            return Admission(turn=running, session=session.id, how="steered")
    within = _within(db, inbound)
    ahead = OpenTurns() if created else open_turns.of_session(db, session.id)
    idle = not (ahead.running or ahead.waiting)
    inbound = _with_calls(db, inbound, session.id, idle=idle)
    if ahead.waiting >= limits.queue_length:
        raise _queue_full(limits.queue_length)
    if not (take and idle):
        check_waiting(db, inbound.principal, limits)
    has_tools = inbound.call.caller_tools is not None or inbound.call.tool_choice
    clashes = _shadowed(db, inbound, session) if has_tools else ()
    changed = not created and inbound.call.tools_digest != _tools_ahead(db, session, idle=idle)
    tools = ToolsNote(shadowed=clashes, changed=changed)
    _note_receipts(db, inbound, turn, tools, now)
    reaction = on_disconnect(inbound, ephemeral=session.kind == "ephemeral")
    new = NewTurn(
        id=turn,
        channel=inbound.channel,
        call=inbound.call,
        on_disconnect=reaction,
        messages=(*inbound.messages, offer) if offer is not None and _has_notes(session, inbound) else inbound.messages,
        job=inbound.job,
        within=within,
    )
    started = accept(db, session, new, now, start=take and idle)
    stops = ahead.running[0] if ahead.running and inbound.busy == "interrupt" else None
    if stops is not None:
        turns.request_stop(db, stops, StopRequest("by a newer message"))
    return Admission(
        turn=turn,
        session=session.id,
        how="queued",
        started=started,
        ahead=len(ahead.running) + ahead.waiting,
        stops=stops,
        tools=tools,
    )


def _has_notes(session: SessionRow, inbound: Inbound) -> bool:
    """True if the prompt of this session may contain notes about this person and agent."""
    return bool(session.memory_seen) and (session.principal, session.agent) == (inbound.principal, inbound.agent)


def _shadowed(db: Db, inbound: Inbound, session: SessionRow) -> tuple[str, ...]:
    """Returns the names of caller tools that will not be offered. Refuses a `tool_choice` that requires a call when no
    tool is offered, or that names a tool that is not offered."""
    chosen = inbound.call.chosen_tools
    if (inbound.call.caller_tools is None and not inbound.call.is_forced and not chosen) or session.prefix is None:
        return ()
    prefix = sessions.prefix(db, session.prefix).with_caller_tools(inbound.call.caller_tools)
    if inbound.call.is_forced and not chosen and not prefix.offered:
        raise Refused(
            "`tool_choice` requires a tool call, but this agent has no tools; send `tools`, or leave it out.",
            param="tool_choice",
        )
    offered = {tool.name for tool in prefix.offered}
    missing = [name for name in chosen if name not in offered]
    if missing:
        raise Refused(
            f"`tool_choice` names the tool {missing[0][:100]!r}, which is neither in `tools` nor the agent's own.",
            param="tool_choice",
        )
    return tuple(sorted(prefix.shadowed))


def _tools_ahead(db: Db, session: SessionRow, *, idle: bool) -> bytes:
    """Returns the digest of the caller tools that the session will have after its last waiting turn has started."""
    if idle:
        return session.caller_tools
    calls = open_turns.waiting_calls(db, session.id)
    fixed = (call for call in calls if call.caller_tools is None or call.caller_tools.definitions)
    last = next(fixed, None)
    return session.caller_tools if last is None else last.tools_digest


def _with_calls(db: Db, inbound: Inbound, session: str, *, idle: bool) -> Inbound:
    """Returns the message with a call id for every tool result. In a stored conversation, results belong to the calls
    that the last answer left to the caller. Results in the older `functions` format contain only the function's
    name."""
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
    """Determines what happens to a turn when its reader disconnects. In a named conversation, the turn continues. A
    one-shot call is cancelled unless its caller has sent an Idempotency-Key and can come back for the answer."""
    if inbound.on_disconnect is not None:
        return inbound.on_disconnect
    keyed = any(receipt.source == IDEMPOTENCY for receipt in inbound.receipts)
    return "cancel" if ephemeral and not keyed else "continue"


def _queue_full(length: int) -> Busy:
    return Busy(
        f"This session already has {length} messages waiting (limits.queue_length); try again when some have been "
        f"answered.",
        retry_after=5,
        code="queue_full",
    )


def _repeated_delivery(db: Db, inbound: Inbound, now: float) -> Admission | None:
    for receipt in inbound.receipts:
        if receipt.source == RETRY_MARK:
            continue
        source = RETRY_MARK if receipt.source == RETRY else receipt.source
        row = receipts.find(db, inbound.principal, source, receipt.key, now)
        if row is None:
            continue
        if row.digest != receipt.digest:
            raise IdempotencyMismatch(
                "This Idempotency-Key has already been used with another request; choose a new key for a new request.",
                param="Idempotency-Key",
            )
        found = _follow(db, row, final=receipt.source == DELEGATED)
        if found is not None:
            return found
    return None


def _follow(db: Db, row: ReceiptRow, *, final: bool) -> Admission | None:
    """Returns the turn to which a receipt refers, or None if the message should be admitted again because the turn's
    outcome calls for a retry. If `final` is true, the message is not admitted again after a failure: the agent that
    delegated the task decides what to do next."""
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
    """Returns the turn's position in a task tree, or None if the turn is not delegated."""
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


def _lock(db: Db, inbound: Inbound) -> None:
    """Locks the session if the message identifies it by id. Otherwise, the session is locked when it is found."""
    if inbound.session is not None:
        db.lock("session", inbound.session)


def _session(db: Db, inbound: Inbound, fresh: NewSession | None, id: str | None, now: float) -> tuple[SessionRow, bool]:
    """Returns the existing session or creates one. If a new session's id has been chosen in advance, it is passed as
    `id`."""
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
            db.lock("session", row.id)
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
        id=id or new_id("s"),
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
    """Derives the title of a session without a name from its first message, shortened to one line. Users can change the
    title."""
    return textwrap.shorten(text[: 4 * TITLE_CHARACTERS], TITLE_CHARACTERS, placeholder=" …") or text[:TITLE_CHARACTERS]
