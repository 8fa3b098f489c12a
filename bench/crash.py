"""The crash run: a gateway under load is killed with SIGKILL again and again, and must lose and repeat nothing.

Guarantee of the run: every message that a client sends is written down before it is sent (its tag, its idempotency
key), and everything that the gateway ever said to it (turn ids, answers) beside it, so that what the store holds at the
end can be compared with what was promised. Kills fall at random points, during start too; the seed makes the same
choices again. The run ends only processes that it started.
"""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.children import READY_WITHIN, Failed
from bench.subjects import Gateway
from bench.wire import Broken, Connection, Reply, events, streamed_text

PATH = "/v1/chat/completions"
TRY_WITHIN = 20.0
"""One attempt at one message. Far longer than a turn, so that only a hang runs into it."""
SETTLE_WITHIN = 90.0
AGAIN_AFTER = 0.02
EARLY = 0.25
"""The part of kills that fall while the gateway is still starting."""
STARTING = 0.5
LIVING = (0.05, 0.7)
"""Seconds after its start, and after it was ready, in which a kill falls."""
KINDS = ("plain", "stream", "tool", "leave", "steer")
ENDED = ("answered", "failed", "stopped", "refused")


@dataclass
class Sent:
    """One message and all that was said about it."""

    tag: str
    key: str
    session: str
    kind: str
    text: str
    tries: int = 0
    turns: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    steered: bool = False
    settled: bool = False
    """Its client needs nothing more: it has its answer, its acknowledgement of steering, or has left on purpose."""

    @property
    def accepted(self) -> bool:
        return bool(self.turns)

    def heard(self, reply: Reply) -> None:
        turn = reply.headers.get("x-turn-id")
        if reply.status in (200, 202) and turn and turn not in self.turns:
            self.turns.append(turn)


@dataclass(frozen=True)
class Load:
    """`tool` is the scripted model's word for a call of a tool that the agent has."""

    sessions: int
    kills: int
    seed: int
    tool: str
    slow: tuple[int, int] = (1, 40)
    """Milliseconds that the model takes for each piece of an answer."""


class Target:
    """Where the gateway listens now, if it does."""

    def __init__(self) -> None:
        self.url = ""
        self._up = asyncio.Event()

    def is_at(self, url: str) -> None:
        self.url = url
        self._up.set()

    def gone(self) -> None:
        self._up.clear()

    async def available(self) -> str:
        await self._up.wait()
        return self.url


