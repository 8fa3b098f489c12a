"""The scripted server: one listener, formats by path, counters, latches, and recorded requests.

Nothing is open before entering and after leaving; everything it keeps is bounded. It owns its connections, and they own
their answers.
"""

import asyncio
import ssl
from collections import Counter, OrderedDict, deque
from types import TracebackType
from typing import Any, Self

import msgspec

from bench.scripted import services
from bench.scripted.anthropic import Messages
from bench.scripted.behaviour import SCRIPTS, WRITTEN, Behaviour, Traced, written
from bench.scripted.chat import Chat
from bench.scripted.connection import LONGEST_WAIT, Connection
from bench.scripted.interface import Asked, Format, Refusal
from bench.scripted.playback import perform
from bench.scripted.responses import Responses
from bench.scripted.reuse import VIOLATIONS
from bench.scripted.script import ANSWER, Directive, Plan, plan_of
from bench.scripted.wire import credential_of, reply_of

RECORDED = 200
RECORDED_BYTES = 8 * 1024 * 1024
COUNTERS = 10_000
TRACED = 200_000
"""Requests in the trace, if tracing is on: about ten times those of a long run."""
TRACED_CHARACTERS = 40


class Recorded(msgspec.Struct, frozen=True):
    """A request as received. `authorization` is the value of the credential header, or empty."""

    path: str
    authorization: str
    headers: dict[str, str]
    body: bytes

    def decoded(self) -> Any:
        return msgspec.json.decode(self.body)


