"""Taking over a home folder: one gateway after another, several at once, and from one that hangs or dies."""

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate
from tests.gateway.test_lock import HOLD, Holding
from tidegate.gateway import ask, holder_of
from tidegate.gateway.lock import TAKEOVER_NAME

ROUNDS = 2
AT_ONCE = 6
QUICK_STOP = "[limits]\nshutdown_seconds = 1\n"
TAKING_OVER = "is taking over this home folder"


class Load:
    """Messages sent without a pause to whichever gateway holds the home folder. `turns` were acknowledged."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(4)]
        self.turns: list[str] = []

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT)

    def _send(self, number: int) -> None:
        session: str | None = None
        while not self._stop.wait(0.002):
            holder = holder_of(self._home)
            if holder is None or not holder.address:
                continue
            body = {"text": f"say {number}", **({"session": session} if session else {"agent": "main"})}
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                accepted = called(self._home, holder.address, "/api/messages", body)
                self.turns.append(accepted["turn"])
                session = accepted["session"]


def called(home: Path, address: str, path: str, body: Any = None) -> Any:
    key = (home / "api-key").read_text().strip()
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(address + path, data=data, headers={"Authorization": f"Bearer {key}"}), timeout=WAIT) as reply:
        return json.loads(reply.read())


@contextlib.contextmanager
def starting(home: Path, *arguments: str, number: int = 1) -> Iterator[list[GatewayProcess]]:
    """So many gateways that start at once; whatever happens, they are gone afterwards."""
    started = [GatewayProcess(home, *arguments) for _ in range(number)]
    try:
        yield started
    finally:
        for each in started:
            each.end()


def home_of(tmp_path: Path, settings: str = QUICK_STOP) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(settings)
    return home


def rest_of(ended: GatewayProcess) -> str:
    """All that an ended gateway said on standard output."""
    assert ended.process.stdout is not None
    return "\n".join(ended.said) + ended.process.stdout.read().decode()


def test_of_several_concurrent_replacements_one_serves_and_the_others_say_why_not(tmp_path: Path) -> None:
    """F2: under load, nothing that was accepted is lost, and none waits for a time-out."""
    home = home_of(tmp_path)
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(gateway(home))
        refused = 0
        with Load(home) as load:
            for _ in range(ROUNDS):
                rivals = stack.enter_context(starting(home, "--replace", number=AT_ONCE))
                old, serving = serving, winner(rivals)
                assert old.wait() == 0
                for loser in rivals:
                    if loser is not serving:
                        # One that came after another was ready may have replaced that one.
                        was_ready = "ready http" in rest_of(loser)
                        assert loser.wait() == (0 if was_ready else 1)
                        refused += not was_ready
        said = serving.log.read_text()
        assert "Traceback" not in said and "locked" not in said
        sentences = [line for line in said.splitlines() if line.startswith("tidegate: ")]
        assert len(sentences) == refused > 0
        assert all(TAKING_OVER in line for line in sentences)
        assert load.turns
        for turn in load.turns:
            assert finished(serving, turn)["state"] == "answered"


def winner(rivals: list[GatewayProcess]) -> GatewayProcess:
    """The one that serves when all others have ended."""
    deadline = time.monotonic() + WAIT
    while len(running := [each for each in rivals if each.process.poll() is None]) > 1:
        assert time.monotonic() < deadline, "several are still running"
        os.sched_yield()
    [left] = running
    return left.wait_ready()


def finished(running: GatewayProcess, turn: str) -> Any:
    """The turn's outcome, once it has ended."""
    for _ in range(2000):
        found = running.call("GET", f"/api/turns/{turn}")
        if found["state"] not in ("queued", "running"):
            return found
    raise AssertionError("the turn did not end")


