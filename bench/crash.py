"""The crash run: a gateway under load is killed with SIGKILL again and again, and must lose and repeat nothing.

Every message of a client is recorded before it is sent (tag, idempotency key, body), together with all responses of the
gateway to it (turn ids, answers). So the store's content at the end can be compared with what was promised. Kills
happen at random points, also during start; the same seed gives the same choices. The run ends only processes that it
started.
"""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.children import READY_WITHIN, Failed
from bench.http_client import Broken, Connection, Reply, events, streamed_text
from bench.subjects import Gateway

CHAT = "/v1/chat/completions"
MESSAGES = "/api/messages"
TRY_WITHIN = 20.0
"""Seconds for one attempt at one message: far longer than a turn, so that only a hang exceeds it."""
SETTLE_WITHIN = 90.0
AGAIN_AFTER = 0.02
EARLY = 0.25
"""The share of kills while the gateway is still starting."""
STARTING = 0.5
LIVING = (0.05, 0.7)
"""Seconds of a kill after the start (up to STARTING) or after `ready` (within LIVING)."""
KINDS = ("plain", "stream", "tool", "leave", "once", "message", "steer", "interrupt")
"""`once` has no session and can be found by its key alone. `message` goes to the page's endpoint, into a conversation
that is known by its id; half of these have no key, so the 202 is the only promise."""
INTO_A_TURN = ("steer", "interrupt")
"""Kinds that are only sent while another message is being answered."""
STREAMED = ("stream", "leave")
ENDED = ("answered", "failed", "stopped", "refused")


@dataclass
class Sent:
    """One message and all responses to it."""

    tag: str
    key: str
    """Empty: the message is sent only once, even if the attempt fails."""
    session: str | None
    """The name of its conversation, if it has one."""
    kind: str
    body: bytes = b""
    tries: int = 0
    turns: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    steered: bool = False
    stopped: bool = False
    """The gateway reported that the turn was stopped."""
    settled: bool = False
    """The client is done: it has its answer or acknowledgement, or has left on purpose."""

    @property
    def accepted(self) -> bool:
        return bool(self.turns)

    def heard(self, reply: Reply) -> None:
        turn = reply.headers.get("x-turn-id")
        if reply.status in (200, 202, 409) and turn and turn not in self.turns:
            self.turns.append(turn)


@dataclass(frozen=True)
class Load:
    """`tool` is the scripted model's directive for a call of one of the agent's tools."""

    sessions: int
    kills: int
    seed: int
    tool: str
    slow: tuple[int, int] = (1, 40)
    """Milliseconds between the pieces of the model's answers."""


