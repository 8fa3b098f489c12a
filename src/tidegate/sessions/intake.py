"""The intake of messages: checks, acceptance in one transaction, and the start of the turn.

A message is durable, deduplicated and authorised before it is acknowledged. Every caller uses `accept` and gets the
same limits: the HTTP API with and without a session, the page, the terminal, delegated tasks and finished processes.

The intake holds no state but whether it is open; the turns belong to the engine.
"""

from collections.abc import Callable
from typing import Any, Literal

from tidegate.config import Config
from tidegate.engine import EmbeddedEngine
from tidegate.errors import Busy, NotFound, Refused, Stopping, StoreLost, TooLarge
from tidegate.sessions.admission import Admission, NewSession, admit
from tidegate.sessions.prompt_prefix import PromptPrefixes
from tidegate.sessions.uploads import accept_media
from tidegate.spool import Spool, UploadFolder
from tidegate.store import Db, ProcessRow, SessionRow, Store, processes, sessions
from tidegate.turns import DELEGATE, Channels
from tidegate.values import Acceptance, Inbound, Message, new_id


class Intake:
    def __init__(
        self,
        store: Store,
        config: Config,
        engine: EmbeddedEngine,
        channels: Channels,
        prompt_prefixes: PromptPrefixes,
        spool: Spool,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._config = config
        self._engine = engine
        self._channels = channels
        self._prompt_prefixes = prompt_prefixes
        self._spool = spool
        self._clock = clock
        self._open = True

    def close(self) -> None:
        """Refuse new turns, except tasks of turns that are still running."""
        self._open = False

    async def accept(self, inbound: Inbound) -> Acceptance:
        """Accept a message. When this returns, the message survives a kill."""
        terms = await self._terms(inbound)
        if inbound.attachments:
            return await accept_media(inbound, self._store, self._spool, self._accept_with)
        return await self._store.write_then(lambda admission: self._acknowledge(inbound, admission), admit, **terms)

    async def _accept_with(self, inbound: Inbound, arrivals: UploadFolder) -> Acceptance:
        terms = {**await self._terms(inbound), "arrivals": arrivals}
        return await self._store.write_then(lambda admission: self._acknowledge(inbound, admission), admit, **terms)

    async def process_finished(self, process: ProcessRow, text: str) -> None:
        """Report the end of a background process to its session, once, as a message. Its turn belongs to the channel
        on which the process was started, with the permissions and the approvers of that channel."""
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
        """The arguments of `admit`. Raises if the message has to be refused."""
        self._check(inbound)
        return {
            "inbound": inbound,
            "turn": new_id("t"),
            "fresh": await self._fresh(inbound),
            "queue_length": self._config.limits.queue_length,
            "take": self._engine.has_free_slot(inbound.within),
            "now": self._clock(),
        }

    async def _fresh(self, inbound: Inbound) -> NewSession | None:
        """The beginning of a session that this message may create. A message that names a session by id creates
        none."""
        if inbound.session is not None:
            return None
        given = inbound.call.caller_tools
        return await self._prompt_prefixes.of(
            inbound.agent, inbound.principal, inbound.extra_prompt or "", own_tools=given is None or not given.only
        )

    def check_open(self, principal: str, within: str = "") -> None:
        """Raises if no new turn of this principal is accepted now. `within` is the running turn that delegates it."""
        if not self._open and not (within and self._engine.accepts_tasks(within)):
            raise Stopping("The gateway is stopping; send this again when it is back.", retry_after=5)
        if (lost := self._store.lost) is not None:
            raise StoreLost(lost)
        if within and self._engine.has_free_slot(within):
            return
        most, each = self._config.limits.waiting_total, self._config.limits.waiting_each
        if self._engine.waiting_total >= most:
            raise _overloaded(f"{most} turns are waiting already (limits.waiting_total)")
        if self._engine.waiting_total >= each and self._engine.waiting_of(principal) >= each:
            raise _overloaded(f"{each} turns of yours are waiting already (limits.waiting_each)")

    def _check(self, inbound: Inbound) -> None:
        self.check_open(inbound.principal, inbound.within)
        if inbound.channel not in self._channels or (inbound.channel == DELEGATE) != bool(inbound.within):
            raise Refused(f"There is no channel {inbound.channel!r}.", code="unknown_channel")
        if inbound.agent not in self._config.agents:
            known = ", ".join(sorted(self._config.agents))
            raise NotFound(f"There is no agent {inbound.agent!r}; there are: {known}.", code="model_not_found")
        limits = self._config.limits
        if len(inbound.messages) > limits.call_messages:
            raise TooLarge(
                f"The call holds {len(inbound.messages)} messages, more than limits.call_messages "
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
        """Submit the turn to the engine. Nothing is awaited between the commit and this."""
        session, turn = admission.session, admission.turn
        if admission.how == "steered":
            self._engine.steer(turn)
            return Acceptance(turn=turn, session=session, how="steered")
        if admission.how == "replayed":
            return Acceptance(turn=turn, session=session, how="replayed", tools=admission.tools)
        if admission.how == "attached":
            self._engine.submit(session, turn, inbound.principal, resumed=True, within=inbound.within or None)
            return Acceptance(turn=turn, session=session, how="attached", tools=admission.tools)
        running = self._engine.running(session)
        ahead = self._engine.waiting(session) + (running is not None)
        self._engine.submit(session, turn, inbound.principal, started=admission.begun, within=inbound.within or None)
        how: Literal["started", "queued", "interrupting"] = "queued" if ahead else "started"
        if inbound.busy == "interrupt" and running is not None:
            running.stop("by a newer message")
            how = "interrupting"
        return Acceptance(turn=turn, session=session, how=how, ahead=ahead, tools=admission.tools)


def _overloaded(what: str) -> Busy:
    return Busy(f"{what}; try again soon.", retry_after=5, code="overloaded")


def _admit_report(db: Db, /, process: str, **terms: Any) -> Admission | None:
    """Admit the report of a finished process and mark it as reported, together. None if it was reported before."""
    return admit(db, **terms) if processes.mark_reported(db, process) else None