@pytest.mark.parametrize("arguments", [("--replace",), ()])
def test_a_replacement_during_another_one_is_refused_at_once(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """F2: one sentence that names the other, exit code 1; the old gateway goes on meanwhile."""
    home = home_of(tmp_path)
    with gateway(home) as old, Holding(home, HOLD.replace("sys.argv[1])", f"sys.argv[1]), {TAKEOVER_NAME!r}")) as other:
        run = tidegate("up", "--port", "0", *arguments, home=home)
        assert run.returncode == 1
        assert run.stderr.count("\n") == 1 and run.stdout == ""
        assert TAKING_OVER in run.stderr and f"pid {other.process.pid}" in run.stderr
        assert old.say("say still here") == "still here"


def test_after_kill_9_of_a_replacement_another_one_can_take_over(tmp_path: Path) -> None:
    """F2, F4: the claim dies with its holder; the turn of the old gateway, which is still stopping, goes on."""
    home = home_of(tmp_path, "[limits]\nshutdown_seconds = 60\n")
    words = "ebb and flow " * 16
    answers: list[str] = []
    with gateway(home) as old:
        caller = threading.Thread(target=lambda: answers.append(old.say(f"slow {words}", "talk")))
        caller.start()
        while not ask(home, {"do": "status"})["turns"]["running"]:
            os.sched_yield()
        with starting(home, "--replace") as [killed]:
            killed.until(f"^Taking over .*pid {old.pid}")
            assert tidegate("up", "--port", "0", "--replace", home=home).returncode == 1
        with gateway(home, "--replace") as new:
            assert old.wait() == 0
            caller.join(WAIT)
            # Asked a second time, it was not hurried: its caller has the whole answer.
            assert [answer.strip() for answer in answers] == [words.strip()]
            assert new.say("say after", "talk") == "after"


@pytest.mark.parametrize("ready", [True, False])
def test_a_gateway_that_hangs_is_killed_and_replaced(tmp_path: Path, ready: bool) -> None:
    """F2: stopped by SIGSTOP when it is ready, and while it starts."""
    home = home_of(tmp_path, "[limits]\nshutdown_seconds = 0.1\n")
    with starting(home) as [hanging]:
        if ready:
            hanging.wait_ready()
        while (holder := holder_of(home)) is None or not holder.pid:
            os.sched_yield()
        hanging.signal(signal.SIGSTOP)
        with gateway(home, "--replace") as new:
            assert hanging.wait() == -signal.SIGKILL
            assert any("is being killed; nothing it has accepted is lost" in line for line in new.said)
            assert new.say("say hello") == "hello"


def test_a_gateway_can_be_replaced_while_it_starts(tmp_path: Path) -> None:
    """F2: it ends in order, and the newer one serves."""
    home = home_of(tmp_path)
    with starting(home) as [old]:
        while (holder := holder_of(home)) is None or not holder.pid:
            os.sched_yield()
        with gateway(home, "--replace") as new:
            assert old.wait() == 0
            assert new.say("say hello") == "hello"
            assert "Traceback" not in new.log.read_text()


def test_stopping_a_waiting_replacement_frees_its_claim(tmp_path: Path) -> None:
    """F1, F2: Ctrl-C ends it at once, without waiting for the old gateway."""
    home = home_of(tmp_path, "[limits]\nshutdown_seconds = 60\n")
    with gateway(home) as old:
        caller = threading.Thread(target=_given_up, args=(old,))
        caller.start()
        while not ask(home, {"do": "status"})["turns"]["running"]:
            os.sched_yield()
        with starting(home, "--replace") as [waiting]:
            waiting.until("^Taking over ")
            waiting.signal(signal.SIGINT)
            assert waiting.wait() == 0
            assert holder_of(home, TAKEOVER_NAME) is None
            assert old.process.poll() is None
        old.signal(signal.SIGTERM)
        assert old.wait() == 0
        caller.join(WAIT)


def _given_up(running: GatewayProcess) -> None:
    """A turn of minutes whose reader goes away with the gateway."""
    with contextlib.suppress(OSError):
        running.say("slow " + "tide " * 5000, "talk")
