"""A gateway that runs out of connections or of file descriptors: it says so, stays small, and recovers."""

import contextlib
import http.client
import json
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gateway.process import WAIT, GatewayProcess, gateway, tidegate
from tidegate.gateway import ask

DESCRIPTORS = 96
FEW = 8
"""Fewer descriptors than every gateway has open."""
LOG_BYTES = 30_000
"""Of a gateway that was short of something for a while: some lines, no tracebacks in a loop."""


class Line:
    """One connection to a gateway."""

    def __init__(self, running: GatewayProcess) -> None:
        self._key = (running.home / "api-key").read_text().strip()
        self.connection = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=WAIT)
        self.connection.connect()

    def ask(self, path: str, body: Any = None) -> tuple[int, Any, Any]:
        """Status, headers and body of an answer."""
        headers = {"Authorization": f"Bearer {self._key}"}
        data = None if body is None else json.dumps(body)
        self.connection.request("GET" if body is None else "POST", path, body=data, headers=headers)
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, answer.headers, json.loads(text) if text[:1] == b"{" else text.decode()

    def follow(self, session: str) -> int:
        """Opens an event stream, which keeps the connection in use; the answer's status."""
        headers = {"Authorization": f"Bearer {self._key}"}
        self.connection.request("GET", f"/api/sessions/{session}/events", headers=headers)
        self._stream = self.connection.getresponse()
        return self._stream.status

    def close(self) -> None:
        self.connection.close()
        with contextlib.suppress(AttributeError):
            self._stream.close()


@contextlib.contextmanager
def line(running: GatewayProcess) -> Iterator[Line]:
    made = Line(running)
    try:
        yield made
    finally:
        made.close()


def until_ready(running: GatewayProcess) -> None:
    """Each look is a round trip on a new connection, so this does not spin."""
    for _ in range(20_000):
        with line(running) as look:
            status, _, found = look.ask("/healthz")
            if status == 200 and ask(running.home, {"do": "status"})["connections"]["open"] <= 1:
                return
    raise AssertionError(found)


def test_when_all_connections_are_in_use_the_gateway_says_so_and_recovers(tmp_path: Path) -> None:
    """L11, L21, L30: callers get 503 and when to come back, the operator is told why, and the log stays small."""
    with gateway(tmp_path / "home", descriptors=DESCRIPTORS) as running, contextlib.ExitStack() as streams:
        running.say("say hello", "talk")
        [session] = running.call("GET", "/api/sessions")["sessions"]
        most = ask(running.home, {"do": "status"})["connections"]["limit"]
        assert most < DESCRIPTORS
        for _ in range(most):
            assert streams.enter_context(line(running)).follow(session["id"]) == 200
        with line(running) as caller:
            status, headers, refused = caller.ask("/v1/chat/completions", {"model": "main", "messages": []})
        assert (status, refused["error"]["code"]) == (503, "too_many_connections")
        assert int(headers["Retry-After"]) >= 1 and headers["Connection"] == "close"
        with line(running) as operator:
            status, _, found = operator.ask("/readyz")
        assert status == 503
        assert f"all {most} connections are in use" in found["checks"]["connections"]["detail"]
        with line(running) as operator:
            status, _, metrics = operator.ask("/metrics")
        assert status == 200
        assert f"tidegate_connections_open {most + 1}.0" in metrics
        assert f"{most} of {most}; " in tidegate("status", home=running.home).stdout
        waiting = [streams.enter_context(line(running)) for _ in range(200)]
        for each in waiting:
            each.connection.sock.sendall(b"GET /healthz HTTP/1.1\r\n")  # never to be completed
        assert ask(running.home, {"do": "status"})["connections"]["open"] < DESCRIPTORS
        streams.close()
        until_ready(running)
        assert running.say("say again", "talk") == "again"
        assert running.log.stat().st_size < LOG_BYTES
        assert "Traceback" not in running.log.read_text()


def test_when_no_descriptor_is_left_the_gateway_answers_from_its_reserve_and_recovers(tmp_path: Path) -> None:
    """L08, L21, L30: the turn that runs goes on, status and stop work, and one line of the log tells of it."""
    words = "ebb and flow " * 10
    answers: list[str] = []
    with gateway(tmp_path / "home") as running, contextlib.ExitStack() as opened:
        caller = threading.Thread(target=lambda: answers.append(running.say(f"slow {words}", "talk")))
        caller.start()
        while not (before := ask(running.home, {"do": "status"}))["turns"]["running"]:
            pass
        resting = opened.enter_context(line(running))
        assert resting.ask("/v1/models")[0] == 200  # which uses nothing of the reserve
        limits = resource.prlimit(running.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (FEW, limits[1]))
        assert resting.ask("/readyz")[0] == 503
        status, headers, refused = resting.ask("/")
        assert (status, refused["error"]["code"]) == (503, "no_descriptors")
        assert int(headers["Retry-After"]) >= 1
        for _ in range(50):
            with line(running) as operator:
                status, _, found = operator.ask("/readyz")
            assert status == 503
            assert "no file descriptors are left: " in found["checks"]["connections"]["detail"]
            with line(running) as other:
                status, _, refused = other.ask("/v1/models")
            assert (status, refused["error"]["code"]) == (503, "too_many_connections")
        after = ask(running.home, {"do": "status"})["connections"]
        assert after["not_accepted"] - before["connections"]["not_accepted"] >= 100
        assert running.log.stat().st_size < LOG_BYTES
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, limits)
        caller.join(WAIT)
        assert [answer.strip() for answer in answers] == [words.strip()]
        assert running.say("say again", "talk") == "again"
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (FEW, limits[1]))
        assert tidegate("stop", home=running.home).returncode == 0
        assert running.wait() == 0
        log = running.log.read_text()
        assert log.count("connections cannot be accepted and are waiting: Too many open files") == 1
        assert log.count("connections are accepted again after") == 1
        assert "socket.accept()" not in log