class CrashRun:
    """Clients, killer and record of one run."""

    def __init__(self, gateway: Gateway, load: Load, say: Callable[[str], None]) -> None:
        self.gateway = gateway
        self.load = load
        self.say = say
        self.target = Target()
        self.sent: list[Sent] = []
        self.kills = 0
        self.kills_early = 0
        self.stopping = False
        self.problems: list[str] = []

    async def run(self) -> None:
        """Load and kills, then quiet: every message has been answered or was left on purpose, and no turn is open."""
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(self.client(number)) for number in range(self.load.sessions)]
            await self.killer()
            self.stopping = True
            async with asyncio.timeout(SETTLE_WITHIN):
                await asyncio.wait(clients)
        async with asyncio.timeout(SETTLE_WITHIN):
            await self.quiet()
            await self.ask_again()
        await asyncio.to_thread(self.gateway.stop)

    # -- the killer ----------------------------------------------------------------------------------------------------

    async def killer(self) -> None:
        choose = random.Random(self.load.seed)
        while self.kills < self.load.kills:
            self.gateway.spawn()
            if choose.random() < EARLY:
                await asyncio.sleep(choose.uniform(0, STARTING))
                self.kills_early += 1
            else:
                await self.ready()
                await asyncio.sleep(choose.uniform(*LIVING))
            self.target.gone()
            if not self.gateway.running:
                raise Failed(f"the gateway ended by itself: {self.gateway.last_words()}")
            self.gateway.kill()
            self.kills += 1
            if self.kills % 10 == 0:
                self.say(f"{self.kills} of {self.load.kills} kills, {len(self.sent)} messages")
        self.gateway.spawn()
        await self.ready()

    async def ready(self) -> None:
        async with asyncio.timeout(READY_WITHIN):
            while not self.gateway.find_ready():
                await asyncio.sleep(0.005)
        self.target.is_at(self.gateway.url)

    # -- clients -------------------------------------------------------------------------------------------------------

    async def client(self, number: int) -> None:
        """One session's people: a message, sometimes a second and a third before the first is answered."""
        choose = random.Random(self.load.seed * 1000 + number)
        session = f"crash-{number}"
        count = 0
        while not self.stopping:
            burst: list[Sent] = []
            for _ in range(choose.choice((1, 1, 2, 3))):
                kind = choose.choice(KINDS if burst else KINDS[:-1])
                burst.append(self.compose(session, f"<{session}.{count}>", kind, choose))
                count += 1
            async with asyncio.TaskGroup() as group:
                for sent in burst:
                    group.create_task(self.deliver(sent))
                    await asyncio.sleep(choose.uniform(0, 0.03))

    def compose(self, session: str, tag: str, kind: str, choose: random.Random) -> Sent:
        words = [
            f"{tag} a {kind} message",
            f"[slow ms={choose.randint(*self.load.slow)}]",
            f"[say To {tag} I say yes.]",
        ]
        if kind == "tool":
            words.append(self.load.tool)
        sent = Sent(tag=tag, key=f"key-{tag}", session=session, kind=kind, text=" ".join(words))
        self.sent.append(sent)
        return sent

    async def deliver(self, sent: Sent) -> None:
        """Try until the message is known to be taken: with the same key, as a client that was cut off does."""
        while not sent.settled:
            url = await self.target.available()
            sent.tries += 1
            try:
                async with asyncio.timeout(TRY_WITHIN):
                    await self.attempt(sent, url)
            except (OSError, Broken):
                await asyncio.sleep(AGAIN_AFTER)
            except TimeoutError:
                self.problems.append(f"{sent.tag} ({sent.kind}) got no answer within {TRY_WITHIN:.0f} s")
                sent.settled = True

    async def attempt(self, sent: Sent, url: str) -> None:
        connection = await Connection.open(url)
        try:
            reply = connection.begin("POST", PATH, self.headers(sent), self.body(sent))
            await reply.head
            sent.heard(reply)
            if sent.kind == "leave" and reply.status == 200:
                sent.settled = True
                return
            await reply.end
            self.understand(sent, reply)
        finally:
            connection.close()

    def understand(self, sent: Sent, reply: Reply) -> None:
        """What a whole answer means for its message. One that says `try again` means nothing yet."""
        if reply.status == 202:
            sent.steered = sent.settled = True
        elif reply.status == 200 and sent.kind in ("stream", "leave"):
            if b"data: [DONE]" in reply.body:
                sent.answers.append(streamed_text(reply.body))
                sent.settled = True
            elif not any("error" in event for event in events(reply.body)):
                self.problems.append(f"{sent.tag}: a stream ended without its end mark and without an error")
        elif reply.status == 200:
            sent.answers.append(json.loads(reply.body)["choices"][0]["message"]["content"])
            sent.settled = True
        elif reply.status not in (429, 503):
            self.problems.append(f"{sent.tag}: status {reply.status}: {bytes(reply.body[:300])!r}")
            sent.settled = True

    def headers(self, sent: Sent) -> dict[str, str]:
        headers = {
            **self.gateway.headers,
            "Content-Type": "application/json",
            "X-Session-Id": sent.session,
            "Idempotency-Key": sent.key,
        }
        return {**headers, "X-Busy": "steer"} if sent.kind == "steer" else headers

    def body(self, sent: Sent) -> bytes:
        asked = {"model": "main", "messages": [{"role": "user", "content": sent.text}]}
        return json.dumps({**asked, "stream": sent.kind in ("stream", "leave")}).encode()

    # -- afterwards ----------------------------------------------------------------------------------------------------

    async def quiet(self) -> None:
        """Until no turn that was promised is open any more."""
        connection = await Connection.open(self.gateway.url)
        try:
            for turn in dict.fromkeys(turn for sent in self.sent for turn in sent.turns):
                while (await self.state(connection, turn)) not in ENDED:
                    await asyncio.sleep(AGAIN_AFTER)
            while True:
                status = await self.get(connection, "/api/status")
                if not status["turns"]["running"] and not status["turns"]["waiting"]:
                    return
                await asyncio.sleep(AGAIN_AFTER)
        finally:
            connection.close()

    async def get(self, connection: Connection, path: str) -> Any:
        reply = await connection.ask("GET", path, self.gateway.headers)
        return json.loads(reply.body) if reply.status == 200 else {}

    async def state(self, connection: Connection, turn: str) -> str:
        """A turn's state; one that nobody knows is a problem, and counts as ended so that the run can go on."""
        reply = await connection.ask("GET", f"/api/turns/{turn}", self.gateway.headers)
        if reply.status != 200:
            self.problems.append(f"the turn {turn} was promised, and GET /api/turns says {reply.status}")
            return "refused"
        return str(json.loads(reply.body)["state"])

    async def ask_again(self) -> None:
        """Every message once more under its key: the same turn, and the same answer, must be found."""
        for sent in self.sent:
            sent.settled = False
            await self.attempt(sent, self.gateway.url)


def run(gateway: Gateway, load: Load, say: Callable[[str], None]) -> CrashRun:
    """A whole crash run; the gateway is down afterwards, and its files are left for the audit."""

    async def go() -> CrashRun:
        crash = CrashRun(gateway, load, say)
        await crash.run()
        return crash

    try:
        return asyncio.run(go())
    finally:
        gateway.kill()