class Target:
    """The current address of the gateway, if it is up."""

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
    """The clients, the killer and the record of one run."""

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
        self.pages: list[str | None] = [None] * load.sessions
        """By client: the id of its conversation at the page's endpoint, once known."""

    async def run(self) -> None:
        """Load and kills, then wait until every message is answered or was left on purpose and no turn is open."""
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
                raise Failed(f"the gateway ended without a kill: {self.gateway.last_words()}")
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
        """The client of one session: a message, sometimes two more before the first is answered."""
        choose = random.Random(self.load.seed * 1000 + number)
        session = f"crash-{number}"
        count = 0
        while not self.stopping:
            burst: list[Sent] = []
            for _ in range(choose.choice((1, 1, 2, 3))):
                kinds = KINDS if burst else [kind for kind in KINDS if kind not in INTO_A_TURN]
                burst.append(self.compose(number, f"<{session}.{count}>", choose.choice(kinds), choose))
                count += 1
            async with asyncio.TaskGroup() as group:
                for sent in burst:
                    group.create_task(self.deliver(sent, number))
                    await asyncio.sleep(choose.uniform(0, 0.03))

    def compose(self, number: int, tag: str, kind: str, choose: random.Random) -> Sent:
        words = [
            f"{tag} a {kind} message",
            f"[slow ms={choose.randint(*self.load.slow)}]",
            f"[say To {tag} I say yes.]",
        ]
        if kind == "tool":
            words.append(self.load.tool)
        keyless = kind == "message" and choose.random() < 0.5
        session = None if kind in ("once", "message") else f"crash-{number}"
        body = self.body(kind, " ".join(words), self.pages[number])
        sent = Sent(tag=tag, key="" if keyless else f"key-{tag}", session=session, kind=kind, body=body)
        self.sent.append(sent)
        return sent

    def body(self, kind: str, text: str, page: str | None) -> bytes:
        if kind == "message":
            return json.dumps({"text": text, "channel": "page", **({} if page is None else {"session": page})}).encode()
        asked = {"model": "main", "messages": [{"role": "user", "content": text}]}
        return json.dumps({**asked, "stream": kind in STREAMED}).encode()

    async def deliver(self, sent: Sent, number: int) -> None:
        """Send a message until it is known to be accepted, with the same key, like a client whose connection broke.
        Without a key that cannot be known, so there is one attempt."""
        while not sent.settled:
            url = await self.target.available()
            sent.tries += 1
            try:
                async with asyncio.timeout(TRY_WITHIN):
                    reply = await self.attempt(sent, url)
                if sent.kind == "message" and reply.status == 202:
                    self.pages[number] = json.loads(reply.body)["session"]
            except (OSError, Broken):
                sent.settled = not sent.key
                await asyncio.sleep(AGAIN_AFTER)
            except TimeoutError:
                self.problems.append(f"{sent.tag} ({sent.kind}) got no answer within {TRY_WITHIN:.0f} s")
                sent.settled = True

    async def attempt(self, sent: Sent, url: str) -> Reply:
        connection = await Connection.open(url)
        try:
            path = MESSAGES if sent.kind == "message" else CHAT
            reply = connection.begin("POST", path, self.headers(sent), sent.body)
            await reply.head
            sent.heard(reply)
            if sent.kind == "leave" and reply.status == 200:
                sent.settled = True
            else:
                await reply.end
                self.understand(sent, reply)
            return reply
        finally:
            connection.close()

    def understand(self, sent: Sent, reply: Reply) -> None:
        """Record what a complete response means for its message. A request to retry later changes nothing."""
        if reply.status == 202:
            sent.steered = sent.kind != "message"
            sent.settled = True
        elif reply.status == 409 and json.loads(reply.body)["error"]["code"] == "stopped":
            sent.stopped = sent.settled = True
        elif reply.status == 200 and sent.kind in STREAMED:
            if b"data: [DONE]" in reply.body:
                sent.answers.append(streamed_text(reply.body))
                sent.settled = True
            elif not any("error" in event for event in events(reply.body)):
                self.problems.append(f"{sent.tag}: a stream ended without its end mark and without an error")
        elif reply.status == 200:
            sent.answers.append(json.loads(reply.body)["choices"][0]["message"]["content"])
            sent.stopped = reply.headers.get("x-turn-state") == "stopped"
            sent.settled = True
        elif reply.status not in (429, 503):
            self.problems.append(f"{sent.tag}: status {reply.status}: {bytes(reply.body[:300])!r}")
            sent.settled = True

    def headers(self, sent: Sent) -> dict[str, str]:
        headers = {**self.gateway.headers, "Content-Type": "application/json"}
        if sent.key:
            headers["Idempotency-Key"] = sent.key
        if sent.session is not None:
            headers["X-Session-Id"] = sent.session
        if sent.kind in INTO_A_TURN:
            headers["X-Busy"] = sent.kind
        return headers

    # -- afterwards ----------------------------------------------------------------------------------------------------

    async def quiet(self) -> None:
        """Wait until no promised turn is open."""
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
        """A turn's state. An unknown turn is a problem, and counts as ended so that the run can continue."""
        reply = await connection.ask("GET", f"/api/turns/{turn}", self.gateway.headers)
        if reply.status != 200:
            self.problems.append(f"the turn {turn} was promised, and GET /api/turns says {reply.status}")
            return "refused"
        return str(json.loads(reply.body)["state"])

    async def ask_again(self) -> None:
        """Send every message once more under its key: the same turn and the same answer must be found. The answer to a
        message that was only acknowledged is fetched by its turn."""
        connection = await Connection.open(self.gateway.url)
        try:
            for sent in self.sent:
                if sent.key:
                    sent.settled = False
                    await self.attempt(sent, self.gateway.url)
                for turn in sent.turns if sent.kind == "message" else ():
                    sent.answers.append((await self.get(connection, f"/api/turns/{turn}"))["text"])
        finally:
            connection.close()


def run(gateway: Gateway, load: Load, say: Callable[[str], None]) -> CrashRun:
    """A complete crash run. Afterwards the gateway is down, and its files remain for the audit."""

    async def go() -> CrashRun:
        crash = CrashRun(gateway, load, say)
        await crash.run()
        return crash

    try:
        return asyncio.run(go())
    finally:
        gateway.kill()