class Latch:
    """The latch of `[hold NAME]`. Once released, it stays open."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.arrived = asyncio.Event()
        self.waiting = 0


class ScriptedModel:
    """`async with ScriptedModel() as model`: listens on loopback, at `model.base_url`; owns its connections."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        tls: ssl.SSLContext | None = None,
        behaviour: Behaviour = Behaviour(),  # noqa: B008
    ) -> None:
        self._host, self._port, self._key, self._tls = host, port, key, tls
        self._server: asyncio.Server | None = None
        self.formats: tuple[Format, ...] = (Chat(), Responses(), Messages())
        self.connections: set[Connection] = set()
        self.latches: OrderedDict[str, Latch] = OrderedDict()
        self.reset()
        self.behave(behaviour)

    def behave(self, behaviour: Behaviour) -> None:
        """Set the behaviour from now on. Counts restart with `reset`."""
        self.behaviour = behaviour
        self.synonyms = {
            word: f"group {number}" for number, group in enumerate(behaviour.synonyms) for word in reversed(group)
        }
        for form in self.formats:
            form.ledger.by_prompt = behaviour.by_prompt

    def reset(self) -> None:
        for form in self.formats:
            form.ledger.clear()
        self.recorded: deque[Recorded] = deque()
        self._recorded_bytes = 0
        self._met: OrderedDict[tuple[int, str, int], int] = OrderedDict()
        self.counts: Counter[str] = Counter()
        self.trace: deque[Traced] = deque(maxlen=TRACED)
        self.refusals: deque[str] = deque(maxlen=VIOLATIONS)
        for latch in self.latches.values():
            latch.opened.set()
        self.latches.clear()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), self._host, self._port, backlog=1024, ssl=self._tls
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        ending = [connection.end() for connection in tuple(self.connections)]
        await asyncio.gather(*(task for task in ending if task is not None), return_exceptions=True)
        await asyncio.wait_for(self._server.wait_closed(), LONGEST_WAIT)

    @property
    def root(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self._host}:{self._port}"

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    # -- latches -------------------------------------------------------------------------------------------------------

    def latch(self, name: str) -> Latch:
        found = self.latches.get(name)
        if found is None:
            found = self.latches[name] = Latch()
            if len(self.latches) > COUNTERS:
                self.latches.popitem(last=False)[1].opened.set()
        return found

    def release(self, name: str) -> None:
        self.latch(name).opened.set()

    async def held(self, name: str) -> None:
        """Wait until a request has reached `[hold NAME]`."""
        await asyncio.wait_for(self.latch(name).arrived.wait(), LONGEST_WAIT)

    async def hold(self, name: str) -> None:
        latch = self.latch(name)
        latch.waiting += 1
        latch.arrived.set()
        try:
            await asyncio.wait_for(latch.opened.wait(), LONGEST_WAIT)
        finally:
            latch.waiting -= 1

    # -- statistics ----------------------------------------------------------------------------------------------------

    def close_idle(self) -> int:
        """Half-close the connections that wait for a request, as an impatient proxy does."""
        idle = [connection for connection in self.connections if not connection.busy]
        for connection in idle:
            connection.half_close()
        return len(idle)

    def stats(self) -> dict[str, Any]:
        return {
            "requests": self.counts["requests"],
            "refused": self.counts["refused"],
            "refusals": list(self.refusals),
            "summaries": self.counts["summaries"],
            "services": {name: self.counts[name] for name in services.SERVICES},
            "texts": self.counts["texts"],
            "too_much": self.counts["too_much"],
            "disconnects": self.counts["disconnects"],
            "connections": len(self.connections),
            "accepted_connections": self.counts["connections"],
            "busy": sum(connection.busy for connection in self.connections),
            "holding": {name: latch.waiting for name, latch in self.latches.items() if latch.waiting},
            **self._reuse(),
        }

    def _reuse(self) -> dict[str, Any]:
        """Reuse over all formats, and by format."""
        views = {form.name: form.ledger.view() for form in self.formats}
        total: dict[str, Any] = {
            name: sum(view[name] for view in views.values())
            for name in ("conversations", "followups", "repeats", "whole_prefix")
        }
        total["reuse"] = total["whole_prefix"] / total["followups"] if total["followups"] else 1.0
        total["violations"] = [one for view in views.values() for one in view["violations"]][:VIOLATIONS]
        return {**total, "formats": views}

    def record(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.recorded.append(Recorded(path, credential_of(headers), headers, body))
        self._recorded_bytes += len(body)
        while len(self.recorded) > RECORDED or (self._recorded_bytes > RECORDED_BYTES and len(self.recorded) > 1):
            self._recorded_bytes -= len(self.recorded.popleft().body)

    # -- models of other kinds -----------------------------------------------------------------------------------------

    def mood(self, name: str) -> str:
        """How the endpoint `name` misbehaves in this request; empty if it does not."""
        mood, most = self.behaviour.services.get(name, ""), self.behaviour.service_times
        self.counts[name] += 1
        if mood and most is not None:
            self.counts[f"bad {name}"] += 1
            return mood if self.counts[f"bad {name}"] <= most else ""
        return mood

    def serve(self, connection: Connection, name: str, headers: dict[str, str], body: bytes) -> None:
        self.counts["requests"] += 1
        connection.play(services.serve(self, connection, name, headers, body, self._key))

    # -- answers -------------------------------------------------------------------------------------------------------

    def answer(self, connection: Connection, form: Format, headers: dict[str, str], body: bytes) -> None:
        """Handle a request: refuse it, answer it at once from canned bytes, or start a task."""
        self.counts["requests"] += 1
        try:
            form.admit(headers, self._key)
            asked = form.read(body, headers)
        except Refusal as refusal:
            self.counts["refused"] += 1
            self.refusals.append(refusal.message)
            connection.write(_refused(form, refusal))
            return
        is_summary = self.behaviour.is_summary(asked)
        try:
            self.behaviour.check_body(form.name, body)
            self.behaviour.check_tokens(form.name, asked)
        except Refusal as refusal:
            self.counts["too_much"] += 1
            self._trace(form, asked, body, summary=is_summary, refused=True)
            connection.write(_refused(form, refusal))
            return
        if is_summary:
            plan = self._summary(form, asked)
            self._trace(form, asked, body, output=plan.tokens, summary=True)
            connection.play(perform(self, connection, form, asked, plan, headers))
            return
        if asked.canned and "[" not in asked.text:
            self._trace(form, asked, body, output=len(ANSWER))
            connection.write(form.plain(asked))
            return

        def meets(directive: Directive, step: int, place: int) -> bool:
            return self._meets(directive, step, (asked.key, asked.text, place))

        plan = plan_of(asked, form.step(asked), lambda place: form.call_id(asked, place), meets)
        self._trace(form, asked, body, output=plan.tokens)
        connection.play(perform(self, connection, form, asked, plan, headers))

    def _summary(self, form: Format, asked: Asked) -> Plan:
        """The summary. Directives in the given messages are ignored; only the server's behaviour counts."""
        mood = self.behaviour.mood(self.counts["summaries"])
        self.counts["summaries"] += 1
        if mood in WRITTEN:
            return written(mood, form.heard(asked), asked)
        asked.text = SCRIPTS.get(mood, mood)
        return plan_of(asked, 0, lambda place: form.call_id(asked, place), lambda directive, step, place: True)

    def _trace(
        self,
        form: Format,
        asked: Asked,
        body: bytes,
        *,
        output: int = 0,
        summary: bool = False,
        refused: bool = False,
    ) -> None:
        if self.behaviour.by_prompt:
            came, about = form.ledger.came, asked.text[:TRACED_CHARACTERS]
            self.trace.append(Traced(about, summary, refused, asked.tokens.prompt, len(body), came, output))

    def _meets(self, directive: Directive, step: int, place: tuple[int, str, int]) -> bool:
        if directive.number("step", step) != step:
            return False
        times = directive.options.get("times")
        if times is None:
            return True
        met = self._met[place] = self._met.get(place, 0) + 1
        if len(self._met) > COUNTERS:
            self._met.popitem(last=False)
        return met <= int(times)


def _refused(form: Format, refusal: Refusal) -> bytes:
    said = form.error(refusal.status, refusal.message, code=refusal.code, param=refusal.param)
    return reply_of(refusal.status, said, extra=form.identified)
