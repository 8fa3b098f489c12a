"""The load driver: a separate process that sends turns over loopback and measures how long they take.

It reads a plan (JSON) from standard input and writes a result (JSON) to standard output. There are never more than
`in_flight` turns at once and never two of one session. Every answer is checked (status 200 and, if streamed, its end
mark); the first wrong one ends the run with a message. The whole run has a deadline.

With `direct` the driver sends the complete conversation with every turn, as the floor and the gateway do for the
caller. This gives the model's own time for the same work, which is subtracted.
"""

import asyncio
import json
import sys
import time
from collections import deque

import msgspec

from bench.http_client import Broken, Connection, Reply, streamed_text
from bench.prose import Prose
from bench.readings import cpu_seconds, memory, quantile

FILLER = "the tide comes in and the tide goes out, and the gate between them keeps the level of the basin. "
PATH = "/v1/chat/completions"


class Plan(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The turns to send. Sessions are named `label-0`, `label-1` and so on; each gets `turns` turns.

    The order is round robin over a window of `window` active sessions (0: all sessions), so `sessions` may be larger
    than the number that is active at a time.
    """

    url: str
    label: str
    sessions: int
    turns: int
    first: int = 0
    window: int = 0
    in_flight: int = 1
    warmup: int = 0
    stream_every: int = 0
    tool_every: int = 0
    tool: str = ""
    filler: int = 0
    words: int = 0
    """Words of prose in each message, different in each."""
    long_every: int = 0
    long_words: int = 0
    direct: bool = False
    ephemeral: bool = False
    prompt: str = ""
    model: str = "main"
    headers: dict[str, str] = {}
    watch: dict[str, int] = {}
    sample_every: int = 0
    sample: str = ""
    within: float = 600.0


class Sample(msgspec.Struct):
    """Memory (bytes) and CPU time (seconds since its start) of the sampled process after so many turns, and the CPU
    time of the driver."""

    turns: int
    rss: int
    anon: int
    cpu: float
    driver: float


class Result(msgspec.Struct, kw_only=True):
    """The result of a plan. Times are in seconds; `cpu` is by name of the watched process, over the measured turns."""

    turns: int
    seconds: float
    p50: float
    p95: float
    p99: float
    mean: float
    first_p50: float
    cpu: dict[str, float]
    driver_cpu: float
    samples: list[Sample]


class Wrong(Exception):
    """A wrong answer; ends the run."""


class Conversation:
    """One session from the client's point of view."""

    __slots__ = ("history", "name", "sent")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = 0
        self.history: list[dict[str, str]] = []


class Run:
    """One run of a plan. Owns its connections, one per turn in flight."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.base = {"Content-Type": "application/json", **plan.headers}
        self.prose = Prose(plan.first) if plan.words else None
        self.waiting: deque[Conversation] = deque()
        self.next_session = plan.first
        self.started = 0
        self.done = 0
        self.totals: list[float] = []
        self.firsts: list[float] = []
        self.samples: list[Sample] = []
        self.measured_from = 0.0
        self.cpu_from: dict[str, float] = {}
        self.own_from = 0.0

    def next(self) -> Conversation | None:
        plan = self.plan
        last = plan.first + plan.sessions
        if self.next_session < last and (plan.window == 0 or self.next_session - plan.first < plan.window):
            conversation = Conversation(f"{plan.label}-{self.next_session}")
            self.next_session += 1
            return conversation
        return self.waiting.popleft() if self.waiting else None

    def put_back(self, conversation: Conversation) -> None:
        conversation.sent += 1
        if conversation.sent < self.plan.turns:
            self.waiting.append(conversation)
        elif self.plan.window and self.next_session < self.plan.first + self.plan.sessions:
            self.waiting.append(Conversation(f"{self.plan.label}-{self.next_session}"))
            self.next_session += 1

    def text(self, conversation: Conversation, number: int) -> str:
        plan = self.plan
        said = (FILLER * 50)[: plan.filler]
        if self.prose is not None:
            is_long = plan.long_every > 0 and number % plan.long_every == plan.long_every // 2
            said = self.prose.text(plan.long_words if is_long else plan.words)
        text = f"Message {conversation.sent} of {conversation.name}: {said}"
        if plan.tool_every and number % plan.tool_every == plan.tool_every - 1:
            text += f" {plan.tool}"
        return text

    def request(self, conversation: Conversation, number: int) -> tuple[dict[str, str], bytes, bool]:
        plan = self.plan
        stream = plan.stream_every > 0 and number % plan.stream_every == 0
        message = {"role": "user", "content": self.text(conversation, number)}
        if plan.direct:
            if not conversation.history and plan.prompt:
                conversation.history.append({"role": "system", "content": plan.prompt})
            conversation.history.append(message)
            messages, headers = conversation.history, self.base
        else:
            messages = [message]
            headers = self.base if plan.ephemeral else {**self.base, "X-Session-Id": conversation.name}
        return headers, json.dumps({"model": plan.model, "messages": messages, "stream": stream}).encode(), stream

    def check(self, conversation: Conversation, reply: Reply, stream: bool) -> None:
        if reply.status != 200 or (stream and b"data: [DONE]" not in reply.body):
            raise Wrong(f"{self.plan.label}: status {reply.status}: {bytes(reply.body[:500])!r}")
        if self.plan.direct:
            whole = streamed_text(reply.body) if stream else json.loads(reply.body)["choices"][0]["message"]["content"]
            conversation.history.append({"role": "assistant", "content": whole})

    def begin_measuring(self) -> None:
        self.measured_from = time.perf_counter()
        self.cpu_from = {name: cpu_seconds(pid) for name, pid in self.plan.watch.items()}
        self.own_from = time.process_time()

    def finished(self, reply: Reply, number: int) -> None:
        plan = self.plan
        self.done += 1
        if number >= plan.warmup:
            self.totals.append(reply.ended - reply.sent)
            self.firsts.append(reply.first - reply.sent)
        if plan.sample_every and self.done % plan.sample_every == 0:
            pid = plan.watch[plan.sample]
            held = memory(pid)
            self.samples.append(Sample(self.done, held.rss, held.anon, cpu_seconds(pid), time.process_time()))

    async def flight(self) -> None:
        connection = await Connection.open(self.plan.url)
        try:
            while (conversation := self.next()) is not None:
                number = self.started
                self.started += 1
                if number == self.plan.warmup:
                    self.begin_measuring()
                headers, body, stream = self.request(conversation, number)
                reply = await connection.ask("POST", PATH, headers, body)
                self.check(conversation, reply, stream)
                self.finished(reply, number)
                self.put_back(conversation)
                if not connection.alive:
                    connection = await Connection.open(self.plan.url)
        finally:
            connection.close()

    async def go(self) -> Result:
        async with asyncio.timeout(self.plan.within), asyncio.TaskGroup() as group:
            for _ in range(self.plan.in_flight):
                group.create_task(self.flight())
        seconds = time.perf_counter() - self.measured_from
        cpu = {name: cpu_seconds(pid) - self.cpu_from[name] for name, pid in self.plan.watch.items()}
        return Result(
            turns=len(self.totals),
            seconds=seconds,
            mean=sum(self.totals) / len(self.totals),
            p50=quantile(self.totals, 0.5),
            p95=quantile(self.totals, 0.95),
            p99=quantile(self.totals, 0.99),
            first_p50=quantile(self.firsts, 0.5),
            cpu=cpu,
            driver_cpu=time.process_time() - self.own_from,
            samples=self.samples,
        )


def main() -> None:
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    try:
        result = asyncio.run(Run(plan).go())
    except* (Wrong, OSError, Broken) as failed:
        sys.exit(str(failed.exceptions[0]))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
